//go:build unix && !linux

package redistest

import (
	"errors"
	"syscall"
	"time"
)

// Elsewhere than on Linux a server outlives a test that is killed.
func dieTogether(*syscall.SysProcAttr) {}

func pause(pid int) error { return syscall.Kill(pid, syscall.SIGSTOP) }

func cpu(int) (time.Duration, error) { return 0, errors.ErrUnsupported }
