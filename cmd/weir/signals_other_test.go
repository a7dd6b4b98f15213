//go:build !unix

package main

import (
	"errors"
	"os/exec"
)

// Where there are no signals, the tests that send them fail.

func hangUp() error { return errors.ErrUnsupported }

func ownGroup(*exec.Cmd) {}

func terminateGroup(*exec.Cmd) error { return errors.ErrUnsupported }
