//go:build !linux

package bench

import (
	"errors"
	"time"
)

// ProcessorTime is the processor time that a process has used so far; here it is always an error.
func ProcessorTime(int) (time.Duration, error) {
	return 0, errors.New("the processor time of other processes can be read on Linux only")
}
