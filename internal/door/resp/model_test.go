package resp

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// cell is redis-cell's own arithmetic, in nanoseconds, but that it refunds no more than was used.
type cell struct {
	known bool
	tat   int64
}

func (c *cell) throttle(now, burst, count, period, quantity int64) string {
	each := period * 1e9 / count
	limit := burst + 1
	tolerance, increment := each*limit, each*quantity
	tat := now
	if c.known {
		tat = c.tat
	}
	next := max(now, max(now, tat)+increment)
	limited, ttl, retry := 0, int64(0), int64(-1)
	if now >= next-tolerance {
		c.known, c.tat, ttl = true, next, next-now
	} else {
		limited, ttl = 1, max(0, tat-now)
		if increment <= tolerance {
			retry = cellRounded(next - tolerance - now)
		}
	}
	remaining := int64(0)
	if left := tolerance - ttl; left > -each {
		remaining = (left / 1000) / (each / 1000)
	}
	return fmt.Sprintf("[%d %d %d %d %d]", limited, limit, remaining, retry, cellRounded(ttl))
}

func cellRounded(ns int64) int64 {
	seconds, ms := ns/1e9, ns/1e6%1000
	if ms > 0 {
		seconds++
	}
	return seconds
}

// crab is throttlecrab's own arithmetic, in nanoseconds, but that a key never has more than its
// burst, that a burst of one is a limit, and that retry_after is rounded up.
type crab struct {
	known bool
	tat   int64
}

func (c *crab) throttle(now, burst, count, period, quantity int64) string {
	each := period * 1e9 / count
	tolerance := each * (burst - 1)
	tat := now - each
	if c.known {
		tat = max(tat, c.tat)
	}
	next := tat + each*quantity
	allowed, retry := 1, int64(0)
	if now >= next-tolerance {
		tat = next
		c.known, c.tat = true, tat
	} else {
		allowed, retry = 0, (next-tolerance-now+1e9-1)/1e9
	}
	reset := max(tat-now+tolerance, tat-now+each)
	return fmt.Sprintf("[%d %d %d %d %d]", allowed, burst, (now+tolerance-tat)/each, reset/1e9, retry)
}

// TestModels: where a token comes back in a whole number of microseconds both commands answer to
// the last digit as the programs do that they are of.
func TestModels(t *testing.T) {
	d := openDoor(t, "", Options{Trusted: func(string) bool { return true }})
	c := d.dial(t)
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		each := rapid.SampledFrom([]int64{1, 7, 10, 1000, 4096, 99_999, 100_000, 600_000, 1_000_000, 3_600_000,
			86_400_000_000}).Draw(t, "µs for each")
		period := rapid.Int64Range(1, 3600).Draw(t, "period")
		count := period * 1e6 / each
		if count == 0 {
			period, count = each/1e6, 1
		}
		if period*1e6%count != 0 {
			period, count = each, 1_000_000
		}
		burst := rapid.Int64Range(0, 20).Draw(t, "burst")
		var ofCell cell
		var ofCrab crab
		for range rapid.IntRange(1, 30).Draw(t, "commands") {
			d.clock.advance(time.Duration(rapid.Int64Range(0, 3*each).Draw(t, "later")) * time.Microsecond)
			now := d.clock.now() * 1000
			quantity := rapid.SampledFrom([]int64{0, 1, 1, 1, 2, burst, burst + 1, burst + 2, -1, -5}).Draw(t,
				"quantity")
			numbers := strings.Fields(fmt.Sprint(burst, count, period, quantity))
			if got, want := c.do(append([]string{"CL.THROTTLE", fmt.Sprint("cell", n)}, numbers...)...), ofCell.throttle(now, burst, count, period, quantity); got != want {
				t.Fatalf("CL.THROTTLE %v: %s, want %s", numbers, got, want)
			}
			if burst == 0 || quantity < 0 {
				continue
			}
			if got, want := c.do(append([]string{"THROTTLE", fmt.Sprint("crab", n)}, numbers...)...), ofCrab.throttle(now, burst, count, period, quantity); got != want {
				t.Fatalf("THROTTLE %v: %s, want %s", numbers, got, want)
			}
		}
	})
}

// TestOtherNumbers: numbers may change from call to call; what is used stays used.
func TestOtherNumbers(t *testing.T) {
	d := openDoor(t, "", Options{})
	c := d.dial(t)
	for _, s := range []struct{ numbers, want string }{
		{"9 60 60 4", "[0 10 6 -1 4]"},
		{"9 60 60 0", "[0 10 6 -1 4]"},
		{"19 60 60 0", "[0 20 16 -1 4]"},      // another burst
		{"9 30 60 0", "[0 10 6 -1 8]"},        // another rate
		{"9 3600 3600 0", "[0 10 6 -1 4]"},    // the same in another period
		{"9 1 86400 0", "[0 10 6 -1 345600]"}, // another period
		{"2 60 60 1", "[1 3 0 1 3]"},          // less than what is used
		{"9 60 60 6", "[0 10 0 -1 10]"},
		{"9 60 60 1", "[1 10 0 1 10]"},
	} {
		if got := c.do(append([]string{"CL.THROTTLE", "key"}, strings.Fields(s.numbers)...)...); got != s.want {
			t.Errorf("%s: %s, want %s", s.numbers, got, s.want)
		}
	}
}

// TestRates: what any 64-bit numbers make is a limit, and the nearest one that there is.
func TestRates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		big := rapid.OneOf(rapid.Int64Range(1, 1<<63-1), rapid.Int64Range(1, 100_000),
			rapid.SampledFrom([]int64{1, 60, 3600, 86400, 1_000_000_000, 1_000_000_001}))
		count, period := big.Draw(t, "count"), big.Draw(t, "period")
		size := rapid.OneOf(rapid.Int64Range(0, 1<<63-1), rapid.Int64Range(0, 100_000)).Draw(t, "size")
		g := compile(params{verbThrottle, size, count, period})
		cfg := g.limit.Config()
		if kept := max(0, cfg.Burst); kept+g.more != size {
			t.Fatalf("of %d tokens %d and %d", size, kept, g.more)
		}
		want := float64(period) * 1e6 / float64(count)
		want = min(max(want, 1e-9), float64(maxWindow))
		if got := float64(cfg.Window.Microseconds()) / float64(cfg.N); (got < want*0.999 || got > want*1.001) &&
			(want > 1e-6 || got < want*0.49 || got > want*2.1) {
			t.Fatalf("%d in %d s: a token in %g µs, want %g", count, period, got, want)
		}
		if count <= 1_000_000_000 && period*1_000_000/1_000_000 == period && period <= maxWindow/1e6 {
			if got := float64(cfg.Window.Microseconds()) / float64(cfg.N); got < want*0.999999999 ||
				got > want*1.000000001 {
				t.Fatalf("%d in %d s: a token in %g µs, want exactly %g", count, period, got, want)
			}
		}
	})
}
