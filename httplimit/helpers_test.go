package httplimit

import (
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store/memory"
)

// epoch is the virtual time of the tests' first step: 2026-01-01T00:00:00Z.
const epoch = int64(1767225600) * 1e6

type clock struct{ now int64 }

func (c *clock) wait(d time.Duration) { c.now += d.Microseconds() }

func load(t testing.TB, yaml string) *rule.Set {
	t.Helper()
	set, _, err := file.Load([]file.Source{{Name: "test.yaml", Data: []byte(yaml)}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// newLimiter is a limiter over the memory store; a nil clock is the wall clock.
func newLimiter(t testing.TB, c *clock, yaml string) *weir.Limiter {
	t.Helper()
	o := memory.Options{}
	if c != nil {
		c.now = epoch
		o.Clock = func() int64 { return c.now }
	}
	store, err := memory.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	l, err := weir.New(store, weir.WithRules(load(t, yaml)))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func decide(t testing.TB, l *weir.Limiter, hits int64, attributes ...rule.Pair) *weir.Decision {
	t.Helper()
	var d weir.Decision
	if err := l.Decide(t.Context(), &weir.Request{Attributes: rule.Pairs(attributes), Hits: hits, Peek: hits == 0, MaxDelay: weir.AnyDelay}, &d); err != nil {
		t.Fatal(err)
	}
	return &d
}
