package browser

import (
	"testing"

	"github.com/weir-rl/weir/internal/testkit/redistest"
)

// regionalRules are limits of every kind: over all regions, and of each by itself.
const regionalRules = `domain: shop
limits:
  - { name: search, when: { path: /search }, per: [user], allow: 90/day, algorithm: sliding_log, consistency: { regions: { over: 20% } } }
  - { name: tokens, when: { path: /complete }, per: [tenant], allow: [1000/day, { rate: 500/min, burst: 100 }], consistency: { regions: { over: 0% } } }
  - { name: login, when: { path: /login }, per: [ip], allow: 50/day, algorithm: sliding_log, consistency: { regions: sync } }
  - { name: local, when: { path: /local }, per: [user], allow: 10/day }
`

// inRegion starts a server of a region beside another one.
func inRegion(t *testing.T, region, peer, rules string, own, other *redistest.Server) *server {
	t.Helper()
	return serve(t, map[string]string{"rules/shop.yaml": rules}, "--store", own.URL(), "--store-deadline", "30s",
		"--store-timeout", "30s",
		"--region", region, "--regions-weights", "eu=2,us=1", "--regions-stores", peer+"="+other.URL())
}

// TestRegions: the view Regions says how the regions stand and what became of each limit over them,
// live; a key's view says how the key stands in this region and in all.
func TestRegions(t *testing.T) {
	t.Parallel()
	d := chromium(t)
	eu, us := redistest.Start(t), redistest.Start(t)
	s := inRegion(t, "eu", "us", regionalRules, eu, us)
	far := inRegion(t, "us", "eu", regionalRules, us, eu)
	b := d.open(t, s.admin, desktop)
	b.visit("/")
	b.goTo("e", "Regions")
	b.until("the bar has the view",
		`() => document.querySelector('[data-view=regions][aria-current]')`, nil)
	b.sees("This is eu, one of 2 regions. The other one is heard.") // what was told before that is not
	for range 20 {
		s.ask("path", "/search", "user", "ada")
		s.ask("path", "/complete", "tenant", "acme")
		far.ask("path", "/search", "user", "ada")
	}
	b.sees("This is eu, one of 2 regions. The other one is heard. Together they admitted nothing beyond a limit.")
	const row = `[...document.querySelectorAll('tbody tr')].find((r) => r.innerText.startsWith('search'))`
	b.until("what the other region used is shown",
		`() => /\b72 of 90\/day\b[^]*\b20\b[^]*20 told[^]*\b20\b[^]*as heard/.test(`+row+`?.innerText ?? '')`, nil)
	far.ask("path", "/search", "user", "bob")
	b.until("the figures follow", `() => /\b21\b[^]*as heard/.test(`+row+`.innerText)`, nil)
	for _, want := range []string{"never more", "up to 20 % more", "the limit in each", "667 of 1,000/day",
		"334 of 500/min", "burst 67 of 100", "50 of 50/day", "Each region counts this rule for itself: local."} {
		b.sees(want)
	}
	b.until("each window of a rule has a row with its own counts",
		`() => [...document.querySelectorAll('tbody tr')].filter((r) => r.innerText.startsWith('tokens') && /\b20\b/.test(r.innerText)).length === 2`, nil)
	b.press("?")
	b.until("the key is listed", `() => document.querySelector('dialog[open]')?.innerText.includes('regions')`, nil)
	b.press("Escape")
	b.do(nil, "click", "selector", "tbody a:has-text('search')")
	b.until("a limit leads to its rule", `() => document.querySelector('h1')?.textContent === 'search'`, nil)
	b.visit("/keys/shop/user%3Dada")
	b.sees("eu: 20 of 72 (ceiling)")
	b.sees("all regions: 40 of 90 as heard")
	b.accessible("a key in two regions")
	b.clean("regions")

	check := func(where string) {
		for name, l := range map[string]look{"light": looks["light"], "dark": looks["dark"], "phone": looks["phone"],
			"360 px": {"light", 360, 740}} {
			b := d.open(t, s.admin, l)
			b.visit("/regions")
			b.accessible(where + ", " + name)
			if wide := b.sideways(); wide > 0 {
				t.Errorf("%s, %s: the page is %d px too wide", where, name, wide)
			}
			b.clean(where + ", " + name)
		}
	}
	check("regions that are heard")

	// The other region is started with other rules and weights, and then goes away.
	far.kill()
	other := inRegion(t, "us", "eu", regionalRules+"  - { name: more, per: [user], allow: 9/day }\n", us, eu)
	other.kill()
	for i, arg := range other.args {
		if arg == "eu=2,us=1" {
			other.args[i] = "eu=1,us=1"
		}
	}
	other.start()
	b.visit("/regions")
	b.sees("us has other weights than eu:")
	b.sees("It has other rule files.")
	us.Kill()
	b.until("the region is silent",
		`() => [...document.querySelectorAll('.region')].some((r) => r.innerText.includes('Silent') && r.querySelector('h2').textContent === 'us')`, nil)
	b.sees("Nothing was heard of us lately:")
	check("a region that is silent")
}

// TestNoRegions: where there is one region alone, there is no such view.
func TestNoRegions(t *testing.T) {
	t.Parallel()
	d := chromium(t)
	b := d.open(t, serve(t, nil).admin, desktop)
	b.visit("/")
	if b.has(`() => [...document.querySelectorAll('a')].some((a) => a.innerText === 'Regions')`, nil) {
		t.Error("the bar has the view")
	}
	b.press("g", "e")
	b.press("?")
	b.until("the keys are listed", `() => document.querySelector('dialog[open] h2')?.textContent === 'Keys'`, nil)
	if b.has(
		`() => document.querySelector('dialog[open]').innerText.includes('regions') || document.querySelector('h1')?.textContent !== 'Overview'`, nil) {
		t.Error("a key opens the view")
	}
	b.visit("/regions")
	b.sees("no regions are configured on this server")
}
