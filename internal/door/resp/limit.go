package resp

import (
	"context"
	"iter"
	"unicode/utf8"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/internal/util/chars"
	"github.com/weir-rl/weir/rule"
)

const (
	maxHits = algo.MaxHits
)

// The errors of WEIR.LIMIT.
const (
	errLimitUsage = "ERR usage: WEIR.LIMIT domain hits attribute value [attribute value …] [FULL]"
	errLimitUTF8  = "ERR domain, attributes and values must be UTF-8"
	errHits       = "ERR hits must be a whole number within ±2147483647"
	errManyHits   = "NOPERM hits below 0 or above 1000 need a peer in trusted_peers, or AUTH with a token"
	errTwice      = "ERR an attribute is given twice: "
	errNoName     = "ERR an attribute has no name"
)

// attributes are the attributes of a request that a command sent. Strings are views of the
// connection's buffer: callees must not keep them.
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

// withoutFull cuts the word FULL off the arguments of WEIR.LIMIT. It has no partner, as attributes
// have: what clients sent before there was the word never ends so.
func withoutFull(args [][]byte) (rest [][]byte, full bool) {
	const word = "FULL"
	if last := len(args) - 1; len(args)%2 == 0 && last > 3 && len(args[last]) == len(word) && isFold(args[last], word) {
		return args[:last], true
	}
	return args, false
}

// readLimit makes the request of WEIR.LIMIT. It returns a fault of the command, or "".
func (a *asker) readLimit(args [][]byte, trusted bool) (problem string) {
	args, a.full = withoutFull(args)
	if len(args) < 5 || len(args)%2 == 0 {
		return errLimitUsage
	}
	for _, arg := range args[1:] {
		if !utf8.Valid(arg) {
			return errLimitUTF8
		}
	}
	hits, ok := parseInt(args[2])
	switch {
	case !ok || hits < -maxHits || hits > maxHits:
		return errHits
	case door.NeedsTrust(hits) && !trusted:
		return errManyHits
	}
	for i := 3; i < len(args); i += 2 {
		switch name := chars.View(args[i]); {
		case name == "":
			return errNoName
		case !a.attributes.add(name, chars.View(args[i+1])):
			return errTwice + shown(args[i])
		}
	}
	domain := door.Domain(chars.View(args[1]), a.o.Domain, a.limiter)
	if domain == "" {
		return "ERR the domain is empty, and the rules hold several: name one"
	}
	a.request = weir.Request{Domain: domain, Attributes: &a.attributes, Hits: hits, Peek: hits == 0, Door: "resp"}
	if a.o.Tracer != nil {
		a.follow()
	}
	return ""
}

// The attributes of WEIR.LIMIT that name the span of its caller. A command has no headers.
const (
	traceparent = "traceparent"
	tracestate  = "tracestate"
)

// follow begins the span of the decision of WEIR.LIMIT, if the request is followed.
func (a *asker) follow() {
	parent, _ := a.attributes.Attribute(traceparent)
	state, _ := a.attributes.Attribute(tracestate)
	a.ctx, a.request.Trace = a.o.Tracer.Follow(a.ctx, parent, state)
}

// appendDecision answers WEIR.LIMIT: allowed, limit, remaining, retry_after, reset_after, names of
// the limits that refused. Times are in ms, rounded up. With FULL there are five more: soft
// exceeded, near the limit, the id of a refusal, slots to give back, and that no rule file declares
// the domain.
func (a *asker) appendDecision(dst []byte, full bool) []byte {
	d := &a.decision
	near := d.Nearest()
	parts := 6
	if full {
		parts = 11
	}
	dst = append(appendArray(dst, parts), ":0\r\n"...)
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
	if full {
		dst = appendMarks(dst, d)
	}
	return dst
}

// appendMarks appends what FULL adds: whether the request was admitted above a limit or near one,
// the id of a refusal ("" without one), the slots of concurrency limits that WEIR.RELEASE takes,
// and whether the domain is unknown.
func appendMarks(dst []byte, d *weir.Decision) []byte {
	dst = appendFlag(appendFlag(dst, d.SoftExceeded()), d.NearLimit())
	id := ""
	if !d.Allowed && d.ID != 0 {
		id = d.ID.String()
	}
	dst = appendBulk(dst, id)
	slots := 0
	for i := range d.Limits {
		if d.Limits[i].Slot != "" {
			slots++
		}
	}
	dst = appendArray(dst, slots)
	for i := range d.Limits {
		if slot := d.Limits[i].Slot; slot != "" {
			dst = appendBulk(dst, slot)
		}
	}
	return appendFlag(dst, d.UnknownDomain())
}

func appendFlag(dst []byte, is bool) []byte {
	if is {
		return append(dst, ":1\r\n"...)
	}
	return append(dst, ":0\r\n"...)
}

const errRelease = "NOPERM giving slots back needs a peer in trusted_peers, or AUTH with a token"

// release answers WEIR.RELEASE: 1 if the slot was held and is free, 0 if it is gone.
func (c *conn) release(args [][]byte) error {
	if !c.trusted && !c.authed {
		c.error(errRelease)
		return nil
	}
	ctx, trace := context.Background(), (*weir.Trace)(nil)
	if c.o.Tracer != nil {
		ctx, trace = c.o.Tracer.Act(ctx, door.Release, "", "")
	}
	ok, err := c.limiter.Release(ctx, string(args[0]))
	door.Found(c.o.Tracer, trace, "resp", ok, err)
	if err != nil {
		c.error(errStore)
		return nil
	}
	c.out = appendFlag(c.out, ok)
	return nil
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
