package rule

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ratePatterns find a rate in other words than rule files have.
var ratePatterns = sync.OnceValue(func() (p struct{ per, short, often, slots *regexp.Regexp }) {
	const number = `(?i)^([0-9][0-9,_]*)\s*(k?)\s*`
	const noun = `(?:(?:x|times|r|req|reqs|requests?|hits?|calls?|queries|units?|tokens?)\b)?\s*`
	// 100 requests per minute
	p.per = regexp.MustCompile(number + noun + `(?:/|\bper\b|\ban?\b|\bevery\b|\beach\b|\bin\b)\s*(?:an?\s+)?(.+)$`)
	p.short = regexp.MustCompile(number + `[rqt]p([smhd])$`) // 100 rps
	p.often = regexp.MustCompile(number + noun + `(hourly|daily|weekly|monthly|yearly)$`)
	p.slots = regexp.MustCompile(number + noun + `(?:in flight|in parallel|at once|at a time|concurrent|concurrently)$`)
	return p
})

// rateInWords returns the rate that text says in words, such as "100 per minute", in the notation
// of ParseRate; "" if it says none.
func rateInWords(text string) string {
	if len(text) > 100 {
		return ""
	}
	text = strings.TrimSpace(text)
	p := ratePatterns()
	n, period := "", ""
	if m := p.slots.FindStringSubmatch(text); m != nil {
		if n = wholeNumber(m[1], m[2]); n == "" {
			return ""
		}
		return n + " " + concurrentWord
	} else if m := p.per.FindStringSubmatch(text); m != nil {
		n, period = wholeNumber(m[1], m[2]), periodInWords(m[3])
	} else if m := p.short.FindStringSubmatch(text); m != nil {
		units := map[string]string{"s": "s", "m": "min", "h": "h", "d": "day"}
		n, period = wholeNumber(m[1], m[2]), units[strings.ToLower(m[3])]
	} else if m := p.often.FindStringSubmatch(text); m != nil {
		units := map[string]string{"hourly": "hour", "daily": "day", "weekly": "week", "monthly": "month",
			"yearly": "year"}
		n, period = wholeNumber(m[1], m[2]), units[strings.ToLower(m[3])]
	} else if strings.EqualFold(text, "unlimited") {
		return "unlimited"
	}
	if n == "" || period == "" {
		return ""
	}
	meant := n + "/" + period
	if _, err := parseRate(meant); err != nil || meant == text {
		return ""
	}
	return meant
}

// wholeNumber returns the digits of a number that may be grouped, and may be in thousands; "" if
// that is too many to count.
func wholeNumber(digits, thousands string) string {
	n, err := parseCount(strings.NewReplacer(",", "", "_", "").Replace(digits))
	if thousands != "" {
		n *= 1000
	}
	text := strconv.FormatInt(n, 10)
	if _, tooMany := parseCount(text); err != nil || tooMany != nil {
		return ""
	}
	return text
}

// periodWord is a number and a unit, such as 15 minutes, or a unit alone.
var periodWord = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^([0-9]*)\s*([a-z]+)\.?,?\s*`) })

// unitsInWords are units as people write them, by the name that a rate has for it.
var unitsInWords = map[string]string{
	"s": "s", "sec": "s", "secs": "s", "second": "s", "seconds": "s", "min": "min", "mins": "min", "minute": "min", "minutes": "min",
	"h": "hour", "hr": "hour", "hrs": "hour", "hour": "hour", "hours": "hour", "d": "day", "day": "day", "days": "day",
	"w": "week", "wk": "week", "week": "week", "weeks": "week", "month": "month", "months": "month", "year": "year", "years": "year",
}

// lengths are the lengths of the units that a duration may be of.
var lengths = map[string]time.Duration{"s": time.Second, "min": time.Minute, "hour": time.Hour, "day": day,
	"week": week}

// periodInWords returns a unit or a duration that text says in words, such as "15 minutes", in the
// notation of ParseRate; "" if it says none.
func periodInWords(text string) string {
	text = strings.ToLower(strings.TrimSpace(text))
	text = strings.TrimSpace(strings.TrimPrefix(text, "calendar "))
	var total time.Duration
	for first := true; text != ""; first = false {
		m := periodWord().FindStringSubmatch(text)
		if m == nil {
			return ""
		}
		unit := unitsInWords[m[2]]
		text = text[len(m[0]):]
		if first && text == "" && (m[1] == "" || m[1] == "1") {
			return unit
		}
		n, err := strconv.ParseInt(m[1], 10, 32)
		if err != nil || lengths[unit] == 0 {
			return ""
		}
		total += time.Duration(n) * lengths[unit]
	}
	return durationText(total)
}

// durationText writes a duration of whole seconds as ParseDuration reads it.
func durationText(d time.Duration) string {
	var b strings.Builder
	for _, u := range []struct {
		size time.Duration
		sign string
	}{{day, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}} {
		if n := d / u.size; n > 0 {
			fmt.Fprintf(&b, "%d%s", n, u.sign)
		}
		d %= u.size
	}
	return b.String()
}
