// Package httplimit limits net/http servers: middleware, the rate-limit headers, and refusals that
// people and programs understand. It is the one place that writes rate-limit headers; the HTTP
// doors of the weir server use it.
//
// Most programs begin with New, the middleware. Gate is the same in two steps, for a handler that
// must know the decision. NewRetryTransport and NewLimitTransport are for clients: the first obeys
// the limits of other servers, the second keeps a program's own requests within rules.
package httplimit

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
)

// Headers is the set of header families to write. The zero value writes the default: XDelta and
// Draft11.
//
// Families that write the same field in different ways do not go together: of XDelta, XEpoch and
// Envoy03 there may be one, and one of Draft03, Draft11 and Next.
type Headers uint8

// The header families. Off alone writes none but Retry-After.
const (
	XDelta Headers = 1 << iota // X-RateLimit-Limit, -Remaining, -Reset in seconds from now
	// RateLimit-Policy and RateLimit of draft-ietf-httpapi-ratelimit-headers-11
	Draft11
	Off
	XEpoch // as XDelta, but X-RateLimit-Reset is in seconds since the Unix epoch
	// RateLimit-Limit, -Remaining, -Reset and RateLimit-Policy of
	// draft-ietf-httpapi-ratelimit-headers-03 to -06
	Draft03
	// as Draft11, with the names of parameters that are to come after it; may change in any release
	Next
	// X-RateLimit-Limit with its policies, -Remaining, -Reset in seconds from now, as Envoy writes
	// them
	Envoy03
)

// family is one header family with its name in the configuration.
type family struct {
	name string
	bit  Headers
}

var families = [...]family{
	{"x-delta", XDelta}, {"x-epoch", XEpoch}, {"envoy03", Envoy03}, {"draft03", Draft03}, {"draft11", Draft11},
	{"next", Next}, {"off", Off},
}

// sameFields are the families that exclude each other, with the fields that they write differently.
var sameFields = [...]struct {
	of     Headers
	fields string
}{
	{XDelta | XEpoch | Envoy03, "X-RateLimit-Limit and X-RateLimit-Reset"},
	{Draft03 | Draft11 | Next, "RateLimit-Policy or RateLimit"},
}

// ParseHeaders turns the configuration's list into a set; an unknown name is an error that lists
// the known ones, and families that do not go together are one that says why. An empty list is the
// default. "off" stands alone.
func ParseHeaders(names []string) (Headers, error) {
	var f Headers
	for _, name := range names {
		i := slices.IndexFunc(families[:],
			func(f family) bool { return strings.EqualFold(f.name, strings.TrimSpace(name)) })
		if i < 0 {
			return 0, fmt.Errorf(
				"headers: %q is no family of headers; known are x-delta, x-epoch, envoy03, draft03, draft11, next and off", name)
		}
		f |= families[i].bit
	}
	return f, f.check()
}

// check returns an error for families that do not go together.
func (f Headers) check() error {
	if f&Off != 0 && f != Off {
		return fmt.Errorf("headers: off stands alone, but the list is %s; remove off or the others",
			strings.ReplaceAll(f.String(), ",", ", "))
	}
	for _, s := range sameFields {
		if both := f & s.of; bits.OnesCount8(uint8(both)) > 1 {
			return fmt.Errorf("headers: %s write %s in different ways; keep one of them",
				strings.ReplaceAll(both.String(), ",", " and "), s.fields)
		}
	}
	return nil
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
