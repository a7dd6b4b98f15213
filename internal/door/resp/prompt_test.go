package resp

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/doortest"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

// isSlow is what has to wait: keys that say so.
func isSlow(charges []store.Charge) bool { return bytes.Contains(charges[0].Key, []byte("slow")) }

// waiting is a memory store with a clock that stands still, behind a network.
func waiting(t *testing.T, c *clock, waits func([]store.Charge) bool, gate <-chan struct{}) *doortest.WaitingStore {
	t.Helper()
	inner, err := memory.New(memory.Options{Clock: c.now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { inner.Close() })
	return &doortest.WaitingStore{Store: inner, Waits: waits, Gate: gate, Far: true}
}

// TestQuickBesideSlow: what the store decides at once is decided while other commands wait, also
// those before it in the same pipeline; the answers stay in order.
func TestQuickBesideSlow(t *testing.T) {
	now, gate := newClock(), make(chan struct{})
	s := waiting(t, now, isSlow, gate)
	d := openDoorOn(t, s, now, limitRules, Options{Concurrent: 1024})
	open := sync.OnceFunc(func() { close(gate) })
	t.Cleanup(open)
	c, other := d.dial(t), d.dial(t)
	var pipeline strings.Builder
	const n = 10 // so few that they are read in one go
	for i := range n {
		pipeline.WriteString(command("CL.THROTTLE", fmt.Sprint("slow", i), "1", "1", "60"))
		pipeline.WriteString(command("CL.THROTTLE", fmt.Sprint("quick", i), "1", "1", "60"))
		pipeline.WriteString(command("THROTTLE", fmt.Sprint("slow", i), "1", "1", "60"))
		pipeline.WriteString(command("WEIR.LIMIT", "shop", "1", "key", fmt.Sprint("quick", i)))
	}
	c.send(pipeline.String())
	patience.Until(t, "the quick ones are decided, and slow ones wait",
		func() bool { return s.AtOnce.Load() == 2*n && s.Begun.Load() > 0 })
	for i := range n { // on another connection they are answered
		if got := other.do("CL.THROTTLE", fmt.Sprint("quick", i), "1", "1", "60"); got != "[0 2 0 -1 120]" {
			t.Error(got)
		}
	}
	open()
	for i := range n {
		for _, want := range []string{"[0 2 1 -1 60]", "[0 2 1 -1 60]", "[1 1 0 60 0]", "[1 2 1 0 60000 []]"} {
			if got := c.reply(); got != want {
				t.Fatalf("round %d: %s, want %s", i, got, want)
			}
		}
	}
}

// TestSameBothWays: commands are answered alike, in the order in which they came, whether they are
// decided at once, wait for each other, or some wait; and alike are the counts and the reports to
// hooks.
func TestSameBothWays(t *testing.T) {
	var mu sync.Mutex
	flip := rand.New(rand.NewPCG(1, 2))
	ways := map[string]func([]store.Charge) bool{
		"at once": func([]store.Charge) bool { return false },
		"waiting": nil,
		"by key":  func(c []store.Charge) bool { return len(c[0].Key)%2 == 0 },
		"by chance": func([]store.Charge) bool {
			mu.Lock()
			defer mu.Unlock()
			return flip.IntN(2) == 0
		},
	}
	random := rand.New(rand.NewPCG(3, 4))
	var pipeline strings.Builder
	const n = 2000
	for range n {
		key := strings.Repeat("k", 1+random.IntN(6))
		switch random.IntN(9) {
		case 0:
			pipeline.WriteString(command("PING"))
		case 1:
			pipeline.WriteString(command("CL.THROTTLE", key))
		case 2, 3:
			pipeline.WriteString(command("CL.THROTTLE", key, "30", "1", "60", fmt.Sprint(random.IntN(3))))
		case 4, 5:
			pipeline.WriteString(command("THROTTLE", key, "30", "1", "60", fmt.Sprint(random.IntN(3))))
		case 6:
			pipeline.WriteString(command("CL.THROTTLE", strings.Repeat(key, 300), "30", "1", "60"))
		default:
			pipeline.WriteString(command("WEIR.LIMIT", "shop", fmt.Sprint(random.IntN(3)), "key", key))
		}
	}
	replies, told, counts := map[string][]string{}, map[string][]string{}, map[string]string{}
	for name, waits := range ways {
		now := newClock()
		var heard []string
		d := openDoorOn(t, waiting(t, now, waits, nil), now, limitRules,
			Options{Concurrent: 64, Throttled: func(command string, key []byte, quantity, now int64, r *algo.Result) {
				mu.Lock()
				defer mu.Unlock()
				heard = append(heard, fmt.Sprintf("%s %s %d %d %+v", command, key, quantity, now, *r))
			}})
		c := d.dial(t)
		go c.send(pipeline.String())
		for range n {
			replies[name] = append(replies[name], c.reply())
		}
		c.Close()
		eventually(t, "the connection is closed", func() bool { return d.Stats().Connections == 0 })
		mu.Lock()
		slices.Sort(heard) // lanes run beside each other
		told[name] = heard
		mu.Unlock()
		counts[name] = fmt.Sprintf("%+v, %d others", d.Stats().Decisions, d.Stats().Other)
	}
	for name := range ways {
		if counts[name] != counts["at once"] {
			t.Errorf("%s: counted\n%s, at once\n%s", name, counts[name], counts["at once"])
		}
		for what, of := range map[string]map[string][]string{"answer": replies, "told": told} {
			for i, want := range of["at once"] {
				if i >= len(of[name]) || of[name][i] != want {
					t.Fatalf("%s: %s %d of %d is not %s", name, what, i, len(of[name]), want)
				}
			}
		}
	}
}

// TestDefectAtOnce: a defect where a command is decided at once ends its connection at most.
func TestDefectAtOnce(t *testing.T) {
	told := make(chan string, 10)
	now := newClock()
	s := waiting(t, now, func([]store.Charge) bool { panic("a defect") }, nil)
	d := openDoorOn(t, s, now, limitRules, Options{Concurrent: 8, Logger: doortest.LogTo(func(m string) { told <- m })})
	c := d.dial(t)
	c.send(command("CL.THROTTLE", "a", "1", "1", "1"))
	if m := <-told; !strings.Contains(m, "a defect") {
		t.Error(m)
	}
	eventually(t, "the connection is closed", func() bool { return d.Stats().Connections == 0 })
	d.served(t)
}
