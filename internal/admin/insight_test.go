package admin

import (
	"context"
	"encoding/json"
	"math"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/gather"
	"github.com/weir-rl/weir/rule"
)

// keysTold answers with keys as they appear in the lists of a rule.
type keysTold struct {
	insight.Reader
	keys []insight.KeyCount
}

func (c keysTold) Keys(context.Context, insight.KeysQuery) ([]insight.KeyCount, insight.Nodes, error) {
	return slices.Clone(c.keys), insight.Nodes{Asked: 1, Answered: 1}, nil
}

// Lists of keys say until when a key is banned, or granted another limit.
func TestKeysBannedAndGranted(t *testing.T) {
	w := newWhole(t, nil)
	until := time.Now().Add(time.Hour).Truncate(time.Second)
	for _, key := range [][]string{{"carol, c", "198.51.100.9"}, {"eve", "2001:db8::1"}} {
		if _, err := w.limiter.Bans().Set(t.Context(), "shop", "pair", key, until, ""); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.limiter.Bans().Set(t.Context(), "shop", "api", []string{"a, ip=b"}, until, ""); err == nil {
		t.Fatal("a value with = needs its name")
	}
	if _, err := w.limiter.Grants().Set(t.Context(), "shop", "api", []string{"user=dave, d"}, "9/hour", until, ""); err != nil {
		t.Fatal(err)
	}
	none := insight.KeyCount{Domain: "shop", Rule: "api"}
	w.o.Insight = keysTold{w.insight, []insight.KeyCount{
		{Domain: "shop", Rule: "pair", Key: "user=carol, c, ip=198.51.100.9"},
		{Domain: "shop", Rule: "pair", Key: "user=eve, ip=2001:db8::/64"},
		{Domain: "shop", Rule: "api", Key: "user=dave, d"},
		{Domain: "shop", Rule: "pair", Key: "user=carol, c"}, none, {Domain: "gone", Rule: "api", Key: "user=dave, d"},
	}}
	for _, path := range []string{"/api/v1/insight/keys", "/api/v1/keys?limit=pair"} {
		var got struct{ Keys, Refused []insight.KeyCount }
		a := w.as("operator", "GET", path, "")
		_ = json.Unmarshal([]byte(a.Body), &got)
		list := got.Keys
		if strings.Contains(path, "limit") {
			list = got.Refused
		}
		if len(list) != 6 {
			t.Fatalf("%s: %d %s", path, a.Status, a.Body)
		}
		for i, k := range list {
			banned, granted := k.BannedUntil != nil && k.BannedUntil.Equal(until),
				k.GrantedUntil != nil && k.GrantedUntil.Equal(until)
			if banned != (i < 2) || granted != (i == 2) {
				t.Errorf("%s: %s of %s is banned until %v and granted until %v", path, k.Key, k.Rule, k.BannedUntil,
					k.GrantedUntil)
			}
		}
	}
	// Both parts of a key are masked, and tell what they are of.
	if a := w.as("viewer", "GET", "/api/v1/insight/keys", ""); !strings.Contains(a.Body,
		`"user=e…, ip=2001:db8::/48"`) || strings.Contains(a.Body, "carol") {
		t.Error(a.Body)
	}
}

// The report of a rule lists the paths of its refusals, or of the requests that it would refuse in
// shadow.
func TestRuleReportByPath(t *testing.T) {
	w := newWhole(t, nil)
	w.refuse(t)
	for range 2 {
		w.decide(t, rule.Map{"user": "ada.lovelace", "path": "/api/a", "ip": "198.51.100.7"})
	}
	paths := func(role, rule string) []insight.Count {
		t.Helper()
		var r insight.RuleReport
		a := w.as(role, "GET", "/api/v1/insight/rules/shop/"+rule, "")
		if err := json.Unmarshal([]byte(a.Body), &r); err != nil || a.Status != 200 {
			t.Fatalf("%d %s: %v", a.Status, a.Body, err)
		}
		if _, have := r.By["door"]; !have {
			t.Error("there is no door any more")
		}
		return r.By["path"]
	}
	x, ada, orders := "/api/x", "/api/a", "/api/orders/of-ada"
	for _, c := range []struct {
		role, rule string
		want       []insight.Count
	}{
		{"operator", "api", []insight.Count{{Value: x, Count: 4}, {Value: ada, Count: 2}, {Value: orders, Count: 1}}},
		{"viewer", "api", []insight.Count{{Value: "/api/…", Count: 7}}},
		{"operator", "trial", []insight.Count{{Value: x, Count: 5}, {Value: ada, Count: 2}, {Value: orders, Count: 2}}},
		{"operator", "pair", nil}, // it looks at no path
	} {
		if got := paths(c.role, c.rule); !slices.Equal(got, c.want) {
			t.Errorf("%s of %s: %v, want %v", c.role, c.rule, got, c.want)
		}
	}
}

// unwritable answers with a time that JSON cannot hold.
type unwritable struct{ *gather.Collector }

func (unwritable) Overview(context.Context, string, time.Duration) (*insight.Overview, error) {
	return &insight.Overview{P99: math.Inf(1)}, nil
}

// TestUnwritable: what cannot be written is an error, and no empty answer.
func TestUnwritable(t *testing.T) {
	w := newWhole(t, func(o *Options) { o.Insight = unwritable{gather.New(gather.Options{})} })
	r := httptest.NewRequest("GET", "http://127.0.0.1:6070/api/v1/insight", nil)
	r.Header.Set("Authorization", "Bearer viewer-token")
	out := httptest.NewRecorder() // no description speaks of defects
	w.ServeHTTP(out, r)
	if out.Code != 500 || !strings.Contains(out.Body.String(), "the answer cannot be written") ||
		!strings.Contains(out.Body.String(), "+Inf") {
		t.Errorf("%d %q", out.Code, out.Body)
	}
}
