//go:build !unix

package redistest

import (
	"errors"
	"os"
	"syscall"
	"time"
)

// Redis has no server for Windows, so that tests which start one are skipped there.

// Clock reads the wall clock: there is no monotonic one that processes share.
func Clock() time.Duration { return time.Duration(time.Now().UnixNano()) }

func attributes() *syscall.SysProcAttr { return nil }

func resume(*os.Process) error { return errors.ErrUnsupported }

func killGroup(int) {}

func pause(int) error { return errors.ErrUnsupported }

func cpu(int) (time.Duration, error) { return 0, errors.ErrUnsupported }
