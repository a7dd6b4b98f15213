//go:build unix

package sim

import (
	"syscall"
	"time"
)

// cpuTime is the processor time that the process has used, which a busy machine does not stretch as
// it does the wall clock's.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
