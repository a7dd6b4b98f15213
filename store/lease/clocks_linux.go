package lease

import "golang.org/x/sys/unix"

// otherClocks reads the clock that goes on while the machine is suspended, and that on the wall,
// which is set after a virtual machine was moved.
func otherClocks() []int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return []int64{wall(), wall()}
	}
	return []int64{wall(), ts.Nano()}
}
