//go:build unix

package servertest

import (
	"os"
	"os/exec"
	"syscall"
)

// HangUp sends this process a SIGHUP.
func HangUp() error { return syscall.Kill(os.Getpid(), syscall.SIGHUP) }

// ownGroup makes a command start in a process group of its own.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// terminateGroup sends SIGTERM to the process group of a command.
func terminateGroup(cmd *exec.Cmd) error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
