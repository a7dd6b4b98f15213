package server

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
)

// Port is where a server with a configuration can be asked how it is, on its machine.
type Port struct {
	Address      string // as configured
	Host, Socket string // one of them, and localhost beside a socket
	Path         string
	Certificates []string // files; none without TLS
}

// OwnPort returns the admin port, or if that is closed the HTTP port.
func (c *Config) OwnPort() (o Port, err error) {
	door := "admin"
	o = Port{Address: c.listen.admin, Host: "localhost", Path: "/readyz"}
	if o.Address == "" {
		door, o.Address, o.Path = "http", c.listen.http, "/healthcheck"
	}
	if o.Address == "" {
		return o, errors.New(
			"neither listen.admin nor listen.http is open, so that nobody can be asked; name a server with --server URL")
	}
	if slices.Contains(c.proxyDoors, door) {
		return o, fmt.Errorf(
			"listen.%s takes only connections that begin with a PROXY protocol header; leave it out of proxy_protocol.doors, or do without this check", door)
	}
	socket, isSocket := strings.CutPrefix(o.Address, "unix:")
	if isSocket {
		o.Socket = socket
	} else {
		name, port, err := net.SplitHostPort(o.Address)
		if err != nil {
			return o, fmt.Errorf("listen.%s: %w", door, err)
		}
		if port == "0" {
			return o, fmt.Errorf(
				"listen.%s takes a free port, which nobody here can know; name the server with --server URL", door)
		}
		switch name { // not "localhost", which needs a hosts file or a name server
		case "", "0.0.0.0":
			name = "127.0.0.1"
		case "::":
			name = "::1"
		}
		o.Host = net.JoinHostPort(name, port)
	}
	if len(c.certificates.Cert) > 0 && slices.Contains(c.tlsDoors, door) {
		o.Certificates = c.certificates.Cert
		if c.certificates.ClientCA != "" && slices.Contains(c.clientDoors, door) {
			return o, fmt.Errorf(
				"listen.%s demands certificates of its clients; leave it out of tls.client_doors, or do without this check", door)
		}
	}
	return o, nil
}
