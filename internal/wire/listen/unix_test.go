//go:build unix

package listen

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/testproc"
)

// TestUnix: a socket's file is for owner and group, goes with its listener, and its peers have one
// address whatever they say.
func TestUnix(t *testing.T) {
	dir := testproc.SocketDir(t)
	defer syscall.Umask(syscall.Umask(0o777)) // neither more nor less is to come of it
	path := filepath.Join(dir, "weir.sock")
	raw, err := Open(t.Context(), "unix:"+path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(path); err != nil || info.Mode() != os.ModeSocket|0o660 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	address, l := serveOn(t, raw, Options{MaxPerAddress: 1})
	if address != "unix:"+path {
		t.Errorf("the address is %q", address)
	}
	if got := echo(t, dial(t, address), "a"); got != "@ a" {
		t.Errorf("got %q", got)
	}
	// One whose own end is bound to a path that reads like an address.
	syscall.Umask(0o077)
	t.Chdir(dir)
	c, err := net.DialUnix("unix", &net.UnixAddr{Name: "127.0.0.1:1", Net: "unix"},
		&net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := echo(t, c, "b"); got != "@ b" {
		t.Errorf("got %q", got)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is left: %v", err)
	}
}

// TestUnixTaken: only the socket of a server that has died is replaced.
func TestUnixTaken(t *testing.T) {
	dir := testproc.SocketDir(t)
	path := filepath.Join(dir, "weir.sock")
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	raw, err := Open(t.Context(), "unix:"+path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), "unix:"+path); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("in use: %v", err)
	}
	for _, name := range []string{file, filepath.Join(dir, "link"), dir} {
		if _, err := Open(t.Context(), "unix:"+name); err == nil || !strings.Contains(err.Error(), "is no socket") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "precious" {
		t.Errorf("%q %v", b, err)
	}
	if _, err := Open(t.Context(), "unix:"+filepath.Join(dir, "absent", "weir.sock")); err == nil ||
		!strings.Contains(err.Error(), "folder") {
		t.Errorf("no folder: %v", err)
	}
	// As a killed server leaves it.
	if err := raw.(*unixListener).UnixListener.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := Open(t.Context(), "unix:"+path)
	if err != nil {
		t.Fatalf("a stale socket: %v", err)
	}
	// The first one, closed only now, does not take the file of the second with it.
	_ = raw.Close()
	address, _ := serveOn(t, second, Options{})
	if echo(t, dial(t, address), "a") == "" {
		t.Error("the second server is not reached")
	}
}

// TestUnixAtOnce: of servers that start at once on a stale socket exactly one gets it.
func TestUnixAtOnce(t *testing.T) {
	path := filepath.Join(testproc.SocketDir(t), "weir.sock")
	for range 20 {
		stale, err := Open(t.Context(), "unix:"+path)
		if err != nil {
			t.Fatal(err)
		}
		_ = stale.(*unixListener).UnixListener.Close()
		var all sync.WaitGroup
		opened := make(chan net.Listener, 8)
		for range cap(opened) {
			all.Go(func() {
				if l, err := Open(t.Context(), "unix:"+path); err == nil {
					opened <- l
				} else if !errors.Is(err, syscall.EADDRINUSE) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if n := len(opened); n != 1 {
			t.Fatalf("%d servers have the socket", n)
		}
		_ = (<-opened).Close()
	}
}

// TestUnixLocked: a program that keeps the folder locked cannot hold a start up beyond its context.
func TestUnixLocked(t *testing.T) {
	path := filepath.Join(testproc.SocketDir(t), "weir.sock")
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	if err := syscall.Flock(int(folder.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Open(ctx, "unix:"+path); !errors.Is(err, context.DeadlineExceeded) ||
		!strings.Contains(err.Error(), "is locked by another program") {
		t.Errorf("locked: %v", err)
	}
	folder.Close()
	l, err := Open(t.Context(), "unix:"+path)
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
}

// TestUnixProxyProtocol: peers of a socket send headers only where that is said.
func TestUnixProxyProtocol(t *testing.T) {
	for _, listed := range []bool{true, false} {
		raw, err := Open(t.Context(), "unix:"+filepath.Join(testproc.SocketDir(t), "weir.sock"))
		if err != nil {
			t.Fatal(err)
		}
		address, _ := serveOn(t, raw,
			Options{Proxy: &ProxyPeers{Unix: listed,
				Peers: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}}})
		want := ""
		if listed {
			want = "192.0.2.7:8080 hello"
		}
		if got := echo(t, dial(t, address), "PROXY TCP4 192.0.2.7 203.0.113.1 8080 443\r\nhello"); got != want {
			t.Errorf("listed %v: got %q", listed, got)
		}
	}
}
