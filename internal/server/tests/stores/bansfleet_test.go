//go:build unix

package stores

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// TestBansOfFleet: a network that is banned everywhere in the domain on one node is refused by the
// others, and all nodes say how many requests the ban refused. A node that starts later says that
// there may be more.
func TestBansOfFleet(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	program, dir := servertest.BuiltProgram(t), t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "rules.yaml"), `
domain: shop
exempt: {ip: [198.51.100.9]}
limits:
  - {name: login, when: {path: /login}, per: [ip], allow: 100000/min}
  - {name: all, per: [ip], allow: 100000/min}
`)
	start := func() *servertest.Node {
		p := servertest.Launch(t, program, dir,
			append([]string{"serve", "--rules=rules.yaml", "--store=" + redis.URL()}, servertest.Patient...)...)
		return servertest.NodeOf(t, p.Stderr, p.Addr)
	}
	nodes := []*servertest.Node{start(), start()}
	for _, n := range nodes {
		n.AwaitNodes(2)
	}
	if status, out, errs := servertest.RunBuilt(t, "ban", "set", "login", "198.51.100.7/24", "--for=1h", "--scope=domain",
		"--server", nodes[0].Admin); status != 0 ||
		!strings.Contains(out, "shop/login ip=198.51.100.0/24") || !strings.Contains(out, "everywhere in the domain") {
		t.Fatalf("%d: %s%s", status, out, errs)
	}
	for i, n := range nodes {
		servertest.Eventually(t, "the ban holds", func() bool { return n.Ask("domain=shop&ip=198.51.100.1&path=/&hits=0") == 429 })
		for host := range 10 * (i + 1) {
			if got := n.Ask(fmt.Sprintf("domain=shop&ip=198.51.100.%d&path=/x", 100+host)); got != 429 {
				t.Errorf("node %d: %d", i, got)
			}
		}
		if a, b := n.Ask("domain=shop&ip=198.51.100.9&path=/"), n.Ask("domain=shop&ip=198.51.101.1&path=/"); a != 200 || b != 200 {
			t.Errorf("node %d: the exempt address %d, one of another network %d", i, a, b)
		}
	}
	listed := func(n *servertest.Node, says string) {
		t.Helper()
		servertest.Eventually(t, "the list says "+says, func() bool {
			status, out, errs := servertest.RunBuilt(t, "ban", "list", "--server", n.Admin)
			if status != 0 {
				t.Fatal(errs)
			}
			return strings.Contains(out, "shop/login  ip=198.51.100.0/24  domain  "+says+"  ")
		})
	}
	for _, n := range nodes {
		listed(n, "30")
	}
	late := start()
	for _, n := range append(nodes, late) {
		n.AwaitNodes(3)
	}
	late.AwaitBack() // and has the bans
	if got := late.Ask("domain=shop&ip=198.51.100.5&path=/x"); got != 429 {
		t.Errorf("a node that starts later: %d", got)
	}
	for _, n := range append(nodes, late) {
		listed(n, "at least 31")
	}
	if status, _, errs := servertest.RunBuilt(t, "ban", "lift", "login", "198.51.100.0/24", "--server", late.Admin); status != 0 {
		t.Fatal(errs)
	}
	for _, n := range nodes {
		servertest.Eventually(t, "the lift is known", func() bool { return n.Ask("domain=shop&ip=198.51.100.1&path=/") == 200 })
	}
}

// TestBannedIsNotBlamed: what bans refuse is told apart from what limits refuse, and a key that an
// operator has banned is no longer named, nor does its ban change what is said of the rules.
func TestBannedIsNotBlamed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "rules.yaml"), `
domain: shop
limits:
  - {name: search, when: {path: /search}, per: [user], allow: 5/hour, algorithm: sliding_log}
  - {name: cart, when: {path: /cart}, per: [user], allow: 100000/hour}
`)
	p := servertest.Start(t, "serve", "--rules="+dir)
	n := &struct{ http, admin string }{"http://" + p.Addr("http"), "http://" + p.Addr("admin")}
	ask := func(user, path string, times int) {
		t.Helper()
		for range times {
			servertest.Get(t, n.http+"/api/v1/limit?domain=shop&user="+user+"&path="+path)
		}
	}
	var o struct {
		Requests, Refused, Banned uint64
		Sentences                 []string
		Mentions                  []insight.Mention
	}
	var rules struct{ Rules []insight.RuleReport }
	var keys struct{ Keys []insight.KeyCount }
	read := func(path string, into any) {
		t.Helper()
		_, _, body := servertest.Get(t, n.admin+path)
		if err := json.Unmarshal([]byte(body), into); err != nil {
			t.Fatalf("%s: %v: %s", path, err, body)
		}
	}
	// await waits until all requests are counted.
	await := func(requests uint64) {
		t.Helper()
		servertest.Eventually(t, fmt.Sprintf("%d requests are counted", requests), func() bool {
			o.Mentions, keys.Keys = nil, nil
			read("/api/v1/insight?over=1h", &o)
			read("/api/v1/insight/rules?over=1h", &rules)
			read("/api/v1/insight/keys?by=refused&over=1h", &keys)
			return o.Requests == requests && len(keys.Keys) > 0
		})
	}
	ask("ada", "/search", 8)
	ask("eve", "/search", 45)
	await(53)
	sentences := strings.Join(o.Sentences, " ")
	if o.Refused != 43 || o.Banned != 0 || !strings.Contains(sentences, "hit user=eve") || strings.Contains(sentences, "Bans") {
		t.Errorf("before the ban: %+v", o)
	}
	if !slices.Contains(o.Mentions, insight.Mention{Text: "search", Kind: "rule", Domain: "shop", Name: "search"}) ||
		!slices.Contains(o.Mentions, insight.Mention{Text: "user=eve", Kind: "key", Domain: "shop", Name: "user=eve"}) {
		t.Errorf("mentions: %+v", o.Mentions)
	}
	if status, _, errs := servertest.RunBuilt(t, "ban", "set", "search", "eve", "--for=1h", "--scope=domain", "--server", n.admin); status != 0 {
		t.Fatal(errs)
	}
	ask("eve", "/search", 100)
	ask("eve", "/cart", 60)
	await(213)
	sentences = strings.Join(o.Sentences, " ")
	if o.Refused != 203 || o.Banned != 160 || strings.Contains(sentences, "eve") ||
		!strings.Contains(sentences, "Bans refused 160 of these, limits 43.") ||
		!strings.Contains(sentences, "refusals by limits were by search") {
		t.Errorf("after the ban: %+v", o)
	}
	if !slices.Contains(o.Mentions, insight.Mention{Text: "Bans refused 160 of these", Kind: "bans"}) {
		t.Errorf("mentions: %+v", o.Mentions)
	}
	for _, r := range rules.Rules {
		want := map[string][3]uint64{"search": {53, 43, 160}, "cart": {}}[r.Name]
		if r.Met != want[0] || r.Refused != want[1] || r.Banned != want[2] {
			t.Errorf("%s: met %d, refused %d, banned %d", r.Name, r.Met, r.Refused, r.Banned)
		}
	}
	for _, k := range keys.Keys {
		switch {
		case k.Key == "user=eve" && (k.Count != 40 || k.BannedUntil == nil || k.BannedBy == nil || !k.BannedBy.Wide), k.Key == "user=ada" && (k.Count != 3 || k.BannedUntil != nil):
			t.Errorf("%+v", k)
		}
	}
	p.End()
}
