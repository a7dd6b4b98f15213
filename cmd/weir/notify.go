package main

import (
	"fmt"
	"net"
	"os"
)

// notify tells the service manager that started this program how it is: systemd with Type=notify names a datagram socket in
// NOTIFY_SOCKET. Without one nobody is told. A message that is lost harms nothing that is served, so it is only logged.
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

// What notify tells. A reload must say when it began, on the clock that does not stand still for the manager either.
const (
	stateReady    = "READY=1"
	stateStopping = "STOPPING=1"
)

func stateReloading() string {
	return fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", monotonic().Microseconds())
}
