package httplimit

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
)

// Options configure New and NewGate. The zero value is right for a server that is its clients' peer, with rules of one domain.
type Options struct {
	// Domain of the rules; "" is the only one that the rules hold.
	Domain string
	// Headers are the families to write; the zero value is XDelta and Draft11.
	Headers Headers
	// ClientIP says whose X-Forwarded-For is believed; nobody's by default.
	ClientIP ClientIP
	// Identity supplies more attributes; nil for none.
	Identity *Identity
	// OnError is told when the store failed on a request, or when a slot or a turn could not be given back to it;
	// nil means nobody. It must be safe for concurrent use. A client that hangs up is no error.
	OnError func(r *http.Request, err error)
}

// New returns middleware that lets a request pass to the handler only if l admits it.
//
// A refused request is answered as Headers.Refuse does (429 by default). A request that passes carries the rate-limit
// headers in its answer; the handler may change them. A request that a leaky bucket delays is really held until its
// turn, for as long as the rule's `wait` allows, in the order of the turns; if its client hangs up meanwhile, its turn is
// given back where nobody stands behind it. Slots of concurrency limits are released when the handler returns, also if it panics.
//
// If the store fails, requests that meet only limits with `on_store_error: allow` pass without headers; others are answered 503
// (temporary-reduced-capacity). Deciding locally meanwhile is the business of a store wrapped in store/fallback.
//
// The attributes of a request are those of Attributes. New fails if o.Domain is empty and the rules in force hold several domains.
func New(l *weir.Limiter, o Options) (func(http.Handler) http.Handler, error) {
	g, err := NewGate(l, o)
	if err != nil {
		return nil, err
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			p := g.Enter(w, r)
			if p == nil {
				return
			}
			defer p.Leave()
			p.WriteHeaders(w.Header())
			next.ServeHTTP(w, r)
		})
	}, nil
}

// Gate is what New does in two steps: Enter before a request is handled, Leave after. Safe for concurrent use. Make one
// with NewGate.
type Gate struct {
	limiter *weir.Limiter
	o       Options
	room    waitingRoom
	passes  sync.Pool
}

// Pass is the admission of one request. Not safe for concurrent use.
type Pass struct {
	gate     *Gate
	attrs    Attributes
	request  weir.Request
	decision weir.Decision
	failed   bool // the store failed and the rules let the request through: there is no decision
}

// NewGate returns a Gate. It fails if o.Domain is empty and the rules in force hold several domains.
func NewGate(l *weir.Limiter, o Options) (*Gate, error) {
	if l == nil {
		return nil, errors.New("httplimit: a nil Limiter; make one with weir.New")
	}
	if o.Domain == "" {
		if rules, _ := l.Rules(); rules != nil {
			if domains := rules.Domains(); len(domains) > 1 {
				return nil, fmt.Errorf("httplimit: the rules hold the domains %s; set Domain to one of them", strings.Join(domains, ", "))
			}
		}
	}
	g := &Gate{limiter: l, o: o}
	g.passes.New = func() any { return &Pass{gate: g} }
	return g, nil
}

// Enter decides r, and holds it if it must wait for its turn. If r may pass it returns a Pass, on which Leave must be
// called when r has been handled. Else it has answered r on w, and returns nil. It may replace r.Body.
func (g *Gate) Enter(w http.ResponseWriter, r *http.Request) *Pass {
	p := g.passes.Get().(*Pass)
	p.attrs.Reset(r, g.o.ClientIP, g.o.Identity)
	p.request = weir.Request{Domain: g.o.Domain, Attributes: &p.attrs, Hits: 1, MaxDelay: weir.RuleDelay}
	if err := g.limiter.Decide(r.Context(), &p.request, &p.decision); err != nil {
		hungUp := r.Context().Err() != nil
		if !hungUp && g.o.OnError != nil {
			g.o.OnError(r, err)
		}
		if !hungUp && p.decision.OpenWithoutStore() {
			p.failed = true
			return p
		}
		p.reset()
		if hungUp {
			w.WriteHeader(statusHungUp)
		} else {
			RefuseStoreError(w)
		}
		return nil
	}
	switch {
	case !p.decision.Allowed:
		g.o.Headers.Refuse(w, r, &p.decision)
		p.Leave()
		return nil
	case p.decision.Delay > 0 && !p.hold(r):
		w.WriteHeader(statusHungUp) // nobody reads it but a log
		p.Leave()
		return nil
	}
	return p
}

// statusHungUp is what servers log for a client that hung up before it was answered (nginx's).
const statusHungUp = 499

// hold waits for the request's turn; false if the client hung up before it came.
func (p *Pass) hold(r *http.Request) bool {
	d := &p.decision
	name, turn := "", d.Time+d.Delay
	for i := range d.Limits {
		// The line is that of the limit with the longest delay, whose turn it is that must be waited for.
		if lr := &d.Limits[i]; lr.Mode != rule.Shadow && lr.Delay == d.Delay {
			name = string(append(binary.BigEndian.AppendUint64(nil, lr.Window.Counter.ID), d.Matches.Hits[i].Key...))
			break
		}
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	startReadAhead(r, cancel)
	if p.gate.room.wait(ctx, name, turn, time.Duration(d.Delay)*time.Microsecond) == nil {
		return true
	}
	ctx, done := afterwards(r)
	defer done()
	if _, err := p.gate.limiter.GiveBack(ctx, d); err != nil && p.gate.o.OnError != nil {
		p.gate.o.OnError(r, err)
	}
	return false
}

// afterwards is a context for what must be done for r even if its client is gone.
func afterwards(r *http.Request) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(r.Context()), 5*time.Second)
}

// Decision returns the decision that let the request pass; nil if there is none, because the store failed and the rules
// admit without it. It is valid until Leave.
func (p *Pass) Decision() *weir.Decision {
	if p.failed {
		return nil
	}
	return &p.decision
}

// Attributes returns the request's attributes. They are valid until Leave.
func (p *Pass) Attributes() *Attributes { return &p.attrs }

// WriteHeaders sets the rate-limit headers on h, as Headers.Write does.
func (p *Pass) WriteHeaders(h http.Header) {
	if !p.failed {
		p.gate.o.Headers.Write(h, &p.decision)
	}
}

// Leave releases the slots that the request held in concurrency limits. p must not be used any more.
func (p *Pass) Leave() {
	if !p.failed {
		p.release()
	}
	p.reset()
}

func (p *Pass) release() {
	for i := range p.decision.Limits {
		lr := &p.decision.Limits[i]
		if lr.Slot == "" {
			continue
		}
		r := p.attrs.r
		ctx, done := afterwards(r)
		if _, err := p.gate.limiter.Release(ctx, lr.Slot); err != nil && p.gate.o.OnError != nil {
			p.gate.o.OnError(r, err)
		}
		done()
		lr.Slot = ""
	}
}

// reset forgets the request and goes back to the pool.
func (p *Pass) reset() {
	p.attrs.Reset(nil, ClientIP{}, nil)
	p.request = weir.Request{}
	p.failed = false
	if cap(p.decision.Limits) > 256 { // do not keep what a rare request made large
		p.decision = weir.Decision{}
	}
	p.gate.passes.Put(p)
}
