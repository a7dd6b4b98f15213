package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/store/cas"
)

// The tests of engines that many goroutines use at the same time, and of Scan.

// retry makes a group of f's changes until it is done. f gets what lies under the keys.
func (t *engineTest) retry(keys []cas.Key, f func(values []cas.Value, clock int64) []cas.Change) error {
	values, clock, err := t.e.Read(t.Context(), keys)
	for err == nil {
		groups := []cas.Group{{Changes: f(values, clock)}}
		clock, err = t.e.Swap(t.Context(), 0, groups)
		if err == nil {
			err = groups[0].Err
		}
		if groups[0].Done {
			return err
		}
		values = groups[0].Values
	}
	return err
}

// next is the change that adds to the number which lies under a key.
func (t *engineTest) next(k cas.Key, v cas.Value, add int, clock int64) cas.Change {
	return t.change(k, v.Version, fmt.Sprint(number(v)+add), clock+lasting)
}

func number(v cas.Value) (n int) {
	_, _ = fmt.Sscan(string(v.Data), &n)
	return n
}

// together runs f on many goroutines.
func (t *engineTest) together(n int, f func(g int) error) {
	t.Helper()
	var wg sync.WaitGroup
	for g := range n {
		wg.Go(func() {
			if err := f(g); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// testEngineCounters: many count on a few keys, at the same time, and no unit is lost.
func testEngineCounters(_ *testing.T, t *engineTest) {
	keys := t.keys(4)
	const goroutines, each = 8, 20
	t.together(goroutines, func(g int) error {
		for i := range each {
			k := keys[(g+i)%len(keys)]
			err := t.retry([]cas.Key{k}, func(v []cas.Value, clock int64) []cas.Change {
				return []cas.Change{t.next(k, v[0], 1, clock)}
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	values, _ := t.read(keys...)
	for i, v := range values {
		if number(v) != goroutines*each/len(keys) {
			t.Errorf("key %d has counted %d, want %d", i, number(v), goroutines*each/len(keys))
		}
	}
}

// testEngineTransfers: many move units between keys, and the sum is the same at any instant.
func testEngineTransfers(_ *testing.T, t *engineTest) {
	keys := t.keys(3)
	for _, k := range keys {
		t.put(k, "100")
	}
	sum := func() (sum int, err error) {
		values, _, err := t.e.Read(t.Context(), keys)
		for _, v := range values {
			sum += number(v)
		}
		return sum, err
	}
	t.together(6, func(g int) error {
		for i := range 15 {
			if got, err := sum(); err != nil || got != 300 {
				return fmt.Errorf("the sum is %d, want 300 (%w)", got, err)
			}
			from, to := (g+i)%3, (g+i+1+g%2)%3
			err := t.retry(keys, func(v []cas.Value, clock int64) []cas.Change {
				var changes []cas.Change
				for j, k := range keys {
					switch j {
					case from:
						changes = append(changes, t.next(k, v[j], -1, clock))
					case to:
						changes = append(changes, t.next(k, v[j], 1, clock))
					default:
						changes = append(changes, cas.Change{Key: k, Was: v[j].Version, Keep: true})
					}
				}
				return changes
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if got, err := sum(); err != nil || got != 300 {
		t.Errorf("the sum is %d, want 300 (%v)", got, err)
	}
}

// testEngineCrossed: each of two groups compares the value that the other one changes. One of them
// is first.
func testEngineCrossed(_ *testing.T, t *engineTest) {
	until := t.clock() + lasting
	made := map[int]int{}
	for range 25 {
		keys := t.keys(2)
		var done [2]bool
		t.together(2, func(g int) error {
			changes := make([]cas.Change, 2)
			changes[g] = t.change(keys[g], 0, "mine", until)
			changes[1-g] = cas.Change{Key: keys[1-g], Keep: true}
			groups := []cas.Group{{Changes: changes}}
			_, err := t.e.Swap(t.Context(), 0, groups)
			done[g] = groups[0].Done
			return err
		})
		n := 0
		for _, is := range done {
			if is {
				n++
			}
		}
		made[n]++
	}
	if !maps.Equal(made, map[int]int{1: 25}) {
		t.Errorf("of pairs that exclude each other, so many were made together: %v", made)
	}
}

func (t *engineTest) locker() cas.Locker {
	t.Helper()
	l, ok := t.e.(cas.Locker)
	if !ok {
		t.Skip("it locks nothing")
	}
	return l
}

// testEngineLock: while a key is held, nobody else changes it; then all goes on.
func testEngineLock(_ *testing.T, t *engineTest) {
	l, keys := t.locker(), t.keys(3)
	a := t.put(keys[0], "a")
	hold := func(keys ...cas.Key) (cas.Lock, []cas.Value, int64) {
		t.Helper()
		lock, values, clock, err := l.Lock(t.Context(), keys)
		if err != nil {
			t.Fatalf("Lock: %v", err)
		}
		return lock, values, clock
	}
	for name, keys := range map[string][]cas.Key{"a key with a value": keys[:1], "a key without one": keys[1:2]} {
		lock, values, clock := hold(keys...)
		if clock <= 0 || len(values) != 1 {
			t.Fatalf("%s: %d values at %d", name, len(values), clock)
		}
		before := values[0]
		var entered atomic.Bool
		ended := make(chan error, 1)
		go func() {
			other, values, _, err := l.Lock(t.Context(), keys)
			entered.Store(true)
			if err == nil {
				if string(values[0].Data) != "held" {
					err = fmt.Errorf("the next holder finds %q", values[0].Data)
				}
				err = errors.Join(err, other.Unlock(t.Context(), nil))
			}
			ended <- err
		}()
		// Another key is nobody's.
		free, _, _ := hold(t.keys(1)...)
		if err := free.Unlock(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if _, _, _, err := l.Lock(short, keys); err == nil {
			t.Fatalf("%s: two hold it", name)
		}
		cancel()
		if entered.Load() {
			t.Fatalf("%s: two hold it", name)
		}
		held := t.change(keys[0], before.Version, "held", clock+lasting)
		if err := lock.Unlock(t.Context(), []cas.Change{held}); err != nil {
			t.Fatalf("Unlock: %v", err)
		}
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		t.holds(keys[0], held.Version, "held")
	}
	_ = a
	// Values that are held and not changed stay as they were; and held values can be deleted.
	lock, values, _ := hold(keys...)
	if err := lock.Unlock(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	t.holds(keys[2], 0, "")
	lock, _, _ = hold(keys[:2]...)
	if err := lock.Unlock(t.Context(), []cas.Change{{Key: keys[0], Was: values[0].Version}}); err != nil {
		t.Fatal(err)
	}
	t.holds(keys[0], 0, "")
	t.holds(keys[1], values[1].Version, "held")
}

// testEngineLockedCounters: some count under locks, some by plain swaps, and no unit is lost.
func testEngineLockedCounters(_ *testing.T, t *engineTest) {
	l, keys := t.locker(), t.keys(2)
	const goroutines, each = 6, 15
	t.together(goroutines, func(g int) error {
		for range each {
			if g%2 == 0 {
				err := t.retry(keys, func(v []cas.Value, clock int64) []cas.Change {
					return []cas.Change{t.next(keys[0], v[0], 1, clock), t.next(keys[1], v[1], -1, clock)}
				})
				if err != nil {
					return err
				}
				continue
			}
			lock, v, clock, err := l.Lock(t.Context(), keys)
			if err != nil {
				return err
			}
			if number(v[0]) != -number(v[1]) {
				return fmt.Errorf("%q and %q at one instant", v[0].Data, v[1].Data)
			}
			if err := lock.Unlock(t.Context(), []cas.Change{t.next(keys[0], v[0], 1, clock), t.next(keys[1], v[1], -1, clock)}); err != nil {
				return err
			}
		}
		return nil
	})
	values, _ := t.read(keys...)
	if number(values[0]) != goroutines*each || number(values[1]) != -goroutines*each {
		t.Errorf("%q and %q counted, want %d", values[0].Data, values[1].Data, goroutines*each)
	}
}

// testEngineScan: values that exist all the while are visited, as they are; deleted ones are not.
func testEngineScan(_ *testing.T, t *engineTest) {
	const n = 120
	until := t.clock() + lasting
	want := map[string]cas.Value{}
	var groups []cas.Group
	for i := range n {
		k := t.keys(1)[0]
		life := []int64{lasting, 30 * lasting, 400 * 24 * lasting, lasting / 60}[i%4]
		c := t.change(k, 0, fmt.Sprint("value ", i), until-lasting+life)
		groups = append(groups, cas.Group{Changes: []cas.Change{c}})
		want[string(k.Name)] = cas.Value{Version: c.Version, Data: c.Data}
	}
	t.swap(groups...)
	gone := groups[5].Changes[0]
	deleted := []cas.Group{{Changes: []cas.Change{{Key: gone.Key, Was: gone.Version}}}}
	t.swap(deleted...)
	delete(want, string(gone.Name))
	for _, limit := range []int{1000, 16, 1} {
		got := map[string]cas.Value{}
		from, rounds := "", 0
		for {
			visited := 0
			next, of, err := t.e.Scan(t.Context(), from, limit, func(name []byte, v cas.Value) {
				visited++
				got[string(name)] = cas.Value{Version: v.Version, Data: bytes.Clone(v.Data)}
			})
			if err != nil {
				t.Fatal(err)
			}
			if visited > 4*limit+16 {
				t.Errorf("%d values of about %d that were asked for", visited, limit)
			}
			if of < n/4 || of > 4*n {
				t.Errorf("about %d values, of %d", of, n-1)
			}
			if from = next; from == "" {
				break
			}
			if rounds++; rounds > 20*n {
				t.Fatal("the scan does not end")
			}
		}
		for name, v := range want {
			if g, ok := got[name]; !ok || g.Version != v.Version || !bytes.Equal(g.Data, v.Data) {
				t.Errorf("limit %d: %q is %+v, want %+v", limit, name, g, v)
			}
			delete(got, name)
		}
		for name := range got {
			t.Errorf("limit %d: %q was visited, which does not exist", limit, name)
		}
	}
	if _, _, err := t.e.Scan(t.Context(), "no position", 10, func([]byte, cas.Value) {}); err != nil {
		t.Logf("a position that is none: %v", err) // an error, or any place
	}
}
