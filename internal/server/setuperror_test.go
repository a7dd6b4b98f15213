package server

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
	"testing"
)

// TestMayPass: what a later start may not meet any more, and what it meets until somebody mends it.
func TestMayPass(t *testing.T) {
	of := func(err error) error { return &os.PathError{Op: "open", Path: "x", Err: err} }
	for _, c := range []struct {
		err  error
		want bool
	}{
		{errors.New("a setting is wrong"), false},
		{of(fs.ErrNotExist), false}, {of(syscall.ENOENT), false}, {of(syscall.EACCES), false},
		{of(syscall.EISDIR), false}, {of(syscall.EROFS), false},
		{of(syscall.ENOSPC), true}, {of(syscall.EIO), true}, {of(syscall.EMFILE), true},
		{&net.OpError{Op: "listen", Err: os.NewSyscallError("bind", syscall.EADDRNOTAVAIL)}, true},
		{&net.OpError{Op: "listen", Err: os.NewSyscallError("bind", syscall.EACCES)}, false},
		{&net.OpError{Op: "listen", Err: &net.DNSError{Err: "no such host", Name: "x", IsNotFound: true}}, true},
		{fmt.Errorf("rules: %w", passing{errors.New("away")}), true},
		// what is wrong stays so, whatever else fails beside it
		{errors.Join(errors.New("a setting is wrong"), of(syscall.ENOSPC)), false},
		{errors.Join(of(syscall.ENOSPC), of(syscall.EIO)), true},
	} {
		if got := (&SetupError{c.err}).MayPass(); got != c.want {
			t.Errorf("%v: %t, want %t", c.err, got, c.want)
		}
	}
}
