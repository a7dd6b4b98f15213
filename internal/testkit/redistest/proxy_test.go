package redistest

import (
	"bufio"
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/patience"
)

// through is a client's connection to p.
type through struct {
	net.Conn
	r *bufio.Reader
}

func dial(t *testing.T, p *FaultProxy) *through {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &through{c, bufio.NewReader(c)}
}

// ask sends a command, and waits for its reply until the timeout.
func (c *through) ask(timeout time.Duration, args ...string) (any, error) {
	// Only the reply has a deadline: the command leaves, however slow the machine.
	var b strings.Builder
	writeCommand(&b, args...)
	if _, err := c.Write([]byte(b.String())); err != nil {
		return nil, err
	}
	if err := c.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return nil, err
	}
	return readReply(c.r)
}

func (c *through) mustAsk(t *testing.T, args ...string) any {
	t.Helper()
	reply, err := c.ask(patience.Left(t), args...)
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

// mustBeCut waits for the reset.
func (c *through) mustBeCut(t *testing.T) {
	t.Helper()
	if reply, err := c.ask(patience.Left(t), "PING"); !errors.Is(err, syscall.ECONNRESET) &&
		!errors.Is(err, syscall.EPIPE) {
		t.Errorf("on a connection that was cut: %v, %v", reply, err)
	}
}

const short = 50 * time.Millisecond

func TestProxy(t *testing.T) {
	t.Parallel()
	s := Start(t)
	p := Proxy(t, s.Addr())
	c := dial(t, p)
	large := strings.Repeat("x", 5<<20)
	c.mustAsk(t, "SET", "large", large)
	if c.mustAsk(t, "GET", "large") != large {
		t.Error("5 MiB do not pass whole")
	}

	p.Refuse()
	if _, err := net.Dial("tcp", p.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("refused: %v", err)
	}
	c.mustAsk(t, "PING") // what was open stays
	p.Cut()
	c.mustBeCut(t)
	p.Pass()
	c = dial(t, p)
	c.mustAsk(t, "PING")

	p.Delay(short)
	begun := time.Now()
	c.mustAsk(t, "PING")
	if took := time.Since(begun); took < 2*short {
		t.Errorf("with %v each way it takes %v", short, took)
	}
	// Bytes are on their way together: 160 pieces that waited for each other would need 40 s.
	p.Delay(5 * short)
	if c.mustAsk(t, "GET", "large") != large {
		t.Error("5 MiB do not pass late and whole")
	}
	p.Pass()

	p.BlackHole()
	swallowed := dial(t, p)
	for _, c := range []*through{c, swallowed} {
		if reply, err := c.ask(short, "INCR", "swallowed"); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("into the black hole: %v, %v", reply, err)
		}
	}
	p.Pass()
	c.mustBeCut(t)
	swallowed.mustBeCut(t)
	c = dial(t, p)
	if got := c.mustAsk(t, "GET", "swallowed"); got != nil {
		t.Errorf("%v requests came out of the black hole", got)
	}

	p.LoseReplies()
	if reply, err := c.ask(short, "INCR", "arrived"); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("with replies lost: %v, %v", reply, err)
	}
	eventually(t, "the request arrives", func() bool { return s.Do("GET", "arrived") == "1" })
	p.Pass()
	c.mustBeCut(t)

	// What the server's end does, the client sees.
	c = dial(t, p)
	c.mustAsk(t, "PING")
	s.Kill()
	if reply, err := c.ask(patience.Left(t), "PING"); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("without a server: %v, %v", reply, err)
	}
	if c, err := net.Dial("tcp", p.Addr()); err == nil {
		(&through{c, bufio.NewReader(c)}).mustBeCut(t)
	} else if !errors.Is(err, syscall.ECONNRESET) { // it may come that soon
		t.Error(err)
	}
	p.BlackHole() // needs no server
	if reply, err := dial(t, p).ask(short, "PING"); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("into the black hole: %v, %v", reply, err)
	}
}
