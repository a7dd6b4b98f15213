package spoe

import (
	"context"
	"net/http"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/wire/shed"
	"github.com/weir-rl/weir/rule"
)

// call is the memory of one NOTIFY, kept for the next one.
type call struct {
	agent      *Agent
	ack        ack
	attributes attributes
	request    weir.Request
	decision   weir.Decision
	decided    bool            // request and decision belong to this call
	start      int64           // of the stopwatch
	ctx        context.Context // with the span, if the request is followed
	recorder   recorder
	asker      http.Request // the request that a refusal is written for
	accept     []string
	names      []string
	field      []byte

	out []byte // of a connection's answers until they are written, or of one

	// For a call that goes on apart from its connection.
	conn       *conn
	payload    []byte // a copy of the frame's payload
	stream, id uint64
}

func newCall(a *Agent) *call {
	c := &call{agent: a, accept: make([]string, 1)}
	c.recorder.header, c.asker.Header = http.Header{}, http.Header{}
	c.attributes.reset()
	return c
}

// The sizes up to which a call keeps its memory.
const (
	keepBody      = 16 << 10
	keepOut       = 64 << 10
	keepLimits    = 256
	keepArguments = 64
)

// release forgets the request, and does not keep the memory of a rare large one.
func (c *call) release() {
	c.attributes.reset()
	c.recorder.reset()
	if cap(c.recorder.body) > keepBody {
		c.recorder.body = nil
	}
	if cap(c.attributes.arguments) > keepArguments {
		c.attributes.arguments = nil
	}
	if cap(c.decision.Limits) > keepLimits {
		c.decision = weir.Decision{}
	}
	c.request, c.decision.Domain, c.ctx = weir.Request{}, "", nil // which lie in the buffer of a connection
	c.accept[0] = ""
	clear(c.names[:cap(c.names)])
}

// written takes the call back when its answers are written, or copied.
func (c *call) written() {
	if c.out = c.out[:0]; cap(c.out) > keepOut {
		c.out = nil
	}
	c.agent.calls.Put(c)
}

// Values of the variable error.
const (
	errorHits   = "hits: must be a whole number within 2147483647 of 0"
	errorTrust  = "hits: fewer than 0 or more than 1000 are for HAProxy at an address of trusted_peers"
	errorDomain = "domain: is missing, and the rules hold several domains; set default_domain, or name it in args"
	errorHost   = "host: is no host that all servers read alike"
	errorStore  = "the store failed"
	errorLate   = shed.Reason
)

// answer decides the request whose messages have been parsed, and appends the ACK, of at most size
// bytes, to out.
func (c *call) answer(ctx context.Context, messages int, stream, id uint64, trusted bool, out []byte, size int) []byte {
	out, done := c.answerNow(ctx, messages, stream, id, trusted, out, size)
	if !done {
		out = c.answerRest(stream, id, out, size)
	}
	return out
}

// answerNow is answer for a request that need not wait. If done is false, it has to: answerRest
// comes next, perhaps on another goroutine.
func (c *call) answerNow(ctx context.Context, messages int, stream, id uint64, trusted bool, out []byte,
	size int) (_ []byte, done bool) {
	c.start, c.ctx = door.Begin(c.agent.o.Stopwatch), ctx
	c.decided = false
	c.ack.begin(out, stream, id, size)
	if messages > 0 && c.agent.o.Line.Late(1) {
		c.turnAway()
	} else if messages > 0 && c.begin(trusted) { // without any, nothing is asked
		if !door.DecideNow(c.ctx, c.agent.limiter, &c.request, &c.decision) {
			c.ack.buf = nil
			return out, false
		}
		c.conclude(nil)
	}
	return c.finish(), true
}

// answerRest answers a request that answerNow has begun.
func (c *call) answerRest(stream, id uint64, out []byte, size int) []byte {
	c.ack.begin(out, stream, id, size)
	c.conclude(door.DecideRest(c.ctx, c.agent.limiter, &c.request, &c.decision))
	return c.finish()
}

// turnAway answers a request that waited too long in line.
func (c *call) turnAway() {
	c.agent.o.Line.Turned(1)
	switch c.agent.o.Line.Answer() {
	case shed.Deny:
		answer.Late(&c.recorder, http.StatusTooManyRequests)
		c.refused(errorLate, nil)
	case shed.Allow:
		c.decision = weir.Decision{Allowed: true}
		c.passed()
	default:
		c.undecided(errorLate)
	}
}

// finish ends the ACK, and forgets the request.
func (c *call) finish() []byte {
	out := c.ack.finish()
	if c.attributes.unnamed {
		c.agent.remarks.unnamed.Do(func() {
			c.agent.log.Warn("spoe: an argument without a name is ignored; write name=sample in args")
		})
	}
	if c.decided {
		door.End(c.agent.o.Stopwatch, c.start, &c.request, &c.decision)
	} else {
		door.End(c.agent.o.Stopwatch, c.start, nil, nil)
	}
	c.release()
	return out
}

// begin makes the request, unless it is answered without a decision: ok is false then.
func (c *call) begin(trusted bool) (ok bool) {
	at := &c.attributes
	switch {
	case at.hitsBad:
		c.badRequest(http.StatusBadRequest, errorHits)
		return false
	case door.NeedsTrust(at.hits) && !trusted:
		c.badRequest(http.StatusForbidden, errorTrust)
		return false
	}
	if problem := at.ambiguous(c.agent.o.EncodedSlash); problem != "" {
		c.badRequest(http.StatusBadRequest, problem)
		return false
	}
	domain := door.Domain(at.domain, c.agent.o.Domain, c.agent.limiter)
	if domain == "" {
		c.agent.remarks.domain.Do(func() { c.agent.log.Error("spoe: requests are not limited", "error", errorDomain) })
		c.undecided(errorDomain)
		return false
	}
	set, _ := c.agent.limiter.Rules()
	var also []rule.Attributes
	if f := set.Fields(domain); f != nil {
		if problem, ok := at.checkFields(c.agent.o.Fields, f); !ok {
			c.badRequest(problem.Status, problem.Detail)
			return false
		}
		if path, ok := at.Attribute("path"); ok && f.Paths {
			also = door.ReadParameters(at, path, nil)
		}
	}
	// HAProxy waits for the answer while it holds the request: it cannot take a delay.
	c.request = weir.Request{Domain: domain, Attributes: at, Also: also, Hits: at.hits, Peek: at.hits == 0, MaxDelay: 0,
		Door: "spoe"}
	if c.agent.o.Tracer != nil {
		c.follow()
	}
	return true
}

// conclude writes the variables of a request that was decided, or failed with err.
func (c *call) conclude(err error) {
	door.Followed(c.agent.o.Tracer, c.request.Trace, err)
	c.decided = err == nil
	d := &c.decision
	switch {
	case err != nil:
		answer.StoreError(&c.recorder)
		c.refused(errorStore, nil)
	case d.Allowed:
		c.passed()
	default:
		if c.accept[0] = c.attributes.accept; c.accept[0] == "" {
			delete(c.asker.Header, "Accept")
		} else {
			c.asker.Header["Accept"] = c.accept
		}
		families.Refuse(&c.recorder, &c.asker, d)
		c.names = d.LimitedBy(c.names[:0])
		c.refused("", c.names)
	}
}

// follow begins the span of the decision, if the request is followed.
func (c *call) follow() {
	traceparent, _ := c.attributes.argument("traceparent")
	tracestate, _ := c.attributes.argument("tracestate")
	c.ctx, c.request.Trace = c.agent.o.Tracer.Follow(c.ctx, traceparent, tracestate)
}

// badRequest refuses a request that the HTTP API would answer with status.
func (c *call) badRequest(status int, problem string) {
	answer.ProblemDetails(&c.recorder, status, "about:blank", http.StatusText(status), problem, nil)
	c.refused(problem, nil)
}
