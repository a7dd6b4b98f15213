package browser

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// grantRules have a limit of each kind that a grant can be of, and of those that it cannot.
const grantRules = `domain: shop
limits:
  - name: search
    when: { path: /search }
    per: [ip]
    allow: 5/min
    algorithm: sliding_log
  - name: pair
    when: { path: /pair }
    per: [user, ip]
    allow: [{ rate: 2/15m, burst: 3 }, 500/h]
    algorithm: token_bucket
  - name: slots
    when: { path: /slots }
    per: [ip]
    allow: 2 concurrent
    override: { 192.0.2.9: 3/day, 192.0.2.10: unlimited }
  - name: trial
    when: { path: /search }
    per: [ip]
    allow: 2/min
    on_limit: shadow
`

// click clicks the button of an accessible name.
func (b *tab) click(name string) {
	b.t.Helper()
	const find = `[...document.querySelectorAll('button')].find((e) => e.checkVisibility() && (e.ariaLabel ?? e.textContent) === name && !e.disabled)`
	b.until("there is the button "+name, `(name) => `+find, name)
	if !b.has(`(name) => { const r = `+find+`.getBoundingClientRect(); return r.left >= 0 && r.right <= innerWidth; }`, name) {
		b.t.Errorf("the button %s is not on the screen", name)
	}
	b.do(nil, "evaluate", "js", `(name) => { const e = `+find+`; e.focus(); e.click(); }`, "arg", name)
}

// set writes into a field of the dialog, as typing does.
func (b *tab) set(field, value string) {
	b.t.Helper()
	b.until("the dialog has "+field, `(field) => document.querySelector('dialog')?.querySelector('[name="' + field + '"]')`, field)
	b.do(nil, "evaluate", "js", `([field, value]) => { const e = document.querySelector('dialog').querySelector('[name="' + field + '"]'); e.value = value; e.dispatchEvent(new Event('input', { bubbles: true })); }`,
		"arg", []string{field, value})
}

func (b *tab) dialogSays(text string) {
	b.t.Helper()
	b.until(fmt.Sprintf("the dialog says %q", text), `(text) => document.querySelector('dialog')?.innerText.includes(text)`, text)
}

func (b *tab) fieldIs(field, value string) {
	b.t.Helper()
	b.until(fmt.Sprintf("%s is %q", field, value),
		`([field, value]) => document.querySelector('dialog')?.querySelector('[name="' + field + '"]').value === value`, []string{field, value})
}

// grants returns the grants in force: limit, key, numbers.
func (s *server) grants() string {
	s.t.Helper()
	_, body := s.api("GET", "/api/v1/grants", "")
	var a struct {
		Grants []struct {
			Limit, Allow string
			Key          []string
		}
	}
	if err := json.Unmarshal([]byte(body), &a); err != nil {
		s.t.Fatal(err)
	}
	var list []string
	for _, g := range a.Grants {
		list = append(list, fmt.Sprint(g.Limit, " ", strings.Join(g.Key, "+"), " ", g.Allow))
	}
	return strings.Join(list, "; ")
}

// TestGrant: a grant is made where the operator stands, on a decision, a key and a rule. The dialog
// holds the limit in force as rules write it, says what the grant replaces and what holds then, and
// the answer says what it replaced.
func TestGrant(t *testing.T) {
	t.Parallel()
	d := chromium(t)
	for _, l := range []look{desktop, {"dark", 390, 844}} {
		t.Run(fmt.Sprint(l.width), func(t *testing.T) {
			t.Parallel()
			s := serve(t, map[string]string{"rules/shop.yaml": grantRules})
			b := d.open(t, s.admin, l)
			refused := func(attributes ...string) (decision string) {
				t.Helper()
				for range 20 {
					status, id := s.ask(attributes...)
					if status == 429 {
						return id
					}
				}
				t.Fatal("nothing was refused")
				return ""
			}
			whole := func(where string) {
				t.Helper()
				if px := b.sideways(); px > 0 {
					t.Errorf("%s: %d px too wide", where, px)
				}
				b.accessible(where)
				b.clean(where)
			}

			// On a decision.
			b.visit("/decisions/" + refused("path", "/search", "ip", "192.0.2.1"))
			b.click("Grant, search")
			b.fieldIs("allow", "5/minute")
			b.dialogSays("Now 5/minute holds.")
			b.click("5 times the limit in force")
			b.fieldIs("allow", "25/minute")
			b.click("2 times the limit in force")
			b.fieldIs("allow", "10/minute")
			b.dialogSays("Then 10/minute holds until")
			b.dialogSays("and 5/minute afterwards.")
			whole("the dialog on a decision")
			b.click("Grant")
			b.dialogSays("Granted at search: ip=192.0.2.1 has 10/minute until")
			b.dialogSays("In place of 5/minute.")
			b.click("Close")
			if status, _ := s.ask("path", "/search", "ip", "192.0.2.1"); status != 200 {
				t.Errorf("the grant does not hold: %d", status)
			}

			// On a key, with what it replaces; what the page prints is understood.
			b.visit("/keys/shop/" + "ip=192.0.2.1")
			b.click("Grant at search")
			b.fieldIs("allow", "10/minute")
			b.set("allow", "30 per minit")
			b.dialogSays(`unknown unit "minit"`)
			b.set("allow", "30 per hour")
			b.dialogSays("did you mean 30/minute?")
			b.do(nil, "clear")                                                                  // the console reports both answers
			for _, grouped := range []string{"1,030/min", "1,030 per minute", "1_030/minute"} { // as lists show figures
				b.set("allow", grouped)
				b.dialogSays("Then 1030/min")
				b.set("allow", "30 per minute")
				b.dialogSays("Then 30/minute holds until")
			}
			b.set("allow", "30 per minute")
			b.dialogSays("It replaces the grant of 10/minute until")
			b.dialogSays("Then 30/minute holds until")
			b.set("reason", "a <b>big</b> import")
			whole("the dialog on a key")
			b.click("Grant")
			b.dialogSays("In place of the grant of 10/minute until")
			b.dialogSays("without a grant it has 5/minute")
			b.click("Close")
			b.sees("30/minute until")

			// A key of several parts, with bursts, on its decision.
			b.visit("/decisions/" + refused("path", "/pair", "user", "ada, b", "ip", "192.0.2.1"))
			b.click("Grant, pair")
			b.fieldIs("allow", "[{rate: 2/15m, burst: 3}, 500/hour]")
			b.click("2 times the limit in force")
			b.fieldIs("allow", "[{rate: 4/15m, burst: 6}, 1000/hour]")
			b.click("Grant")
			b.dialogSays("Granted at pair: user=ada, b, ip=192.0.2.1 has")
			b.click("Close")

			// On a rule the key is asked for.
			b.visit("/rules/shop/slots")
			b.click("Grant a key")
			b.set("key", "ada")
			b.dialogSays("is not an address")
			b.do(nil, "clear")
			b.set("key", "192.0.2.7")
			b.fieldIs("allow", "2 concurrent")
			b.set("allow", "4 at a time")
			b.dialogSays("Then 4 concurrent holds until")
			whole("the dialog on a rule")
			b.click("Grant")
			b.dialogSays("Granted at slots: ip=192.0.2.7 has 4 concurrent until")
			b.click("Close")

			// A key whose override has other windows.
			b.click("Grant a key")
			b.set("key", "192.0.2.9")
			b.fieldIs("allow", "3/day")
			b.set("allow", "4 at a time")
			b.dialogSays("which has 3/day for this key by an override; did you mean 4/day?")
			b.set("key", "192.0.2.10")
			b.dialogSays("an override that leaves this key unlimited, which a grant cannot limit: change the override")
			b.do(nil, "clear")
			b.set("key", "192.0.2.9")
			b.set("allow", "unlimited")
			b.dialogSays("Then unlimited holds until")
			b.dialogSays("and 3/day afterwards.")
			b.click("Grant")
			b.dialogSays("Granted at slots: ip=192.0.2.9 has unlimited until")
			b.click("Close")

			// Among all rules.
			b.visit("/bans")
			b.click("Grant a limit")
			b.set("rule", "shop/pair")
			b.dialogSays("Its keys are user=…, ip=….")
			b.set("key", "eve, ip=192.0.2.5")
			b.fieldIs("allow", "[{rate: 2/15m, burst: 3}, 500/hour]")
			b.set("rule", "shop/search")
			b.dialogSays("is not name=value with ip")
			b.do(nil, "clear")
			b.set("key", "192.0.2.5")
			b.fieldIs("allow", "5/minute")
			b.click("2 times the limit in force")
			whole("the dialog on all rules")
			b.click("Grant")
			b.dialogSays("Granted at search: ip=192.0.2.5 has 10/minute until")
			b.click("Close")
			b.sees("192.0.2.5")

			want := "search ip=192.0.2.5 10/minute|search ip=192.0.2.1 30/minute|pair user=ada, b+ip=192.0.2.1 [{rate: 4/15m, burst: 6}, 1000/hour]|slots ip=192.0.2.7 4 concurrent"
			for part := range strings.SplitSeq(want, "|") {
				if got := s.grants(); !strings.Contains(got, part) {
					t.Errorf("the grants in force are %s, want %s", got, part)
				}
			}

			// In shadow there is nothing to grant, and a banned key is told.
			b.visit("/rules/shop/trial")
			if b.has(`() => [...document.querySelectorAll('button')].some((e) => e.textContent.startsWith('Grant'))`, nil) {
				t.Error("a rule in shadow offers a grant")
			}
			id := refused("path", "/search", "ip", "192.0.2.8")
			if status, body := s.api("POST", "/api/v1/bans", `{"domain": "shop", "limit": "search", "key": ["192.0.2.8"], "for": "1h"}`); status != 200 {
				t.Fatal(body)
			}
			b.visit("/decisions/" + id)
			b.sees("in shadow: nothing to grant")
			b.click("Grant, search")
			b.dialogSays("It is banned until")
			b.press("Escape")
			b.clean("at the end")
		})
	}
}

// TestGrantRoles: who may not grant is not offered to.
func TestGrantRoles(t *testing.T) {
	t.Parallel()
	d := chromium(t)
	const tokens = "token-of-op-0123456789abcdef name=op role=operator\ntoken-of-su-0123456789abcdef name=su role=support\n"
	s := serve(t, map[string]string{"rules/shop.yaml": grantRules, "tokens": tokens}, "--auth-tokens-file", "tokens")
	var id string
	for range 7 {
		_, id = s.ask("path", "/search", "ip", "192.0.2.1")
	}
	const grants = `() => [...document.querySelectorAll('button')].some((e) => e.textContent.startsWith('Grant'))`
	logIn := func(token, path string) *tab {
		b := d.open(t, s.admin, desktop)
		b.visit(path)
		b.do(nil, "fill", "selector", "input[type=password]", "text", token)
		b.press("Enter")
		b.until("the view is shown", `() => document.querySelector('main .head h1')`, nil)
		b.sees("search")
		return b
	}
	for _, path := range []string{"/decisions/" + id, "/keys/shop/ip=192.0.2.1", "/rules/shop/search"} {
		logIn("token-of-op-0123456789abcdef", path).until(path+" offers an operator a grant", grants, nil)
		if logIn("token-of-su-0123456789abcdef", path).has(grants, nil) {
			t.Errorf("%s offers support a grant", path)
		}
	}
}
