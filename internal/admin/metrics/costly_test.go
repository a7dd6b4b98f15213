package metrics

import (
	"strings"
	"testing"

	"github.com/weir-rl/weir/rule"
)

// A request that a rule refuses since its expression takes too long is counted, and somebody hears
// of it.
func TestTooCostly(t *testing.T) {
	list := "[" + strings.TrimSuffix(strings.Repeat("1, ", 100), ", ") + "]"
	expression := strings.ReplaceAll("LIST.all(a, LIST.all(b, LIST.all(c, a + b + c < 10)))", "LIST", list)
	var told []string
	m := New(Options{TooCostly: func(r *rule.Rule) { told = append(told, r.Name) }})
	l := limiter(t, m, "domain: shop\nlimits: [{name: long, allow: 10/min, if: '"+expression+"'}]\n")
	for range 3 {
		decide(t, l, "shop", 1, rule.Map{"user": "ada"})
	}
	if got := scrape(t, m)["weir_cel_refused_total"]; got != "3" || strings.Join(told, " ") != "long long long" {
		t.Errorf("%s were counted, and %q heard of", got, told)
	}
	same(t, counts(t, m, "weir_requests_total"), `{domain="shop",door="",outcome="denied"} 3`)
}
