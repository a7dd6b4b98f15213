package rule

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-rl/weir/algo"
)

// ParseAllow reads what a rule file may hold in allow, in every form of a line.
func TestParseAllow(t *testing.T) {
	perMin := Rate{N: 4, Window: time.Minute, Unit: "minute"}
	for _, c := range []struct {
		text string
		want []Allowance
	}{
		{"4/min", []Allowance{{Rate: perMin}}},
		{" '4/min' ", []Allowance{{Rate: perMin}}},
		{"[4/min]", []Allowance{{Rate: perMin}}},
		{"4/min, 25", []Allowance{{Rate: perMin}, {Rate: Rate{N: 25}}}},
		{`["4/min", 25]`, []Allowance{{Rate: perMin}, {Rate: Rate{N: 25}}}},
		{"3 concurrent", []Allowance{{Rate: Rate{N: 3, Concurrent: true}}}},
		{"unlimited", []Allowance{{Rate: Rate{Unlimited: true}}}},
		{"{rate: 4/min, burst: 20}", []Allowance{{Rate: perMin, Burst: 20}}},
		{"{burst: 0, rate: '4/min'}", []Allowance{{Rate: perMin, Burst: algo.NoBurst}}},
		{"[{rate: 4/min} , 25]", []Allowance{{Rate: perMin}, {Rate: Rate{N: 25}}}},
	} {
		got, err := ParseAllow(c.text)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%q: got %+v, %v; want %+v", c.text, got, err, c.want)
		}
	}
}

// A bad entry is named, with the expectation.
func TestParseAllowErrors(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", `rate ""`},
		{"[4/min", "a ] is missing"},
		{"{rate: 4/min", "a } is missing"},
		{"{rate: 4/min} 5/h", "stands where a comma should"},
		{"4/min,", `rate ""`},
		{"{rate: 4/min, rate: 5/min}", "once each"},
		{"{rate: 4/min, bursts: 5}", `unknown key "bursts"; there are rate and burst`},
		{"{burst: 5}", "rate is missing"},
		{"{rate: 4/min, burst: 5/min}", "burst: expected a number of requests"},
		{"{rate: 4/min, burst: 5 concurrent}", "burst: expected a number of requests"},
		{"{rate: unlimited}", "unlimited has no burst"},
		{strings.Repeat("4/min,", 200), "it is too long"},
	} {
		if got, err := ParseAllow(c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: got %+v, %v; want an error with %q", c.text, got, err, c.want)
		}
	}
}

// What String writes is read again as it was, alone and in a list.
func TestAllowanceRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := make([]Allowance, rapid.IntRange(1, 4).Draw(t, "entries"))
		for i := range list {
			a := &list[i]
			a.Rate.N = rapid.Int64Range(0, algo.MaxN).Draw(t, "n")
			if unit := rapid.IntRange(-1, len(units)-1).Draw(t, "unit"); unit >= 0 {
				a.Rate.Unit, a.Rate.Window = units[unit].name, units[unit].window
			}
			a.Burst = rapid.OneOf(rapid.Just(int64(0)), rapid.Just(int64(algo.NoBurst)),
				rapid.Int64Range(1, algo.MaxN)).Draw(t, "burst")
		}
		if got, err := ParseAllow(AllowText(list)); err != nil || !slices.Equal(got, list) {
			t.Fatalf("%s: got %+v, %v", AllowText(list), got, err)
		}
	})
}

// FuzzParseAllow: any text is an error, or a list of entries that is read again as it was.
func FuzzParseAllow(f *testing.F) {
	for _, text := range []string{
		"4/min", "[4/min, 500/hour]", "{rate: 4/min, burst: 0}", `[{"rate": "4/15m", burst: 20}, 25]`, "unlimited", "'4/min", "[{}]", ",",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		list, err := ParseAllow(text)
		if err != nil {
			if len(list) > 0 {
				t.Fatalf("%q: %+v beside %v", text, list, err)
			}
			return
		}
		for _, a := range list {
			if a.Rate.N < 0 || a.Rate.N > algo.MaxN || a.Burst < algo.NoBurst || a.Burst > algo.MaxN ||
				a.Rate.Unlimited && a.Burst != 0 {
				t.Fatalf("%q: out of bounds: %+v", text, a)
			}
		}
		again, err := ParseAllow(AllowText(list))
		if len(AllowText(list)) <= maxAllow && (err != nil || len(list) == 0 || !slices.Equal(again, list)) {
			t.Fatalf("%q: %+v, then %+v, %v", text, list, again, err)
		}
	})
}
