package leasecheck

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-rl/weir/algo"
)

const (
	second = int64(time.Second / time.Microsecond)
	base   = 1_700_000_000 * second // a multiple of all windows here
)

// at is some admissions of one unit each at an instant, in µs after base.
func at(n int, instant int64) []Admission {
	return slices.Repeat([]Admission{{Lo: base + instant, Hi: base + instant, Cost: 1}}, n)
}

// between is one of cost units somewhere in a span.
func between(lo, hi, cost int64) []Admission {
	return []Admission{{Lo: base + lo, Hi: base + hi, Cost: cost}}
}

// ending makes admissions count in a window that ends then.
func ending(end int64, list []Admission) []Admission {
	for i := range list {
		list[i].Ends = base + end
	}
	return list
}

// TestCheckByHand: what is exactly at the limit passes, and one more does not.
func TestCheckByHand(t *testing.T) {
	fixed := algo.Config{Algorithm: algo.FixedWindow, N: 10, Window: time.Second}
	first := algo.Config{Algorithm: algo.FixedWindow, N: 10, Window: time.Second, FirstRequest: true}
	log := algo.Config{Algorithm: algo.SlidingLog, N: 10, Window: time.Second}
	bucket := algo.Config{Algorithm: algo.TokenBucket, N: 10, Window: time.Second, Burst: 5}
	window := algo.Config{Algorithm: algo.SlidingWindow, N: 10, Window: time.Second}
	windows := algo.Config{Algorithm: algo.SlidingWindow, N: 10, Window: time.Second, Buckets: 4}
	day := algo.Config{Algorithm: algo.FixedWindow, N: 10, Calendar: algo.Day}
	midnight := (86_400 - base/second%86_400) * second
	soft, leased := log, log
	soft.Soft, leased.Lease, leased.LeaseFor = 20, 10, 100*time.Millisecond

	for _, c := range []struct {
		name string
		c    algo.Config
		past [][]Admission
		over int64 // by how much; 0: no violation
	}{
		{"fixed: a full window, and the next", fixed, [][]Admission{at(10, 0), at(10, second)}, 0},
		{"fixed: one more at the last instant", fixed, [][]Admission{at(10, 0), at(1, second-1)}, 1},
		{"fixed: two windows at one edge", fixed, [][]Admission{at(10, second-1), at(10, second)}, 0},
		{"fixed: one more that may be in the next", fixed, [][]Admission{at(10, 0), between(second-1, second, 1)}, 0},
		{"fixed: one more that is not", fixed, [][]Admission{at(10, 0), between(0, second-1, 2)}, 2},
		{"fixed: in the second window", fixed, [][]Admission{at(10, 0), at(11, second)}, 1},
		{"calendar: a day and the next", day, [][]Admission{at(10, midnight-1), at(10, midnight)}, 0},
		{"calendar: a day too full", day, [][]Admission{at(10, midnight), at(1, midnight+86_399*second)}, 1},
		{"first request: full", first, [][]Admission{ending(second+700, at(10, 700)), ending(2*second+700, at(10, second+700))}, 0},
		{"first request: too full", first, [][]Admission{ending(second+700, at(10, 700)), at(1, second+699)}, 1},
		{"first request: outside all windows", first, [][]Admission{ending(second+700, at(10, 700)), at(1, second+700), at(1, 699)}, 0},
		{"first request: two windows at once", first, [][]Admission{ending(second, at(6, 0)), ending(second+1, at(5, 1))}, 1},
		{"log: full, and again", log, [][]Admission{at(10, 5), at(10, second+5)}, 0},
		{"log: a µs early", log, [][]Admission{at(10, 5), at(1, second+4)}, 1},
		{"log: perhaps a µs early", log, [][]Admission{at(10, 5), between(second+4, second+5, 1)}, 0},
		{"log: certainly a µs early", log, [][]Admission{between(5, 6, 10), between(second+3, second+4, 3)}, 3},
		{"log: wider than the window", log, [][]Admission{at(10, 5), between(0, second, 5)}, 0},
		{"log: the soft margin", soft, [][]Admission{at(12, 5)}, 0},
		{"log: beyond the soft margin", soft, [][]Admission{at(12, 5), at(1, 6)}, 1},
		{"log: a lease is of no account", leased, [][]Admission{at(10, 5), at(1, 6)}, 1},
		{"bucket: a burst, and a refill", bucket, [][]Admission{at(5, 0), at(1, second/10), at(2, 3*second/10)}, 0},
		{"bucket: a µs early", bucket, [][]Admission{at(5, 0), at(1, second/10-1)}, 1},
		{"bucket: perhaps a µs early", bucket, [][]Admission{at(5, 0), between(second/10-1, second/10, 1)}, 0},
		{"bucket: over many refills", bucket, [][]Admission{at(1, 0), at(5, 10*second), at(1, 10*second+second/10), at(2, 10*second+second/5)}, 1},
		{"bucket: no span is empty", bucket, [][]Admission{between(0, 5*second, 5), at(5, second)}, 0},
		{"window: full", window, [][]Admission{at(10, 0), at(0, second), at(5, second+second/2)}, 0},
		{"window: half is left", window, [][]Admission{at(10, 0), at(6, second+second/2)}, 1},
		{"window: half and a little", window, [][]Admission{at(10, 0), at(6, second+second/2+1)}, 0},
		{"window: perhaps of the one before", window, [][]Admission{at(10, second), between(second-1, second+1, 1)}, 0},
		{"windows: full until the fifth", windows, [][]Admission{at(10, 0), at(10, second+second/4)}, 0},
		{"windows: cut", windows, [][]Admission{at(10, 0), at(1, second+second/8), at(4, second+second/8), at(1, second+second/8+1)}, 0},
		{"windows: cut, and one more", windows, [][]Admission{at(10, 0), at(6, second+second/8)}, 1},
		{"windows: one more in the last", windows, [][]Admission{at(10, 0), at(1, second-1)}, 1},
		{"windows: after a long rest", windows, [][]Admission{at(10, 0), at(10, 9*second), at(1, 9*second+1)}, 1},
	} {
		past := slices.Concat(c.past...)
		slices.Reverse(past)
		v, err := Check(c.c, 0, past)
		switch {
		case err != nil:
			t.Errorf("%s: %v", c.name, err)
		case v == nil && c.over > 0:
			t.Errorf("%s: no violation was found", c.name)
		case v != nil && v.Admitted-v.Allowed != c.over:
			t.Errorf("%s: %v, want %d more than allowed", c.name, v, c.over)
		}
		if c.over > 0 {
			if v, err := Check(c.c, c.over, past); v != nil || err != nil {
				t.Errorf("%s: with %d more: %v, %v", c.name, c.over, v, err)
			}
		}
	}
}

// TestCheckSaysWhere: a violation names its span, and what lies in it.
func TestCheckSaysWhere(t *testing.T) {
	past := slices.Concat(at(2, 0), at(3, second), between(second, second+7, 1), at(1, 2*second+5))
	v, err := Check(algo.Config{Algorithm: algo.SlidingLog, N: 3, Window: time.Second}, 0, past)
	if err != nil || v == nil {
		t.Fatal(v, err)
	}
	if v.From != base+8 || v.To != base+second+7 || !slices.Equal(v.Of, []int{2, 3, 4, 5}) {
		t.Errorf("%+v", v)
	}
	if text := v.String(); !strings.HasPrefix(text,
		"4 admitted, 3 allowed, from 1700000000000008 to 1700000001000007 (999.999ms)") {
		t.Error(text)
	}
}

func TestCheckRefuses(t *testing.T) {
	good := algo.Config{Algorithm: algo.SlidingLog, N: 3, Window: time.Second}
	for name, c := range map[string]struct {
		c    algo.Config
		past []Admission
	}{
		"no limit":          {algo.Config{}, at(1, 0)},
		"a queue":           {algo.Config{Algorithm: algo.LeakyBucket, N: 3, Window: time.Second}, at(1, 0)},
		"refill at once":    {algo.Config{Algorithm: algo.TokenBucket, N: 3, Window: time.Second, RefillInterval: true}, at(1, 0)},
		"a margin for long": {algo.Config{Algorithm: algo.SlidingLog, N: 30, Window: time.Second, Soft: 10, SoftFor: time.Second}, at(1, 0)},
		"a refund":          {good, []Admission{{Cost: -1}}},
		"bounds that cross": {good, []Admission{{Lo: 2, Hi: 1, Cost: 1}}},
		"too much":          {algo.Config{Algorithm: algo.TokenBucket, N: algo.MaxN, Window: 24 * time.Hour}, between(0, second*86_400*366, algo.MaxCost)},
	} {
		if v, err := Check(c.c, 0, c.past); err == nil {
			t.Errorf("%s: no error, but %v", name, v)
		}
	}
	if v, err := Check(good, 0, nil); v != nil || err != nil {
		t.Error(v, err)
	}
}

// kinds are what the properties are checked for.
var kinds = []struct {
	name string
	c    algo.Config
}{
	{"fixed_window", algo.Config{Algorithm: algo.FixedWindow}},
	{"fixed_window from the first request", algo.Config{Algorithm: algo.FixedWindow, FirstRequest: true}},
	{"sliding_log", algo.Config{Algorithm: algo.SlidingLog}},
	{"token_bucket", algo.Config{Algorithm: algo.TokenBucket}},
	{"sliding_window", algo.Config{Algorithm: algo.SlidingWindow}},
	{"sliding_window K=5", algo.Config{Algorithm: algo.SlidingWindow, Buckets: 5}},
}

// drawConfig draws a limit with a short window, so that its edges are met often.
func drawConfig(t *rapid.T, c algo.Config) algo.Config {
	c.N = rapid.Int64Range(1, 12).Draw(t, "N")
	c.Window = time.Duration(rapid.IntRange(2, 40).Draw(t, "W")) * 5 * time.Microsecond
	if c.Algorithm == algo.TokenBucket {
		c.Burst = rapid.Int64Range(1, 8).Draw(t, "B")
	}
	return c
}

// TestCheckAgainstThePlainest: the same, by trying all spans.
func TestCheckAgainstThePlainest(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				c := drawConfig(t, k.c)
				w := c.Window.Microseconds()
				past := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Admission {
					lo := base + rapid.Int64Range(0, 5*w).Draw(t, "lo")
					a := Admission{Lo: lo, Hi: lo, Cost: rapid.Int64Range(1, 3).Draw(t, "cost")}
					if rapid.Bool().Draw(t, "wide") {
						a.Hi += rapid.Int64Range(0, w+2).Draw(t, "width")
					}
					if c.FirstRequest && rapid.Bool().Draw(t, "known") {
						// windows a window apart, as they are
						a.Ends = base + (lo-base+w)/w*w
					}
					return a
				}), 1, 60).Draw(t, "past")
				extra := rapid.Int64Range(0, 3).Draw(t, "extra")
				most := c.N + extra
				if c.Algorithm == algo.TokenBucket {
					most = c.Burst + extra
				}
				v, err := Check(c, extra, past)
				if err != nil {
					t.Fatal(err)
				}
				over := int64(0)
				if v != nil {
					over = v.Admitted - v.Allowed
				}
				want := max(0, plainly(c, most, past))
				// A bucket's spans are compared before the flow is rounded.
				if over != want && (c.Algorithm != algo.TokenBucket || (over > 0) != (want > 0)) {
					t.Fatalf("%v; the plainest finds %d too many", v, want)
				}
			})
		})
	}
}

// TestCheckAgainstTheAlgorithms: what package algo admits is no violation; as many more as it had
// left, and one, at any instant, are.
func TestCheckAgainstTheAlgorithms(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				c := drawConfig(t, k.c)
				w := c.Window.Microseconds()
				l, err := algo.New(c)
				if err != nil {
					t.Fatal(err)
				}
				var s algo.State
				var past []Admission
				var left []algo.Result // after each admission
				now := base + rapid.Int64Range(0, w).Draw(t, "start")
				for range rapid.IntRange(1, 80).Draw(t, "steps") {
					cost := rapid.Int64Range(1, 3).Draw(t, "cost")
					r := l.Take(&s, now, algo.Ask{Cost: cost})
					if r.Allowed {
						a := Admission{Lo: now, Hi: now, Cost: cost}
						if c.FirstRequest {
							a.Ends = now + r.ResetAfter
						}
						past, left = append(past, a), append(left, r)
						now += rapid.SampledFrom([]int64{0, 0, 1, w / 7, w - 1, w}).Draw(t, "rest")
						continue
					}
					if r.RetryAfter == algo.Never || rapid.Bool().Draw(t, "early") {
						now++
						continue
					}
					now += r.RetryAfter
				}
				if len(past) == 0 {
					return
				}
				if v, err := Check(c, 0, past); v != nil || err != nil {
					t.Fatal(v, err)
				}
				// Wider bounds never make a violation.
				wider := slices.Clone(past)
				for i := range wider {
					wider[i].Lo -= rapid.Int64Range(0, w).Draw(t, "before")
					wider[i].Hi += rapid.Int64Range(0, w).Draw(t, "after")
				}
				if v, err := Check(c, 0, wider); v != nil || err != nil {
					t.Fatal("with wider bounds:", v, err)
				}
				i := rapid.IntRange(0, len(past)-1).Draw(t, "at")
				more := past[i]
				more.Cost = left[i].Remaining + 1
				if v, err := Check(c, 0, append(past, more)); v == nil || err != nil {
					t.Fatalf("%d more at %d: %v, %v", more.Cost, more.Lo-base, v, err)
				}
			})
		})
	}
}
