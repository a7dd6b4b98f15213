package resp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/testkit/doortest"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

// clock is a clock that stands still until it is moved.
type clock struct{ atomic.Int64 }

func newClock() *clock {
	c := new(clock)
	c.Store(time.Date(2026, 11, 22, 9, 0, 0, 0, time.UTC).UnixMicro())
	return c
}

func (c *clock) now() int64 { return c.Load() }

func (c *clock) advance(d time.Duration) { c.Add(d.Microseconds()) }

// served is a server on a port of the loopback, on a memory store.
type served struct {
	*Server
	address string
	clock   *clock
	limiter *weir.Limiter
}

func openDoor(t testing.TB, rules string, o Options) *served {
	t.Helper()
	c := newClock()
	store, err := memory.New(memory.Options{Clock: c.now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return openDoorOn(t, store, c, rules, o)
}

func openDoorOn(t testing.TB, store store.Store, c *clock, rules string, o Options) *served {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return openDoorAt(t, l, store, c, rules, o)
}

func openDoorAt(t testing.TB, l net.Listener, store store.Store, c *clock, rules string, o Options) *served {
	t.Helper()
	var options []weir.Option
	if rules != "" {
		set, _, err := file.Load([]file.Source{{Name: "rules.yaml", Data: []byte(rules)}}, file.Options{})
		if err != nil {
			t.Fatal(err)
		}
		options = append(options, weir.WithRules(set))
	}
	limiter, err := weir.New(store, options...)
	if err != nil {
		t.Fatal(err)
	}
	if o.Logger == nil {
		o.Logger = doortest.LogTo(func(m string) { t.Error(m) }) // of a panic
	}
	d := &served{Server: New(limiter, store, o), address: l.Addr().String(), clock: c, limiter: limiter}
	served := make(chan error, 1)
	go func() { served <- d.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience.Left(t))
		defer cancel()
		if err := d.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
		if n := d.memory.Load(); n != 0 {
			t.Errorf("%d bytes were not given back", n)
		}
	})
	return d
}

// client is a connection that a test writes to as it likes.
type client struct {
	t testing.TB
	net.Conn
	r *bufio.Reader
}

func (d *served) dial(t testing.TB) *client {
	t.Helper()
	c, err := net.Dial("tcp", d.address)
	if err != nil {
		t.Fatal(err)
	}
	return newClient(t, c)
}

func newClient(t testing.TB, c net.Conn) *client {
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(patience.End(t)); err != nil {
		t.Fatal(err)
	}
	return &client{t: t, Conn: c, r: bufio.NewReader(c)}
}

// command is the bytes of a command.
func command(args ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	return b.String()
}

func (c *client) send(text string) {
	c.t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		c.t.Fatalf("sending %.80q: %v", text, err)
	}
}

// do sends a command and returns the reply.
func (c *client) do(args ...string) string {
	c.t.Helper()
	c.send(command(args...))
	return c.reply()
}

// reply reads one reply, and returns it in short: arrays as [1 2], maps as {a:b}, errors with their
// minus.
func (c *client) reply() string {
	c.t.Helper()
	s, err := readReply(c.r)
	if err != nil {
		c.t.Fatalf("no reply: %v", err)
	}
	return s
}

// gone fails unless the server has closed the connection, after what want says.
func (c *client) gone(want string) {
	c.t.Helper()
	rest, err := io.ReadAll(c.r)
	if err != nil && !isReset(err) {
		c.t.Fatalf("the connection is open: %v", err)
	}
	if string(rest) != want {
		c.t.Errorf("before it was closed came %q, want %q", rest, want)
	}
}

func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, net.ErrClosed)
}

func readReply(r *bufio.Reader) (string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	if !strings.HasSuffix(line, "\r\n") || len(line) < 3 {
		return "", fmt.Errorf("%q is no reply", line)
	}
	kind, text := line[0], line[1:len(line)-2]
	switch kind {
	case '+', ':':
		return text, nil
	case '-':
		return line[:len(line)-2], nil
	case '_':
		return "nil", nil
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return "", fmt.Errorf("%q is no reply", line)
	}
	switch kind {
	case '$':
		if n < 0 {
			return "nil", nil
		}
		b := make([]byte, n+2)
		if _, err := io.ReadFull(r, b); err != nil {
			return "", err
		}
		return string(b[:n]), nil
	case '*', '%':
		open, end := "[", "]"
		if kind == '%' {
			n, open, end = 2*n, "{", "}"
		}
		parts := make([]string, n)
		for i := range parts {
			if parts[i], err = readReply(r); err != nil {
				return "", err
			}
		}
		return open + strings.Join(parts, " ") + end, nil
	}
	return "", fmt.Errorf("%q is no reply", line)
}

var eventually = patience.Until

// count returns how often something happened.
func count(list []Count, name, outcome string) uint64 {
	for _, c := range list {
		if c.Name == name && c.Outcome == outcome {
			return c.N
		}
	}
	return 0
}
