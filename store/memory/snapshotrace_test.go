package memory

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// meanwhile is a block that is being written. What is to happen meanwhile does so when its first
// bytes are written.
type meanwhile struct {
	bytes.Buffer
	do func()
}

func (m *meanwhile) Write(b []byte) (int, error) {
	if do := m.do; do != nil {
		m.do = nil
		do()
	}
	return m.Buffer.Write(b)
}

// block returns a block of a store, during which something happens.
func block(t testing.TB, s *Store, whole bool, do func()) []byte {
	t.Helper()
	m := meanwhile{do: do}
	head, err := s.dump(&m, whole)
	if err != nil {
		t.Fatal(err)
	}
	if m.do != nil {
		t.Fatal("nothing happened while the block was written")
	}
	return append(head, m.Bytes()...)
}

// keysOfShard returns names of keys that belong to one shard, in the order of their tags under a
// counter. They are so many that a part of them is written in several pieces.
func keysOfShard(s *Store, shard uint64, c *rule.Counter) []string {
	var names []string
	for i := 0; len(names) < 3*visitBatch; i++ {
		if name := fmt.Sprintf("%0150d", i); s.hash([]byte(name))>>s.shift == shard {
			names = append(names, name)
		}
	}
	tag := func(name string) uint32 { return tagOf(s.hash([]byte(name)), c.ID) }
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(tag(a), tag(b)) })
	return names
}

// TestSnapshotForgottenMeanwhile forgets keys while a block is written that has their shard, and
// charges some of them again: before and behind the place that is being written.
func TestSnapshotForgottenMeanwhile(t *testing.T) {
	clock := newClock()
	c := counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 1, Window: time.Hour})
	for _, whole := range []bool{true, false} {
		s := newTest(t, Options{Clock: clock.read})
		names := keysOfShard(s, 3, c)
		for _, name := range names {
			take(t, s, c, name, 1)
		}
		file := slices.Concat(s.appendFileHead(nil), block(t, s, true, func() {}))
		for _, name := range names {
			take(t, s, c, name, 1)
		}
		again := func() {
			for _, i := range []int{0, len(names) - 1} {
				reset(s, c, names[i])
				take(t, s, c, names[i], 1)
			}
			for _, i := range []int{1, len(names) - 2} {
				reset(s, c, names[i])
			}
		}
		if whole {
			file = slices.Concat(s.appendFileHead(nil), block(t, s, true, again))
		} else {
			file = append(file, block(t, s, false, again)...)
		}
		file = append(file, block(t, s, false, func() {})...)
		loaded := newTest(t, Options{Clock: clock.read})
		if err := read(loaded, file); err != nil {
			t.Fatal(err)
		}
		audit(t, loaded)
		if got, want := stillOf(loaded), stillOf(s); len(want) != len(names)-2 || !maps.Equal(got, want) {
			for id := range want {
				if _, ok := got[id]; !ok {
					t.Errorf("whole: %v: lost: %s", whole, strings.TrimLeft(id, "0"))
				}
			}
			t.Errorf("whole: %v: %d states, want %d", whole, len(got), len(want))
		}
	}
}

// TestSnapshotSettledMeanwhile commits a reservation while a block is written: what went back is in
// the block, and the reservation is not held again, since it would go back twice.
func TestSnapshotSettledMeanwhile(t *testing.T) {
	clock := newClock()
	c := counter(t, algo.Config{Algorithm: algo.TokenBucket, N: 10, Window: time.Hour})
	s := newTest(t, Options{Clock: clock.read})
	names := keysOfShard(s, 3, c)
	last := names[len(names)-1]
	take(t, s, c, last, 8)
	hold(t, s, "reserved", time.Hour)
	file := slices.Concat(s.appendFileHead(nil), block(t, s, true, func() {}))
	for _, name := range names[:len(names)-1] {
		take(t, s, c, name, 5)
	}
	file = append(file, block(t, s, false, func() {
		if _, ok, err := s.Claim(t.Context(), "reserved"); !ok || err != nil {
			t.Error(ok, err)
		}
		settlement := store.Settlement{Counter: c, Limit: c.Limit, Key: []byte(last), At: clock.read(), Reserved: 8,
			Actual: 1}
		if err := s.Settle(t.Context(), []store.Settlement{settlement}); err != nil {
			t.Error(err)
		}
		hold(t, s, "of a charge that is not in the file", time.Hour)
	})...)
	loaded := newTest(t, Options{Clock: clock.read})
	if err := read(loaded, file); err != nil {
		t.Fatal(err)
	}
	if got, want := stillOf(loaded), stillOf(s); !maps.Equal(got, want) {
		t.Fatalf("%d states, want %d", len(got), len(want))
	}
	if n := loaded.Stats().Reservations; n != 0 {
		t.Errorf("%d reservations are held, want none", n)
	}
	file = append(file, block(t, s, false, func() {})...)
	loaded = newTest(t, Options{Clock: clock.read})
	if err := read(loaded, file); err != nil {
		t.Fatal(err)
	}
	if n := loaded.Stats().Reservations; n != 1 {
		t.Errorf("%d reservations are held after the next block, want 1", n)
	}
}

// TestSnapshotClockAhead: what a clock that ran ahead made fresh for a time is in the file again
// when the clock is right.
func TestSnapshotClockAhead(t *testing.T) {
	clock := newClock()
	c := counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 1, Window: time.Hour})
	s := newTest(t, Options{Clock: clock.read, MaxKeys: 200})
	take(t, s, c, "filed", 1)
	file := slices.Concat(s.appendFileHead(nil), block(t, s, true, func() {}))
	take(t, s, c, "filed", 1)
	take(t, s, c, "not filed", 1)
	clock.advance(24 * time.Hour)
	file = append(file, block(t, s, false, func() {})...)
	clock.advance(-24 * time.Hour)
	take(t, s, c, "another", 1)
	file = append(file, block(t, s, false, func() {})...)
	loaded := newTest(t, Options{Clock: clock.read})
	if err := read(loaded, file); err != nil {
		t.Fatal(err)
	}
	if got, want := stillOf(loaded), stillOf(s); len(want) != 3 || !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
