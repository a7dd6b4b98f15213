//go:build !race

package quickio

import (
	"io"
	"net"
	"testing"
)

// The race detector allocates.

// A connection reads and writes without an allocation.
func TestAllocs(t *testing.T) {
	eachNetwork(t, func(t *testing.T, ours, peer net.Conn) {
		c := New(ours)
		b, p := make([]byte, 100), make([]byte, 100)
		if n := testing.AllocsPerRun(100, func() {
			if _, err := c.Write(b); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(peer, p); err != nil {
				t.Fatal(err)
			}
			if _, err := peer.Write(p); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Read(b); err != nil {
				t.Fatal(err)
			}
		}); n > 0 {
			t.Errorf("%v allocations", n)
		}
	})
}
