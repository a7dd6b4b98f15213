package main

import (
	"encoding/json"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/admin"
	"github.com/weir-rl/weir/internal/testkit/servertest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

const leasedRules = `domain: shop
limits:
  - name: api
    per: [tenant]
    allow: 1000/hour
    algorithm: token_bucket
    consistency: { lease: 20%, for: 2m }
`

// TestLeasedKeys: operators see what is lent of a key: in the API, by weir keys and by weir
// explain, which also tell how the rule is decided.
func TestLeasedKeys(t *testing.T) {
	t.Chdir(t.TempDir())
	servertest.WriteRules(t, "shop.yaml", leasedRules)
	set, _, err := file.Load([]file.Source{{Name: "shop.yaml", Data: []byte(leasedRules)}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	servertest.BuiltProgram(t) // now, since a busy machine needs longer for it than units are lent
	// A store that has lent units in two generations, the older of which ends in almost two
	// minutes.
	now := time.Now().Add(-122 * time.Second)
	lender, err := memory.New(memory.Options{Snapshot: "counters", Clock: func() int64 { return now.UnixMicro() }})
	if err != nil {
		t.Fatal(err)
	}
	var m rule.Matches
	set.Match(&rule.Query{Domain: "shop", Attributes: rule.Map{"tenant": "acme"}}, &m)
	until := int64(0)
	for _, want := range []int64{80, 40} {
		h := &m.Hits[0]
		charges := []store.Charge{{Counter: h.Window.Counter, Limit: h.Limit, Key: h.Key, Ask: algo.Ask{Cost: 5}}}
		ahead := []algo.Ahead{{Want: want, First: true}}
		if _, _, err := lender.TakeAhead(t.Context(), 0, 0, charges, ahead, make([]algo.Result, 1)); err != nil ||
			ahead[0].Got != want {
			t.Fatalf("lent %d of %d: %v", ahead[0].Got, want, err)
		}
		until = ahead[0].Until
		now = now.Add(121 * time.Second)
	}
	if err := lender.Close(); err != nil {
		t.Fatal(err)
	}

	p := servertest.Start(t, "serve", "--rules=shop.yaml", "--snapshot-path=counters")
	defer p.End()
	server := "http://" + p.Addr("admin")
	p.Stderr.Await(t, `its lease has no effect: the counters live in the server itself`)
	status, _, body := servertest.Get(t, server+"/api/v1/keys?"+url.Values{"limit": {"api"}, "key": {"acme"}}.Encode())
	var list admin.KeyList
	if err := json.Unmarshal([]byte(body), &list); status != 200 || err != nil || len(list.Keys) != 1 {
		t.Fatalf("%d %s: %v", status, body, err)
	}
	end := time.UnixMicro(until).UTC()
	k := list.Keys[0]
	if k.Leased == nil || k.Leased.Units != 120 || k.Leased.Generations != 2 || !k.Leased.Until.Equal(end) ||
		k.Used < 120 || k.Used > 130 {
		t.Errorf("%s, want 120 until %s", body, end)
	}
	if !strings.Contains(strings.Join(strings.Fields(body), ""),
		`"leased":{"units":120,"generations":2,"until":"`+end.Format(time.RFC3339Nano)+`"}`) {
		t.Errorf("%s", body)
	}
	told := `leased: 120 \(2 generations\), until ` + end.Format(time.RFC3339)
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"keys", "show", "api", "acme"}, `shop/api +tenant=acme +12\d of 1000 .* passes, ` + told + "\n"},
		{[]string{"keys", "list", "api"}, `shop/api +tenant=acme .* passes, ` + told + "\n"},
		{[]string{"explain", "tenant=acme"}, `api +1000 per hour, burst 1000 \(token bucket\), up to 20 % of it leased for 2 min for tenant=acme\n +now: used 12\d of 1000.*; ` + told + `\n +consistency: servers decide by units that they are leased`},
		{[]string{"explain", "tenant=other"}, `now: nothing counted\n`},
	} {
		status, out, errs := servertest.RunBuilt(t, append(c.args, "--server="+server)...)
		if status != 0 || !regexp.MustCompile(c.says).MatchString(out) {
			t.Errorf("weir %s: %d %s%s\nwant %s", strings.Join(c.args, " "), status, out, errs, c.says)
		}
	}
	status, out, _ := servertest.RunBuilt(t, "explain", "--server="+server, "--json", "tenant=acme")
	var x explained
	if err := json.Unmarshal([]byte(out), &x); status != 0 || err != nil || x.Meets[0].Now.Leased == nil ||
		x.Meets[0].Now.Leased.Units != 120 {
		t.Errorf("%d %s: %v", status, out, err)
	}
}
