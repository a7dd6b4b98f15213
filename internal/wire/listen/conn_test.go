package listen

import (
	"io"
	"net"
	"testing"
	"time"
)

// racedConn is a connection on which somebody calls meanwhile while a write deadline is being set.
type racedConn struct {
	net.Conn
	meanwhile func()
	until     time.Time
}

// SetWriteDeadline implements net.Conn.
func (c *racedConn) SetWriteDeadline(t time.Time) error {
	if f := c.meanwhile; f != nil {
		c.meanwhile = nil
		f()
	}
	c.until = t
	return nil
}

// A write deadline that somebody sets while Write sets its own stays in force.
func TestWriteDeadlineIsNotLost(t *testing.T) {
	cut := time.Unix(1, 0)
	for _, c := range []struct {
		name string
		set  []time.Time
		own  bool
	}{
		{"a cut", []time.Time{cut}, false},
		{"a cut that is taken back", []time.Time{cut, {}}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			raw := &racedConn{}
			conn := &conn{Conn: raw, io: struct {
				io.Reader
				io.Writer
			}{nil, io.Discard}, stall: time.Minute}
			raw.meanwhile = func() {
				for _, until := range c.set {
					_ = conn.SetWriteDeadline(until)
				}
			}
			if _, err := conn.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			if own := raw.until.After(time.Now()); own != c.own || !own && !raw.until.Equal(cut) {
				t.Errorf("the deadline is %v", raw.until)
			}
			raw.until = time.Time{}
			if _, _ = conn.Write([]byte("x")); !c.own && !raw.until.IsZero() {
				t.Errorf("the next write moves it to %v", raw.until)
			}
		})
	}
}
