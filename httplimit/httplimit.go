// Package httplimit limits net/http servers: middleware, the rate-limit headers, and the refusal that a person understands.
// It is the one place that writes rate-limit headers; the server and the proxy of weir use it.
//
// Most programs want New, the middleware. Gate is the same in two steps, for a handler that must know the decision.
package httplimit

import (
	"fmt"
	"slices"
	"strings"
)

// Headers is the set of header families to write. The zero value writes the default: XDelta and Draft11.
type Headers uint8

// The header families. Off alone writes none but Retry-After.
const (
	XDelta  Headers = 1 << iota // X-RateLimit-Limit, -Remaining, -Reset in seconds from now
	Draft11                     // RateLimit-Policy and RateLimit of draft-ietf-httpapi-ratelimit-headers-11
	Off
)

// family is one header family with its name in the configuration.
type family struct {
	name string
	bit  Headers
}

var families = [...]family{{"x-delta", XDelta}, {"draft11", Draft11}, {"off", Off}}

// ParseHeaders turns the configuration's list into a set; an unknown name is an error that lists the known ones.
// An empty list is the default. "off" stands alone.
func ParseHeaders(names []string) (Headers, error) {
	var f Headers
	for _, name := range names {
		i := slices.IndexFunc(families[:], func(f family) bool { return strings.EqualFold(f.name, strings.TrimSpace(name)) })
		if i < 0 {
			return 0, fmt.Errorf("headers: %q is no family of headers; known are x-delta, draft11 and off", name)
		}
		f |= families[i].bit
	}
	if f&Off != 0 && f != Off {
		return 0, fmt.Errorf("headers: off stands alone, but the list is %s; remove off or the others", strings.Join(names, ", "))
	}
	return f, nil
}

// String lists the families as the configuration does.
func (f Headers) String() string {
	f = f.effective()
	var names []string
	for _, n := range families {
		if f&n.bit != 0 {
			names = append(names, n.name)
		}
	}
	return strings.Join(names, ",")
}

func (f Headers) effective() Headers {
	if f == 0 {
		return XDelta | Draft11
	}
	return f
}
