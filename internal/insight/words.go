package insight

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// number writes n with commas.
func number(n float64) string {
	s := strconv.FormatInt(int64(math.Round(n)), 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// counted writes a number with its noun: "1 key", "1,204 keys".
func counted(n float64, noun string) string {
	if math.Round(n) == 1 {
		return "1 " + noun
	}
	return number(n) + " " + noun + "s"
}

// percent writes a share with as many digits as are meaningful: "0 %" only for none, "100 %" only
// for all.
func percent(share float64) string {
	p := 100 * share
	switch {
	case p <= 0:
		return "0 %"
	case p < 0.01:
		return "less than 0.01 %"
	case p < 1:
		return strings.TrimRight(strings.TrimRight(fmt.Sprintf("%.2f", p), "0"), ".") + " %"
	case p < 9.95:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", p), ".0") + " %"
	case p < 99.5 || share >= 1:
		return fmt.Sprintf("%.0f %%", p)
	}
	return "more than 99 %"
}

// share returns part ÷ whole; 0 if there is no whole.
func share(part, whole float64) float64 {
	if whole <= 0 {
		return 0
	}
	return part / whole
}

// span writes a duration in the unit that a person would take, with a second one below ten: "45 s",
// "3 h 20 min", "24 h", "14 d".
func span(d time.Duration) string {
	units := []struct {
		size time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "min"}, {time.Second, "s"}}
	if d < time.Second {
		return "less than a second"
	}
	if d >= 23*time.Hour+55*time.Minute && d < 48*time.Hour {
		return number(d.Hours()) + " h"
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

// last writes a duration for "in the last …": "2 min", and "minute" for one.
func last(d time.Duration) string {
	switch d {
	case time.Second:
		return "second"
	case time.Minute:
		return "minute"
	case time.Hour:
		return "hour"
	}
	return span(max(d, time.Second))
}

// digits rounds what is no whole number to four significant digits, which is more than is known of
// any of them.
func digits(x float64) float64 {
	if x == math.Trunc(x) || math.IsInf(x, 0) || math.IsNaN(x) {
		return x
	}
	if math.Abs(x) >= 1000 {
		return math.Round(x)
	}
	rounded, err := strconv.ParseFloat(strconv.FormatFloat(x, 'g', 4, 64), 64)
	if err != nil {
		return x
	}
	return rounded
}

// upper begins a sentence.
func upper(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

// list joins words: "a", "a and b", "a, b and c".
func list(words []string, last string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " " + last + " " + words[len(words)-1]
}

// roundUp rounds n up to two significant digits.
func roundUp(n float64) int64 {
	step := int64(1)
	for n/float64(step) > 99 {
		step *= 10
	}
	return int64(math.Ceil(n/float64(step)-1e-9)) * step
}

// roundDown rounds n down to two significant digits, to 1 at least.
func roundDown(n float64) int64 {
	step := int64(1)
	for n/float64(step) >= 100 {
		step *= 10
	}
	return max(int64(math.Floor(n/float64(step)+1e-9))*step, 1)
}
