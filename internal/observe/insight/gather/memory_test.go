package gather

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/testkit/effort"
)

// The memory is bounded, whatever the rules are; and of each rule that was met something is known.
func TestMemory(t *testing.T) {
	effort.Long(t, "fills the memory for thousands of rules")
	for _, c := range []struct {
		rules  int
		memory int64
		size   keptSize
	}{
		{3, 64 << 20, keptSizes[0]},
		{90, 64 << 20, keptSizes[0]},
		{100, 64 << 20, keptSizes[1]},
		{400, 64 << 20, keptSizes[4]},
		{1000, 64 << 20, keptSizes[6]},
		{400, 24 << 20, keptSizes[6]},
		{400, LeastMemory, keptSizes[6]},
	} {
		var rules strings.Builder
		rules.WriteString("domain: shop\nlimits:\n")
		for i := range c.rules {
			fmt.Fprintf(&rules, "  - { name: r%d, per: [user], allow: 1/min }\n", i)
		}
		rules.WriteString("  - { name: unmet, per: [none], allow: 1/min }\n")
		before := heap()
		b := newBench(t, Options{Memory: c.memory}, rules.String())
		empty := b.Bytes()
		for i := range 300 {
			b.ask(fmt.Sprint("a user with a name that is rather long, number ", i%150))
			b.pass(drainEvery) // what all comes at one instant is thinned, of some rules to nothing
		}
		b.pass(time.Second)
		// The store and the rules themselves take some too.
		if took := heap() - before; took > c.memory+c.memory/4+int64(c.rules)*25_000 {
			t.Errorf("%d rules in %d MiB: %d bytes of heap", c.rules, c.memory>>20, took)
		}
		if got := b.Bytes(); got > c.memory || got <= empty {
			t.Errorf("%d rules in %d MiB: %d bytes, %d before", c.rules, c.memory>>20, got, empty)
		}
		if b.size != c.size {
			t.Errorf("%d rules in %d MiB: size %+v", c.rules, c.memory>>20, b.size)
		}
		if b.rules[c.rules].series != nil {
			t.Error("a rule that was never met takes memory")
		}
		for _, i := range []int{0, c.rules - 1} {
			r := b.rule(fmt.Sprint("r", i))
			if r.Met != 300 || r.Refused != 150 {
				t.Errorf("%d rules in %d MiB: %d met, %d refused", c.rules, c.memory>>20, r.Met, r.Refused)
			}
			if i == 0 && (r.Keys < 75 || r.Keys > 300) {
				t.Errorf("%d rules in %d MiB: %d keys", c.rules, c.memory>>20, r.Keys)
			}
		}
		// Of so many decisions in no time few are looked at: of one rule by chance none.
		if len(b.keys(insight.KeysQuery{By: insight.ByRefused, Over: time.Hour})) == 0 {
			t.Errorf("%d rules in %d MiB: no keys on top", c.rules, c.memory>>20)
		}
		runtime.KeepAlive(b)
	}
}

// What gathering takes in a second with 1,000 rules that are all met, beside the decisions: to read
// the counters, once a minute to judge all rules, and the rest of a minute's work.
func BenchmarkMinuteOfThousandRules(b *testing.B) {
	var rules strings.Builder
	rules.WriteString("domain: shop\nlimits:\n")
	for i := range 1000 {
		fmt.Fprintf(&rules, "  - { name: r%d, per: [user], allow: 100/min }\n", i)
	}
	c := newBench(b, Options{}, rules.String())
	var spent time.Duration
	for b.Loop() {
		for i := range 60 {
			c.ask(fmt.Sprint("u", i))
			begin := time.Now()
			c.pass(time.Second)
			spent += time.Since(begin)
		}
	}
	b.ReportMetric(spent.Seconds()/float64(b.N)/60*1000, "ms/s")
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
