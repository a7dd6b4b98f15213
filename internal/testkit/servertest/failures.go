package servertest

import (
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

// LimiterOf makes a limiter of rules, over a store with the test's clock.
func LimiterOf(t *testing.T, rules string, clock *Standing) (*weir.Limiter, store.Store) {
	t.Helper()
	clock.Store(time.Date(2026, 11, 29, 8, 59, 41, 300_000_000, time.UTC).UnixMicro())
	set, _, err := file.Load([]file.Source{{Name: "rules.yaml", Data: []byte(rules)}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := memory.New(memory.Options{Clock: clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	l, err := weir.New(s, weir.WithRules(set), weir.WithClock(clock.Now))
	if err != nil {
		t.Fatal(err)
	}
	return l, s
}
