package preview

import (
	"runtime"
	"syscall"
)

// yield lets others go first: goroutines that wait, and then threads that do, of this process or
// another one. In the server, the kernel would else let a thread that wakes for a decision wait for
// its next tick, 4 ms as a rule, where this one keeps the processor. A low priority would do as
// well until the garbage collector has to wait for this thread; then all decisions would wait with
// it. In a process of its own, which has that priority, it still halves the 99th percentile.
func yield() {
	runtime.Gosched()
	_, _, _ = syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0) // it cannot fail
}
