//go:build unix

package cassandratest

import (
	"os"

	"golang.org/x/sys/unix"
)

// lock waits until no other process holds the lock of a file. It is released with the file, or with
// the process.
func lock(f *os.File) error {
	for {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != unix.EINTR {
			return err
		}
	}
}
