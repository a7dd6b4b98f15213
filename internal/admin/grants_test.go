package admin

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/doortest"
)

// TestGrantPlan: a plan says what holds for a key, what would, and what a grant would replace; it
// changes nothing, and is not in the audit log. It fails where the grant would.
func TestGrantPlan(t *testing.T) {
	l, _, _ := doortest.NewLimiter(t, `
domain: shop
exempt: {ip: [10.0.0.0/8]}
limits:
  - {name: api, per: [user, ip], allow: [10/min, 500/hour], override: {"vip,192.0.2.9": 5/day}}
  - {name: search, per: [ip], allow: 30/min, ban: {after: 9, within: 1m, for: 1h}}
  - {name: trial, per: [ip], allow: 5/min, on_limit: shadow}
  - {name: free, when: {path: /free}, per: [ip], allow: unlimited}
  - {name: all, allow: 5/min}
`)
	var logged bytes.Buffer
	log := auditTo(t, &logged)
	h := New(l, Options{Audit: log})
	ask := func(status int, body string) (c GrantChange, text string) {
		t.Helper()
		a := onAdmin(h, "POST", grantsPath, body, "Content-Type", jsonText)
		if a.Status != status || json.Unmarshal([]byte(a.Body), &c) != nil {
			t.Fatalf("%s: %d %s, want %d", body, a.Status, a.Body, status)
		}
		return c, a.Body
	}
	c, text := ask(200, `{"plan": true, "limit": "api", "key": "user=ada, ip=192.0.2.9"}`)
	if c.Before != "[10/minute, 500/hour]" || c.Without != c.Before || c.Grant != nil || c.Replaced != nil || c.Shared != nil || c.Shadow || c.Ban != nil {
		t.Error(text)
	}
	c, text = ask(200, `{"plan": true, "limit": "search", "key": ["192.0.2.9"], "allow": "60 per minute", "for": "15m"}`)
	if c.Grant == nil || c.Grant.Allow != "60/minute" || c.Grant.Key[0] != "ip=192.0.2.9" || c.Grant.Left > 900e6 || c.Grant.Left < 800e6 || c.Before != "30/minute" {
		t.Error(text)
	}
	if n := len(l.Grants().List()); n != 0 {
		t.Errorf("%d grants by a plan", n)
	}
	ask(200, `{"limit": "search", "key": ["192.0.2.9"], "allow": "60 per minute", "for": "15m", "reason": "import"}`)
	c, text = ask(200, `{"plan": true, "limit": "search", "key": ["192.0.2.9"], "allow": "90/min"}`)
	if c.Replaced == nil || c.Replaced.Allow != "60/minute" || c.Replaced.Reason != "import" || c.Before != "60/minute" || c.Without != "30/minute" {
		t.Error(text)
	}
	if a := onAdmin(h, "POST", bansPath, `{"limit": "search", "key": ["192.0.2.9"], "for": "1h"}`, "Content-Type", jsonText); a.Status != 200 {
		t.Fatal(a.Body)
	}
	if c, text = ask(200, `{"plan": true, "limit": "search", "key": ["192.0.2.9"]}`); c.Ban == nil || c.Ban.Rule != "search" {
		t.Error(text)
	}
	if c, text = ask(200, `{"plan": true, "limit": "trial", "key": ["192.0.2.9"]}`); !c.Shadow || c.Before != "5/minute" {
		t.Error(text)
	}
	for _, allow := range []string{"unlimited", "60 per day"} { // in place of the override's numbers
		c, text = ask(200, `{"plan": true, "limit": "api", "key": "vip,192.0.2.9", "allow": "`+allow+`"}`)
		if c.Grant == nil || c.Before != "5/day" || c.Without != "5/day" {
			t.Error(text)
		}
	}
	if c, text = ask(200, `{"plan": true, "limit": "all"}`); c.Before != "5/minute" { // of all together
		t.Error(text)
	}
	for body, says := range map[string]string{
		`{"plan": true, "limit": "api", "key": "vip,192.0.2.9", "allow": "60/min"}`:      "which has 5/day for this key by an override; did you mean 60/day?",
		`{"plan": true, "limit": "search", "key": "10.1.2.3"}`:                           "is exempt in the domain",
		`{"plan": true, "limit": "search", "key": "ada"}`:                                "is not an address",
		`{"plan": true, "limit": "search"}`:                                              "keys of 1 part, not 0",
		`{"plan": true, "limit": "free", "key": "192.0.2.9"}`:                            "counts nothing",
		`{"plan": true, "limit": "search", "key": "192.0.2.9", "allow": "60/fortnight"}`: "unknown unit",
		`{"plan": true, "limit": "search", "key": "192.0.2.9", "for": "soon"}`:           "is not a duration",
		`{"limit": "search", "key": "192.0.2.9", "for": "1h"}`:                           "write it as in 1000/min, or 1000 per minute",
		`{"limit": "search", "key": "192.0.2.9", "allow": "60/min"}`:                     "give one of for and until",
	} {
		if _, text := ask(400, body); !strings.Contains(text, says) {
			t.Errorf("%s: %s, want %q", body, text, says)
		}
	}
	// A grant that the rules leave behind can be ended.
	ask(200, `{"limit": "api", "key": "eve,192.0.2.9", "allow": "60/min, 9/h", "for": "15m"}`)
	l.SetRules(doortest.Load(t, "domain: shop\nlimits: [{name: api, per: [user, ip], allow: 10/min, override: {\"eve,192.0.2.9\": 5/day}}]\n"))
	if a := onAdmin(h, "DELETE", grantsPath, `{"limit": "api", "key": "eve,192.0.2.9"}`, "Content-Type", jsonText); a.Status != 200 || !strings.Contains(a.Body, `"without": "5/day"`) {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	for method, path := range map[string]string{"POST": bansPath, "DELETE": grantsPath} {
		a := onAdmin(h, method, path, `{"plan": true, "limit": "search", "key": "192.0.2.9", "for": "1h"}`, "Content-Type", jsonText)
		if a.Status != 400 {
			t.Errorf("%s %s with plan: %d %s", method, path, a.Status, a.Body)
		}
	}
	_ = log.Close() // it has written all that it was told
	if made := strings.Count(logged.String(), "grant made"); made != 2 {
		t.Errorf("%d grants in the audit log:\n%s", made, logged.String())
	}
}
