package insight

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/weir-rl/weir/internal/util/human"
)

// share returns part ÷ whole; 0 if there is no whole.
func share(part, whole float64) float64 {
	if whole <= 0 {
		return 0
	}
	return part / whole
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
	return human.Lasted(max(d, time.Second))
}

// digits rounds a number to four significant digits, unless it is whole. No figure is known more
// exactly.
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
