package spoe

import (
	"fmt"
	"sync"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/doortest"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/store"
)

// TestQuickBesideSlowRules: requests that are tried on hundreds of rules one by one are decided
// away from the connection, and others on it answered meanwhile. The store never waits by itself;
// it is shut for requests that are not decided at once.
func TestQuickBesideSlowRules(t *testing.T) {
	gate := make(chan struct{})
	s := waiting(t, func([]store.Charge) bool { return false }, gate)
	p := dial(t, serve(t, New(newLimiterOver(t, s, doortest.SlowRules("d", "k", "q")), Options{Parallel: 16}))).greet()
	open := sync.OnceFunc(func() { close(gate) })
	t.Cleanup(open)
	const slow, quick = 4, 10
	var frames []byte
	for i := range uint64(slow) {
		frames = append(frames, notify(1000+i, 1, message("m", "k", "slow"))...)
	}
	p.send(frames)
	patience.Until(t, "the slow ones are matched elsewhere", func() bool { return s.Begun.Load() == slow })
	frames = nil
	for i := range uint64(quick) {
		frames = append(frames, notify(i, 1, message("m", "q", fmt.Sprint("quick", i)))...)
	}
	p.send(frames)
	for i := range uint64(quick) {
		if r := p.next(); r.stream != i || r.vars(t)["deny"] != false {
			t.Errorf("frame %d answers %d: %v", i, r.stream, r.vars(t))
		}
	}
	if n := s.AtOnce.Load(); n != quick {
		t.Errorf("%d were decided at once", n)
	}
	open()
	denied := 0
	for range slow {
		if p.next().vars(t)["deny"] == true {
			denied++
		}
	}
	if denied != 1 { // 3/hour
		t.Errorf("%d are refused", denied)
	}
}
