//go:build unix && !linux

package testproc

import (
	"errors"
	"syscall"
	"time"
)

// Elsewhere than on Linux a server outlives a test that is killed.
func dieTogether(*syscall.SysProcAttr) {}

func Pause(pid int) error { return syscall.Kill(pid, syscall.SIGSTOP) }

func CPU(int) (time.Duration, error) { return 0, errors.ErrUnsupported }
