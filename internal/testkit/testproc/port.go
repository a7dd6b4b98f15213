package testproc

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
)

// Beyond is how far the second port of a pair is from the first.
const Beyond = 10000

// Reserve finds a free port, and with pair one for which that Beyond it is free too. Until they are
// released, no other test gets them, not even in another process or while nothing listens there, so
// a test's server can always come back.
//
// A UDP socket of the same number reserves a port. It does not block TCP, and ends with its
// process. The ports lie below those that systems give to outgoing connections.
func Reserve(pair bool) (port int, held []net.PacketConn, err error) {
	for range 1000 {
		port = Beyond + rand.IntN(Beyond)
		held = nil
		ports := []int{port}
		if pair {
			ports = append(ports, port+Beyond)
		}
		for _, p := range ports {
			var c net.PacketConn
			if c, err = hold(p); err != nil {
				break
			}
			held = append(held, c)
		}
		if err == nil {
			return port, held, nil
		}
		Release(held)
	}
	return 0, nil, fmt.Errorf("no free port: %w", err)
}

func hold(port int) (net.PacketConn, error) {
	addr := Loopback(port)
	c, err := net.ListenPacket("udp", addr)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, l.Close()
}

// Release gives back what Reserve has reserved.
func Release(held []net.PacketConn) {
	for _, c := range held {
		_ = c.Close()
	}
}

// Loopback returns the address of a port.
func Loopback(port int) string { return fmt.Sprint("127.0.0.1:", port) }
