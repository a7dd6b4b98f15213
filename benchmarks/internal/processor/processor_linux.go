// Package processor reads how long a process has had a processor.
package processor

import (
	"time"

	"golang.org/x/sys/unix"
)

// Time returns the processor time, user and system, that all threads of a process have
// used so far, including ended ones. It reads the clock of the process, see clock_getcpuclockid(3),
// which counts nanoseconds; /proc/PID/stat counts hundredths of a second.
func Time(pid int) (time.Duration, error) {
	const sched = 2 // CPUCLOCK_SCHED
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|sched), &t); err != nil {
		if err == unix.EINVAL {
			err = unix.ESRCH // as for a process that does not exist
		}
		return 0, err
	}
	return time.Duration(t.Nano()), nil
}
