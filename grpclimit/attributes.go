package grpclimit

import (
	"context"
	"iter"
	"net"
	"strings"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/weir-rl/weir/internal/util/clientip"
)

// attributes are the attributes of one call, looked up when a rule asks for them.
type attributes struct {
	gate     *Gate
	ctx      context.Context
	path     string
	told     []told // values of Options.Attributes, in the order of Gate.program
	received bool   // it is a message of a stream
	fields   []field
	scratch  []byte // of values that are made anew
}

// programAttribute is one of Options.Attributes.
type programAttribute struct {
	name string
	get  func(ctx context.Context, fullMethod string) string
}

// told is the value that a function returned; known says that it was called.
type told struct {
	value string
	known bool
}

// program asks the i-th function of Options.Attributes, once.
func (a *attributes) program(i int) (string, bool) {
	t := &a.told[i]
	if !t.known {
		t.value, t.known = a.gate.program[i].get(a.ctx, a.path), true
	}
	return t.value, t.value != ""
}

const headerPrefix = "header."

// ownAttributes are those that a call has of itself, beside header.*.
var ownAttributes = [...]string{"path", "grpc.service", "grpc.method", "grpc.message", "host", "ip"}

// Attribute implements rule.Attributes.
func (a *attributes) Attribute(name string) (string, bool) {
	for i := range a.gate.program {
		if a.gate.program[i].name == name {
			return a.program(i)
		}
	}
	for _, id := range a.gate.identity {
		if id.Name == name {
			v := a.identity(id.Value)
			return v, v != ""
		}
	}
	switch name {
	case "path":
		return a.path, true
	case "grpc.service":
		service, _ := a.split()
		return service, true
	case "grpc.method":
		_, method := a.split()
		return method, true
	case "grpc.message":
		if a.received {
			return "received", true
		}
		return "", false
	case "host":
		return a.metadata(":authority")
	case "ip":
		return a.ip()
	}
	if key, ok := strings.CutPrefix(name, headerPrefix); ok {
		return a.metadata(key)
	}
	return "", false
}

// All implements rule.Attributes: each name once.
func (a *attributes) All() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		seen := make(map[string]bool)
		once := func(name, value string, ok bool) bool {
			if !ok || seen[name] {
				return true
			}
			seen[name] = true
			return yield(name, value)
		}
		for i := range a.gate.program {
			v, ok := a.program(i)
			if !once(a.gate.program[i].name, v, ok) {
				return
			}
		}
		for _, id := range a.gate.identity {
			v := a.identity(id.Value)
			if !once(id.Name, v, v != "") {
				return
			}
		}
		for _, name := range ownAttributes {
			v, ok := a.Attribute(name)
			if !once(name, v, ok) {
				return
			}
		}
		md, _ := metadata.FromIncomingContext(a.ctx)
		for key, values := range md {
			if !once(headerPrefix+key, strings.Join(values, ", "), len(values) > 0) {
				return
			}
		}
	}
}

// metadata is the value of a key; several are joined, as the lines of a header are at the HTTP
// doors.
func (a *attributes) metadata(key string) (string, bool) {
	for i := range a.fields {
		if f := &a.fields[i]; f.key == key {
			return f.value, f.present
		}
	}
	return joined(metadata.ValueFromIncomingContext(a.ctx, key))
}

// split cuts "/shop.Orders/Create" into "shop.Orders" and "Create".
func (a *attributes) split() (service, method string) {
	name := strings.TrimPrefix(a.path, "/")
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		return name[:i], name[i+1:]
	}
	return "", name
}

// ip is the address of the peer; none if it is no address (a unix socket).
func (a *attributes) ip() (string, bool) {
	p, ok := peer.FromContext(a.ctx)
	if !ok || p.Addr == nil {
		return "", false
	}
	if tcp, ok := p.Addr.(*net.TCPAddr); ok {
		return clientip.Addr(tcp.AddrPort().Addr()).String(), true
	}
	host, _, err := net.SplitHostPort(p.Addr.String())
	if err != nil {
		return "", false
	}
	return host, true
}
