package weir

import (
	"time"

	"github.com/weir-rl/weir/rule"
)

// Request describes one request. The zero value costs one hit, and meets only rules without
// conditions.
type Request struct {
	// Domain is the one whose rules apply; "" means the only domain of the rules, or DefaultDomain.
	Domain string
	// Attributes are what rules ask about; nil for none.
	Attributes rule.Attributes
	// Also are further readings of the same request, for a door that cannot tell which of several
	// values the server behind takes: see rule.Set.MatchAlso. nil for nearly all requests.
	Also []rule.Attributes
	// Descriptors are the descriptors of Envoy's rate limit service; nil at other doors, where
	// rules of the Lyft form apply to Attributes.
	Descriptors []rule.Descriptor
	// Hits is the cost of the request; 0 means 1, below 0 refunds.
	Hits int64
	// Peek asks for the limits' answers, and charges nothing. Hits is ignored then.
	Peek bool
	// MaxDelay is how long the caller can hold the request for its turn in a leaky bucket: 0 not at
	// all, AnyDelay for any time, RuleDelay for as long as the rule's own wait (any time, if the
	// rule has none).
	MaxDelay time.Duration
	// Within is how long the caller has for the request at all, where it knows: no turn in a leaky
	// bucket is given that comes later, whatever MaxDelay says. 0 means that it does not know.
	Within time.Duration
	// Door names the door that the request came through ("http", "rls", …), for Hooks. It may be
	// "".
	Door string
	// Trace is the trace that the request is part of, for Hooks; nil if it is not followed.
	Trace *Trace
}

// Map is a request's attributes in a map.
type Map = rule.Map

// Pairs is a request's attributes in a slice, the quickest form for a handful of them.
type Pairs = rule.Pairs

// Trace names a place in a trace, as W3C's Trace Context does.
type Trace struct {
	TraceID [16]byte
	SpanID  [8]byte // of the decision
	// Span belongs to the tracer that follows the request, for its own hooks; nil for nothing.
	Span any
}

// Cost returns what r costs in hits: 0 if it is a peek, below 0 if it refunds. Hits of a
// Descriptor's own take its place for that descriptor.
func (r *Request) Cost() int64 {
	switch {
	case r.Peek:
		return 0
	case r.Hits == 0:
		return 1
	}
	return r.Hits
}

// Special values of Request.MaxDelay.
const (
	AnyDelay  time.Duration = -1
	RuleDelay time.Duration = -2
)
