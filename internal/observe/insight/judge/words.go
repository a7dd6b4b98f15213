package judge

import (
	"math"
)

// roundUp rounds n up to two significant digits.
func roundUp(n float64) int64 {
	step := int64(1)
	for n/float64(step) > 99 {
		step *= 10
	}
	return int64(math.Ceil(n/float64(step)-1e-9)) * step
}
