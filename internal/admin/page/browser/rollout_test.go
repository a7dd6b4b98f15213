package browser

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/rulesource/ruledb"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/rule/file"
)

const rolloutTokens = "token-of-eve-0123456789abcdef name=eve role=editor\ntoken-of-olga-0123456789abcdef name=olga role=operator\n" +
	"token-of-vic-0123456789abcdef name=vic role=viewer\ntoken-of-ann-0123456789abcdef name=ann role=admin\n"

// login opens a tab as somebody.
func (d *driver) login(t *testing.T, s *server, l look, name, path, sees string) *tab {
	t.Helper()
	b := d.open(t, s.admin, l)
	b.visit(path)
	b.do(nil, "fill", "selector", "input[type=password]", "text", "token-of-"+name+"-0123456789abcdef")
	b.press("Enter")
	b.sees(sees)
	b.do(nil, "clear")
	return b
}

// TestRollOut: a rule in shadow shows what it would refuse, and an editor brings it in by buttons:
// on 10 % of its keys, on half of them, on all.
func TestRollOut(t *testing.T) {
	t.Parallel()
	d := chromium(t)
	url, db := rulesDatabase(t)
	ctx := t.Context()
	if _, err := db.Push(ctx, ruledb.Change{Files: []file.Source{{Name: "shop.yaml", Data: []byte(rules)}}, Author: "bob", Origin: ruledb.Push}); err != nil {
		t.Fatal(err)
	}
	s := serve(t, map[string]string{"tokens": rolloutTokens}, "--rules", url, "--auth-tokens-file", "tokens", "--rules-db-every", "300ms")
	s.token = "token-of-ann-0123456789abcdef"
	ask := func() { // 12 of each client, of which api-tighter allows 10
		for i := range 20 {
			for range 12 {
				s.ask("path", "/products", "user", fmt.Sprint("user-", i))
			}
		}
	}
	ask()
	const page = "/rules/shop/api-tighter"
	viewer := d.login(t, s, desktop, "vic", page, "In shadow")
	viewer.sees("Would refuse 16.7 % of 240 requests on all keys: 40, of about 20 clients.")
	if viewer.has(`() => document.body.innerText.includes('Enforce on')`, nil) {
		t.Error("a viewer has buttons")
	}
	operator := d.login(t, s, look{"dark", 390, 844}, "olga", page, "Enforce on 10 %")
	operator.do(nil, "click", "selector", "text=Enforce on 10 %")
	operator.sees("Your role changes no rules. In shop.yaml:20 write")
	operator.sees("+    enforce: 10%")
	operator.accessible("the line to change")
	if wide := operator.sideways(); wide > 0 {
		t.Errorf("the page is %d px too wide", wide)
	}
	operator.clean("the line to change")
	s.token = "token-of-olga-0123456789abcdef"
	const body = `{"domain": "shop", "limit": "api-tighter", "percent": 10}`
	if status, text := s.api("POST", "/api/v1/rules/rollout", body); status != 403 {
		t.Errorf("an operator: %d %s", status, text)
	}
	s.token = "token-of-ann-0123456789abcdef"

	b := d.login(t, s, desktop, "eve", "/", "Needs a look")
	counted := b.from()
	counted.click("api-tighter", "main td a:text-is('api-tighter'), main th a:text-is('api-tighter')")
	enforce := func(button, line, badge string) {
		t.Helper()
		counted.click(button, "main >> text="+button)
		b.sees(line)
		b.accessible("a step of a roll-out")
		b.do(nil, "fill", "selector", "dialog input[name=note]", "text", "to "+line) // which may stay empty
		counted.click("Put in force", "dialog button[type=submit]")
		patience.Until(t, "the server has "+line,
			func() bool { _, text := s.api("GET", "/api/v1/rules/source", ""); return strings.Contains(text, line) })
		b.until("the badge is "+badge,
			`(badge) => [...document.querySelectorAll('.head .pill')].some((e) => e.textContent === badge) === (badge !== '') && !document.querySelector('dialog') && !(badge === '' && document.querySelector('.head .ink-shadow'))`, badge)
	}
	enforce("Enforce on 10 %", "enforce: 10%", "enforce: 10%")
	counted.took("enforce a rule that is in shadow on 10 % of its keys")
	ask()
	b.visit(page)
	b.sees("on the 10 % where it is enforced")
	b.visit("/rules")
	b.sees("enforce: 10%")
	b.clean("badges")
	b.visit(page)
	if b.has(`() => document.querySelector('main').innerText.includes('Enforce on 10 %')`, nil) {
		t.Error("the step that was made is a button")
	}
	enforce("Enforce on 50 %", "enforce: 50%", "enforce: 50%")
	enforce("Enforce on all", "enforce: all", "")
	if b.has(`() => document.querySelector('main').innerText.includes('Roll-out')`, nil) {
		t.Error("there is nothing left to roll out")
	}
	if status, text := s.api("POST", "/api/v1/rules/rollout", strings.Replace(body, "10}", "100}", 1)); status != 422 || !strings.Contains(text, "is enforced so already") {
		t.Errorf("once more: %d %s", status, text)
	}
	b.clean("a roll-out")
	_, text := s.api("GET", "/api/v1/audit?n=100", "")
	var audit struct {
		Records []struct {
			Who, What, Domain, Limit, Note string
			After                          any
		}
	}
	if err := json.Unmarshal([]byte(text), &audit); err != nil {
		t.Fatal(err)
	}
	pushed := 0
	for _, r := range audit.Records {
		if r.What == "rules pushed" && r.Who == "eve" && r.Domain+"/"+r.Limit == "shop/api-tighter" && strings.HasPrefix(r.Note, "to enforce: ") && strings.Contains(fmt.Sprint(r.After), "enforce:") {
			pushed++
		}
	}
	if pushed != 3 {
		t.Errorf("%d records of 3 steps: %s", pushed, text)
	}
	b.visit("/history")
	b.sees("the rules changed to version 2 by eve")
	b.sees("shop/api-tighter: enforce all → 10%, on_limit shadow → reject")
	if c, err := db.Check(ctx, ""); err != nil || c.Records != 4 {
		t.Errorf("the history: %+v, %v", c, err)
	}
}

// TestRollOutOfFolder: where the rules lie in a folder, the button shows which line of which file
// to change, and changes nothing.
func TestRollOutOfFolder(t *testing.T) {
	t.Parallel()
	d := chromium(t)
	s := serve(t, nil)
	b := d.steps(t, s, desktop)
	b.click("api-tighter", "main td a:text-is('api-tighter'), main th a:text-is('api-tighter')")
	b.click("Enforce on 50 %", "text=Enforce on 50 %")
	b.sees("These rules lie in a folder. In shop.yaml:20 write")
	b.sees("+    enforce: 50%")
	b.took("see which line to change for that, of rules in folders")
	b.sees("Copy the line")
	b.accessible("the line to change")
	b.clean("the line to change")
	status, text := s.api("POST", "/api/v1/rules/rollout", `{"domain": "shop", "limit": "api-tighter", "percent": 50}`)
	if status != 409 || !strings.Contains(text, "these rules lie in a folder") {
		t.Errorf("%d %s", status, text)
	}
	if _, text := s.api("GET", "/api/v1/rules/source", ""); strings.Contains(text, "enforce") {
		t.Errorf("the rules changed: %s", text)
	}
}
