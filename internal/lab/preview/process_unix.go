//go:build unix

package preview

import (
	"syscall"
	"time"
)

// keepFiles hides files that this process has inherited from processes that it starts. Go does the
// same for files that it opens itself.
func keepFiles() {
	for fd := 3; fd < 1024; fd++ { // most of them are not there
		syscall.CloseOnExec(fd)
	}
}

// processorTime returns the processor time of this process.
func processorTime() (time.Duration, bool) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, false
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), true
}
