package resp

import (
	"cmp"
	"context"
	"iter"
	"unicode/utf8"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

const (
	freeHits = 1000 // hits that anybody may ask for at once
	maxHits  = algo.MaxCost
)

// The errors of WEIR.LIMIT.
const (
	errLimitUsage = "ERR usage: WEIR.LIMIT domain hits attribute value [attribute value …]"
	errLimitUTF8  = "ERR domain, attributes and values must be UTF-8"
	errHits       = "ERR hits must be a whole number within ±2147483647"
	errManyHits   = "NOPERM hits below 0 or above 1000 need a peer in trusted_peers, or AUTH with a token"
	errTwice      = "ERR an attribute is given twice: "
	errNoName     = "ERR an attribute has no name"
)

// attributes is what a command told of a request. Its strings are views of the connection's buffer: whoever is handed them
// must not keep them.
type attributes struct {
	pairs rule.Pairs
	index map[string]int // of pairs, while they are many
}

const manyAttributes = 32

func (s *attributes) reset() {
	s.index = nil
	if cap(s.pairs) > 2*manyAttributes {
		s.pairs = nil
		return
	}
	clear(s.pairs)
	s.pairs = s.pairs[:0]
}

// add reports false if name is there already.
func (s *attributes) add(name, value string) bool {
	if s.index == nil && len(s.pairs) == manyAttributes {
		s.index = make(map[string]int, 2*manyAttributes)
		for i := range s.pairs {
			s.index[s.pairs[i].Name] = i
		}
	}
	if _, ok := s.Attribute(name); ok {
		return false
	}
	if s.index != nil {
		s.index[name] = len(s.pairs)
	}
	s.pairs = append(s.pairs, rule.Pair{Name: name, Value: value})
	return true
}

// Attribute implements rule.Attributes.
func (s *attributes) Attribute(name string) (string, bool) {
	if s.index == nil {
		return s.pairs.Attribute(name)
	}
	i, ok := s.index[name]
	if !ok {
		return "", false
	}
	return s.pairs[i].Value, true
}

// All implements rule.Attributes.
func (s *attributes) All() iter.Seq2[string, string] { return s.pairs.All() }

// limit answers WEIR.LIMIT: allowed, limit, remaining, retry_after, reset_after, names of the limits that refused. Times are in ms,
// rounded up.
func (a *asker) limit(dst []byte, args [][]byte, trusted bool) ([]byte, outcome) {
	if len(args) < 5 || len(args)%2 == 0 {
		return appendError(dst, errLimitUsage), failed
	}
	for _, arg := range args[1:] {
		if !utf8.Valid(arg) {
			return appendError(dst, errLimitUTF8), failed
		}
	}
	hits, ok := parseInt(args[2])
	switch {
	case !ok || hits < -maxHits || hits > maxHits:
		return appendError(dst, errHits), failed
	case (hits < 0 || hits > freeHits) && !trusted:
		return appendError(dst, errManyHits), failed
	}
	defer a.forget()
	for i := 3; i < len(args); i += 2 {
		switch name := view(args[i]); {
		case name == "":
			return appendError(dst, errNoName), failed
		case !a.attributes.add(name, view(args[i+1])):
			return appendError(dst, errTwice+shown(args[i])), failed
		}
	}
	domain := view(args[1])
	if domain == "" {
		if domain = cmp.Or(a.o.Domain, a.limiter.SoleDomain()); domain == "" {
			return appendError(dst, "ERR the domain is empty, and the rules hold several: name one"), failed
		}
	}
	d := &a.decision
	a.request = weir.Request{Domain: domain, Attributes: &a.attributes, Hits: hits, Door: "resp"}
	if err := a.limiter.Decide(context.Background(), &a.request, d); err != nil {
		if !d.OpenWithoutStore() {
			return appendError(dst, errStore), failed
		}
		d.Allowed = true
		d.Limits = d.Limits[:0]
	}
	return a.appendDecision(dst), outcomeOf(!d.Allowed, hits)
}

// forget lets go of what is the connection's.
func (a *asker) forget() {
	a.attributes.reset()
	a.request = weir.Request{}
	a.decision.Domain = ""
}

func (a *asker) appendDecision(dst []byte) []byte {
	d := &a.decision
	near := d.Nearest()
	dst = append(dst, "*6\r\n:0\r\n"...)
	if d.Allowed {
		dst[len(dst)-3] = '1'
	}
	limit, remaining, reset := int64(-1), int64(-1), int64(0)
	if near != nil {
		limit, remaining, reset = near.Limit, near.Remaining, milliseconds(near.ResetAfter)
	}
	dst = appendInt(dst, limit)
	dst = appendInt(dst, remaining)
	dst = appendInt(dst, milliseconds(d.RetryAfter))
	dst = appendInt(dst, reset)
	a.names = d.LimitedBy(a.names[:0])
	dst = appendArray(dst, len(a.names))
	for _, name := range a.names {
		dst = appendBulk(dst, name)
	}
	return dst
}

// milliseconds rounds µs up; algo.Never stays.
func milliseconds(µs int64) int64 {
	if µs == algo.Never {
		return -1
	}
	ms := µs / 1000
	if µs%1000 > 0 {
		ms++
	}
	return ms
}
