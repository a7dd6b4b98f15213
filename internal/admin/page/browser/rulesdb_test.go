package browser

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/rulesource/ruledb"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/pgtest"
	"github.com/weir-rl/weir/rule/file"
)

// rulesDatabase returns a database for rules, still without any.
func rulesDatabase(t *testing.T) (url string, db *ruledb.DB) {
	t.Helper()
	url = pgtest.Start(t).URL()
	address, err := ruledb.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ruledb.Init(t.Context(), address); err != nil {
		t.Fatal(err)
	}
	if db, err = ruledb.Open(t.Context(), address); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return url, db
}

// TestPutInForce: where the rules lie in a database, an editor puts a change in force that was
// tried, is told who was quicker, and goes back, without leaving the page.
func TestPutInForce(t *testing.T) {
	t.Parallel()
	d := chromium(t)
	url, db := rulesDatabase(t)
	ctx := t.Context()
	const tests = "domain: shop\ntests:\n  - name: five logins\n    steps:\n      - { send: { path: /login, ip: 192.0.2.1, times: 5 }, expect: allowed }\n"
	push := func(base int64, rules string) {
		t.Helper()
		files := []file.Source{{Name: "shop.yaml", Data: []byte(rules)}, {Name: "shop_test.yaml", Data: []byte(tests)}}
		if _, err := db.Push(ctx, ruledb.Change{Base: base, Files: files, Author: "bob", Note: "by hand", Origin: ruledb.Push}); err != nil {
			t.Fatal(err)
		}
	}
	push(0, rules)
	s := serve(t, nil, "--rules", url)
	inForce := func(text string) {
		t.Helper()
		patience.Until(t, "the server has "+text,
			func() bool { _, body := s.api("GET", "/api/v1/rules/source", ""); return strings.Contains(body, text) })
	}
	b := d.open(t, s.admin, desktop)
	put := func(text, button, note string) {
		t.Helper()
		b.do(nil, "fill", "selector", "textarea", "text", text)
		b.do(nil, "click", "selector", "main >> text="+button+"…")
		b.do(nil, "fill", "selector", "dialog input[name=note]", "text", note)
		b.accessible("put in force")
		b.do(nil, "click", "selector", "dialog button[type=submit]")
	}
	b.visit("/try")
	b.sees("Nothing is put in force until you say so.")
	put(strings.Replace(rules, "allow: 5/min", "allow: 3/min", 1), "Put in force", "too strict for its tests")
	b.sees("1 test of these rules failed")
	b.do(nil, "clear") // the console reports the 422
	b.press("Escape")
	put(strings.Replace(rules, "allow: 5/min", "allow: 7/min", 1), "Put in force", "more logins")
	b.sees("Version 2 is to be on all servers. In force with it: shop/login-attempts.")
	inForce("7/min")

	// Another editor is quicker.
	b.visit("/try")
	push(2, strings.Replace(rules, "allow: 5/min", "allow: 8/min", 1))
	put(strings.Replace(rules, "allow: 5/min", "allow: 9/min", 1), "Put in force", "")
	b.sees("version 3 came meanwhile, by bob")
	b.do(nil, "clear") // the console reports the 409
	b.press("Escape")
	inForce("8/min")

	b.visit("/try")
	put(strings.Replace(rules, "allow: 5/min", "allow: 8/min", 1)+
		"  - name: fresh\n    per: [user]\n    allow: 1/min\n", "Put in shadow", "a new one")
	b.sees("In force with it: nothing. In shadow: shop/fresh.")
	inForce("on_limit: shadow\\n    name: fresh")

	// A limit that changes runs beside the one in force, which refuses as before.
	b.visit("/try")
	_, body := s.api("GET", "/api/v1/rules/source", "")
	var now struct{ Files map[string]string }
	if err := json.Unmarshal([]byte(body), &now); err != nil {
		t.Fatal(err)
	}
	put(strings.Replace(now.Files["shop.yaml"], "allow: 8/min", "allow: 1/min", 1), "Put in shadow", "a tighter one")
	b.sees("In force with it: nothing. In shadow: shop/login-attempts-next.")
	inForce("login-attempts-next")
	for i := range 8 {
		if status, _ := s.ask("method", "POST", "path", "/login", "ip", "192.0.2.77"); status != 200 {
			t.Errorf("request %d: %d", i, status)
		}
	}
	if status, _ := s.ask("method", "POST", "path", "/login", "ip", "192.0.2.77"); status != 429 {
		t.Errorf("the limit in force: %d", status)
	}
	b.clean("put in shadow")
	b.visit("/try")
	put(
		"domain: shop\nlimits:\n  - name: login-attempts\n    when: { path: /login }\n    per: [ip]\n    allow: 9/min\n", "Put in shadow", "")
	b.sees("would come into force: shop/")
	b.do(nil, "clear") // the console reports the 422
	b.press("Escape")
	b.visit("/nodes")
	b.sees("version 5")
	b.clean("put in force")

	b.visit("/")
	counted := b.from()
	counted.click("History", "nav [data-view=history]")
	b.sees("more logins")
	b.sees("the rules changed to version 2 by 127.0.0.1")
	counted.click("From 1", "main a[href*='from=1&to=2']")
	b.sees("From version 1 to version 2")
	b.sees("shop/login-attempts: allow 5/min → 7/min")
	counted.took("see which author changed what, between two versions")
	b.until("the files are compared",
		`() => [...document.querySelectorAll('.diff .add')].some((e) => e.textContent.includes('+    allow: 7/min'))`, nil)
	b.accessible("what differs between versions")
	b.do(nil, "evaluate", "js",
		`() => { const e = [...document.querySelectorAll('.filters select')][1]; e.value = '4'; e.dispatchEvent(new Event('change')); }`)
	b.sees("From version 1 to version 4")
	b.sees("shop/fresh: added, allow 1/min")
	b.visit("/history?from=1&to=99")
	b.sees("has no version 99")
	b.do(nil, "clear") // the console reports the 422
	b.visit("/history")
	b.accessible("versions")
	b.do(nil, "click", "selector", "text=Back to 2")
	b.do(nil, "fill", "selector", "dialog input[name=note]", "text", "as it was")
	b.do(nil, "click", "selector", "dialog button[type=submit]")
	b.sees("as it was")
	inForce("7/min")
	b.clean("history")
	if c, err := db.Check(ctx, ""); err != nil || c.Records != 6 {
		t.Errorf("the history: %+v, %v", c, err)
	}
}
