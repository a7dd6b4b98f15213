package envoytest

import (
	"os/exec"
	"syscall"
)

// dieWithTest lets the kernel kill the process with that of the test, however that ends.
func dieWithTest(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
