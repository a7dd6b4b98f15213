//go:build !linux

package bench

import (
	"errors"
	"time"
)

// ProcessorTime returns the processor time of a process. Here it always returns an error.
func ProcessorTime(int) (time.Duration, error) {
	return 0, errors.New("the processor time of other processes can be read on Linux only")
}
