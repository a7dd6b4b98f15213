// Package human says numbers, times, names and texts as people read them.
package human

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Span is a time for people: two units at most, rounded up to the smaller one, since what may pass
// in 36.9 s may not pass in 36. Less than nothing is "0 s".
//
//	250 ms   3.2 s   37 s   5 min 3 s   2 h 5 min   3 d 4 h
func Span(d time.Duration) string {
	up := func(d, unit time.Duration) time.Duration {
		if n := d / unit; n*unit < d {
			return (n + 1) * unit
		}
		return d
	}
	// Each step asks again after rounding: 59.9 s are 1 min, not 60 s.
	switch {
	case d <= 0:
		return "0 s"
	case up(d, time.Millisecond) < time.Second:
		return fmt.Sprintf("%d ms", up(d, time.Millisecond)/time.Millisecond)
	case up(d, 100*time.Millisecond) < 10*time.Second:
		d = up(d, 100*time.Millisecond)
		if d%time.Second == 0 {
			return fmt.Sprintf("%d s", d/time.Second)
		}
		return fmt.Sprintf("%d.%d s", d/time.Second, d%time.Second/(100*time.Millisecond))
	case up(d, time.Second) < time.Minute:
		return fmt.Sprintf("%d s", up(d, time.Second)/time.Second)
	case up(d, time.Second) < time.Hour:
		return two(up(d, time.Second), time.Minute, "min", time.Second, "s")
	case up(d, time.Minute) < 24*time.Hour:
		return two(up(d, time.Minute), time.Hour, "h", time.Minute, "min")
	}
	return two(up(d, time.Hour), 24*time.Hour, "d", time.Hour, "h")
}

// two is d in two units; the smaller one is left out if it is 0.
func two(d, large time.Duration, largeName string, small time.Duration, smallName string) string {
	text := fmt.Sprintf("%d %s", d/large, largeName)
	if rest := d % large / small; rest > 0 {
		text += fmt.Sprintf(" %d %s", rest, smallName)
	}
	return text
}

// Lasted is a time that has passed, in the unit that a person would take, with a second one below
// ten: 45 s, 3 h 20 min, 24 h, 14 d. Unlike Span it is rounded to the nearest.
func Lasted(d time.Duration) string {
	units := []struct {
		size time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "min"}, {time.Second, "s"}}
	if d < time.Second {
		return "less than a second"
	}
	if d >= 23*time.Hour+55*time.Minute && d < 48*time.Hour {
		return Number(d.Hours()) + " h"
	}
	for i, u := range units {
		if d < u.size {
			continue
		}
		n := d / u.size
		if n >= 10 || i == len(units)-1 {
			return fmt.Sprintf("%d %s", int64(math.Round(float64(d)/float64(u.size))), u.name)
		}
		next := units[i+1]
		rest := int64(math.Round(float64(d-n*u.size) / float64(next.size)))
		if rest*int64(next.size) >= int64(u.size) {
			n, rest = n+1, 0
		}
		if rest == 0 {
			return fmt.Sprintf("%d %s", n, u.name)
		}
		return fmt.Sprintf("%d %s %d %s", n, u.name, rest, next.name)
	}
	return ""
}

// Algorithm is the name of an algorithm as people say it: with spaces in place of underscores.
func Algorithm(name string) string { return strings.ReplaceAll(name, "_", " ") }

// Visible makes a text that a stranger chose harmless for a terminal, and shows its characters:
// control characters and those that change the direction of text stand as \x1b or \u202e, bytes
// that are no UTF-8 as \xff, and so do characters that take no place or that nobody can see. A
// backslash becomes two, so that two texts never look alike. Line breaks are control characters.
func Visible(s string) string {
	harmless := func(r rune) bool { return r >= ' ' && r < 0x7f && r != '\\' }
	if strings.IndexFunc(s, func(r rune) bool { return !harmless(r) }) < 0 {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		switch size := utf8.RuneLen(r); {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], "\ufffd"):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r == '\\':
			b.WriteString(`\\`)
		case harmless(r), size > 1 && visible(r):
			b.WriteRune(r)
		case r < 0x100:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
	}
	return b.String()
}

// visible reports whether a character beyond ASCII takes a place of its own and is seen there.
// Marks are not among them: a hundred of them on one letter cover the lines above.
func visible(r rune) bool {
	return unicode.IsGraphic(r) && !unicode.Is(unicode.M, r) && !unicode.Is(unicode.Z, r) && !blank(r)
}

// blank reports the letters that look like nothing: the fillers of Hangul and the blank of Braille.
func blank(r rune) bool {
	return r == '\u115f' || r == '\u1160' || r == '\u3164' || r == '\uffa0' || r == '\u2800'
}
