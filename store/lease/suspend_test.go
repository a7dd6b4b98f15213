package lease

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

// sleeper is a lender whose answers are on their way while answered runs.
type sleeper struct {
	*memory.Store
	at       func() int64
	answered func()
}

func (l *sleeper) TakeAhead(
	ctx context.Context, minWait, maxWait time.Duration, charges []store.Charge, ahead []algo.Ahead,
	results []algo.Result,
) (now, asked int64, err error) {
	asked = l.at()
	now, _, err = l.Store.TakeAhead(ctx, minWait, maxWait, charges, ahead, results)
	l.answered()
	return now, asked, err
}

// TestSuspendedCall: the machine is suspended while an answer is on its way, and its clock with it.
// That is noticed before the answer comes. The units in it may be over, whatever the clock says.
func TestSuspendedCall(t *testing.T) {
	w := newWorld()
	var asleep atomic.Int64 // ns
	m, err := memory.New(memory.Options{Clock: func() int64 { return w.now() + asleep.Load()/1000 }})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	primary := &sleeper{Store: m, at: w.at, answered: func() {}}
	s := newNode(t, w, primary, Options{})
	s.guard.clocks = func() []int64 { return []int64{w.at() + asleep.Load()} }
	s.tick(w.at())
	c := charge(counterOf(t, algo.Config{Algorithm: algo.SlidingLog, N: 1000, Window: time.Minute, Lease: 10,
		LeaseFor: 2 * time.Second}), "key", 1)
	for range 3 {
		take(t, s, c)
	}
	s.pump(context.Background())
	primary.answered = func() {
		asleep.Add(int64(time.Minute))
		w.advance(10 * time.Millisecond)
		s.tick(w.at())
		w.advance(10 * time.Millisecond)
	}
	for range 2 {
		c.Ask.Cost = s.Stats().Left + 1 // more than is held
		take(t, s, c)
		if left := s.Stats().Left; left != 0 {
			t.Fatalf("%d units can be used that were lent before the machine was suspended", left)
		}
	}
	primary.answered = func() {}
	for range 3 {
		w.advance(time.Millisecond)
		take(t, s, c)
	}
	if left := s.Stats().Left; left == 0 {
		t.Error("nothing is lent afterwards")
	}
}
