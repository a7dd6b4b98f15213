package gather

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
	"github.com/weir-rl/weir/rule"
)

// A rule whose expressions fail is broken, with the place of the first failure and without what the
// client sent; others are not, and what failed is forgotten after a day.
func TestBrokenExpression(t *testing.T) {
	b := newBench(t, Options{}, `
domain: shop
limits:
  - { name: tier, if: 'int(attr["tier"]) > 1', per: [user], allow: 5/min }
  - { name: size, per: [user], allow: 5000/min, cost: 'int(attr["size"])' }
  - { name: sound, per: [user], allow: 5000/min }
`)
	for i := range 200 {
		tier := "3"
		if i >= 100 {
			tier = "a \"secret\" value"
		}
		b.send(weir.Request{Attributes: rule.Pairs{{Name: "user", Value: fmt.Sprint("u", i)},
			{Name: "tier", Value: tier}, {Name: "size", Value: "1"}}})
	}
	b.send(weir.Request{Peek: true, Attributes: rule.Pairs{{Name: "user", Value: "u"}, {Name: "size", Value: "1"}}})
	b.pass(time.Minute)
	r := b.rule("tier")
	if r.Errors != 100 || r.Met != 100 || len(r.Verdicts) == 0 || r.Verdicts[0].Verdict != insight.Broken ||
		r.Verdicts[0].Evidence["errors"] != 100 {
		t.Fatalf("%d failed of %d met: %+v", r.Errors, r.Met, r.Verdicts)
	}
	if s := r.Verdicts[0].Sentence; !strings.Contains(s, "shop.yaml:4: if: ") || strings.Contains(s, "secret") {
		t.Errorf("it says %q", s)
	}
	for _, name := range []string{"size", "sound"} {
		if r := b.rule(name); r.Errors != 0 || len(r.Verdicts) == 0 || r.Verdicts[0].Verdict == insight.Broken {
			t.Errorf("%s: %d failed: %+v", name, r.Errors, r.Verdicts)
		}
	}
	withoutSize := rule.Pairs{{Name: "user", Value: "u"}, {Name: "tier", Value: "0"}}
	b.send(weir.Request{Attributes: withoutSize})
	b.pass(time.Second)
	if r := b.rule("size"); r.Errors != 1 || r.Met != 201 {
		t.Errorf("size: %d failed of %d met", r.Errors, r.Met)
	}
	// Merging adds up the counts of all nodes.
	s := b.Snapshot(snapshot.Want{Rule: "tier"})
	if sum := snapshot.Merge(s, s); sum.Rules[0].Errors != 200 ||
		!strings.HasPrefix(sum.Rules[0].Error, "shop.yaml:4: if: ") {
		t.Errorf("of two nodes: %d, %q", sum.Rules[0].Errors, sum.Rules[0].Error)
	}
	b.µs.Add((25 * time.Hour).Microseconds())
	b.pass(time.Minute)
	s = b.Snapshot(snapshot.Want{Rule: "tier"})
	if f := s.Facts(0); f.Errors != 0 || f.Error != "" {
		t.Errorf("a day later: %d, %q", f.Errors, f.Error)
	}
}
