//go:build !linux

package processor

import (
	"errors"
	"time"
)

// Time returns the processor time of a process. Here it always returns an error.
func Time(int) (time.Duration, error) {
	return 0, errors.New("the processor time of other processes can be read on Linux only")
}
