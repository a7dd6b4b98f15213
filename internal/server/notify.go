package server

import (
	"fmt"
	"net"
	"os"
)

// notify reports a state to the service manager that started this program: systemd with Type=notify
// names a datagram socket in NOTIFY_SOCKET. Without one, notify does nothing. A lost message
// affects no request, so failures are only logged.
func (p *program) notify(state string) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return
	}
	err := func() error {
		c, err := net.Dial("unixgram", path) // "@" in front is an abstract one, to Go as to systemd
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte(state))
		return err
	}()
	if err != nil {
		p.log.Warn("the service manager was not told", "state", state, "error", err)
	}
}

// The states for notify. A reload must state its beginning on the monotonic clock, which the
// manager uses too.
const (
	stateReady    = "READY=1"
	stateStopping = "STOPPING=1"
)

func stateReloading() string {
	return fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", monotonic().Microseconds())
}
