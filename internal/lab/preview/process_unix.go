//go:build unix

package preview

import (
	"syscall"
	"time"
)

// keepFiles keeps files that this process has inherited from those that it starts. Go does so with
// those that it opens itself.
func keepFiles() {
	for fd := 3; fd < 1024; fd++ { // most of them are not there
		syscall.CloseOnExec(fd)
	}
}

// processorTime is how long this process has been on a processor.
func processorTime() (time.Duration, bool) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, false
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), true
}
