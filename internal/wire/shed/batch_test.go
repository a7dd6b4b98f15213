package shed

import (
	"testing"
	"testing/synctest"
	"time"
)

// take has a batch of requests of a millisecond each decided, and returns how many were late.
func take(b *Batch, d *Door, requests int) (late int) {
	for range requests {
		if b.Late(d) {
			late++
		} else {
			time.Sleep(time.Millisecond)
		}
	}
	b.End(d)
	return late
}

// Requests of one connection that wait for those before them are late once that has lasted, though
// nobody else waits.
func TestBatchBehindEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newLine(newSleeper(func() {})).Door("rls", bound, Error)
		var b Batch
		for range 2 { // a burst: two in 96 ms, and the door learns of the second one late
			if n := take(&b, d, 40); n > 0 {
				t.Fatalf("%d are late in a burst", n)
			}
			take(&b, d, 1)
		}
		take(&b, d, 64)
		take(&b, d, 64)
		if n := take(&b, d, 64); n != 48 { // the clock is looked at every 16 requests
			t.Errorf("%d of 64 are late", n)
		}
		if n := take(&b, d, 10); n > 0 {
			t.Errorf("%d of the first are late", n)
		}
		time.Sleep(2 * time.Second)
		take(&b, d, 1)
		if n := take(&b, d, 64); n > 0 {
			t.Errorf("%d are late when all is over", n)
		}
	})
}

// Under overload, what requests waited before they were read counts, and what they have before them
// in a queue.
func TestBatchAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(newSleeper(func() {}))
		d := l.Door("rls", bound, Error)
		d.overloaded.Store(true)
		for _, test := range []struct {
			waited, ahead time.Duration
			want          int // late of 64, of a millisecond each
		}{
			{0, 0, 48}, {0, 13 * time.Millisecond, 64}, {11 * time.Millisecond, 0, 48},
			{11 * time.Millisecond, 2 * time.Millisecond, 64}, {13 * time.Millisecond, 0, 64},
		} {
			var b Batch
			l.waited.Store(int64(test.waited))
			d.ahead.Store(int64(test.ahead))
			if n := take(&b, d, 64); n != test.want {
				t.Errorf("%v in line, %v in the queue: %d of 64 are late, want %d", test.waited, test.ahead, n,
					test.want)
			}
		}
		var b Batch
		l.waited.Store(int64(5 * time.Millisecond))
		d.ahead.Store(0)
		b.Late(d)
		if got, want := time.Since(b.Since(time.Now())), 5*time.Millisecond; got != want {
			t.Errorf("they have waited for %v, want %v", got, want)
		}
		b.End(d)
		if got := time.Since(b.Since(time.Now())); got != 0 {
			t.Errorf("nobody has waited, but for %v", got)
		}
	})
	var b Batch
	if b.Late(nil) {
		t.Error("no door, and late")
	}
	b.End(nil)
}
