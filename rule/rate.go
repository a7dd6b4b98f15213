package rule

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/util/suggest"
)

// Nominal lengths of the calendar units.
const (
	day   = 24 * time.Hour
	week  = 7 * day
	month = 30 * day
	year  = 365 * day
)

// units are the units of a rate by their names in rule files. A unit's first name is the canonical
// one.
var units = []struct {
	name   string
	others []string
	window time.Duration
}{
	{"second", []string{"s", "sec"}, time.Second},
	{"minute", []string{"min"}, time.Minute},
	{"hour", []string{"h"}, time.Hour},
	{"day", []string{"d"}, day},
	{"week", nil, week},
	{"month", nil, month},
	{"year", nil, year},
}

// concurrentWord stands behind the number of slots of a concurrency limit.
const concurrentWord = "concurrent"

// UnitHint is the hint for a number that stands alone where a rate is expected: its unit may have
// been forgotten, and slots are never meant by accident.
func (r Rate) UnitHint() string {
	return fmt.Sprintf("did you mean %d/min? for at most %d at a time write %[2]d %s", r.N, r.N, concurrentWord)
}

var unitNames = sync.OnceValue(func() []string {
	var names []string
	for _, u := range units {
		names = append(append(names, u.name), u.others...)
	}
	return names
})

// Rate is one scalar entry of `allow`: "10/min", "100/15m", "25 concurrent" (slots of a concurrency
// limit), "25" (slots, where it is known that these are meant) or "unlimited".
type Rate struct {
	N int64
	// Window is the nominal length of the window: a month is 30 days, a year 365. 0 for slots and
	// for unlimited.
	Window time.Duration
	// Unit is "second", "minute", "hour", "day", "week", "month" or "year"; "" if the rate names a
	// duration, or has no window.
	Unit      string
	Unlimited bool
	// Concurrent is true for slots that are called so: "25 concurrent", and not "25", which may be
	// a rate whose unit was forgotten.
	Concurrent bool
}

// String returns r in the notation that ParseRate reads; parsing it gives r back.
func (r Rate) String() string {
	switch {
	case r.Unlimited:
		return "unlimited"
	case r.Unit != "":
		return fmt.Sprintf("%d/%s", r.N, r.Unit)
	case r.Concurrent:
		return fmt.Sprintf("%d %s", r.N, concurrentWord)
	case r.Window == 0:
		return strconv.FormatInt(r.N, 10)
	}
	if r.Window%time.Second != 0 {
		return fmt.Sprintf("%d/%s", r.N, r.Window)
	}
	return fmt.Sprintf("%d/%s", r.N, durationText(r.Window))
}

// ParseRate parses the scalar notation of `allow`: N/unit with the units s, sec, second, min,
// minute, h, hour, d, day, week, month and year; N/duration such as 100/15m or 1000/2d; N
// concurrent, which bounds how many are in flight, or N alone; or unlimited. N is 0 to
// algo.MaxFixedN, which not every algorithm can count, a duration a whole number of microseconds up
// to algo.MaxWindow.
func ParseRate(text string) (Rate, error) {
	r, err := parseRate(text)
	if err != nil {
		if meant := rateInWords(text); meant != "" {
			err = fmt.Errorf("rate %q: did you mean %s?", clip(strings.TrimSpace(text)), meant)
		}
	}
	return r, err
}

func parseRate(text string) (Rate, error) {
	text = strings.TrimSpace(text)
	if text == "unlimited" {
		return Rate{Unlimited: true}, nil
	}
	if number, ok := strings.CutSuffix(text, concurrentWord); ok && strings.TrimRight(number, " \t") != number {
		n, err := parseCount(strings.TrimSpace(number))
		if err != nil {
			return Rate{}, fmt.Errorf("rate %q: %w", clip(text), err)
		}
		return Rate{N: n, Concurrent: true}, nil
	}
	number, per, hasWindow := strings.Cut(text, "/")
	number, per = strings.TrimSpace(number), strings.TrimSpace(per)
	n, err := parseCount(number)
	if err != nil {
		return Rate{}, fmt.Errorf("rate %q: %w", clip(text), err)
	}
	if !hasWindow {
		return Rate{N: n}, nil
	}
	for _, u := range units {
		if per == u.name {
			return Rate{N: n, Window: u.window, Unit: u.name}, nil
		}
		for _, other := range u.others {
			if per == other {
				return Rate{N: n, Window: u.window, Unit: u.name}, nil
			}
		}
	}
	if per == "" {
		return Rate{}, fmt.Errorf("rate %q: expected a unit or a duration behind the slash, as in 10/min or 100/15m",
			clip(text))
	}
	if per[0] < '0' || per[0] > '9' {
		if singular, ok := strings.CutSuffix(per, "s"); ok && suggest.Nearest(singular, unitNames()) == singular {
			return Rate{}, fmt.Errorf("rate %q: unknown unit %q (did you mean %q?)", clip(text), per, singular)
		}
		if per == "m" {
			return Rate{}, fmt.Errorf("rate %q: m could be minute or month; write min or month", clip(text))
		}
		hint := "units are s, min, h, day, week, month and year; a duration is written as in 100/15m"
		if near := suggest.Nearest(per, unitNames()); near != "" {
			hint = fmt.Sprintf("did you mean %q?", near)
		}
		return Rate{}, fmt.Errorf("rate %q: unknown unit %q (%s)", clip(text), clip(per), hint)
	}
	w, err := ParseDuration(per)
	if err != nil {
		return Rate{}, fmt.Errorf("rate %q: %w", clip(text), err)
	}
	switch {
	case w <= 0:
		return Rate{}, fmt.Errorf("rate %q: the window must be longer than 0", clip(text))
	case w > algo.MaxWindow:
		return Rate{}, fmt.Errorf("rate %q: the window is longer than the longest, %d days", clip(text),
			algo.MaxWindow/day)
	case w%time.Microsecond != 0:
		return Rate{}, fmt.Errorf("rate %q: the window must be a whole number of microseconds", clip(text))
	}
	return Rate{N: n, Window: w}, nil
}

func parseCount(text string) (int64, error) {
	if text == "" {
		return 0, fmt.Errorf("expected a number of requests, as in 10/min, 100/15m or unlimited")
	}
	for i := 0; i < len(text); i++ {
		if text[i] < '0' || text[i] > '9' {
			if _, err := strconv.ParseFloat(text, 64); err == nil && strings.Contains(text, ".") && text[0] != '-' {
				return 0, fmt.Errorf(
					"the number of requests must be a whole number; write 1/2s for half a request a second")
			}
			return 0, fmt.Errorf("%q is not a number of requests; expected a rate such as 10/min, 100/15m or unlimited",
				clip(text))
		}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n > algo.MaxFixedN {
		return 0, fmt.Errorf("%s requests are more than the most that can be counted, %d", clip(text),
			int64(algo.MaxFixedN))
	}
	return n, nil
}

// ParseDuration parses a duration of a rule file: Go's notation ("1m30s", "250ms"), to which d (24
// hours) and w (7 days) may be put in front ("1w2d12h").
func ParseDuration(text string) (time.Duration, error) {
	bad := func() (time.Duration, error) {
		if _, err := strconv.ParseFloat(text, 64); err == nil {
			return 0, fmt.Errorf("duration %q has no unit; write it as in 30s, 15m or 2h", clip(text))
		}
		return 0, fmt.Errorf("%q is not a duration; write it as in 30s, 15m, 2h or 7d", clip(text))
	}
	rest, total := text, time.Duration(0)
	for _, unit := range []struct {
		sign   byte
		length time.Duration
	}{{'w', week}, {'d', day}} {
		digits := 0
		for digits < len(rest) && rest[digits] >= '0' && rest[digits] <= '9' {
			digits++
		}
		if digits == 0 || digits == len(rest) || rest[digits] != unit.sign {
			continue
		}
		n, err := strconv.ParseInt(rest[:digits], 10, 64)
		if err != nil || n > int64((math.MaxInt64-total)/unit.length) {
			return 0, fmt.Errorf("duration %q is too long", clip(text))
		}
		total += time.Duration(n) * unit.length
		rest = rest[digits+1:]
	}
	if rest == "" && rest != text {
		return total, nil
	}
	d, err := time.ParseDuration(rest)
	switch {
	case err != nil || strings.TrimSpace(rest) != rest:
		return bad()
	case rest[0] == '+' || rest[0] == '-' && total != 0:
		return bad()
	case rest == "0" && total == 0:
		return 0, nil
	case d > math.MaxInt64-total:
		return 0, fmt.Errorf("duration %q is too long", clip(text))
	}
	return total + d, nil
}

// clip shortens text for a message, and makes control characters harmless.
func clip(text string) string {
	const most = 80
	if len(text) <= most {
		return text
	}
	cut := most
	for cut > 0 && text[cut]&0xc0 == 0x80 {
		cut--
	}
	return text[:cut] + "…"
}

// Calendar returns the unit of the calendar that r names, which a fixed window follows;
// algo.NoCalendar if it names none.
func (r Rate) Calendar() algo.Calendar {
	switch r.Unit {
	case "day":
		return algo.Day
	case "week":
		return algo.Week
	case "month":
		return algo.Month
	case "year":
		return algo.Year
	}
	return algo.NoCalendar
}
