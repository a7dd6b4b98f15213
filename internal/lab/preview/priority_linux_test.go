package preview

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"
)

// thread is one of /proc/PID/task.
type thread struct {
	os.DirEntry
	tid int
}

func (t thread) Name() string { return strconv.Itoa(t.tid) }

// Each thread is lowered once, whatever comes of it, and there is an end of it where they come and
// come.
func TestLowerAll(t *testing.T) {
	no := errors.New("not permitted")
	for name, c := range map[string]struct {
		lists  func(pass int) int // the threads are 1 to this
		denied error
		passes int
		fails  bool
	}{
		"they stay":          {lists: func(int) int { return 3 }, passes: 2},
		"one comes":          {lists: func(pass int) int { return min(pass, 2) }, passes: 3},
		"there is none":      {lists: func(int) int { return 0 }, passes: 1},
		"it is denied":       {lists: func(int) int { return 3 }, denied: no, passes: 2, fails: true},
		"they come and come": {lists: func(pass int) int { return pass }, passes: mostPasses, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			passes, lowered := 0, map[int]int{}
			err := lowerAll(func() (list []os.DirEntry, err error) {
				passes++
				for tid := range c.lists(passes) {
					list = append(list, thread{tid: tid + 1})
				}
				return list, nil
			}, func(tid int) error {
				lowered[tid]++
				return c.denied
			})
			if (err != nil) != c.fails || c.denied != nil && !errors.Is(err, c.denied) || passes != c.passes ||
				len(lowered) != c.lists(passes) {
				t.Errorf("%v, %d passes, lowered %v", err, passes, lowered)
			}
			for tid, times := range lowered {
				if times != 1 {
					t.Errorf("thread %d was lowered %d times", tid, times)
				}
			}
		})
	}
}

// To lower a process that has ended is no failure.
func TestLowerEnded(t *testing.T) {
	cmd := exec.Command(executable(), "-test.run=^$")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, out); err != nil {
		t.Fatal(err)
	}
	if err := lower(cmd.Process.Pid); err != nil && noLowering() == nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
}

// noLowering is why the lowest priority cannot be had here; nil if it can.
var noLowering = sync.OnceValue(func() error {
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // it ends with this goroutine, since there is no way back
		failed <- lowerThread(syscall.Gettid())
	}()
	return <-failed
})
