package h2

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/internal/shed"
)

// Calls of one connection that wait for those before them are late once that has lasted, though
// nobody else waits.
func TestLateBehindEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := shed.New()
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		c := &conn{s: &Server{o: Options{Line: l.Door("rls", 12*time.Millisecond, shed.Error)}}}
		// batch takes calls of a millisecond each, and returns how many were late.
		batch := func(calls int) (late int) {
			c.batch = time.Time{}
			for range calls {
				if c.isLate() {
					late++
				} else {
					time.Sleep(time.Millisecond)
				}
			}
			c.noteBatch()
			return late
		}
		for begun := time.Now(); time.Since(begun) < 120*time.Millisecond; {
			if n := batch(64); n > 0 {
				t.Fatalf("%d are late in a burst", n)
			}
		}
		batch(64)
		if n := batch(64); n != 48 { // the clock is looked at every 16 calls
			t.Errorf("%d of 64 are late", n)
		}
		if n := batch(10); n > 0 {
			t.Errorf("%d of the first are late", n)
		}
		time.Sleep(2 * time.Second)
		batch(1)
		if n := batch(64); n > 0 {
			t.Errorf("%d are late when all is over", n)
		}
	})
}
