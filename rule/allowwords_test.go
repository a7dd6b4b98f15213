package rule

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-rl/weir/algo"
)

// AllowNotation takes the notation of rule files as it is, and what weir prints for people.
func TestAllowNotation(t *testing.T) {
	for text, want := range map[string]string{
		" [100/min, 5000/hour] ":                   "[100/min, 5000/hour]",
		"{rate: 4/min, burst: 20}":                 "{rate: 4/min, burst: 20}",
		"unlimited":                                "unlimited",
		"30/min":                                   "30/min",
		"30 per minute":                            "30/minute",
		"30 a minute":                              "30/minute",
		"30 requests per Minute":                   "30/minute",
		"30 rpm":                                   "30/minute",
		"Unlimited":                                "unlimited",
		"1,000 per hour":                           "1000/hour",
		"1,500/hour":                               "1500/hour",
		"1,000,000/day, 1,000/min":                 "1000000/day, 1000/min",
		"5 per calendar month":                     "5/month",
		"9 per 1 minute 30 seconds":                "9/1m30s",
		"7 per 15 minutes":                         "7/15m",
		"5 at a time":                              "5 concurrent",
		"10 per minute, burst 20":                  "{rate: 10/minute, burst: 20}",
		"10/min, burst 0":                          "{rate: 10/minute, burst: 0}",
		"10 per minute with a burst of 20":         "{rate: 10/minute, burst: 20}",
		"10 per minute, 500 per hour":              "[10/minute, 500/hour]",
		"[10 per minute; 500/h]":                   "[10/minute, 500/hour]",
		"10 per minute and 500 per hour":           "[10/minute, 500/hour]",
		"10 per minute, burst 20, 500 per hour":    "[{rate: 10/minute, burst: 20}, 500/hour]",
		"10 per minute, by a schedule, 5 per hour": "[10/minute, 5/hour]",
		"'30 per minute'":                          "30/minute",
	} {
		got, err := AllowNotation(text)
		if err != nil || got != want {
			t.Errorf("%q: got %q, %v; want %q", text, got, err, want)
		} else if _, err := ParseAllow(got); err != nil {
			t.Errorf("%q: %v", text, err)
		}
		if _, err := ParseAllow(text); err == nil && strings.Contains(text, " per ") {
			t.Errorf("a rule file takes %q", text)
		}
	}
	for text, want := range map[string]string{
		"":                              "expected a number of requests",
		"many":                          "expected a rate such as 10/min",
		"30 per minut":                  `unknown unit "minut" (did you mean "minute"?)`,
		"30 per m":                      "m could be minute or month; write min or month",
		"1.5 per second":                "must be a whole number",
		"burst 20":                      "burst 20: expected it behind a rate",
		"10/min, burst 20, burst 30":    "burst 30: expected it behind a rate",
		"5 at a time, burst 3":          "5 concurrent has no burst",
		"10/min, ":                      "expected a number of requests",
		"10/min, burst " + many(20):     "more than the most",
		many(20) + " per minute":        "more than the most",
		strings.Repeat("4 a min,", 200): "it is too long",
	} {
		if got, err := AllowNotation(text); err == nil || !strings.Contains(err.Error(), want) || got != "" {
			t.Errorf("%q: got %q, %v; want an error with %q", text, got, err, want)
		}
	}
}

func many(digits int) string { return strings.Repeat("9", digits) }

// AllowanceOf writes the numbers of any limit so that they make the same limit again.
func TestAllowanceOf(t *testing.T) {
	for want, c := range map[string]algo.Config{
		"30/minute":                {Algorithm: algo.SlidingLog, N: 30, Window: time.Minute},
		"30/15m":                   {Algorithm: algo.SlidingWindow, N: 30, Window: 15 * time.Minute},
		"30/250ms":                 {Algorithm: algo.FixedWindow, N: 30, Window: 250 * time.Millisecond},
		"7/month":                  {Algorithm: algo.FixedWindow, N: 7, Window: month, Calendar: algo.Month},
		"5 concurrent":             {Algorithm: algo.Concurrency, N: 5},
		"4/minute":                 {Algorithm: algo.TokenBucket, N: 4, Window: time.Minute},
		"{rate: 4/hour, burst: 9}": {Algorithm: algo.TokenBucket, N: 4, Burst: 9, Window: time.Hour},
		"{rate: 4/hour, burst: 0}": {Algorithm: algo.LeakyBucket, N: 4, Burst: algo.NoBurst, Window: time.Hour},
	} {
		l, err := algo.New(c)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []algo.Config{c, l.Config()} {
			if got := AllowanceOf(c).String(); got != want {
				t.Errorf("%+v: got %s, want %s", c, got, want)
			}
		}
		if _, err := ParseAllow(want); err != nil {
			t.Error(err)
		}
	}
}

// What AllowNotation returns is read by ParseAllow, whatever was typed; what ParseAllow reads, it
// returns with the same meaning.
func FuzzAllowNotation(f *testing.F) {
	for _, text := range []string{"30 per minute, burst 20", "[1,000/h and 5 at a time]", "{rate: 4/min, burst: 1,000}", "4/min,burst 0", "x burst 3"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := AllowNotation(text)
		if err != nil {
			return
		}
		list, err := ParseAllow(got)
		if err != nil || len(list) == 0 {
			t.Fatalf("%q: %q, which is %v, %v", text, got, list, err)
		}
		if again, err := AllowNotation(got); err != nil || again != got {
			t.Fatalf("%q: %q, then %q, %v", text, got, again, err)
		}
	})
}

// A list that rule files have means the same to an operator.
func TestAllowNotationTakesNotation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := make([]Allowance, rapid.IntRange(1, 4).Draw(t, "entries"))
		for i := range list {
			u := rapid.IntRange(0, len(units)-1).Draw(t, "unit")
			list[i].Rate = Rate{N: rapid.Int64Range(0, algo.MaxN).Draw(t, "n"), Unit: units[u].name, Window: units[u].window}
			list[i].Burst = rapid.OneOf(rapid.Just(int64(0)), rapid.Just(int64(algo.NoBurst)),
				rapid.Int64Range(1, algo.MaxN)).Draw(t, "burst")
		}
		text, err := AllowNotation(AllowText(list))
		got, err2 := ParseAllow(text)
		if err != nil || err2 != nil || !slices.Equal(got, list) {
			t.Fatalf("%s: %s, %v, %v", AllowText(list), text, err, err2)
		}
	})
}
