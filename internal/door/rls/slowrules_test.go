package rls

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/doortest"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/store"
)

// TestQuickBesideSlowRules: calls that are tried on hundreds of rules one by one are decided away
// from the connection, and others on it answered meanwhile. The store never waits by itself; it is
// shut for calls that come from elsewhere than the connection's goroutine.
func TestQuickBesideSlowRules(t *testing.T) {
	gate := make(chan struct{})
	var s *doortest.WaitingStore
	b := newBedOn(t, doortest.SlowRules("d", "k", "q"), Options{}, ServerOptions{},
		func(inner store.Store) store.Store {
			s = &doortest.WaitingStore{Store: inner, Waits: func([]store.Charge) bool { return false }, Gate: gate}
			return s
		})
	open := sync.OnceFunc(func() { close(gate) })
	t.Cleanup(open)
	const slow, quick = 20, 50
	answers := make(chan string, slow)
	for range slow {
		go func() { answers <- b.ask(t, "d: k=slow") }()
	}
	patience.Until(t, "the slow ones are matched elsewhere", func() bool { return s.Begun.Load() == slow })
	for i := range quick {
		for n := range 4 {
			if got, refused := b.ask(t, fmt.Sprint("d: q=quick", i)), n == 3; strings.Contains(got,
				"OVER_LIMIT") != refused {
				t.Errorf("call %d: %s", n, got)
			}
		}
	}
	if len(answers) > 0 || s.AtOnce.Load() != 4*quick {
		t.Errorf("%d of the slow ones are answered, %d calls were decided at once", len(answers), s.AtOnce.Load())
	}
	open()
	refused := 0
	for range slow {
		if strings.Contains(<-answers, "OVER_LIMIT") {
			refused++
		}
	}
	if refused != slow-3 {
		t.Errorf("%d of the slow ones are refused", refused)
	}
}
