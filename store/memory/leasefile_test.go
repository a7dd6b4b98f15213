package memory

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
)

// TestLeaseRestart: what is out survives a restart, under new pointers, and may be told then; what
// has ended meanwhile is used. Records are kept from being forgotten also before anybody asks.
func TestLeaseRestart(t *testing.T) {
	for _, a := range lendingKinds {
		t.Run(a.String(), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "weir.snapshot")
			clock := newClock()
			s := newTest(t, Options{Clock: clock.read, Snapshot: path, MaxKeys: 1000})
			c := lending(t, a)
			_, early := borrow(t, s, c, "early", 20, algo.Ahead{Want: 10, First: true})
			clock.advance(3 * time.Second)
			_, late := borrow(t, s, c, "late", 20, algo.Ahead{Want: 6})
			_, peeked := borrow(t, s, c, "peeked", 0, algo.Ahead{Want: 6})
			if early.Got != 10 || late.Got != 6 || peeked.Got != 6 {
				t.Fatal(early, late, peeked)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			clock.advance(2 * time.Second)
			var n notes
			s = newTest(t, Options{Clock: clock.read, Snapshot: path, MaxKeys: 1000, Logger: n.logger()})
			if audit(t, s); s.Stats().Keys != 5 || n.text() != "" {
				t.Errorf("%+v, %s", s.Stats(), n.text())
			}
			other := counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 1000, Window: 24 * time.Hour})
			for i := range 20_000 {
				take(t, s, other, fmt.Sprint(i), 1)
			}
			next := lending(t, a)
			next.ID, next.Lease.ID = c.ID, c.Lease.ID
			for _, want := range []struct {
				key            string
				remaining, out int64
			}{{"late", 74, 6}, {"peeked", 94, 6}} {
				if r, h := borrow(t, s, next, want.key, 0, algo.Ahead{}); r.Remaining != want.remaining ||
					h.Out != want.out {
					t.Errorf("%+v after a restart: %+v, %+v", want, r, h)
				}
			}
			told := algo.Ahead{Told: [2]algo.Told{{End: late.Until, Used: 2, Returned: 4}}}
			if r, h := borrow(t, s, next, "late", 0, told); r.Remaining != 78 || h.Out != 0 {
				t.Errorf("told after a restart: %+v, %+v", r, h)
			}
		})
	}
}

// TestLeaseRestartEnded: units that ended while the store was away are used, on top of the units
// that were there at that time, however few of those count by now.
func TestLeaseRestartEnded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.snapshot")
	clock := newClock()
	s := newTest(t, Options{Clock: clock.read, Snapshot: path})
	c := withLease(counter(t, algo.Config{Algorithm: algo.TokenBucket, N: 60, Window: time.Minute, Burst: 100,
		Lease: 50, LeaseFor: time.Second}))
	if _, h := borrow(t, s, c, "k", 40, algo.Ahead{Want: 50}); h.Got != 50 {
		t.Fatal(h)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	clock.advance(50 * time.Second) // forty are back; forty and fifty need ninety seconds
	s = newTest(t, Options{Clock: clock.read, Snapshot: path})
	other := counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 1000, Window: 24 * time.Hour})
	for i := range 20_000 {
		take(t, s, other, fmt.Sprint(i), 1)
	}
	if r := take(t, s, c, "k", 0); r.Remaining != 60 {
		t.Errorf("%+v", r)
	}
	audit(t, s)
}
