package processor

import (
	"os/exec"
	"runtime"
	"testing"
	"time"
)

// TestProcessorTime: the processor time of another process is seen, and a process that has ended is
// an error.
func TestProcessorTime(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("on Linux only")
	}
	cmd := exec.Command("sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; echo; read line")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	used, err := Time(cmd.Process.Pid)
	if err != nil || used <= 0 {
		t.Errorf("%v, %v", used, err)
	}
	_ = in.Close()
	_ = cmd.Wait()
	if ended := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(); used > ended+10*time.Millisecond {
		t.Errorf("used %v, and %v in the end", used, ended)
	}
	if used, err := Time(cmd.Process.Pid); err == nil {
		t.Errorf("of a process that has ended: %v", used)
	}
}
