package browser

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
)

// views are the paths of all views but the login; a decision is added to them.
var views = []struct{ name, path string }{
	{"overview", "/"},
	{"rules", "/rules"},
	{"rule", "/rules/shop/search"},
	{"keys", "/keys"},
	{"key", "/keys/shop/" + url.PathEscape("ip=198.51.100.7")},
	{"decisions", "/decisions"},
	{"try", "/try?rule=shop/search&limit=40"},
	{"bans", "/bans"},
	{"nodes", "/nodes"},
	{"history", "/history"},
}

// looks are those in which all views are checked.
var looks = map[string]look{
	"light": desktop,
	"dark":  {"dark", 1280, 900},
	"phone": {"light", 390, 844},
}

// TestTypes checks the types of all scripts, as they are said in their comments.
func TestTypes(t *testing.T) {
	t.Parallel()
	tools, err := toolsDir()
	if err == nil {
		_, err = exec.LookPath("node")
	}
	if err != nil {
		t.Skip(err)
	}
	effort.Long(t, "checks the types of all scripts")
	out, err := exec.Command("node", filepath.Join(tools, "node_modules", "typescript", "bin", "tsc"), "-p",
		".").CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// serveViews starts the program with something to see in each view, and returns these views with one
// of a decision.
func serveViews(t *testing.T) (s *server, all []struct{ name, path string }) {
	t.Helper()
	s = serve(t, nil)
	s.traffic()
	var id string
	for range 6 {
		_, id = s.ask("path", "/login", "ip", "192.0.2.95", "method", "POST")
	}
	if status, body := s.api("POST", "/api/v1/bans", `{"domain":"shop","limit":"search","key":["ip=203.0.113.40"],"for":"1h","reason":"reads all"}`); status != 200 {
		t.Fatal(body)
	}
	return s, append(slices.Clone(views), struct{ name, path string }{"decision", "/decisions/" + id})
}

// TestViews opens every view in every look: nothing that axe finds, nothing on the console (which
// gets what the policy refuses, too), nothing from other hosts, no scrolling sideways.
func TestViews(t *testing.T) {
	t.Parallel()
	d := chromium(t)
	s, all := serveViews(t)
	for name, l := range looks {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := d.open(t, s.admin, l)
			for _, v := range all {
				where := v.name + ", " + name
				b.visit(v.path)
				if b.has(`() => document.querySelector('main .state h1')`, nil) {
					t.Errorf("%s: %s", where, b.text("main"))
				}
				b.accessible(where)
				if wide := b.sideways(); wide > 0 {
					t.Errorf("%s: the page is %d px too wide", where, wide)
				}
				b.clean(where)
			}
		})
	}
	t.Run("360 px", func(t *testing.T) {
		t.Parallel()
		b := d.open(t, s.admin, look{"light", 360, 740})
		for _, v := range all {
			b.visit(v.path)
			if wide := b.sideways(); wide > 0 {
				t.Errorf("%s: the page is %d px too wide", v.name, wide)
			}
		}
	})
	t.Run("print", func(t *testing.T) {
		t.Parallel()
		b := d.open(t, s.admin, desktop)
		b.visit("/")
		b.do(nil, "media", "media", "print")
		if b.has(`() => document.querySelector('.top').checkVisibility()`, nil) {
			t.Error("the bar is printed")
		}
		if !b.has(`() => document.querySelector('.tile').checkVisibility()`, nil) {
			t.Error("the figures are not printed")
		}
	})
}

func (b *tab) sideways() (px int) {
	b.t.Helper()
	b.do(&px, "evaluate", "js",
		`() => Math.ceil(document.documentElement.scrollWidth - document.documentElement.clientWidth)`)
	return px
}

// TestBudget: what the first load of the overview takes.
func TestBudget(t *testing.T) {
	t.Parallel()
	d := chromium(t)
	s := serve(t, nil)
	s.traffic()
	b := d.open(t, s.admin, desktop)
	b.visit("/")
	b.until("the chart is drawn", `() => document.querySelector('.chart canvas')`, nil)
	// The stream does not end, so it is not among the requests that did.
	b.until("the last request is known",
		`() => performance.getEntriesByType('resource').some((e) => e.name.includes('/vendor/'))`, nil)
	requests := b.log().Requests
	total, first := 0, 0
	for _, r := range requests {
		total += r.Bytes
		if path, _ := strings.CutPrefix(r.URL, s.admin); path == "/" {
			first += r.Bytes
		}
	}
	n := len(requests) + 1
	t.Logf("%d requests, %d bytes, %d before the first paint", n, total, first)
	if n > 10 {
		for _, r := range requests {
			t.Logf("%7d %s", r.Bytes, r.URL)
		}
		t.Errorf("%d requests, at most 10 are allowed", n)
	}
	if total > 150_000 || first > 12_000 {
		t.Errorf("%d bytes, %d of them before the first paint", total, first)
	}
}

// TestLive: a refusal at a door shows in the page that is open. There is no bound on the time but
// the test's.
func TestLive(t *testing.T) {
	t.Parallel()
	d := chromium(t)
	s := serve(t, nil)
	b := d.open(t, s.admin, desktop)
	b.visit("/")
	b.until("the stream is open",
		`() => performance.getEntriesByType('resource').length > 0 && document.querySelector('#live') && !document.querySelector('#live.off')`, nil)
	for range 6 {
		s.ask("path", "/login", "ip", "192.0.2.99")
	}
	b.until("the refusal shows",
		`() => [...document.querySelectorAll('.log .line')].some((l) => l.innerText.includes('192.0.2.99') && l.innerText.includes('429'))`, nil)
	b.until("the figures follow",
		`() => [...document.querySelectorAll('.tile')].some((e) => e.innerText.startsWith('Refused\n') && !e.innerText.includes('0 %\n'))`, nil)
	b.until("the key shows",
		`() => [...document.querySelectorAll('.bars a')].some((a) => a.innerText.includes('192.0.2.99'))`, nil)
	b.clean("overview")
}

// TestHidden: a tab that is hidden has no stream, and one that is shown again has one and the news.
func TestHidden(t *testing.T) {
	t.Parallel()
	d := chromium(t)
	s := serve(t, nil)
	b := d.open(t, s.admin, desktop)
	b.visit("/decisions")
	streams := func(want int) {
		t.Helper()
		b.untilStep("there are as many streams as there should be", "streams",
			func(v json.RawMessage) bool { return string(v) == fmt.Sprint(want) })
	}
	streams(1)
	b.goTo("r", "Rules") // a view without a stream
	streams(0)
	b.goTo("o", "Overview")
	streams(1)
	b.do(nil, "hide", "hidden", true)
	streams(0)
	for range 6 {
		s.ask("path", "/login", "ip", "192.0.2.98")
	}
	b.do(nil, "hide", "hidden", false)
	streams(1)
	b.sees("192.0.2.98")
}

// TestServerAway: while the server does not answer, a banner says so. Afterwards the page goes on
// by itself, and shows what happened meanwhile.
func TestServerAway(t *testing.T) {
	t.Parallel()
	d := chromium(t)
	s := serve(t, nil)
	for _, path := range []string{"/", "/bans"} { // one with a stream, one without
		b := d.open(t, s.admin, desktop)
		b.visit(path)
		s.kill()
		b.until("the banner is there",
			`() => document.querySelector('#banner').checkVisibility() && document.querySelector('#banner').innerText.includes('does not answer')`, nil)
		if !b.has(`() => document.querySelector('h1')`, nil) {
			t.Error("what was shown is gone")
		}
		b.accessible("the banner")
		s.start()
		for range 6 {
			s.ask("path", "/login", "ip", "192.0.2.97")
		}
		b.until("the banner is gone", `() => !document.querySelector('#banner').checkVisibility()`, nil)
		if path == "/" {
			b.sees("192.0.2.97")
		}
	}
}

// TestKeyboard goes without a mouse from find to a rule, to a decision, to its key, bans it, and
// lifts the ban.
func TestKeyboard(t *testing.T) {
	t.Parallel()
	d := chromium(t)
	// What is refused for an hour still is when it is looked at.
	s := serve(t, map[string]string{"rules/shop.yaml": strings.Replace(rules, "5/min", "5/h", 1)})
	s.traffic()
	b := d.open(t, s.admin, desktop)
	b.visit("/")
	b.press("/")
	b.until("find is open", `() => document.activeElement?.getAttribute('role') === 'combobox'`, nil)
	b.accessible("find")
	b.write("login-at")
	b.until("the rule is found",
		`() => document.querySelector('[aria-selected=true]')?.innerText.includes('login-attempts')`, nil)
	b.press("Enter")
	b.until("the rule is shown",
		`() => document.querySelector('h1')?.textContent === 'login-attempts' && document.querySelector('.log a.line')`, nil)

	// focus presses a key until the focus is where it should be.
	focus := func(what, js string, key string) {
		t.Helper()
		for range 80 {
			if b.has(js, nil) {
				return
			}
			b.press(key)
		}
		t.Fatalf("the key %s never leads to %s", key, what)
	}
	focus("a decision", `() => document.activeElement?.matches('.log a.line')`, "j")
	b.press("Enter")
	b.until("the decision is shown", `() => document.querySelector('h1')?.textContent.startsWith('Decision')`, nil)
	b.sees("Refused by login-attempts")
	b.sees("It passes at")
	focus("the key", `() => document.activeElement?.getAttribute('href')?.startsWith('/keys/')`, "Tab")
	b.press("Enter")
	b.until("the key is shown", `() => document.querySelector('h1')?.textContent === 'ip=198.51.100.7'`, nil)
	focus("ban", `() => document.activeElement?.getAttribute('aria-label') === 'Ban, login-attempts'`, "Tab")
	b.press("Enter")
	b.until("it asks", `() => document.querySelector('dialog[open] h2')?.textContent === 'Ban'`, nil)
	b.accessible("the dialog")
	focus("the reason", `() => document.activeElement?.name === 'reason'`, "Tab")
	b.write("guesses passwords")
	b.press("Enter")
	b.sees("Banned until")
	if _, body := s.api("GET", "/api/v1/bans", ""); !strings.Contains(body, "guesses passwords") {
		t.Errorf("nobody is banned: %s", body)
	}
	focus("lift", `() => document.activeElement?.getAttribute('aria-label') === 'Lift, login-attempts'`, "Tab")
	b.press("Enter")
	b.until("it asks", `() => document.querySelector('dialog[open] h2')?.textContent === 'Lift the ban'`, nil)
	focus("the button", `() => document.activeElement?.matches('dialog button[type=submit]')`, "Tab")
	b.press("Enter")
	b.until("the ban is lifted",
		`() => !document.querySelector('dialog[open]') && !document.querySelector('main').innerText.includes('Banned until')`, nil)
	if _, body := s.api("GET", "/api/v1/bans", ""); strings.Contains(body, "guesses passwords") {
		t.Errorf("the ban still holds: %s", body)
	}
	b.press("Escape")
	b.until("one is back at the decision", `() => document.querySelector('h1')?.textContent.startsWith('Decision')`,
		nil)
	b.press("?")
	b.until("the keys are listed", `() => document.querySelector('dialog[open] h2')?.textContent === 'Keys'`, nil)
	b.accessible("the keys")
	b.press("Escape")
	b.until("the list is closed", `() => !document.querySelector('dialog[open]')`, nil)
	for key, title := range map[string]string{"o": "Overview", "r": "Rules", "k": "Keys", "d": "Decisions"} {
		b.goTo(key, title)
	}
	b.clean("keyboard")
}

// TestRuleDecisions: a rule's view lists what this rule refused, then what came near it, and
// nothing on which only other rules had a say.
func TestRuleDecisions(t *testing.T) {
	t.Parallel()
	d := chromium(t)
	s := serve(t, nil)
	s.traffic() // api-tighter, in shadow, meets the same requests, by user
	b := d.open(t, s.admin, desktop)
	b.visit("/rules/shop/search")
	b.until("decisions are listed", `() => document.querySelectorAll('.log').length === 2`, nil)
	var lines [][2]string
	b.do(&lines, "evaluate", "js",
		`() => [...document.querySelectorAll('.log .line')].map((l) => [l.querySelector('.status').innerText, l.querySelector('.key').innerText])`)
	near := false
	for _, l := range lines {
		switch status, key := l[0], l[1]; {
		case !strings.HasPrefix(key, "ip="):
			t.Errorf("%v is not of this rule", l)
		case status == "near":
			near = true
		case status != "429" || near:
			t.Errorf("%v stands where it should not: %v", l, lines)
		}
	}
	if !near {
		t.Errorf("nothing near: %v", lines)
	}
	b.clean("rule")
}

// hostile are keys that clients could send.
var hostile = []string{
	`<img src=x onerror=alert(1)>`,
	`"><script>alert(1)</script>`,
	`'";--`,
	"nul\x00byte",
	"\u202egnp.exe\u2066",
	"\x1b[31mred\x1b]0;title\x07",
	"javascript:alert(1)",
	"zero\u200bwidth\ufeff",
	strings.Repeat("long", 200),
}

// TestHostile: what clients send is shown as text, and characters that one would not see are shown.
func TestHostile(t *testing.T) {
	t.Parallel()
	d := chromium(t)
	s := serve(t,
		map[string]string{"rules/shop.yaml": "domain: shop\nlimits:\n  - name: once\n    per: [user]\n    allow: 1/h\n    algorithm: sliding_log\n"})
	for _, user := range hostile {
		s.ask("user", user, "path", user)
		s.ask("user", user, "path", user)
	}
	s.askRaw([]byte("{\"domain\":\"shop\",\"attributes\":{\"user\":\"in\xff\xfevalid\",\"path\":\"/\"}}"))
	s.askRaw([]byte("{\"domain\":\"shop\",\"attributes\":{\"user\":\"in\xff\xfevalid\",\"path\":\"/\"}}"))
	for range 8 { // the first is refused most, and was the last: it is in every list
		s.ask("user", hostile[0], "path", hostile[0])
	}
	b := d.open(t, s.admin, desktop)
	unseen := `() => /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]/.test(document.querySelector('main').innerText)`
	for _, path := range []string{"/", "/decisions", "/keys?back=12h", "/rules/shop/once"} {
		b.visit(path)
		b.until("the keys are shown", `() => document.querySelector('main').innerText.includes('onerror=alert(1)>')`,
			nil)
		for _, want := range []string{`⟨U+202E⟩`, `⟨U+0000⟩`, `⟨U+001B⟩[31m`} {
			if !b.has(`(w) => document.querySelector('main').innerText.includes(w)`, want) && path == "/decisions" {
				t.Errorf("%s does not show %s", path, want)
			}
		}
		if b.has(unseen, nil) {
			t.Errorf("%s: characters stand there that nobody sees", path)
		}
		if b.has(`() => document.querySelector('main img, main script, main iframe, main [onerror]')`, nil) {
			t.Errorf("%s: text of a client became an element", path)
		}
		if wide := b.sideways(); wide > 0 {
			t.Errorf("%s: the page is %d px too wide", path, wide)
		}
		b.clean(path)
	}
	for _, user := range hostile {
		b.visit("/keys/shop/" + url.PathEscape("user="+user))
		b.clean("the key " + user)
		if b.has(unseen, nil) || b.has(`() => document.querySelector('main img, main script')`, nil) {
			t.Errorf("the key %q is not shown as text", user)
		}
	}
	b.visit("/rules/" + url.PathEscape(`<img src=x onerror=alert(1)>`) + "/x")
	if b.has(`() => document.querySelector('main img')`, nil) {
		t.Error("a path became an element")
	}
}

// TestRoles: the login, and what each role is shown. What a role may not do is not there.
func TestRoles(t *testing.T) {
	t.Parallel()
	d := chromium(t)
	names := []string{"viewer", "support", "operator", "editor", "admin"}
	var tokens strings.Builder
	for _, role := range names {
		fmt.Fprintf(&tokens, "token-of-%s-0123456789abcdef name=%s-person role=%s\n", role, role, role)
	}
	s := serve(t, map[string]string{"rules/shop.yaml": rules, "tokens": tokens.String()}, "--auth-tokens-file",
		"tokens")
	s.token = "token-of-admin-0123456789abcdef"
	s.traffic()
	if status, body := s.api("POST", "/api/v1/bans", `{"domain":"shop","limit":"search","key":["ip=203.0.113.40"],"for":"1h","reason":"x"}`); status != 200 {
		t.Fatal(body)
	}
	for theme, l := range looks {
		b := d.open(t, s.admin, l)
		b.visit("/rules")
		b.accessible("login, " + theme)
		if wide := b.sideways(); wide > 0 {
			t.Errorf("login, %s: the page is %d px too wide", theme, wide)
		}
		b.clean("login, " + theme)
	}
	for i, role := range names {
		t.Run(role, func(t *testing.T) {
			b := d.open(t, s.admin, desktop)
			b.visit("/keys?back=12h")
			if i == 0 { // a wrong one, once: guesses are counted
				b.do(nil, "fill", "selector", "input[type=password]", "text", "wrong")
				b.press("Enter")
				b.sees("This token is not known here.")
				b.do(nil, "clear") // the console reports the 401
			}
			b.do(nil, "fill", "selector", "input[type=password]", "text", "token-of-"+role+"-0123456789abcdef")
			b.press("Enter")
			b.until("the view is shown that was asked for",
				`() => document.querySelector('h1')?.textContent === 'Keys'`, nil)
			is := func(what string, want bool, js string) {
				t.Helper()
				if want {
					b.until(role+" is shown "+what, js, nil)
				} else if b.has(js, nil) {
					t.Errorf("%s is shown %s", role, what)
				}
			}
			operator, support := i >= 2, i >= 1
			is("ban", operator,
				`() => [...document.querySelectorAll('main button')].some((b) => b.textContent === 'Ban')`)
			is("the field for a key", support, `() => document.querySelector('main input')`)
			is("a whole key", operator, `() => document.querySelector('main').innerText.includes('198.51.100.7')`)
			is("try a change", operator, `() => document.querySelector('[data-view=try]').checkVisibility()`)
			b.accessible("keys, " + role)
			b.goTo("b", "Bans and grants")
			is("lift", operator,
				`() => [...document.querySelectorAll('main button')].some((b) => b.textContent === 'Lift')`)
			b.visit("/")
			b.sees("Needs a look")
			b.until("the refusals are shown", `() => document.querySelector('.log .line')`, nil)
			is("a link to a decision", operator, `() => document.querySelector('.log a.line')`)
			if support {
				b.visit("/decisions?key=ip%3D198.51.100.7")
				is("a link to a decision of a key that was named", true, `() => document.querySelector('.log a.line')`)
			}
			b.clean(role)
			if role == "admin" {
				b.visit("/history")
				b.sees("ban set")
			}
			b.do(nil, "click", "selector", "text=Log out "+role+"-person")
			b.until("one is logged out", `() => document.querySelector('h1')?.textContent === 'Log in'`, nil)
			b.visit("/rules")
			if !b.has(`() => document.querySelector('input[type=password]')`, nil) {
				t.Error("the login holds after the logout")
			}
		})
	}
}

// outside is an address of this machine that is not loopback. Browsers trust none such over plain
// HTTP: they send no Sec-Fetch-Site there.
func outside(t *testing.T) string {
	t.Helper()
	list, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			return n.IP.String()
		}
	}
	t.Skip("this machine has no address but loopback")
	return ""
}

// TestPlainHTTP: over plain HTTP, and not on loopback, one can log in, change something and log
// out; a logout that fails says so.
func TestPlainHTTP(t *testing.T) {
	t.Parallel()
	d := chromium(t)
	s := serve(t, map[string]string{"rules/shop.yaml": rules,
		"tokens": "token-of-ada-0123456789abcdef name=ada role=operator\n"}, "--auth-tokens-file", "tokens")
	s.token = "token-of-ada-0123456789abcdef"
	s.traffic()
	near := newRelayAt(t, outside(t))
	near.to(s.relay.target)
	b := d.open(t, "http://"+near.listener.Addr().String(), desktop)
	b.visit("/keys?back=12h")
	if b.has(`() => isSecureContext`, nil) {
		t.Fatal("the browser trusts this address: the test shows nothing")
	}
	login := func() {
		t.Helper()
		b.do(nil, "fill", "selector", "input[type=password]", "text", s.token)
		b.press("Enter")
		b.until("the view is shown that was asked for", `() => document.querySelector('h1')?.textContent === 'Keys'`,
			nil)
	}
	login()
	b.until("a key can be banned",
		`() => [...document.querySelectorAll('main button')].some((x) => x.textContent === 'Ban')`, nil)
	// What the button sends, by the page's own fetch.
	var status int
	b.do(&status, "evaluate", "js",
		`async () => (await fetch('/api/v1/bans', { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify({ domain: 'shop', limit: 'search', key: ['ip=203.0.113.40'], for: '1h', reason: 'x' }) })).status`)
	if status != 200 {
		t.Errorf("a ban: %d", status)
	}
	if _, body := s.api("GET", "/api/v1/bans", ""); !strings.Contains(body, "203.0.113.40") {
		t.Errorf("the bans are %s", body)
	}
	b.clean("over plain HTTP")
	b.do(nil, "click", "selector", "text=Log out ada")
	b.until("one is logged out", `() => document.querySelector('h1')?.textContent === 'Log in'`, nil)

	b.visit("/keys")
	login()
	near.to("")
	b.do(nil, "click", "selector", "text=Log out ada")
	b.until("the page says that the logout failed",
		`() => document.querySelector('#banner').checkVisibility() && document.querySelector('#banner').innerText.startsWith('You are still logged in: ')`, nil)
	b.accessible("a logout that failed")
}

// TestTheme: the switch turns the colours, at once and for the next visit, the chart's too.
func TestTheme(t *testing.T) {
	t.Parallel()
	d := chromium(t)
	s := serve(t, nil)
	s.traffic()
	b := d.open(t, s.admin, desktop)
	b.visit("/")
	b.until("the chart is drawn", `() => document.querySelector('.chart canvas')`, nil)
	ground := func() (c string) {
		b.do(&c, "evaluate", "js", `() => getComputedStyle(document.body).backgroundColor`)
		return c
	}
	light := ground()
	b.do(nil, "click", "selector", ".theme")
	dark := ground()
	if light == dark {
		t.Fatalf("the switch does nothing: %s", light)
	}
	b.visit("/rules")
	if got := ground(); got != dark {
		t.Errorf("the next view is %s, want %s", got, dark)
	}
	b.clean("theme")
}

// TestPollingFallback: where all streams of a node are taken, the page asks again and again.
func TestPollingFallback(t *testing.T) {
	t.Parallel()
	d := chromium(t)
	s := serve(t, nil)
	for status := http.StatusOK; status == http.StatusOK; {
		taken, err := http.Get(s.admin + "/api/v1/stream")
		if err != nil {
			t.Fatal(err)
		}
		defer taken.Body.Close()
		status = taken.StatusCode
	}
	b := d.open(t, s.admin, desktop)
	b.visit("/decisions")
	for range 6 {
		s.ask("path", "/login", "ip", "192.0.2.96")
	}
	b.sees("192.0.2.96")
	if b.has(`() => document.querySelector('#banner').checkVisibility()`, nil) {
		t.Error("the page says that the server is away")
	}
}

// untilStep waits until a step of the driver answers what ok wants.
func (b *tab) untilStep(what, step string, ok func(json.RawMessage) bool) {
	b.t.Helper()
	patience.Until(b.t, what, func() bool {
		var v json.RawMessage
		b.do(&v, step)
		return ok(v)
	})
}
