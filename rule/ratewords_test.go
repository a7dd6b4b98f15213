package rule

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
)

// A rate in words is an error that says how a rule file writes it.
func TestRateInWords(t *testing.T) {
	for text, want := range map[string]string{
		"100 per minute":                "100/min",
		"100 requests per minute":       "100/min",
		"100 Requests / Minute":         "100/min",
		"100/1 minute":                  "100/min",
		"1,000 per hour":                "1000/hour",
		"10k/min":                       "10000/min",
		"5 r/s":                         "5/s",
		"5r/s":                          "5/s",
		"5rps":                          "5/s",
		"60 rpm":                        "60/min",
		"20 req/sec.":                   "20/s",
		"5 an hour":                     "5/hour",
		"3 times a day":                 "3/day",
		"100 every 15 minutes":          "100/15m",
		"100/15 min":                    "100/15m",
		"7 per 7 days":                  "7/7d",
		"9 per 1 minute 30 seconds":     "9/1m30s",
		"1000 daily":                    "1000/day",
		"50 calls per calendar month":   "50/month",
		"25 in flight":                  "25 concurrent",
		"5 at a time":                   "5 concurrent",
		"  100 tokens per   2 hours   ": "100/2h",
		"UNLIMITED":                     "unlimited",
	} {
		r, err := ParseRate(text)
		if err == nil || !strings.HasSuffix(err.Error(), ": did you mean "+want+"?") {
			t.Errorf("%q: %+v, %v; want a hint at %s", text, r, err, want)
		}
		if _, err := ParseRate(want); err != nil {
			t.Errorf("the hint at %s: %v", want, err)
		}
	}
	for _, text := range []string{"many per minute", "5 per fortnight", "5 per 3 months", "5 per minute per user",
		"1/m", "5 per", "99999999999 per day", strings.Repeat("9 per ", 99)} {
		if _, err := ParseRate(text); err == nil || strings.Contains(err.Error(), "did you mean "+text) ||
			strings.HasSuffix(err.Error(), "did you mean ?") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// What Weir says of a limit in words, it reads with a hint at what a rule file says.
func TestRateInWordsOfPeriods(t *testing.T) {
	for _, window := range []time.Duration{time.Second, 10 * time.Second, time.Minute, 90 * time.Second,
		15 * time.Minute, time.Hour, 36 * time.Hour, day, week} {
		said := fmt.Sprintf("20 per %s", algo.Config{Window: window}.Period())
		_, err := ParseRate(said)
		if err == nil {
			t.Errorf("%q is taken", said)
			continue
		}
		_, hint, _ := strings.Cut(err.Error(), "did you mean ")
		if r, err := ParseRate(strings.TrimSuffix(hint, "?")); err != nil || r.N != 20 || r.Window != window {
			t.Errorf("%q hints at %q: %+v, %v", said, hint, r, err)
		}
	}
}
