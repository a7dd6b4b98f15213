package shed

import (
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// Whoever comes takes the oldest, however many are put in at a time.
func TestQueueOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := newLine(newSleeper(func() {})).Door("rls", bound, Error)
		if rapid.Bool().Draw(t, "no door") {
			d = nil
		}
		q := NewQueue[int](d)
		in, out := 0, 0
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			list := make([]int, rapid.IntRange(1, 200).Draw(t, "put"))
			for i := range list {
				list[i], in = in, in+1
			}
			q.Put(time.Now(), list...)
			for n := rapid.IntRange(0, in-out).Draw(t, "take"); n > 0; n-- {
				got, late := q.Take()
				if got != out || late {
					t.Fatalf("took %d, late %v, want %d", got, late, out)
				}
				out++
			}
		}
	})
}

// working has a queue of requests of a millisecond each: n in the beginning, and of every
// millisecond so many as come says. It returns how many were late in all, and the longest time that
// one waited which was not, after a beginning of 100 ms.
func working(d *Door, n int, long time.Duration, come func(ms int) int) (late int, waited time.Duration) {
	q := NewQueue[time.Time](d)
	start, left := time.Now(), 0
	put := func(n int) {
		for range n {
			q.Put(time.Now(), time.Now())
			left++
		}
	}
	put(n)
	for ms := 0; time.Since(start) < long; ms++ {
		for range 1000 { // what is late costs nothing
			if left == 0 {
				break
			}
			left--
			came, l := q.Take()
			if l {
				late++
				continue
			}
			if time.Since(start) > 100*time.Millisecond {
				waited = max(waited, time.Since(came))
			}
			break
		}
		time.Sleep(time.Millisecond)
		put(come(ms))
	}
	return late, waited
}

func TestQueue(t *testing.T) {
	for _, test := range []struct {
		name string
		n    int
		come func(ms int) int
		late func(n int) bool
	}{
		{"as many as it can", 5, func(int) int { return 1 }, func(n int) bool { return n == 0 }},
		{"a burst", 55, func(int) int { return 0 }, func(n int) bool { return n == 0 }},
		{"twice as many", 0, func(int) int { return 2 }, func(n int) bool { return n > 900 && n < 1000 }},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := newLine(newSleeper(func() {})).Door("rls", bound, Error)
			late, waited := working(d, test.n, time.Second, test.come)
			if !test.late(late) || waited > bound {
				t.Errorf("%s: %d are late, and others waited for %v", test.name, late, waited)
			}
			if got := d.isOverloaded(); got != (late > 0) {
				t.Errorf("%s: overload is %v", test.name, got)
			}
		})
	}
}

// Overload of a queue ends a second after it was seen last, though nothing is queued any more:
// those who are decided at once are not to be turned away by it for a moment's line.
func TestQueueOverloadEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newLine(newSleeper(func() {})).Door("rls", bound, Error)
		working(d, 0, time.Second, func(int) int { return 2 })
		time.Sleep(calm - 2*bound)
		if !d.isOverloaded() {
			t.Error("overload ends at once")
		}
		time.Sleep(2 * bound)
		if d.isOverloaded() {
			t.Error("overload does not end")
		}
	})
}

// Where the process has no processor for a time, again and again, all wait that came meanwhile. But
// when it has answered them there is nothing left to do.
func TestQueueStarved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newLine(newSleeper(func() {})).Door("rls", bound, Error)
		q := NewQueue[int](d)
		for round := range 100 {
			q.Put(time.Now(), 1, 2, 3)
			time.Sleep(30 * time.Millisecond)
			for range 3 {
				if _, late := q.Take(); late {
					t.Fatalf("one is late in round %d", round)
				}
			}
			time.Sleep(2 * time.Millisecond)
		}
	})
}

// A rush of calls leaves no room behind that nobody needs any more.
func TestQueueShrinks(t *testing.T) {
	q := NewQueue[int](nil)
	q.Put(time.Now(), make([]int, 10*maxKept)...)
	for range 10 * maxKept {
		q.Take()
	}
	if got := cap(q.waiting); got > maxKept {
		t.Errorf("there is still room for %d", got)
	}
}

// The door knows how long the next one will wait.
func TestQueueAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newLine(newSleeper(func() {})).Door("rls", bound, Error)
		q := NewQueue[int](d)
		for range 1000 {
			q.Put(time.Now(), 1)
		}
		for range 990 {
			q.Take()
			time.Sleep(10 * time.Microsecond)
		}
		if got := time.Duration(d.ahead.Load()); got < 90*time.Microsecond || got > 100*time.Microsecond {
			t.Errorf("10 of 10 µs take %v", got)
		}
		for range 10 {
			q.Take()
		}
		if got := d.ahead.Load(); got != 0 {
			t.Errorf("none take %v", got)
		}
	})
}
