package redistest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
)

// toBus is how far a server's port for other members of its cluster is from that for clients.
const toBus = 10000

// reserve finds a free port, and with bus one whose bus port is free too. Until it is released, no
// other test gets it, not even in another process or while nothing listens there, so a test's
// server can always come back.
//
// A UDP socket of the same number reserves a port. It does not block TCP, and ends with its
// process. The ports lie below those that systems give to outgoing connections.
func reserve(bus bool) (port int, held []net.PacketConn, err error) {
	for range 1000 {
		port = toBus + rand.IntN(toBus)
		held = nil
		ports := []int{port}
		if bus {
			ports = append(ports, port+toBus)
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
		release(held)
	}
	return 0, nil, fmt.Errorf("no free port: %w", err)
}

func hold(port int) (net.PacketConn, error) {
	addr := loopback(port)
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

func release(held []net.PacketConn) {
	for _, c := range held {
		_ = c.Close()
	}
}

func loopback(port int) string { return fmt.Sprint("127.0.0.1:", port) }
