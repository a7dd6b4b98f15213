package resp

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/doortest"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/store"
)

// TestQuickBesideSlowRules: commands that are tried on hundreds of rules one by one hold up neither
// the decision of those behind them in the pipeline, nor other connections; the answers stay in
// order. The store never waits by itself; it is shut for commands that are not decided at once.
func TestQuickBesideSlowRules(t *testing.T) {
	now, gate := newClock(), make(chan struct{})
	s := waiting(t, now, func([]store.Charge) bool { return false }, gate)
	d := openDoorOn(t, s, now, doortest.SlowRules("d", "k", "q"), Options{Concurrent: 1024})
	open := sync.OnceFunc(func() { close(gate) })
	t.Cleanup(open)
	c, other := d.dial(t), d.dial(t)
	var pipeline strings.Builder
	const n = 10 // so few that they are read in one go
	for i := range n {
		pipeline.WriteString(command("WEIR.LIMIT", "d", "1", "k", fmt.Sprint("slow", i)))
		pipeline.WriteString(command("WEIR.LIMIT", "d", "1", "q", fmt.Sprint("quick", i)))
	}
	c.send(pipeline.String())
	patience.Until(t, "the quick ones are decided, and slow ones wait",
		func() bool { return s.AtOnce.Load() == n && s.Begun.Load() > 0 })
	for i := range n { // on another connection they are answered
		if got := other.do("WEIR.LIMIT", "d", "1", "q", fmt.Sprint("quick", i)); !strings.HasPrefix(got, "[1 3 1 ") {
			t.Error(got)
		}
	}
	open()
	for range 2 * n {
		if got := c.reply(); !strings.HasPrefix(got, "[1 3 2 ") {
			t.Error(got)
		}
	}
}
