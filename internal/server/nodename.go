package server

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strings"

	"github.com/weir-rl/weir/internal/server/settings"
	"github.com/weir-rl/weir/internal/util/human"
)

// nodeSettings say what this node is called.
var nodeSettings = []setting{
	{Path: "node.name",
		Help: "what this node is called, on the page, in the API, in logs and metrics; the name of its host if empty",
		Set: settings.Text(func(c *Config, s string) error {
			if s != "" && !human.IsNodeName(s) {
				return fmt.Errorf("%q is no name of a node: it has 1 to %d bytes, and no spaces", s, human.MaxNodeName)
			}
			c.nodeName = s
			return nil
		})},
}

// nodeNameOf returns the name of this node, for people and for other nodes. A node that starts
// anew has another id alone.
func nodeNameOf(c *Config) human.NodeName {
	host, _ := os.Hostname() // "" is replaced
	return human.NodeName{
		Name:    cmp.Or(c.nodeName, hostName(host), "weir"),
		Address: addressOf(c, firstAddress), Machine: machineOf(host, machineID(), firstAddress()),
		ID: fmt.Sprintf("%06x", rand.Uint32()>>8),
	}
}

// hostName is the name of a host where it can name a node, too; "" else.
func hostName(host string) string {
	host = strings.Join(strings.Fields(host), "-")
	host = strings.ToValidUTF8(host[:min(len(host), human.MaxNodeName)], "")
	if !human.IsNodeName(host) {
		return ""
	}
	return host
}

// machineOf is a number for a machine that stays over restarts. Addresses alone do not tell
// machines apart: 127.0.0.1 is on each of them, and containers of two hosts may have one address.
func machineOf(host, id, address string) string {
	sum := sha256.Sum256([]byte(host + "\x00" + id + "\x00" + address))
	return hex.EncodeToString(sum[:])[:human.MachineDigits]
}

// machineID is what the system calls this machine or, where it has no such name, this start of
// its kernel; "" if there is neither.
func machineID() string {
	for _, file := range []string{"/etc/machine-id", "/proc/sys/kernel/random/boot_id"} {
		if text, err := os.ReadFile(file); err == nil && len(bytes.TrimSpace(text)) > 0 {
			return string(bytes.TrimSpace(text))
		}
	}
	return ""
}

// addressOf is the address by which this node is told from others of its name: of its admin port
// or, if that is closed, of another door. It never has a space. machine returns an address of this
// machine, which stands in place of all.
func addressOf(c *Config, machine func() string) string {
	l := &c.listen
	address := cmp.Or(l.admin, l.http, l.grpc, l.proxy, l.resp, l.spoe)
	host, port, err := net.SplitHostPort(address)
	if err != nil || strings.HasPrefix(address, "unix:") { // a unix socket, or none
		return strings.Join(strings.Fields(address[:min(len(address), human.MaxNodeName)]), "_")
	}
	host = host[:min(len(host), human.MaxNodeName)]
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = cmp.Or(machine(), host)
	}
	if port == "0" { // the system chooses another one later
		return fmt.Sprintf("%s~%d", host, os.Getpid())
	}
	return net.JoinHostPort(host, port)
}

// firstAddress returns the first address of this machine that others may reach, IPv4 before IPv6;
// "" if it has none.
func firstAddress() string {
	all, _ := net.InterfaceAddrs() // without any it has none
	first := ""
	for _, a := range all {
		n, ok := a.(*net.IPNet)
		switch {
		case !ok || !n.IP.IsGlobalUnicast():
		case n.IP.To4() != nil:
			return n.IP.String()
		default:
			first = cmp.Or(first, n.IP.String())
		}
	}
	return first
}

// nodeLabel is the name of this node where a record outlives the moment: with its address, unless
// it shares its store with nobody.
func (p *program) nodeLabel() string {
	if p.storage.shared == nil {
		return p.node.Name
	}
	return p.node.Label()
}
