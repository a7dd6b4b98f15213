package browser

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Two domains with rules of one name.
var twoDomains = map[string]string{
	"rules/shop.yaml": "domain: shop\nlimits: [{ name: search, per: [user], allow: 2/day, algorithm: sliding_log }]\n",
	"rules/mail.yaml": "domain: mail\nlimits: [{ name: search, per: [user], allow: 2/day, algorithm: sliding_log }]\n",
}

// askIn asks in a domain.
func (s *server) askIn(domain string, attributes map[string]string) string {
	s.t.Helper()
	body, err := json.Marshal(map[string]any{"domain": domain, "attributes": attributes})
	if err != nil {
		s.t.Fatal(err)
	}
	_, id := s.askRaw(body)
	return id
}

func (s *server) order(path, body string) {
	s.t.Helper()
	if status, answer := s.api("POST", path, body); status != 200 {
		s.t.Fatal(status, answer)
	}
}

// TestTwoDomains: where rules of two domains have one name, each view says which is meant, unless
// one domain is chosen.
func TestTwoDomains(t *testing.T) {
	t.Parallel()
	d := chromium(t)
	s := serve(t, twoDomains)
	for _, domain := range []string{"shop", "mail"} {
		for range 4 {
			s.askIn(domain, map[string]string{"user": "ada"})
		}
		s.order("/api/v1/bans", fmt.Sprintf(`{"domain":%q,"limit":"search","key":["user=bob"],"for":"1h"}`, domain))
		s.order("/api/v1/grants", fmt.Sprintf(`{"domain":%q,"limit":"search","key":["user=cy"],"allow":"9/day","for":"1h"}`, domain))
	}
	b := d.open(t, s.admin, desktop)
	for _, path := range []string{"/?", "/rules?", "/keys?back=12h", "/decisions?", "/bans?"} {
		b.visit(path)
		b.sees("shop/search")
		b.sees("mail/search")
		b.accessible(path)
		b.visit(path + "&domain=shop")
		b.sees("search")
		if b.has(`() => /(shop|mail)\/search/.test(document.querySelector('main').innerText)`, nil) {
			t.Errorf("%s names the domain that is chosen", path)
		}
	}
	b.visit("/")
	b.until("the first sentences say of which domain the rule is",
		`() => /by (shop|mail)\/search/.test(document.querySelector('.lead').innerText)`, nil)
	b.clean("two domains")
}

// TestClock: every time on the page is in the zone of the browser, or in UTC if its reader chooses
// that, in one form. A browser whose clock is off is told so, and gets times by the server's clock.
func TestClock(t *testing.T) {
	t.Parallel()
	d := chromium(t)
	s := serve(t, twoDomains)
	for range 4 {
		s.askIn("shop", map[string]string{"user": "ada"})
	}
	s.order("/api/v1/bans", `{"domain":"shop","limit":"search","key":["user=ada"],"for":"1h"}`)
	id := s.askIn("shop", map[string]string{"user": "ada"})
	b := d.openOdd(t, s.admin, desktop, odd{zone: "Asia/Kathmandu", behind: 2 * time.Hour})
	// Kathmandu is ahead of UTC by 5 h 45 min, all year.
	wrong := func(minutes int) (list []string) {
		t.Helper()
		b.do(&list, "evaluate", "js", `(minutes) => [...document.querySelectorAll('main time')].filter((e) => {
			const at = new Date(Date.parse(e.dateTime) + minutes * 60000).toISOString();
			const m = /^(\d\d? [A-Z][a-z]{2,3}, )?(\d\d:\d\d:\d\d)(\.\d)?$/.exec(e.textContent);
			return !m || m[2] !== at.slice(11, 19) || !e.title.endsWith(' UTC');
		}).map((e) => e.textContent + ' for ' + e.dateTime)`, "arg", minutes)
		return list
	}
	views := []string{"/decisions", "/decisions/" + id, "/bans", "/keys/shop/user=ada", "/nodes", "/history"}
	for zone, minutes := range map[string]int{"Asia/Kathmandu": 345, "UTC": 0} {
		b.visit("/")
		if utc := b.text("#zone") == "UTC"; utc != (zone == "UTC") {
			b.do(nil, "click", "selector", "#zone")
		}
		for _, path := range views {
			b.visit(path)
			b.until(path+" has times", `() => document.querySelector('main time')`, nil)
			if list := wrong(minutes); len(list) > 0 {
				t.Errorf("%s in %s: %q", path, zone, list)
			}
		}
	}
	b.visit("/keys/shop/user=ada")
	b.sees("The clock of this browser is 2 h behind the server's.")
	b.until("the ban ends by the server's clock", `() => /, (1 h|59 min|5\d min)( \d+ s)? more/.test(document.querySelector('.lead').innerText)`, nil)
	b.accessible("another clock")
	b.clean("another clock")
}

// TestClockAtTheBound: where a browser's clock is off by about as much as is told, the remark on it
// neither comes nor goes with the error of each answer.
func TestClockAtTheBound(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("node"); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"package.json": `{"type": "module"}`, "clock.js": `
		import { heard, skew } from './time.js';
		const real = Date.now;
		const told = [];
		const hear = (ahead, took) => {
			const at = 1900000000000 + told.length * 1777;
			Date.now = () => at + took;
			heard(new Date(at + took / 2 + ahead).toUTCString(), at);
			told.push(skew() ? 'off' : 'right');
			Date.now = real;
		};
		for (let i = 0; i < 40; i++) hear(29400 + 90 * i, i % 3 * 200); // the clocks drift apart
		for (let i = 0; i < 40; i++) hear(33000 - 90 * i, i % 3 * 200); // and together
		hear(33000, 9000); // slow answers say little
		hear(0, 10);
		hear(1900, 10);
		console.log(told.join(' '));`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"time.js", "text.js"} {
		data, err := os.ReadFile(filepath.Join("..", "assets", "parts", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command("node", filepath.Join(dir, "clock.js")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	told := strings.Fields(string(out))
	if n := len(slices.Compact(slices.Clone(told))); n != 3 || told[0] != "right" || told[len(told)-1] != "right" {
		t.Errorf("the remark comes and goes: %s", out)
	}
}

// TestChartGone: a browser whose language is no tag gets the charts, and one that cannot load them
// is told so, and shown the figures.
func TestChartGone(t *testing.T) {
	t.Parallel()
	d := chromium(t)
	s := serve(t, nil)
	s.traffic()
	b := d.openOdd(t, s.admin, desktop, odd{language: "C"})
	b.visit("/")
	b.until("the chart is drawn", `() => document.querySelector('.chart canvas')`, nil)
	b.clean("a language that is no tag")
	b = d.open(t, s.admin, look{"light", 390, 844})
	b.do(nil, "block", "path", "/vendor/uplot.js")
	b.visit("/")
	b.sees("The chart could not be loaded")
	b.until("the figures are there", `() => document.querySelector('details.figures[open] tbody td')?.checkVisibility()`, nil)
	b.accessible("no chart")
}

// offScreen are the figures and buttons of a view that are not on the screen: they would have to be
// scrolled to sideways. What is closed, and what is only for screen readers, is left out.
const offScreen = `() => [...document.querySelectorAll('nav.views a, .top button, .top select, main .big, main dd, main td, main tbody th, main .btn, main h1, main .bars .row > *, main .log .line > *')]
	.filter((e) => e.checkVisibility() && !e.closest('.sr') && e.getClientRects().length)
	.filter((e) => {
		const r = e.getBoundingClientRect(), box = e.closest('.scroll')?.getBoundingClientRect();
		const [from, to] = [Math.max(0, box?.left ?? 0), Math.min(innerWidth, box?.right ?? innerWidth)];
		return r.left < from - 1 || r.right > to + 1;
	}).map((e) => e.tagName + ' ' + e.textContent.trim().slice(0, 40) + ' ' + Math.round(e.getBoundingClientRect().left) + '–' + Math.round(e.getBoundingClientRect().right))`

// TestPhone: at 390 px every button and figure of every view is on the screen without scrolling
// sideways, also with long names, and the navigation is whole.
func TestPhone(t *testing.T) {
	t.Parallel()
	d := chromium(t)
	long := strings.Repeat("a-rather-long-name-of-a-", 2)
	domain, rule, user := long+"domain", long+"rule", long+"user@customer.example"
	s := serve(t, map[string]string{
		"rules/shop.yaml": "domain: shop\nlimits: [{ name: search, per: [user], allow: 2/day }]\n",
		"rules/long.yaml": fmt.Sprintf("domain: %s\nlimits:\n- { name: %s, per: [user], allow: 100000/day }\n- { name: search, per: [user], allow: 2/day, algorithm: sliding_log }\n", domain, rule)})
	id := ""
	for _, u := range []string{user, user + "2", user + "3"} {
		for range 5 {
			id = s.askIn(domain, map[string]string{"user": u, "path": "/" + long, "method": "DELETE"})
		}
	}
	for limit, u := range map[string]string{rule: user, "search": user + "2"} {
		s.order("/api/v1/bans", fmt.Sprintf(`{"domain":%q,"limit":%q,"key":["user=%s"],"for":"7d","reason":"reads all %s"}`, domain, limit, u, long))
	}
	s.order("/api/v1/grants", fmt.Sprintf(`{"domain":%q,"limit":"search","key":["user=%s3"],"allow":"5000/day","for":"7d","reason":"%s"}`, domain, user, long))
	key := "/keys/" + domain + "/" + url.PathEscape("user="+user)
	for path, buttons := range map[string][]string{
		"/": nil, "/rules": nil, "/rules/" + domain + "/search": {"Try a change", "Ban a key"},
		"/keys?back=12h": {"Lift", "Ban", "End grant", "Grant", "Reset"}, key: {"Lift", "Ban", "Grant", "Reset"},
		"/decisions": {"Pause", "Filter"}, "/decisions/" + id: nil, "/bans": {"Ban a key", "Grant a limit", "Lift", "End"},
		"/nodes": nil, "/history": nil, "/try": {"Try", "Copy patch"},
	} {
		t.Run(path[:min(len(path), 12)], func(t *testing.T) {
			t.Parallel()
			b := d.open(t, s.admin, look{"light", 390, 844})
			b.visit(path)
			for _, words := range buttons {
				b.until("there is a button "+words, `(words) => [...document.querySelectorAll('main .btn')].some((e) => e.innerText.trim() === words)`, words)
			}
			var list []string
			if b.do(&list, "evaluate", "js", offScreen); len(list) > 0 {
				t.Errorf("%s: not on the screen: %q", path, list[:min(len(list), 8)])
			}
			if wide := b.sideways(); wide > 0 {
				t.Errorf("%s is %d px too wide", path, wide)
			}
			b.accessible(path)
		})
	}
}
