//go:build !unix

package pgtest

import (
	"errors"
	"os/exec"
	"syscall"
)

func ownerOfServers() (*account, error) { return nil, errors.ErrUnsupported }

func (a *account) run(*exec.Cmd) {}

func signal(int, syscall.Signal) error { return errors.ErrUnsupported }

const stop, cont = syscall.Signal(19), syscall.Signal(18) // that nobody sends
