package envoytest

import (
	"os/exec"
	"syscall"
)

// dieWithTest has the kernel kill the process when the test's process ends, for whatever reason.
func dieWithTest(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
