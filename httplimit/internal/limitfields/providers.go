package limitfields

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Providers of models name their limits one by one, with a time in a form of their own. Of a limit
// of requests OpenAI has X-RateLimit-Limit-Requests, -Remaining-Requests and -Reset-Requests, the
// last as a duration, and Anthropic has Anthropic-RateLimit-Requests-Limit, -Remaining and -Reset,
// the last as an instant (RFC 3339).
const (
	prefixRemaining = Remaining + "-"
	prefixLimit     = Limit + "-"
	prefixReset     = Reset + "-"
	// Azure spells this one so, where it does not say how much is left.
	prefixXReset    = "X-Rate-Limit-Reset-"
	prefixAnthropic = "Anthropic-Ratelimit-"
	suffixRemaining = "-Remaining"
)

// appendNamed appends the limits that are named one by one; the hints of the answer begin at start.
// Their time is until all of the limit is there again, if it is a duration or an instant, so that
// each unit that is missing comes back in a part of it. In seconds it is until a window ends.
func appendNamed(dst []Hint, start int, h http.Header, now time.Time) []Hint {
	for field := range h {
		name, limit, reset := "", "", ""
		if kind, ok := strings.CutPrefix(field, prefixRemaining); ok {
			name, limit, reset = kind, prefixLimit+kind, prefixReset+kind
		} else if kind, ok := strings.CutPrefix(field, prefixAnthropic); ok {
			if name, ok = strings.CutSuffix(kind, suffixRemaining); ok {
				limit, reset = prefixAnthropic+name+"-Limit", prefixAnthropic+name+"-Reset"
			}
		}
		if name == "" {
			continue
		}
		left, ok := leadingWhole(h, field)
		at, form := resetOf(h, reset, now)
		if !ok || form == noTime {
			continue
		}
		quota, _ := leadingWhole(h, limit)
		p := Hint{Name: strings.ToLower(name[:min(len(name), maxHintName)]), Left: left, Reset: at}
		requests := strings.Contains(p.Name, "request")
		if requests {
			p.Quota = quota
		}
		if missing := quota - left; form != secondsLeft && missing > 0 {
			p.Whole, p.Reset = at, at/time.Duration(missing)
			if requests {
				p.Window = min(MaxReset, time.Duration(min(float64(p.Reset)*float64(quota), float64(MaxReset))))
			}
		}
		dst = addHint(dst, start, p)
	}
	return dst
}

// timeForm is how a server writes a time.
type timeForm uint8

const (
	noTime      timeForm = iota // it is none
	secondsLeft                 // a number of seconds from now
	unixTime                    // in seconds, or in milliseconds
	duration                    // 6m0s, 1.2s, 20ms
	instant                     // by RFC 3339, or as HTTP has it
)

// resetOf reads a field that says when a limit is there again: from 0 to maxReset from now.
func resetOf(h http.Header, name string, now time.Time) (time.Duration, timeForm) {
	lines := fieldOf(h, name)
	if len(lines) == 0 {
		return 0, noTime
	}
	d, form := timeOf(lines[0], h, now)
	if form == noTime { // some append a policy
		if i := strings.IndexAny(lines[0], ",;"); i > 0 {
			d, form = timeOf(lines[0][:i], h, now)
		}
	}
	return min(d, MaxReset), form
}

// timeOf reads a time from a server's field; instants are by the server's clock, if h has it. It is
// not below 0.
func timeOf(text string, h http.Header, now time.Time) (time.Duration, timeForm) {
	text = strings.Trim(text, " \t")
	if n, ok := decimal(text); ok {
		switch {
		case n < 1e8: // a Unix time below that would be of 1973
			return times(n, time.Second), secondsLeft
		case n < 1e11:
			return until(time.Unix(int64(n), 0), h, now), unixTime
		default:
			return until(time.UnixMilli(int64(min(n, 1e15))), h, now), unixTime
		}
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return d, duration
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return until(at, h, now), instant
	}
	if at, err := http.ParseTime(text); err == nil {
		return until(at, h, now), instant
	}
	return 0, noTime
}

// decimal reads a number of digits, with or without a fraction.
func decimal(text string) (n float64, ok bool) {
	whole, fraction, _ := strings.Cut(text, ".")
	if strings.Trim(whole+fraction, "0123456789") != "" || whole+fraction == "" {
		return 0, false
	}
	n, err := strconv.ParseFloat(text, 64)
	return n, err == nil
}

// times returns n units, and the longest time if that is more.
func times(n float64, unit time.Duration) time.Duration {
	if n *= float64(unit); n < math.MaxInt64 {
		return time.Duration(math.Ceil(n))
	}
	return math.MaxInt64
}

// until returns how long it is until an instant by the server's clock.
func until(at time.Time, h http.Header, now time.Time) time.Duration {
	return max(0, at.Sub(clockOf(h, now)))
}

// clockOf returns the time by the server's clock, if h has it, else by ours.
func clockOf(h http.Header, now time.Time) time.Time {
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		return date
	}
	return now
}

// retryAfterOf reads how long a server asks to wait: milliseconds in Retry-After-Ms (OpenAI,
// Azure), else seconds, with or without a fraction, or a date in Retry-After. ok is false if there
// is none that can be read. It is not bounded.
func retryAfterOf(h http.Header, now time.Time) (wait time.Duration, ok bool) {
	for _, name := range [...]string{"Retry-After-Ms", "X-Ms-Retry-After-Ms"} {
		if n, ok := decimal(strings.Trim(h.Get(name), " \t")); ok {
			return times(n, time.Millisecond), true
		}
	}
	value := strings.TrimSpace(h.Get(RetryAfter))
	if n, ok := decimal(value); ok {
		return times(n, time.Second), true
	}
	if strings.Trim(value, "0123456789") == "" && value != "" { // more than a number holds
		return math.MaxInt64, true
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	return until(at, h, now), true
}

// usedUpUntil returns how long it is until all used-up limits are there again; 0 if something is
// left of each. A server that refused a request without saying for how long is left alone for that
// time.
func usedUpUntil(hints []Hint) (wait time.Duration) {
	for i := range hints {
		if p := &hints[i]; p.Left == 0 {
			wait = max(wait, p.Reset, p.Whole)
		}
	}
	return wait
}

// untilReset returns the same for a request that a limit refused though something is left of each:
// it asked for more, and the limit with the least left is the likeliest one.
func untilReset(h http.Header, hints []Hint, now time.Time) (wait time.Duration) {
	least := math.Inf(1)
	for i := range hints {
		p := &hints[i]
		if p.Whole <= 0 {
			continue
		}
		// the missing units of the limit, by the time that it takes to come back
		if share := float64(p.Left) * float64(p.Reset) / float64(p.Whole); share < least {
			least, wait = share, p.Whole
		}
	}
	if wait > 0 {
		return wait
	}
	for field := range h {
		kind, ok := strings.CutPrefix(field, prefixXReset)
		if !ok {
			kind, ok = strings.CutPrefix(field, prefixReset)
		}
		if ok && kind != "" && len(h[prefixRemaining+kind]) == 0 {
			d, _ := resetOf(h, field, now)
			wait = max(wait, d)
		}
	}
	return wait
}
