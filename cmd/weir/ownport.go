package main

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
)

// ownPort is where a server with a configuration can be asked how it is, on its machine.
type ownPort struct {
	address      string // as configured
	host, socket string // one of them, and localhost beside a socket
	path         string
	certificates []string // files; none without TLS
}

// ownPort returns the admin port, or if that is closed the HTTP port.
func (c *config) ownPort() (o ownPort, err error) {
	door := "admin"
	o = ownPort{address: c.listen.admin, host: "localhost", path: "/readyz"}
	if o.address == "" {
		door, o.address, o.path = "http", c.listen.http, "/healthcheck"
	}
	if o.address == "" {
		return o, errors.New("neither listen.admin nor listen.http is open, so that nobody can be asked; name a server with --server URL")
	}
	if slices.Contains(c.proxyDoors, door) {
		return o, fmt.Errorf("listen.%s takes only connections that begin with a PROXY protocol header; leave it out of proxy_protocol.doors, or do without this check", door)
	}
	socket, isSocket := strings.CutPrefix(o.address, "unix:")
	if isSocket {
		o.socket = socket
	} else {
		name, port, err := net.SplitHostPort(o.address)
		if err != nil {
			return o, fmt.Errorf("listen.%s: %w", door, err)
		}
		if port == "0" {
			return o, fmt.Errorf("listen.%s takes a free port, which nobody here can know; name the server with --server URL", door)
		}
		switch name { // not "localhost", which needs a hosts file or a name server
		case "", "0.0.0.0":
			name = "127.0.0.1"
		case "::":
			name = "::1"
		}
		o.host = net.JoinHostPort(name, port)
	}
	if len(c.certificates.Cert) > 0 && slices.Contains(c.tlsDoors, door) {
		o.certificates = c.certificates.Cert
		if c.certificates.ClientCA != "" && slices.Contains(c.clientDoors, door) {
			return o, fmt.Errorf("listen.%s demands certificates of its clients; leave it out of tls.client_doors, or do without this check", door)
		}
	}
	return o, nil
}
