package preview

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"
)

// schedIdle is SCHED_IDLE of sched(7).
const schedIdle = 5

// lower makes all threads of a process run only when nothing else wants the processor, for good.
// Threads inherit this. If a service may not do it (seccomp, SystemCallFilter of systemd), lower
// gives the threads the lowest nice level.
func lower(pid int) error {
	dir := fmt.Sprintf("/proc/%d/task", pid)
	return lowerAll(func() ([]os.DirEntry, error) { return os.ReadDir(dir) }, lowerThread)
}

// mostPasses bounds how often the threads of a process are listed.
const mostPasses = 16

// lowerAll lowers each thread that list returns, once.
func lowerAll(list func() ([]os.DirEntry, error), lower func(tid int) error) error {
	met := map[string]bool{}
	var denied error
	// A thread that was not lowered yet may start another one while they are listed. When a list
	// has no new thread, there are no others. The policy of a thread is not read: where setting it
	// is denied as well, this would never end.
	for range mostPasses {
		threads, err := list()
		if err != nil {
			return err
		}
		before := len(met)
		for _, e := range threads {
			if met[e.Name()] {
				continue
			}
			met[e.Name()] = true
			tid, err := strconv.Atoi(e.Name())
			if err != nil {
				return err
			}
			if err := lower(tid); err != nil {
				denied = err
			}
		}
		if len(met) == before {
			return denied
		}
	}
	if denied == nil {
		denied = errors.New("there were new threads each time that they were listed")
	}
	return denied
}

// lowerThread lowers a thread, if it has not ended.
func lowerThread(tid int) error {
	// Not sched_setattr: filters of system calls see this policy, and permit it even if they forbid
	// realtime (RestrictRealtime of systemd).
	var param struct{ priority int32 }
	_, _, errno := syscall.RawSyscall(syscall.SYS_SCHED_SETSCHEDULER, uintptr(tid), schedIdle,
		uintptr(unsafe.Pointer(&param)))
	if errno == 0 || errno == syscall.ESRCH {
		return nil
	}
	if err := syscall.Setpriority(syscall.PRIO_PROCESS, tid, 19); err != nil {
		return fmt.Errorf("sched_setscheduler: %w; setpriority: %w", errno, err)
	}
	return fmt.Errorf("sched_setscheduler: %w; it is nice 19 instead", errno)
}

// giveUpFirst makes the kernel kill this process before others when memory runs out.
func giveUpFirst() {
	// An error says that this is no usual Linux; then the kernel chooses.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0)
}

// yield lets others go first: waiting goroutines, and then waiting threads, of this process or
// another one. In the server, a thread that wakes up for a decision would otherwise wait for the
// kernel's next tick, usually 4 ms, while this thread keeps the processor. A low priority would
// have the same effect, until the garbage collector has to wait for this thread: then all decisions
// would wait with it. In a process of its own, which has that priority, yield still halves the 99th
// percentile.
func yield() {
	runtime.Gosched()
	_, _, _ = syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0) // it cannot fail
}
