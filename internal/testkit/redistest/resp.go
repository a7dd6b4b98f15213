package redistest

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/weir-rl/weir/internal/testkit/patience"
)

// Error is an error reply of the server, such as "MOVED 7 127.0.0.1:6379".
type Error string

func (e Error) Error() string { return string(e) }

// Do runs a command and returns its reply: a string, an int64, nil, or a []any of replies. An error
// ends the test.
//
// Each command uses its own connection, with the server's password and no other command except
// AUTH, so that the server counts only the test's commands.
func (s *Server) Do(args ...string) any {
	s.T.Helper()
	reply, err := s.try(patience.Left(s.T), args...)
	if err != nil {
		s.T.Fatalf("redis-server %s: %.200q: %v", s.Addr(), args, err)
	}
	return reply
}

// Try is Do for commands that may fail, and for goroutines other than the test's. An error reply of
// the server is an Error.
func (s *Server) Try(args ...string) (any, error) { return s.try(10*time.Second, args...) }

func (s *Server) try(timeout time.Duration, args ...string) (any, error) {
	c, r, err := s.dial(timeout)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return ask(c, r, args...)
}

// dial opens a connection that ends by a timeout.
func (s *Server) dial(timeout time.Duration) (net.Conn, *bufio.Reader, error) {
	deadline := time.Now().Add(timeout)
	c, err := net.DialTimeout("tcp", s.Addr(), timeout)
	if err != nil {
		return nil, nil, err
	}
	err = c.SetDeadline(deadline)
	if s.kind.tls != nil {
		c = tls.Client(c, s.kind.tls)
	}
	r := bufio.NewReader(c)
	if err == nil && s.password != "" {
		_, err = ask(c, r, "AUTH", s.password)
	}
	if err != nil {
		_ = c.Close()
		return nil, nil, err
	}
	return c, r, nil
}

// Conn is a connection for many commands, where one for each would take too long.
type Conn struct {
	s *Server
	c net.Conn
	r *bufio.Reader
}

// Dial opens a connection, which ends with the test.
func (s *Server) Dial() *Conn {
	s.T.Helper()
	c, r, err := s.dial(patience.Left(s.T))
	if err != nil {
		s.T.Fatalf("redis-server %s: %v", s.Addr(), err)
	}
	s.T.Cleanup(func() { _ = c.Close() })
	return &Conn{s, c, r}
}

// Close closes it, so that the server keeps nothing for it.
func (c *Conn) Close() { _ = c.c.Close() }

// Do is Server.Do for commands that go to the server together, and returns all replies.
func (c *Conn) Do(commands ...[]string) []any {
	c.s.T.Helper()
	replies := make([]any, 0, len(commands))
	var b strings.Builder
	for _, args := range commands {
		writeCommand(&b, args...)
	}
	_, err := io.WriteString(c.c, b.String())
	for i := 0; i < len(commands) && err == nil; i++ {
		var reply any
		reply, err = readReply(c.r)
		replies = append(replies, reply)
	}
	if err != nil {
		c.s.T.Fatalf("redis-server %s: the answer to %.200q: %v", c.s.Addr(), commands[max(0, len(replies)-1)], err)
	}
	return replies
}

// ask writes a command and reads its reply, in the protocol that Redis calls RESP 2.
func ask(w io.Writer, r *bufio.Reader, args ...string) (any, error) {
	var b strings.Builder
	writeCommand(&b, args...)
	if _, err := io.WriteString(w, b.String()); err != nil {
		return nil, err
	}
	return readReply(r)
}

func writeCommand(b *strings.Builder, args ...string) {
	fmt.Fprintf(b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(b, "$%d\r\n%s\r\n", len(a), a)
	}
}

func readReply(r *bufio.Reader) (any, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return nil, err
	}
	line = strings.TrimSuffix(line, "\r\n")
	if line == "" {
		return nil, fmt.Errorf("an empty line instead of a reply")
	}
	kind, rest := line[0], line[1:]
	switch kind {
	case '+':
		return rest, nil
	case '-':
		return nil, Error(rest)
	}
	n, err := strconv.ParseInt(rest, 10, 64)
	switch {
	case err != nil:
		return nil, fmt.Errorf("not a reply: %q", line)
	case kind == ':':
		return n, nil
	case n < 0:
		return nil, nil
	case kind == '$':
		text := make([]byte, n+int64(len("\r\n")))
		_, err := io.ReadFull(r, text)
		return string(text[:n]), err
	case kind == '*':
		list := make([]any, n)
		for i := range list {
			item, err := readReply(r)
			if e, ok := errors.AsType[Error](err); ok { // one of several may be an error, as in the reply to EXEC
				item = e
			} else if err != nil {
				return nil, err
			}
			list[i] = item
		}
		return list, nil
	}
	return nil, fmt.Errorf("not a reply: %q", line)
}
