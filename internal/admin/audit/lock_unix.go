//go:build unix

package audit

import (
	"errors"
	"os"
	"syscall"
)

// lock keeps other programs from writing to f until it is closed: two chains in one file would
// break each other.
func lock(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return ErrTaken
	}
	return err
}
