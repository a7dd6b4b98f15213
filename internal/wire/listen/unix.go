//go:build unix

package listen

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// maxUnixPath is how long the path of a socket may be on every system: some have 104 bytes for it,
// and end it with a 0.
const maxUnixPath = 103

// socketMode lets the owner and the group connect.
const socketMode = 0o660

// openUnix listens on a socket at path. While it examines the existing file and replaces it by its
// own socket, it holds a lock on the folder, so that if two servers start at once, one finds the
// other.
func openUnix(ctx context.Context, path string) (net.Listener, error) {
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("the folder of the socket: %w", err)
	}
	defer folder.Close() // gives the lock back
	if err := lock(ctx, folder); err != nil {
		return nil, err
	}
	if err := removeStale(ctx, path); err != nil {
		return nil, err
	}
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		// On systems that apply it, the file never exists with more permissions than it should
		// have.
		return c.Control(func(fd uintptr) { _ = syscall.Fchmod(int(fd), socketMode) })
	}}
	raw, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	l := &unixListener{UnixListener: raw.(*net.UnixListener), path: path}
	l.SetUnlinkOnClose(false)
	l.close = sync.OnceValue(l.remove)
	if err = os.Chmod(path, socketMode); err == nil {
		l.file, err = os.Lstat(path)
	}
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}

// lockTime is how long to wait for the lock. Another server holds it for 2 s at most; but any
// process that may read the folder can lock it for ever.
const lockTime = 5 * time.Second

// lock takes the lock on folder, which ends when that is closed.
func lock(ctx context.Context, folder *os.File) error {
	ctx, cancel := context.WithTimeout(ctx, lockTime)
	defer cancel()
	retry := time.NewTicker(5 * time.Millisecond)
	defer retry.Stop()
	for {
		err := syscall.Flock(int(folder.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR):
			return fmt.Errorf("the folder of the socket cannot be locked: %w", err)
		}
		select {
		case <-retry.C:
		case <-ctx.Done():
			return fmt.Errorf(
				"the folder of the socket, %s, is locked by another program; stop that one, or choose a folder that only this server uses: %w", folder.Name(), ctx.Err())
		}
	}
}

// removeStale removes the socket of a server that has died.
func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s is there, and is no socket; remove it, or choose another path", path)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		_ = conn.Close()
		return fmt.Errorf("%s: %w", path, syscall.EADDRINUSE)
	case errors.Is(err, syscall.ECONNREFUSED):
		return os.Remove(path)
	}
	return fmt.Errorf("%s is there, and it is not clear whether somebody listens on it: %w", path, err)
}

type unixListener struct {
	*net.UnixListener
	path  string
	file  os.FileInfo // of our socket
	close func() error
}

// Close implements net.Listener.
func (l *unixListener) Close() error { return l.close() }

// remove removes the file, unless another has taken its place, which may have its number.
func (l *unixListener) remove() error {
	if info, err := os.Lstat(l.path); err == nil && l.file != nil && os.SameFile(info, l.file) &&
		info.ModTime().Equal(l.file.ModTime()) {
		_ = os.Remove(l.path)
	}
	return l.UnixListener.Close()
}

// MaxFiles is how many files this process may have open; 0 if that is unknown.
func MaxFiles() uint64 {
	var r syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r) != nil {
		return 0
	}
	return uint64(r.Cur) //nolint:unconvert // it is signed on some systems
}
