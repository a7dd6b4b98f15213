package spoe

import (
	"context"
	"net/http"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/answer"
	"github.com/weir-rl/weir/internal/door"
)

// call is what one NOTIFY needs, kept for the next one.
type call struct {
	agent      *Agent
	ack        ack
	attributes attributes
	request    weir.Request
	decision   weir.Decision
	decided    bool // request and decision are those of this call
	recorder   recorder
	asker      http.Request // the request that a refusal is written for
	accept     []string
	names      []string
	field      []byte

	out []byte // of a connection's answers until they are written, or of one

	// For a call that is decided apart from its connection.
	conn       *conn
	payload    []byte // a copy of what was read
	stream, id uint64
	messages   int
}

func newCall(a *Agent) *call {
	c := &call{agent: a, accept: make([]string, 1)}
	c.recorder.header, c.asker.Header = http.Header{}, http.Header{}
	c.attributes.reset()
	return c
}

// The sizes up to which a call keeps what it needed.
const (
	keepBody      = 16 << 10
	keepOut       = 64 << 10
	keepLimits    = 256
	keepArguments = 64
)

// release forgets the request, and does not keep what a rare one made large.
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
	c.request, c.decision.Domain = weir.Request{}, "" // which lie in the buffer of a connection
	c.accept[0] = ""
	clear(c.names[:cap(c.names)])
}

// What the variable error says.
const (
	errorHits   = "hits: must be a whole number within 2147483647 of 0"
	errorTrust  = "hits: fewer than 0 or more than 1000 are for HAProxy at an address of trusted_peers"
	errorDomain = "domain: is missing, and the rules hold several domains; set spoe.domain, or name it in args"
	errorHost   = "host: is no host that all servers read alike"
	errorStore  = "the store failed"
)

// answer decides the request whose messages have been parsed, and appends the ACK, of at most size
// bytes, to out.
func (c *call) answer(ctx context.Context, messages int, stream, id uint64, trusted bool, out []byte, size int) []byte {
	start := door.Begin(c.agent.o.Stopwatch)
	c.ack.begin(out, stream, id, size)
	c.decided = false
	if messages > 0 { // without any, nothing is asked
		c.decide(ctx, trusted)
	}
	out = c.ack.finish()
	if c.attributes.unnamed {
		c.agent.remarks.unnamed.Do(func() {
			c.agent.log.Warn("spoe: an argument without a name is ignored; write name=sample in args")
		})
	}
	if c.decided {
		door.End(c.agent.o.Stopwatch, start, &c.request, &c.decision)
	} else {
		door.End(c.agent.o.Stopwatch, start, nil, nil)
	}
	c.release()
	return out
}

// decide writes the variables of one request.
func (c *call) decide(ctx context.Context, trusted bool) {
	at, d := &c.attributes, &c.decision
	switch {
	case at.hitsBad:
		c.badRequest(http.StatusBadRequest, errorHits)
		return
	case door.NeedsTrust(at.hits) && !trusted:
		c.badRequest(http.StatusForbidden, errorTrust)
		return
	}
	if problem := at.ambiguous(c.agent.o.EncodedSlash); problem != "" {
		c.badRequest(http.StatusBadRequest, problem)
		return
	}
	domain := door.Domain(at.domain, c.agent.o.Domain, c.agent.limiter)
	if domain == "" {
		c.agent.remarks.domain.Do(func() { c.agent.log.Error("spoe: requests are not limited", "error", errorDomain) })
		c.undecided(errorDomain)
		return
	}
	// HAProxy waits for the answer while it holds the request: a delay cannot be told to it.
	c.request = weir.Request{Domain: domain, Attributes: at, Hits: at.hits, Peek: at.hits == 0, MaxDelay: 0, Door: "spoe"}
	if c.agent.o.Tracer != nil {
		ctx = c.follow(ctx)
	}
	err := c.agent.limiter.Decide(ctx, &c.request, d)
	door.Followed(c.agent.o.Tracer, c.request.Trace, err)
	c.decided = err == nil
	switch {
	case err != nil:
		answer.StoreError(&c.recorder)
		c.refused(errorStore, nil)
	case d.Allowed:
		c.passed()
	default:
		if c.accept[0] = at.accept; at.accept == "" {
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
func (c *call) follow(ctx context.Context) context.Context {
	traceparent, _ := c.attributes.argument("traceparent")
	tracestate, _ := c.attributes.argument("tracestate")
	ctx, c.request.Trace = c.agent.o.Tracer.Follow(ctx, traceparent, tracestate)
	return ctx
}

// badRequest refuses what the HTTP API would answer with status.
func (c *call) badRequest(status int, problem string) {
	answer.ProblemDetails(&c.recorder, status, "about:blank", http.StatusText(status), problem, nil)
	c.refused(problem, nil)
}
