package human

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Number writes n, rounded to a whole number, with commas: 2,310,000.
func Number[N int | int64 | uint64 | float64](n N) string {
	s := fmt.Sprint(n)
	if f, ok := any(n).(float64); ok {
		s = strconv.FormatFloat(math.Round(f)+0, 'f', 0, 64)
	}
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Count writes a number with its noun: "1 request", "2,310 requests".
func Count[N int | int64 | uint64 | float64](n N, noun string) string {
	if s := Number(n); s != "1" {
		return s + " " + noun + "s"
	}
	return "1 " + noun
}

// Plural writes a number as it is with its noun: "1 key", "2310 keys".
func Plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// PluralIs is Plural with the verb: "1 key is", "2 keys are".
func PluralIs(n int, noun string) string {
	if n == 1 {
		return Plural(n, noun) + " is"
	}
	return Plural(n, noun) + " are"
}

// Percent writes a share of 1 for a sentence, with as many digits as are meaningful: "0 %" only for
// none, "100 %" only for all.
func Percent(share float64) string {
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

// List joins words: "a", "a and b", "a, b and c".
func List(words []string, last string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " " + last + " " + words[len(words)-1]
}
