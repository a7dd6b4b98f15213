package load

import (
	"math"
	"time"
)

// The filter of every signal. Its average follows the raw value with a time constant of 2 s: after
// a step, half of the way is made in 1.4 s and 95 % in 6 s. The value, in whole percent, moves only
// when the average lies 0.75 or more away from it, and then to the nearest whole percent; so an
// average that wavers by less than half a percent never moves it to and fro. A step of h percent to
// a whole percent reaches its value within 2 s × ln(4h): 9.2 s for 25 percent, 12 s for 100.
const (
	filterTime   = 2 * time.Second
	filterStride = 0.75 // percent
)

// filter is the filter of one signal; the zero value begins with the first raw value.
type filter struct {
	average float64
	value   int
	at      time.Time // of the last step; zero for none
}

// step moves on to now, with raw as it has been since the last step.
func (f *filter) step(now time.Time, raw float64) int {
	if f.at.IsZero() {
		f.average, f.value = raw, int(math.Round(raw))
	} else if passed := now.Sub(f.at); passed > 0 {
		f.average += (raw - f.average) * -math.Expm1(-float64(passed)/float64(filterTime))
	}
	f.at = now
	if math.Abs(f.average-float64(f.value)) >= filterStride {
		f.value = int(math.Round(f.average))
	}
	return f.value
}
