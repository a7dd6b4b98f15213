package algo

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// drawSized draws a limit of any algorithm, with numbers small and large.
func drawSized(t *rapid.T) *Limit {
	c := Config{
		Algorithm: rapid.SampledFrom([]Algorithm{SlidingWindow, SlidingLog, FixedWindow, TokenBucket, LeakyBucket, Concurrency}).Draw(t, "algorithm"),
		N:         rapid.OneOf(rapid.Int64Range(0, 30), rapid.Int64Range(0, MaxLogN), rapid.Int64Range(0, MaxN)).Draw(t, "N"),
		Soft:      rapid.SampledFrom([]int{0, 0, 10, 250}).Draw(t, "soft"),
	}
	if c.Algorithm != Concurrency {
		c.Window = time.Duration(rapid.Int64Range(1, 1_000_000_000).Draw(t, "µs")) * time.Microsecond
		if c.Soft > 0 && rapid.Bool().Draw(t, "closes") {
			c.SoftFor = time.Minute
		}
	}
	switch c.Algorithm {
	case TokenBucket:
		c.RefillInterval = rapid.Bool().Draw(t, "interval")
		fallthrough
	case LeakyBucket:
		c.Burst = rapid.Int64Range(NoBurst, 1000).Draw(t, "burst")
	}
	l, err := New(c)
	if err != nil {
		t.Skip()
	}
	return l
}

// TestParts: the parts of a limit together have no more requests in a window, and hold no more,
// than the limit; what is lost by rounding is less than one for each. A part of nothing admits
// nothing.
func TestParts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		whole := drawSized(t)
		if rapid.Bool().Draw(t, "scheduled") && whole.Config().Algorithm != Concurrency {
			twice, err := whole.Scale(2, 1)
			if err != nil {
				t.Skip()
			}
			if whole, err = Scheduled(whole, []Phase{{Days: 1 << time.Sunday, Until: 12 * time.Hour, Limit: twice}}, nil); err != nil {
				t.Fatal(err)
			}
		}
		now := rapid.Int64Range(0, 14*oneDay.Microseconds()).Draw(t, "now")
		weights := rapid.SliceOfN(rapid.Int64Range(0, 7), 1, 8).Draw(t, "weights")
		sum := int64(0)
		for _, w := range weights {
			sum += w
		}
		if sum == 0 {
			t.Skip()
		}
		of := whole.Check(&State{}, now, Ask{})
		n := int64(0)
		var holds, softly int64
		for _, w := range weights {
			part := whole.Part(w, sum)
			in, _ := part.At(now)
			n += in.Config().N
			if in.Config().N == 0 {
				if r := in.Take(&State{}, now, Ask{Cost: 1, MaxDelay: -1, Slot: 1}); r.Allowed {
					t.Errorf("%v admits: %+v", in, r)
				}
				continue
			}
			r := part.Check(&State{}, now, Ask{})
			holds += r.Limit
			softly += r.SoftLimit
			if a, b := part.Config(), whole.Config(); a.Soft != b.Soft || a.Window != b.Window || a.Lease != b.Lease {
				t.Errorf("%+v of %+v", a, b)
			}
		}
		in, _ := whole.At(now)
		if all := in.Config().N; n > all || n <= all-int64(len(weights)) && in.algo != LeakyBucket {
			// (a part of a leaky bucket that holds nothing has no requests either)
			t.Errorf("parts of %v sum to %d", whole, n)
		}
		if holds > of.Limit || softly > of.SoftLimit {
			t.Errorf("parts of %v hold %d, softly %d", whole, holds, softly)
		}
	})
}

// TestPartLarge: a part above the whole is cut off at the largest number there is.
func TestPartLarge(t *testing.T) {
	for _, c := range []struct {
		of   Config
		want int64
	}{
		{Config{N: MaxN, Window: time.Hour}, MaxN},
		{Config{Algorithm: SlidingLog, N: 60_000, Window: time.Hour}, MaxLogN},
		{Config{Algorithm: TokenBucket, N: MaxN, Window: time.Second}, MaxN},
	} {
		l, err := New(c.of)
		if err != nil {
			t.Fatal(err)
		}
		if got := l.Part(1100, 100).Config().N; got != c.want {
			t.Errorf("%v: %d, want %d", l, got, c.want)
		}
	}
}
