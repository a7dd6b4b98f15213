package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/door/auth"
	"github.com/weir-rl/weir/internal/testkit/doortest"
	"github.com/weir-rl/weir/rule"
)

const jsonText = "application/json"

// listedOf asks for a list of bans or grants.
func listedOf[T any](t *testing.T,
	h func(method, target, body string, headers ...string) doortest.Answer, path, name string) []T {
	t.Helper()
	a := h("GET", path, "")
	var got map[string]json.RawMessage
	var list []T
	if err := json.Unmarshal([]byte(a.Body), &got); err != nil || a.Status != 200 {
		t.Fatalf("GET %s: %d %s: %v", path, a.Status, a.Body, err)
	}
	if err := json.Unmarshal(got[name], &list); err != nil {
		t.Fatalf("GET %s: %s: %v", path, a.Body, err)
	}
	return list
}

func TestAdminBans(t *testing.T) {
	var logged bytes.Buffer
	l, _, _ := doortest.NewLimiter(t, doortest.ShopRules)
	h := New(l, Options{Audit: auditTo(t, &logged)})
	ask := func(method, target, body string, headers ...string) doortest.Answer {
		return onAdmin(h, method, target, body, append([]string{"Content-Type", jsonText}, headers...)...)
	}
	refused := func(user string) bool {
		t.Helper()
		var d weir.Decision
		if err := l.Decide(t.Context(), &weir.Request{Domain: "shop", Attributes: rule.Map{"user": user, "path": "/api/x"}, Peek: true}, &d); err != nil {
			t.Fatal(err)
		}
		return !d.Allowed
	}
	a := ask("POST", bansPath,
		`{"domain": "shop", "limit": "api-per-user", "key": ["ada,b"], "for": "1h", "reason": "abuse\nline"}`)
	if a.Status != 200 || !strings.Contains(a.Body, `"shared": true`) || !refused("ada,b") || refused("bob") {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	until := time.Now().Add(2 * time.Hour).UTC().Truncate(time.Second).Format(time.RFC3339)
	if a := ask("POST", bansPath, `{"limit": "api-per-user", "domain": "shop", "key": "user=bob", "until": "`+until+`"}`); a.Status != 200 || !refused("bob") {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	bans := listedOf[listedBanText](t, ask, bansPath, "bans")
	if len(bans) != 2 || bans[0].Key[0] != "user=bob" || bans[0].Until.Format(time.RFC3339) != until ||
		bans[1].Reason != "abuse\nline" || !bans[1].Manual ||
		bans[0].Left < 7100 || bans[0].Left > 7200 {
		t.Fatalf("%+v", bans)
	}
	for query, want := range map[string]int{"?domain=shop": 2, "?domain=other": 404, "?limit=api-per-user": 2,
		"?limit=x": 404, "?n=1": 1, "?limit=two": 0,
		"?limit=shop/api-per-user": 2, "?limit=other/api-per-user": 404, "?domain=shop&limit=shop/api-per-user": 404} {
		if want == 404 {
			if a := ask("GET", bansPath+query, ""); a.Status != 404 ||
				!strings.Contains(a.Body, "there are shop") && !strings.Contains(a.Body, "no rule in force") {
				t.Errorf("%s: %d %s", query, a.Status, a.Body)
			}
			continue
		}
		if got := listedOf[listedBanText](t, ask, bansPath+query, "bans"); len(got) != want {
			t.Errorf("%s: %d bans, want %d", query, len(got), want)
		}
	}
	if a := ask("DELETE", bansPath+"?domain=shop&limit=api-per-user&key=bob&reason=mistake", ""); a.Status != 200 ||
		refused("bob") {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	if a := ask("DELETE", bansPath, `{"domain": "shop", "limit": "api-per-user", "key": ["ada,b"]}`); a.Status != 200 ||
		refused("ada,b") {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	if a := ask("DELETE", bansPath, `{"domain": "shop", "limit": "api-per-user", "key": ["ada,b"]}`); a.Status != 404 {
		t.Errorf("lifted twice: %d %s", a.Status, a.Body)
	}
	lines := strings.Split(strings.TrimSpace(logged.String()), "\n")
	if len(lines) != 4 {
		t.Fatalf("audit:\n%s", logged.String())
	}
	for i, want := range []string{
		`msg="audit: ban set" peer=127.0.0.1 domain=shop limit=api-per-user key=user=ada,b reason="abuse\nline" after="{\"until\":`, `msg="audit: ban set"`,
		`msg="audit: ban lifted" peer=127.0.0.1 domain=shop limit=api-per-user key="user=bob" reason=mistake before="{\"until\":\"` + until, `msg="audit: ban lifted"`,
	} {
		if !strings.Contains(lines[i], strings.ReplaceAll(want, "key=user=ada,b", `key="user=ada,b"`)) {
			t.Errorf("line %d is %s\nwant %s", i, lines[i], want)
		}
	}
}

// listedBanText is a listedBan as it is read.
type listedBanText struct {
	weir.Ban
	Left float64
}

func TestAdminBansRefuses(t *testing.T) {
	l, _, _ := doortest.NewLimiter(t, doortest.ShopRules)
	var logged bytes.Buffer
	h := New(l, Options{Audit: auditTo(t, &logged)})
	for _, c := range []struct {
		method, target, body string
		status               int
		field                string
	}{
		{"POST", bansPath, `{"domain": "shop", "limit": "api-per-user", "key": "ada"}`, 400, "for"},
		{"POST", bansPath, `{"domain": "shop", "limit": "api-per-user", "key": "ada", "for": "1h", "until": "2036-01-01T00:00:00Z"}`, 400, "for"},
		{"POST", bansPath, `{"domain": "shop", "limit": "api-per-user", "key": "ada", "for": "-1h"}`, 400, "for"},
		{"POST", bansPath, `{"domain": "shop", "limit": "api-per-user", "key": "ada", "for": "367d"}`, 400, "for"},
		{"POST", bansPath, `{"domain": "shop", "limit": "api-per-user", "key": "ada", "for": "10"}`, 400, "for"},
		{"POST", bansPath, `{"domain": "shop", "limit": "api-per-user", "key": "ada", "until": "tomorrow"}`, 400, "until"},
		{"POST", bansPath, `{"domain": "shop", "limit": "api-per-user", "key": "ada", "until": "2001-01-01T00:00:00Z"}`, 400, ""},
		{"POST", bansPath, `{"domain": "shop", "limit": "api-per-user", "key": "ada", "until": "9001-01-01T00:00:00Z"}`, 400, "until"},
		{"POST", bansPath, `{"domain": "shop", "key": "ada", "for": "1h"}`, 400, "limit"},
		{"POST", bansPath, `{"domain": "shop", "limit": "nothing", "key": "ada", "for": "1h"}`, 404, "limit"},
		{"POST", bansPath, `{"domain": "nowhere", "limit": "api-per-user", "key": "ada", "for": "1h"}`, 404, "limit"},
		{"POST", bansPath, `{"domain": "shop", "limit": "api-per-user", "key": ["ada", "x"], "for": "1h"}`, 400, ""},
		{"POST", bansPath, `{"domain": "shop", "limit": "api-per-user", "key": 7, "for": "1h"}`, 400, "key"},
		{"POST", bansPath, `{"domain": "shop", "limit": "api-per-user", "key": "ada", "for": 60}`, 400, "for"},
		{"POST", bansPath, `{"domain": "shop", "limit": ["api-per-user"], "key": "ada", "for": "1h"}`, 400, "limit"},
		{"POST", bansPath, `[]`, 400, "body"},
		{"POST", bansPath, `"x"`, 400, "body"},
		{"POST", bansPath, `{"domain": `, 400, "body"},
		{"POST", bansPath, `{"domain": "shop", "limit": "api-per-user", "key": "ada", "for": "1h", "wide": true}`, 400, "wide"},
		{"POST", bansPath, `{"domain": "shop", "limit": "api-per-user", "key": "ada", "for": "1h", "allow": "1/min"}`, 400, "allow"},
		{"POST", bansPath, `{"domain": "shop", "limit": "api-per-user", "key": "ada", "for": "1h"} {}`, 400, "body"},
		{"POST", bansPath, ``, 400, "body"},
		{"POST", bansPath, `{"reason": "` + strings.Repeat("x", maxChange) + `"}`, 413, "body"},
		{"PUT", bansPath, `{}`, 405, ""},
		{"DELETE", bansPath, ``, 400, "limit"},
		{"DELETE", bansPath, ` {} `, 400, "limit"},
		{"DELETE", bansPath + "?limit=api-per-user&key=ada", `{ }`, 404, "key"},
		{"DELETE", bansPath + "?limit=api-per-user&key=ada", `null`, 404, "key"},
		{"DELETE", bansPath + "?limit=api-per-user&key=ada", `{"key": "ada"}`, 400, "key"},
		{"DELETE", bansPath + "?limit=api-per-user&user=ada", ``, 400, "user"},
		{"DELETE", bansPath + "?limit=%zz", ``, 400, ""},
		{"GET", bansPath + "?n=0", ``, 400, "n"},
		{"POST", grantsPath, `{"domain": "shop", "limit": "api-per-user", "key": "ada", "for": "1h"}`, 400, "allow"},
		{"POST", grantsPath, `{"domain": "shop", "limit": "api-per-user", "key": "ada", "for": "1h", "allow": "1/year"}`, 400, ""},
		{"DELETE", grantsPath + "?domain=shop&limit=api-per-user&key=ada", ``, 404, "key"},
	} {
		a := onAdmin(h, c.method, c.target, c.body, "Content-Type", jsonText)
		var problem struct{ Detail, Field string }
		if err := json.Unmarshal([]byte(a.Body), &problem); err != nil || a.Status != c.status ||
			problem.Field != c.field || problem.Detail == "" {
			t.Errorf("%s %s %.90s: %d %s", c.method, c.target, c.body, a.Status, a.Body)
		}
	}
	if len(l.Bans().List())+len(l.Grants().List()) != 0 || logged.Len() > 0 {
		t.Errorf("something was changed: %s", logged.String())
	}
	good := `{"domain": "shop", "limit": "api-per-user", "key": "ada", "for": "1h"}`
	for name, headers := range map[string][]string{
		"a form":         {"Content-Type", "text/plain"},
		"another origin": {"Content-Type", jsonText, "Origin", "https://evil.example"},
	} {
		if a := onAdmin(h, "POST", bansPath, good, headers...); a.Status != 415 && a.Status != 403 {
			t.Errorf("%s: %d", name, a.Status)
		}
	}
	file := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(file, []byte("sesame-open-4711\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var tokens auth.Tokens
	if err := tokens.Load(file); err != nil {
		t.Fatal(err)
	}
	h = New(l, Options{Tokens: &tokens, Audit: auditTo(t, &logged)})
	if a := onAdmin(h, "POST", bansPath, good, "Content-Type", jsonText); a.Status != 401 {
		t.Errorf("without a token: %d", a.Status)
	}
	if a := onAdmin(h, "POST", bansPath, good, "Authorization", "Bearer sesame-open-4711"); a.Status != 200 {
		t.Errorf("with a token: %d %s", a.Status, a.Body)
	}
	if text := logged.String(); !strings.Contains(text, "who=sha256:40454096 role=admin") ||
		strings.Contains(text, "sesame") {
		t.Errorf("audit: %s", text)
	}
}

func TestAdminGrants(t *testing.T) {
	var logged bytes.Buffer
	l, _, _ := doortest.NewLimiter(t, doortest.ShopRules)
	h := New(l, Options{Audit: auditTo(t, &logged)})
	ask := func(method, target, body string, headers ...string) doortest.Answer {
		return onAdmin(h, method, target, body, append([]string{"Content-Type", jsonText}, headers...)...)
	}
	spend(t, l, 10, rule.Map{"user": "ada", "path": "/api/x"})
	a := ask("POST", grantsPath,
		`{"domain": "shop", "limit": "api-per-user", "key": "ada", "for": "2d", "allow": "{rate: 10/min, burst: 30}", "reason": "import"}`)
	if a.Status != 200 {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	spend(t, l, 20, rule.Map{"user": "ada", "path": "/api/x"})
	grants := listedOf[weir.Grant](t, ask, grantsPath+"?domain=shop", "grants")
	if len(grants) != 1 || grants[0].Allow != "{rate: 10/min, burst: 30}" || grants[0].Reason != "import" ||
		time.Until(grants[0].Until) < 47*time.Hour {
		t.Errorf("%+v", grants)
	}
	if a := ask("DELETE", grantsPath, `{"domain": "shop", "limit": "api-per-user", "key": ["ada"]}`); a.Status != 200 {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	if len(l.Grants().List()) != 0 {
		t.Error("it was not revoked")
	}
	if text := logged.String(); !strings.Contains(text, "audit: grant made") ||
		!strings.Contains(text, `\"allow\":\"{rate: 10/min, burst: 30}\"`) ||
		!strings.Contains(text, "audit: grant revoked") {
		t.Errorf("audit: %s", text)
	}
}

// A change that could not be told to the other nodes is in force here, and says so.
func TestAdminBansNotShared(t *testing.T) {
	for _, err := range []error{errors.Join(weir.ErrNotShared, errors.New("away"))} {
		w := httptest.NewRecorder()
		if warning, ok := outcomeOf(w, err); !ok || !strings.Contains(warning, "away") {
			t.Errorf("%v: %q, %v", err, warning, ok)
		}
		answerChange(w, "away", nil)
		if w.Code != 202 || !strings.Contains(w.Body.String(), `"shared": false`) {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	}
}

// TestRulesMeant: a list of bans is asked for with the names of rules and windows, alone and behind
// the domain.
func TestRulesMeant(t *testing.T) {
	l, _, _ := doortest.NewLimiter(t,
		"domain: shop\nlimits: [{ name: api, per: [user], allow: [10/min, 500/hour], override: { acme: [7/min, 9/day] } }]\n")
	set, _ := l.Rules()
	for _, c := range []struct {
		domain, limit, ofDomain, ofRule string
		want                            bool
	}{
		{"", "", "shop", "api", true},
		{"", "api", "shop", "api", true},
		{"", "shop/api", "shop", "api", true},
		{"shop", "api", "shop", "api", true},
		{"", "api:60s", "shop", "api", true},
		{"", "shop/api:3600s", "shop", "api", true},
		{"shop", "api:60s", "shop", "api", true},
		{"", "api:61s", "shop", "api", false},
		{"other", "api", "shop", "api", false},
		{"other", "api:60s", "shop", "api", false},
		{"", "other/api:60s", "shop", "api", false},
		{"shop", "shop/api", "shop", "api", false},
		{"", "shop/gone", "shop", "gone", true}, // a rule that is not in force
		{"", "api:60s", "shop", "gone", false},
	} {
		if got := rulesMeant(set, c.domain, c.limit)(c.ofDomain, c.ofRule); got != c.want {
			t.Errorf("domain %q and limit %q mean %s/%s: %v", c.domain, c.limit, c.ofDomain, c.ofRule, got)
		}
	}
	if !rulesMeant(nil, "", "shop/api")("shop", "api") {
		t.Error("without rules a ban is not found by its name")
	}
}

// A ban by hand says where it holds, and the list what each has refused.
func TestAdminBanScope(t *testing.T) {
	var logged bytes.Buffer
	l, _, _ := doortest.NewLimiter(t, `
domain: shop
limits:
  - {name: login, when: {path: /login}, per: [ip], allow: 1000/min}
  - {name: all, per: [ip], allow: 1000/min}
`)
	h := New(l, Options{Audit: auditTo(t, &logged)})
	ask := func(method, target, body string, headers ...string) doortest.Answer {
		return onAdmin(h, method, target, body, append([]string{"Content-Type", jsonText}, headers...)...)
	}
	passes := func(ip, path string) bool {
		t.Helper()
		var d weir.Decision
		if err := l.Decide(t.Context(), &weir.Request{Domain: "shop", Attributes: rule.Map{"ip": ip, "path": path}}, &d); err != nil {
			t.Fatal(err)
		}
		return d.Allowed
	}
	for _, c := range []struct{ body, field string }{
		{`{"limit": "login", "key": ["192.0.2.1"], "for": "1h", "scope": "world"}`, "scope"},
		{`{"limit": "login", "key": ["192.0.0.0/8"], "for": "1h"}`, ""},
	} {
		if a := ask("POST", bansPath, c.body); a.Status != 400 || !strings.Contains(a.Body, c.field) {
			t.Errorf("%s: %d %s", c.body, a.Status, a.Body)
		}
	}
	if a := ask("POST", grantsPath, `{"limit": "login", "key": ["192.0.2.1"], "for": "1h", "allow": "5/min", "scope": "domain"}`); a.Status != 400 || !strings.Contains(a.Body, "scope") {
		t.Errorf("a grant with a scope: %d %s", a.Status, a.Body)
	}
	if a := ask("DELETE", bansPath, `{"limit": "login", "key": ["192.0.2.1"], "scope": "domain"}`); a.Status != 400 {
		t.Errorf("a lift with a scope: %d %s", a.Status, a.Body)
	}
	for _, c := range []struct{ key, scope string }{{"192.0.2.1", "domain"}, {"192.0.2.2", "rule"}, {"192.0.2.3", ""},
		{"198.51.100.0/24", "domain"}} {
		a := ask("POST", bansPath, `{"limit": "login", "key": ["`+c.key+`"], "for": "1h", "scope": "`+c.scope+`"}`)
		if a.Status != 200 || strings.Contains(a.Body, `"wide": true`) != (c.scope == "domain") {
			t.Fatalf("%+v: %d %s", c, a.Status, a.Body)
		}
	}
	if !strings.Contains(logged.String(), `\"wide\":true`) {
		t.Errorf("the audit does not say where it holds: %s", logged.String())
	}
	for range 3 {
		if passes("192.0.2.1", "/") || !passes("192.0.2.2", "/") || !passes("192.0.2.3", "/") || passes("198.51.100.7", "/") {
			t.Fatal("a ban holds elsewhere than the operator said")
		}
	}
	passes("198.51.100.8", "/")
	want := map[string]uint64{"ip=192.0.2.1": 3, "ip=192.0.2.2": 0, "ip=192.0.2.3": 0, "ip=198.51.100.0/24": 4}
	for _, b := range listedOf[ListedBan](t, ask, bansPath, "bans") {
		if b.Refused == nil || *b.Refused != want[b.Key[0]] || b.RefusedAtLeast {
			t.Errorf("%+v", b)
		}
	}
}
