package server

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"slices"
	"syscall"

	"github.com/weir-rl/weir/internal/admin/audit"
	"github.com/weir-rl/weir/internal/door/proxy/deferred"
)

// SetupError is the error of a program that did not open its doors.
type SetupError struct{ error }

// Unwrap returns the cause.
func (e *SetupError) Unwrap() error { return e.error }

// MayPass reports whether a program that starts later with the same configuration may succeed: a
// port is in use, an address or a database is not there yet, a disk is full. Else the configuration
// or the rules are wrong, and so is a file that they name and that is not there or may not be read.
func (e *SetupError) MayPass() bool {
	return !slices.ContainsFunc(leaves(e.error), func(err error) bool { return !mayPass(err) })
}

// passing marks an error that may pass although its cause does not tell.
type passing struct{ error }

func (p passing) Unwrap() error { return p.error }

// leaves returns the errors that err joins.
func leaves(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var all []error
	for _, e := range joined.Unwrap() {
		all = append(all, leaves(e)...)
	}
	return all
}

// lasting are what a system says of files and addresses that are wrong. All else of it may pass.
var lasting = []error{
	fs.ErrNotExist, fs.ErrPermission, fs.ErrInvalid, syscall.EINVAL, syscall.ENOTDIR, syscall.EISDIR, syscall.ELOOP,
	syscall.ENAMETOOLONG, syscall.EROFS, syscall.EAFNOSUPPORT,
}

func mayPass(err error) bool {
	if _, marked := errors.AsType[passing](err); marked {
		return true
	}
	if errors.Is(err, audit.ErrTaken) || errors.Is(err, deferred.ErrTaken) || errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	if slices.ContainsFunc(lasting, func(known error) bool { return errors.Is(err, known) }) {
		return false
	}
	_, ofSystem := errors.AsType[syscall.Errno](err)
	_, ofName := errors.AsType[*net.DNSError](err)
	return ofSystem || ofName
}
