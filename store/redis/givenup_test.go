package redis_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/redis"
)

// TestClaimGivenUp: a reservation that was claimed, or had timed out, and whose note had not come
// when the caller gave up, comes with the next call on this node, and nowhere else.
func TestClaimGivenUp(t *testing.T) {
	l := startLossy(t)
	hold := func(id string, timeout time.Duration) {
		t.Helper()
		if err := l.s.Hold(t.Context(), id, []byte("note of "+id), timeout); err != nil {
			t.Fatal(err)
		}
	}
	hold("r", time.Hour)
	claim := func(s *redis.Store, want bool) {
		t.Helper()
		if note, ok, err := s.Claim(t.Context(), "r"); ok != want || err != nil || ok && string(note) != "note of r" {
			t.Errorf("%q, %v, %v; want %v", note, ok, err, want)
		}
	}
	for range 2 { // it may be given up again
		ctx, giveUp := context.WithCancel(t.Context())
		l.lose("_claim", func() {
			if _, ok, err := l.s.Claim(ctx, "r"); ok || err == nil {
				t.Errorf("no answer came: %v, %v", ok, err)
			}
		}, giveUp)
	}
	claim(l.witness, false)
	claim(l.s, true)
	claim(l.s, false)

	hold("a", time.Microsecond)
	hold("b", time.Microsecond)
	ctx, giveUp := context.WithCancel(t.Context())
	l.lose("_expired", func() {
		if notes, err := l.s.Expired(ctx, 5); len(notes) > 0 || err == nil {
			t.Errorf("no answer came: %q, %v", notes, err)
		}
	}, giveUp)
	if notes, err := l.witness.Expired(t.Context(), 5); len(notes) > 0 || err != nil {
		t.Errorf("handed out before: %q, %v", notes, err)
	}
	if notes, err := l.s.Expired(t.Context(), 5); len(notes) != 2 || err != nil {
		t.Errorf("%q, %v", notes, err)
	}
	if notes, err := l.s.Expired(t.Context(), 5); len(notes) > 0 || err != nil {
		t.Errorf("handed out twice: %q, %v", notes, err)
	}
}

// TestSettlementGivenUp: a settlement whose caller gave up, and that another node then overtakes,
// is made all the same: it counts as made.
func TestSettlementGivenUp(t *testing.T) {
	server := redistest.Start(t)
	const instant = 1767225600_000000
	var left atomic.Int64 // of times that the clock is asked until before runs
	var before func()
	here := open(t, redis.Options{URL: server.URL(), Clock: func() int64 {
		if left.Add(-1) == 0 {
			before()
		}
		return instant
	}})
	other := open(t, redis.Options{URL: server.URL(), Clock: func() int64 { return instant }})
	c := newCounter(t, 1, algo.Config{Algorithm: algo.FixedWindow, N: 100, Window: 366 * days})
	_, at := take(t, here, charge(c, "k", 10))
	ctx, giveUp := context.WithCancel(t.Context())
	settled := make(chan error)
	before = func() {
		giveUp()
		if err := <-settled; err == nil || errors.Is(err, store.ErrNotCharged) {
			t.Errorf("its caller gave up, and is told %v", err)
		}
		take(t, other, charge(c, "k", 1))
	}
	left.Store(2) // the states have been read then
	settled <- here.Settle(ctx,
		[]store.Settlement{{Counter: c, Limit: c.Limit, Key: []byte("k"), At: at, Reserved: 10, Actual: 4}})
	eventually(t, "what was reserved too much is given back", func() bool { return used(t, other, c, "k") == 5 })
}
