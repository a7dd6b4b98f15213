package human

import (
	"math"
	"strconv"
	"strings"
)

// Share returns part ÷ whole; 0 if there is no whole.
func Share(part, whole float64) float64 {
	if whole <= 0 {
		return 0
	}
	return part / whole
}

// Portion returns a part of a whole in words: "all of", "53 % of".
func Portion(part, whole float64) string {
	if part >= whole {
		return "all of"
	}
	return Percent(Share(part, whole)) + " of"
}

// Digits rounds a number to four significant digits, unless it is whole. No figure is known more
// exactly.
func Digits(x float64) float64 {
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

// Upper begins a sentence: it writes the first letter as a capital.
func Upper(text string) string { return strings.ToUpper(text[:1]) + text[1:] }
