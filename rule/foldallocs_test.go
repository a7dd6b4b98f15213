//go:build !race

package rule

import (
	"testing"
	"time"
)

// A request that spells its path otherwise costs no allocation either.
func TestFoldingAllocatesNothing(t *testing.T) {
	s := testSet(t, &File{Exempt: []Condition{on(t, "path", "!/api/**")}, Rules: []*Rule{
		testRule(t, "orders", "path", "method").when(on(t, "path", "/api/orders/*"), on(t, "method", "GET")),
		testRule(t, "api", "ip").when(on(t, "path", "~^/API/")).with(func(r *Rule) { r.Replaces = []string{"all"} }),
		testRule(t, "all", "path").with(func(r *Rule) {
			r.Overrides = []Override{{Values: []string{"/api/orders"},
				Windows: []*Window{testWindow(t, "all", 5, time.Minute)}}}
		}),
	}})
	for _, q := range []Pairs{
		{{"path", "/api/orders/7"}, {"method", "GET"}, {"ip", "192.0.2.1"}}, {{"path", "/API/Orders/aB3/"}, {"method", "HEAD"}, {"ip", "192.0.2.1"}},
	} {
		var m Matches
		query := Query{Domain: "default", Attributes: q}
		match := func() { s.Match(&query, &m) }
		match()
		if n := testing.AllocsPerRun(100, match); n != 0 || len(m.Hits) < 2 {
			t.Errorf("%v: %v allocations, %d hits", q, n, len(m.Hits))
		}
	}
}
