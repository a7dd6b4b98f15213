package admin

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/recent"
	"github.com/weir-rl/weir/internal/testkit/doortest"
)

// named has the keys of refuse wherever a Reader can have keys.
type named struct{ insight.Reader }

func (named) keys() []insight.KeyCount {
	return []insight.KeyCount{
		{Domain: "shop", Limit: "api", Key: "user=ada.lovelace", Count: 9}, {Domain: "shop", Limit: "pair", Key: "user=bob.brown,ip=198.51.100.8", Count: 7},
		{Domain: "shop", Limit: "api", Key: "ip=2001:db8:1:2::/64", Count: 1}, {Domain: "shop", Limit: "api", Key: "user=x,lovelace=1", Count: 1},
	}
}

func (n named) Keys(context.Context, insight.KeysQuery) ([]insight.KeyCount, insight.Nodes, error) {
	return n.keys(), insight.Nodes{Asked: 1, Answered: 1}, nil
}

func (n named) Rules(context.Context, string, time.Duration) ([]insight.RuleReport, insight.Nodes, error) {
	r, nodes, err := n.Rule(context.Background(), "shop", "api", 0)
	return []insight.RuleReport{*r}, nodes, err
}

func (n named) Rule(context.Context, string, string, time.Duration) (*insight.RuleReport, insight.Nodes, error) {
	return &insight.RuleReport{
		Domain: "shop", Name: "api", Limits: []string{}, Trend: []uint32{}, Verdicts: []insight.Verdict{}, Top: n.keys(), NearNow: n.keys(),
		By: map[string][]insight.Count{"path": {{Value: "/api/orders/of-ada", Count: 2}, {Value: "/api/orders/of-bob.", Count: 3}}, "door": {{Value: "http", Count: 5}}},
	}, insight.Nodes{Asked: 1, Answered: 1}, nil
}

// TestMasks: whoever sees keys masked sees no part of one at any endpoint, nor in the page's first
// snapshot; an operator sees them all.
func TestMasks(t *testing.T) {
	w := newWhole(t, nil)
	w.refuse(t)
	w.o.Insight = named{w.insight}
	for _, e := range w.routes {
		if !strings.HasPrefix(e.path, "/api/") || e.path == streamPath || !strings.Contains(e.methods, "GET") {
			continue
		}
		targets := map[string]string{
			"/api/v1/insight/rules/": "/api/v1/insight/rules/shop/api",
			"/api/v1/keys":           "/api/v1/keys?limit=pair",
			findPath:                 findPath + "?text=198.51.100",
		}
		target := e.path
		if other, ok := targets[e.path]; ok {
			target = other
		}
		for _, role := range []string{"viewer", "support"} {
			if a := w.as(role, "GET", target, ""); a.Status < 400 {
				tellsNothing(t, role+" at "+target, a.Body)
			}
		}
	}
	for target, want := range map[string]string{
		"/api/v1/insight/keys": "user=b…,ip=198.51.100.0/24", "/api/v1/insight/rules": "user=a…", "/api/v1/keys?limit=pair": "user=b…,ip=198.51.100.0/24",
		"/api/v1/bans": "ip=198.51.100.0/24", "/api/v1/grants": "user=d…", "/api/v1/decisions": "user=a…", "/api/v1/candidates": "user=a…",
		"/api/v1/insight/rules/shop/api": `"/api/…"`,
	} {
		if a := w.as("viewer", "GET", target, ""); a.Status != 200 || !strings.Contains(a.Body, want) {
			t.Errorf("a viewer at %s: %d %s, want %s", target, a.Status, a.Body, want)
		}
	}
	for target, want := range map[string]string{
		"/api/v1/insight/keys": "user=ada.lovelace", "/api/v1/keys?limit=pair": "user=bob.brown,ip=198.51.100.8", "/api/v1/bans": "carol.c", "/api/v1/decisions": "user=ada.lovelace",
	} {
		if a := w.as("operator", "GET", target, ""); a.Status != 200 || !strings.Contains(a.Body, want) {
			t.Errorf("an operator at %s: %d %s, want %s", target, a.Status, a.Body, want)
		}
	}
	// Support sees what it names.
	if a := w.as("support", "GET", "/api/v1/decisions?key=user=ada.lovelace", ""); a.Status != 200 ||
		!strings.Contains(a.Body, "user=ada.lovelace") || strings.Contains(a.Body, "bob") {
		t.Errorf("support, by key: %d %s", a.Status, a.Body)
	}
	var list DecisionList
	if err := json.Unmarshal([]byte(w.as("support", "GET", "/api/v1/decisions?key=user=ada.lovelace", "").Body), &list); err != nil || len(list.Decisions) == 0 {
		t.Fatalf("%v, %d decisions", err, len(list.Decisions))
	}
	if a := w.as("support", "GET", "/api/v1/decisions/"+list.Decisions[0].ID.String(), ""); a.Status != 200 ||
		!strings.Contains(a.Body, "user=ada.lovelace") {
		t.Errorf("support, by id: %d %s", a.Status, a.Body)
	}
	for _, role := range []string{"viewer", "support", "operator"} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Authorization", "Bearer "+role+"-token")
		session, first, ok := w.First(r)
		overview, rules := first()
		text, err := json.Marshal([]any{session, overview, rules})
		if err != nil || !ok || overview == nil || session.Role != role {
			t.Fatalf("%s: %v, %v, %s", role, ok, err, text)
		}
		if role == "operator" != strings.Contains(string(text), "ada.lovelace") {
			t.Errorf("the first snapshot of %s: %s", role, text)
		}
		if role != "operator" {
			tellsNothing(t, role+" in the first snapshot", string(text))
		}
	}
	if _, first, ok := w.First(httptest.NewRequest("GET", "/", nil)); ok || first != nil {
		t.Error("the first snapshot is for everybody")
	}
}

// TestMaskedRules: the conditions of rules name no client to those who see keys masked, in the list
// of rules and in the events of the overview.
func TestMaskedRules(t *testing.T) {
	w := newWhole(t, nil)
	changed := strings.Replace(seeRules, "kind: pair", "user: [ada.lovelace, \"!bob.brown\"], kind: pair", 1)
	changed = strings.Replace(changed, "name: trial,", "name: trial, if: \"attr.user != 'carol'\",", 1)
	set := doortest.Load(t, changed)
	w.limiter.SetRules(set)
	w.o.Insight = eventful{w.insight}
	for _, target := range []string{"/api/v1/rules", "/api/v1/insight"} {
		for _, role := range []string{"viewer", "support"} {
			a := w.as(role, "GET", target, "")
			if a.Status != 200 {
				t.Fatalf("%s: %d %s", target, a.Status, a.Body)
			}
			tellsNothing(t, role+" at "+target, a.Body)
		}
		if a := w.as("operator", "GET", target, ""); !strings.Contains(a.Body, "ada.lovelace") {
			t.Errorf("an operator at %s: %s", target, a.Body)
		}
	}
	a := strings.Join(strings.Fields(w.as("viewer", "GET", "/api/v1/rules", "").Body), "")
	for _, want := range []string{`"user":["a…","!b…"]`, `"kind":["pair"]`, `"path":["/api/**"]`, `"if":"…"`} {
		if !strings.Contains(a, want) {
			t.Errorf("a viewer misses %s in %s", want, a)
		}
	}
}

// eventful has a change of rules among its events, whose fields name clients.
type eventful struct{ insight.Reader }

func (e eventful) Overview(ctx context.Context, domain string, over time.Duration) (*insight.Overview, error) {
	o, err := e.Reader.Overview(ctx, domain, over)
	if err != nil {
		return nil, err
	}
	o.Events = []insight.Happening{{Kind: "rules"}}
	o.Events[0].Changes = []insight.RuleChange{{Domain: "shop", Rule: "api", Change: insight.Changed, Fields: []insight.FieldChange{
		{Field: "allow", Before: "1/min", After: "2/min"}, {Field: "descriptor", Before: "user=ada.lovelace", After: "user=bob.brown"},
		{Field: "when", After: "user eve.adams"}, {Field: "if", Before: "attr.user == 'carol'"}, {Field: "cost", After: "attr.user == 'dave' ? 1 : 2"},
	}}}
	return o, nil
}

func tellsNothing(t *testing.T, what, text string) {
	t.Helper()
	for _, secret := range secrets {
		if strings.Contains(text, secret) {
			t.Errorf("%s: %q is in %.1000s", what, secret, text)
		}
	}
}

// TestMaskedKeys: what a mask makes of keys that try to get through it.
func TestMaskedKeys(t *testing.T) {
	m := &mask{names: map[string]bool{"user": true, "ip": true, "user|ip": true}}
	for key, want := range map[string]string{
		"":                          "",
		"user=ada":                  "user=a…",
		"user=a":                    "user=…",
		"user=":                     "user=",
		"user=ü€":                   "user=ü…",
		"user=\xffsecret":           "user=…",
		"ip=198.51.100.7":           "ip=198.51.100.0/24",
		"ip=::ffff:198.51.100.7":    "ip=198.51.100.0/24",
		"ip=2001:db8:1:2:3::4":      "ip=2001:db8:1::/48",
		"ip=2001:db8:1:2::/64":      "ip=2001:db8:1::/48",
		"ip=fe80::1%eth0":           "ip=fe80::/48",
		"user=ada,ip=198.51.100.7":  "user=a…,ip=198.51.100.0/24",
		"user=ada,lovelace":         "user=a…,…",
		"user=ada,secret=lovelace":  "user=a…,…",
		"user|ip=ada":               "user|ip=a…",
		"secret":                    "…",
		"user=x,user=198.51.100.77": "user=…,user=198.51.100.0/24",
	} {
		if got := m.key(key); got != want {
			t.Errorf("%q: %q, want %q", key, got, want)
		}
	}
	for p, want := range map[string]string{"/login": "/login", "/users/ada": "/users/…", "/x?user=ada": "/x?…", "": "/",
		"/": "/"} {
		if got := path(p); got != want {
			t.Errorf("%q: %q, want %q", p, got, want)
		}
	}
	e := recent.Entry{Attributes: map[string]string{"method": "GET", "path": "/a/b", "user": "ada",
		"ip": "198.51.100.7"}}
	m.decision(&e)
	if e.Attributes["method"] != "GET" || e.Attributes["path"] != "/a/…" || e.Attributes["user"] != "a…" ||
		e.Attributes["ip"] != "198.51.100.0/24" {
		t.Errorf("%v", e.Attributes)
	}
}
