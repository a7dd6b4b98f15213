package bench

import (
	"time"

	"golang.org/x/sys/unix"
)

// ProcessorTime is the processor time, user and system, that a process has used so far in all its
// threads, those that have ended included. Each process has a clock of it, see
// clock_getcpuclockid(3); it counts nanoseconds, where /proc/PID/stat counts hundredths of a
// second.
func ProcessorTime(pid int) (time.Duration, error) {
	const sched = 2 // CPUCLOCK_SCHED
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|sched), &t); err != nil {
		if err == unix.EINVAL {
			err = unix.ESRCH // what it says of a process that is not there
		}
		return 0, err
	}
	return time.Duration(t.Nano()), nil
}
