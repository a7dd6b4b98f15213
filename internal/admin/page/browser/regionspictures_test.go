//go:build pictures

package browser

import (
	"fmt"
	"os"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/redistest"
)

// TestRegionPictures makes the pictures of the view Regions, as TestPictures does of the others.
func TestRegionPictures(t *testing.T) {
	out := os.Getenv("WEIR_PICTURES")
	d := chromium(t)
	eu, us := redistest.Start(t), redistest.Start(t)
	const text = `domain: shop
limits:
  - { name: llm-tokens, when: { path: /complete }, per: [tenant], allow: 10000/day, consistency: { regions: { over: 0% } } }
  - { name: search, when: { path: /search }, per: [user], allow: [600/min, { rate: 100/s, burst: 500 }], consistency: { regions: { over: 20% } } }
  - { name: login, when: { path: /login }, per: [ip], allow: 20/min, consistency: { regions: sync } }
  - { name: exports, when: { path: "/exports/*" }, per: [user], allow: 6/min }
`
	s := inRegion(t, "eu", "us", text, eu, us)
	far := inRegion(t, "us", "eu", text, us, eu)
	for i := range 900 {
		user, ip := fmt.Sprintf("user-%02d", i%7), fmt.Sprintf("203.0.113.%d", i%30)
		s.ask("path", "/search", "user", user)
		s.ask("path", "/complete", "tenant", "acme")
		if i%2 == 0 {
			far.ask("path", "/search", "user", user)
			far.ask("path", "/complete", "tenant", "globex")
			far.ask("path", "/login", "ip", ip)
		}
	}
	for theme, l := range map[string]look{"light": {"light", 1200, 600}, "dark": {"dark", 1200, 600}} {
		b := d.open(t, s.admin, l)
		b.visit("/regions")
		b.sees("The other one is heard.")
		b.picture(out, "regions-"+theme, 1500)
		b.clean("regions, " + theme)
	}
}
