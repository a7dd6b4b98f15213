//go:build !unix

package servertest

import (
	"errors"
	"os/exec"
)

// Where there are no signals, the tests that send them fail.

// HangUp would send this process a SIGHUP.
func HangUp() error { return errors.ErrUnsupported }

func ownGroup(*exec.Cmd) {}

func terminateGroup(*exec.Cmd) error { return errors.ErrUnsupported }
