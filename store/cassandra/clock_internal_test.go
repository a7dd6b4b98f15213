package cassandra

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestClock: the clock follows most servers, is no later than theirs, and does not go back by a
// little.
func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c clock
		all := []string{"a", "b", "c"}
		at := func(off time.Duration) int64 { return time.Now().Add(off).UnixMilli() }
		is := func(want time.Duration) {
			t.Helper()
			got := time.UnixMicro(c.now())
			if off := time.Until(got); off > want || off < want-2*time.Millisecond {
				t.Errorf("the clock is off by %v, want %v", off, want)
			}
		}
		c.note("a", at(0))
		c.settle(all)
		if !c.known.Load() {
			t.Fatal("an answer came, and nothing is known")
		}
		is(0)
		c.note("b", at(20*time.Millisecond))
		c.note("c", at(-time.Hour)) // its clock is wrong
		c.settle(all)
		is(0)
		time.Sleep(time.Second)
		c.note("a", at(-300*time.Millisecond)) // the answer took long
		c.settle(all)
		is(0)
		// The two that agree are those that count.
		for range 2 * len((&differences{}).values) {
			c.note("a", at(50*time.Millisecond))
		}
		c.settle(all)
		is(20 * time.Millisecond)
		// A server that is asked no more does not count; a step back by little is waited for.
		c.note("c", at(0))
		c.settle([]string{"c"})
		is(20 * time.Millisecond)
		time.Sleep(21 * time.Millisecond)
		is(0)
		// One by far is heeded.
		for range 2 * len((&differences{}).values) {
			c.note("c", at(-time.Minute))
		}
		c.settle([]string{"c"})
		is(-time.Minute)
		c.settle(nil) // no server is there
		is(-time.Minute)
	})
}

func TestLifetime(t *testing.T) {
	e := &engine{}
	for _, test := range []struct {
		life time.Duration
		want int
	}{
		{-time.Hour, 11},
		{0, 11},
		{time.Microsecond, 11},
		{1500 * time.Millisecond, 12},
		{time.Hour, 3611},
		{10 * 365 * 24 * time.Hour, 0}, // for ever
	} {
		if got := e.lifetime(1e15+test.life.Microseconds(), 1e15); got != test.want {
			t.Errorf("%v: %d s, want %d", test.life, got, test.want)
		}
	}
}

func TestPosition(t *testing.T) {
	for _, text := range []string{"x", "1", "-1.AA", "1.?", ".AA"} {
		if _, _, err := readPosition(text); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
	if before, mark, err := readPosition("12.AQI"); before != 12 || string(mark) != "\x01\x02" || err != nil {
		t.Error(before, mark, err)
	}
}
