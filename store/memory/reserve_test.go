package memory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

func hold(t testing.TB, s *Store, id string, timeout time.Duration) {
	t.Helper()
	if err := s.Hold(context.Background(), id, []byte("note of "+id), timeout); err != nil {
		t.Fatal(err)
	}
}

func expired(t testing.TB, s *Store, n int) (ids []string) {
	t.Helper()
	notes, err := s.Expired(context.Background(), n)
	if err != nil {
		t.Fatal(err)
	}
	for _, note := range notes {
		ids = append(ids, string(bytes.TrimPrefix(note, []byte("note of "))))
	}
	return ids
}

func TestReservationsBounded(t *testing.T) {
	clock := newClock()
	s := newTest(t, Options{Clock: clock.read, MaxReservations: 3})
	for i := range 3 {
		hold(t, s, fmt.Sprint(i), time.Duration(i+1)*time.Minute)
	}
	err := s.Hold(context.Background(), "one more", nil, time.Minute)
	if err == nil || !errors.Is(err, store.ErrNotCharged) {
		t.Errorf("one more: %v", err)
	}
	// Those whose time-out has passed count until they are handed out, or their estimates would be
	// lost.
	clock.advance(time.Hour)
	if err := s.Hold(context.Background(), "one more", nil, time.Minute); err == nil {
		t.Error("one was dropped")
	}
	if ids := expired(t, s, 2); fmt.Sprint(ids) != "[0 1]" {
		t.Errorf("expired: %v", ids)
	}
	hold(t, s, "one more", time.Minute)
	if st := s.Stats(); st.Reservations != 2 {
		t.Errorf("%+v", st)
	}
	if err := s.Hold(context.Background(), "one more", nil, time.Minute); err == nil {
		t.Error("two of one id")
	}
	for _, timeout := range []time.Duration{0, -1} {
		if err := s.Hold(context.Background(), "no time", nil, timeout); err == nil {
			t.Errorf("held for %v", timeout)
		}
	}
	if err := s.Hold(context.Background(), "large", make([]byte, maxNote), time.Minute); err == nil {
		t.Error("a note of any size")
	}
	s = newTest(t, Options{MaxReservations: 1000})
	held := 0
	for i := range 1000 {
		if s.Hold(context.Background(), fmt.Sprint(i), make([]byte, 10*meanNote), time.Minute) != nil {
			break
		}
		held++
	}
	if held < 100 || held > 300 {
		t.Errorf("%d large notes are held", held)
	}
	for i := range held {
		if _, ok, _ := s.Claim(context.Background(), fmt.Sprint(i)); !ok {
			t.Errorf("note %d is gone", i)
		}
	}
	if s.reservations.bytes != 0 || s.reservations.ends.Len() != 0 {
		t.Errorf("%d bytes of none", s.reservations.bytes)
	}
}

// TestReservationsClock: notes expire by the store's clock, in virtual time too, and a clock that
// is set back holds none for longer than it asked for.
func TestReservationsClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTest(t, Options{})
		hold(t, s, "a", 2*time.Minute)
		hold(t, s, "b", time.Minute)
		time.Sleep(time.Minute - 1)
		if ids := expired(t, s, 9); ids != nil {
			t.Errorf("too early: %v", ids)
		}
		time.Sleep(time.Microsecond)
		if ids := expired(t, s, 9); fmt.Sprint(ids) != "[b]" {
			t.Errorf("expired: %v", ids)
		}
		time.Sleep(time.Hour)
		if ids := expired(t, s, 0); ids != nil {
			t.Errorf("none asked for: %v", ids)
		}
		if ids := expired(t, s, 9); fmt.Sprint(ids) != "[a]" {
			t.Errorf("expired: %v", ids)
		}
	})
	clock := newClock()
	s := newTest(t, Options{Clock: clock.read})
	clock.advance(10_000 * time.Hour)
	hold(t, s, "a", time.Minute)
	clock.advance(-10_000 * time.Hour)
	if ids := expired(t, s, 9); ids != nil {
		t.Errorf("too early: %v", ids)
	}
	clock.advance(time.Minute)
	if ids := expired(t, s, 9); fmt.Sprint(ids) != "[a]" {
		t.Errorf("expired: %v", ids)
	}
}

// TestReservationsConcurrent: each note is handed out once, no matter which call asks first.
func TestReservationsConcurrent(t *testing.T) {
	s := newTest(t, Options{})
	const n = 2000
	for i := range n {
		hold(t, s, fmt.Sprint(i), time.Microsecond)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := map[string]int{}
	for g := range 4 {
		wg.Go(func() {
			for i := range n {
				var ids []string
				if g%2 == 0 {
					if note, ok, _ := s.Claim(context.Background(), fmt.Sprint(i)); ok {
						ids = append(ids, string(bytes.TrimPrefix(note, []byte("note of "))))
					}
				} else {
					ids = expired(t, s, 3)
				}
				mu.Lock()
				for _, id := range ids {
					seen[id]++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for i := range n {
		if seen[fmt.Sprint(i)] != 1 {
			t.Fatalf("note %d was handed out %d times", i, seen[fmt.Sprint(i)])
		}
	}
}

// TestReservationsRestart: a restart gives reservations back when their time is over, the time of
// the outage included.
func TestReservationsRestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.snapshot")
	clock := newClock()
	s := newTest(t, Options{Clock: clock.read, Snapshot: path})
	c := counter(t, algo.Config{Algorithm: algo.SlidingLog, N: 100, Window: 24 * time.Hour})
	take(t, s, c, "k", 30)
	at := clock.read()
	hold(t, s, "short", time.Minute)
	hold(t, s, "long", time.Hour)
	hold(t, s, "claimed", time.Hour)
	if _, ok, _ := s.Claim(context.Background(), "claimed"); !ok {
		t.Fatal("it was held")
	}
	clock.advance(30 * time.Second)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	clock.advance(29 * time.Second)
	s = newTest(t, Options{Clock: clock.read, Snapshot: path})
	if st := s.Stats(); st.Reservations != 2 {
		t.Errorf("%+v", st)
	}
	if ids := expired(t, s, 9); ids != nil {
		t.Errorf("too early: %v", ids)
	}
	clock.advance(time.Second)
	if ids := expired(t, s, 9); fmt.Sprint(ids) != "[short]" {
		t.Errorf("expired: %v", ids)
	}
	if err := s.Settle(context.Background(), []store.Settlement{{Counter: c, Limit: c.Limit, Key: []byte("k"), At: at, Reserved: 30}}); err != nil {
		t.Fatal(err)
	}
	if _, ok := peek(s, c, []byte("k")); ok {
		t.Error("what was reserved did not come back")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = newTest(t, Options{Clock: clock.read, Snapshot: path, MaxReservations: 1})
	if note, ok, _ := s.Claim(context.Background(), "long"); !ok || string(note) != "note of long" {
		t.Errorf("%q, %v", note, ok)
	}
}

// TestReservationsSnapshotAgrees: a snapshot holds no reservation whose charge it may not hold, nor
// one that was settled.
func TestReservationsSnapshotAgrees(t *testing.T) {
	s := newTest(t, Options{})
	hold(t, s, "stays", time.Hour)
	hold(t, s, "goes", time.Hour)
	var b bytes.Buffer
	during := &during{w: &b, once: func() {
		hold(t, s, "comes", time.Hour)
		s.Claim(context.Background(), "goes")
	}}
	c := counter(t, algo.Config{Algorithm: algo.SlidingLog, N: 20_000, Window: time.Hour})
	take(t, s, c, "large", 20_000) // so that a part is written before the reservations are
	head, err := s.dump(during, true)
	if err != nil {
		t.Fatal(err)
	}
	again := newTest(t, Options{})
	if err := read(again, slices.Concat(s.appendFileHead(nil), head, b.Bytes())); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]bool{"stays": true, "goes": false, "comes": false} {
		if _, ok, _ := again.Claim(context.Background(), id); ok != want {
			t.Errorf("%s is held: %v", id, ok)
		}
	}
}

// during does something at the first write.
type during struct {
	w    *bytes.Buffer
	once func()
}

func (d *during) Write(b []byte) (int, error) {
	if d.once != nil {
		d.once()
		d.once = nil
	}
	return d.w.Write(b)
}

func TestSettle(t *testing.T) {
	clock := newClock()
	s := newTest(t, Options{Clock: clock.read, MaxKeys: 2})
	c := counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 10, Window: 24 * time.Hour})
	settle := func(c *rule.Counter, key string, reserved, actual int64) {
		t.Helper()
		if err := s.Settle(context.Background(), []store.Settlement{{Counter: c, Limit: c.Limit, Key: []byte(key), At: clock.read(), Reserved: reserved, Actual: actual}}); err != nil {
			t.Fatal(err)
		}
	}
	left := func(c *rule.Counter, key string, want int64) {
		t.Helper()
		if got := take(t, s, c, key, 0).Remaining; got != want {
			t.Errorf("%s has %d left, want %d", key, got, want)
		}
	}
	take(t, s, c, "a", 8)
	more := counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 12, Window: 24 * time.Hour})
	more.ID = c.ID
	settle(more, "a", 8, 3)
	if info, ok := peek(s, more, []byte("a")); !ok || info.Result.Limit != 12 || info.Result.Remaining != 9 {
		t.Errorf("settled under another number: %+v, %v", info, ok)
	}
	left(c, "a", 7)
	settle(c, "a", 0, 9)
	left(c, "a", 0)
	// Of a key that is not known nothing comes back, but it can come to owe.
	settle(c, "b", 5, 0)
	left(c, "b", 10)
	settle(c, "b", 5, 20)
	left(c, "b", 0)
	// On an overflow cell.
	if st := s.Stats(); st.Keys != 2 || st.Overflows != 0 {
		t.Fatalf("%+v", st)
	}
	settle(c, "c", 5, 20)
	left(c, "c", 0)
	take(t, s, c, "d", 8)
	settle(c, "d", 8, 2) // others may have charged what would go back
	left(c, "d", 2)
	if st := s.Stats(); st.Keys != 2 || st.Overflows == 0 {
		t.Errorf("%+v", st)
	}
	audit(t, s)
	// After a reload that changed the window.
	next := counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 100, Window: 48 * time.Hour})
	next.Previous = []*rule.Counter{c}
	settle(next, "b", 10, 0)
	if st := s.Stats(); st.Keys != 2 {
		t.Errorf("%+v", st)
	}
	left(next, "b", 95)
	for _, bad := range []store.Settlement{{Counter: c, Key: []byte("a")}, {Limit: c.Limit, Key: []byte("a")}} {
		if s.Settle(context.Background(),
			[]store.Settlement{{Counter: c, Limit: c.Limit, Key: []byte("a"), At: clock.read(), Reserved: 9},
				bad}) == nil {
			t.Error("no error")
		}
	}
	left(c, "a", 0)
}
