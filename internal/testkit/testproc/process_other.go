//go:build !unix

package testproc

import (
	"errors"
	"os"
	"syscall"
	"time"
)

// The servers of tests do not run on Windows, so that tests which start one are skipped there.

// Clock reads the wall clock: there is no monotonic one that processes share.
func Clock() time.Duration { return time.Duration(time.Now().UnixNano()) }

func attributes() *syscall.SysProcAttr { return nil }

func keepCredential(_, _ *syscall.SysProcAttr) {}

func Resume(*os.Process) error { return errors.ErrUnsupported }

func signal(int, syscall.Signal) error { return errors.ErrUnsupported }

const stop, cont = syscall.Signal(19), syscall.Signal(18) // that nobody sends

func KillGroup(int) {}

func Pause(int) error { return errors.ErrUnsupported }

func CPU(int) (time.Duration, error) { return 0, errors.ErrUnsupported }

func lock(*os.File) error { return nil }
