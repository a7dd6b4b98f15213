package rule

import (
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
)

func TestParseRate(t *testing.T) {
	for _, c := range []struct {
		text string
		want Rate
	}{
		{"5/s", Rate{N: 5, Window: time.Second, Unit: "second"}},
		{"5/sec", Rate{N: 5, Window: time.Second, Unit: "second"}},
		{"5/second", Rate{N: 5, Window: time.Second, Unit: "second"}},
		{"5/min", Rate{N: 5, Window: time.Minute, Unit: "minute"}},
		{"5/minute", Rate{N: 5, Window: time.Minute, Unit: "minute"}},
		{"5/h", Rate{N: 5, Window: time.Hour, Unit: "hour"}},
		{"5/hour", Rate{N: 5, Window: time.Hour, Unit: "hour"}},
		{"5/d", Rate{N: 5, Window: 24 * time.Hour, Unit: "day"}},
		{"5/day", Rate{N: 5, Window: 24 * time.Hour, Unit: "day"}},
		{"5/week", Rate{N: 5, Window: 7 * 24 * time.Hour, Unit: "week"}},
		{"5/month", Rate{N: 5, Window: 30 * 24 * time.Hour, Unit: "month"}},
		{"5/year", Rate{N: 5, Window: 365 * 24 * time.Hour, Unit: "year"}},
		{" 100 / 15m ", Rate{N: 100, Window: 15 * time.Minute}},
		{"1/1.5s", Rate{N: 1, Window: 1500 * time.Millisecond}},
		{"1/2d12h", Rate{N: 1, Window: 60 * time.Hour}},
		{"1/1w", Rate{N: 1, Window: 7 * 24 * time.Hour}},
		{"1/1us", Rate{N: 1, Window: time.Microsecond}},
		{"1/366d", Rate{N: 1, Window: algo.MaxWindow}},
		{"0/s", Rate{Window: time.Second, Unit: "second"}},
		{"1000000000/year", Rate{N: algo.MaxN, Window: 365 * 24 * time.Hour, Unit: "year"}},
		{"25", Rate{N: 25}},
		{"0", Rate{}},
		{"25 concurrent", Rate{N: 25, Concurrent: true}},
		{" 0\tconcurrent ", Rate{Concurrent: true}},
		{"unlimited", Rate{Unlimited: true}},
	} {
		got, err := ParseRate(c.text)
		if err != nil || got != c.want {
			t.Errorf("ParseRate(%q) = %+v, %v; want %+v", c.text, got, err, c.want)
			continue
		}
		if again, err := ParseRate(got.String()); err != nil || again != got {
			t.Errorf("%q spelled %q is read as %+v, %v", c.text, got, again, err)
		}
	}
}

func TestParseRateErrors(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", "expected a number of requests"},
		{"5concurrent", `did you mean 5 concurrent?`},
		{" concurrent", `"concurrent" is not a number of requests`},
		{"5/min concurrent", `"5/min" is not a number of requests`},
		{"5 Concurrent", "did you mean 5 concurrent?"},
		{"/s", "expected a number of requests"},
		{"x", `"x" is not a number of requests`},
		{"-1/s", `"-1" is not a number of requests`},
		{"+1/s", "is not a number"},
		{"1e3/s", "is not a number"},
		{"0.5/s", "write 1/2s"},
		{"1_000/s", "did you mean 1000/s?"},
		{"9007199254740991/s", "more than the most"},
		{"99999999999999999999/s", "more than the most"},
		{"1/", "behind the slash"},
		{"1/m", "minute or month"},
		{"1/seconds", "did you mean 1/s?"},
		{"1/hr", "did you mean 1/hour?"},
		{"1/fortnight", "units are"},
		{"1/0s", "longer than 0"},
		{"1/10", "no unit"},
		{"1/1ns", "microseconds"},
		{"1/367d", "longest"},
		{"1/99999999999999w", "too long"},
		{"1/5x", "not a duration"},
		{"1/5m/s", "not a duration"},
		{"1/-5s", "unknown unit"},
		{"Unlimited", "did you mean unlimited?"},
	} {
		if got, err := ParseRate(c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("ParseRate(%q) = %+v, %v; want an error with %q", c.text, got, err, c.want)
		}
	}
}

func TestParseDuration(t *testing.T) {
	for _, c := range []struct {
		text string
		want time.Duration
	}{
		{"30s", 30 * time.Second}, {"1m30s", 90 * time.Second}, {"1500us", 1500 * time.Microsecond}, {"2d", 48 * time.Hour},
		{"1w2d3h", (9*24 + 3) * time.Hour}, {"0", 0}, {"-5s", -5 * time.Second}, {"0.5h", 30 * time.Minute},
	} {
		if got, err := ParseDuration(c.text); err != nil || got != c.want {
			t.Errorf("ParseDuration(%q) = %v, %v; want %v", c.text, got, err, c.want)
		}
	}
	for _, text := range []string{"", "5", "d", "1d-5s", "1d+5s", "+5s", "1.5d", "1d 5s", "5 s", "106752d",
		"999999999999999999999d", "2d1w", "s"} {
		if got, err := ParseDuration(text); err == nil {
			t.Errorf("ParseDuration(%q) = %v, want an error", text, got)
		}
	}
}

// FuzzParseRate: what is accepted is within bounds, survives a round trip through String, and makes
// a limit.
func FuzzParseRate(f *testing.F) {
	for _, s := range []string{"10/min", "100/15m", "1/1w2d3h4m5s6ms7us", "unlimited", "5", "0/s", "1/1.000001s",
		"1000000000/366d", "1/µs", "1/3µs", "-1/s", "1//s", "1/s/s"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseRate(text)
		if err != nil {
			if len(err.Error()) > 1000 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		if r.N < 0 || r.N > algo.MaxN || r.Window < 0 || r.Window > algo.MaxWindow || r.Window%time.Microsecond != 0 {
			t.Fatalf("%q is out of bounds: %+v", text, r)
		}
		again, err := ParseRate(r.String())
		if err != nil || again != r {
			t.Fatalf("%q is %+v, spelled %q, read as %+v, %v", text, r, r, again, err)
		}
		if r.Unlimited || r.Window == 0 {
			return
		}
		if _, err := algo.New(algo.Config{Algorithm: algo.TokenBucket, N: r.N, Window: r.Window}); err != nil {
			t.Errorf("%q makes no limit: %v", text, err)
		}
	})
}
