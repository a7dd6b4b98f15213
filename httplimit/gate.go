package httplimit

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/hold"
)

// Options configure New and NewGate. The zero value is right for a server that is its clients' peer, with rules of one domain.
type Options struct {
	// Domain of the rules; "" is the only one that the rules hold.
	Domain string
	// Door is what weir.Hooks are told as weir.Request.Door; "" means "middleware".
	Door string
	// Headers are the families to write; the zero value is XDelta and Draft11.
	Headers Headers
	// CORS lets pages of other origins read these; by default none.
	CORS CORS
	// ClientIP says whose X-Forwarded-For is believed; nobody's by default.
	ClientIP ClientIP
	// Identity supplies more attributes; nil for none.
	Identity *Identity
	// Attributes are more attributes by their names, for what a handler in front of this one has found out, such as who the user is:
	//
	//	"user": func(r *http.Request) string { name, _ := r.Context().Value(userKey{}).(string); return name }
	//
	// A function is called when a rule asks, at most once for a request, and must be safe for concurrent use; "" counts as absent.
	Attributes map[string]func(*http.Request) string
	// MaxHeld bounds the requests that are held at a time, of all keys together; 0 means 10,000, below 0 that nobody is held. The
	// waiting requests of one key are at most as many as there is room left, so that none takes more than half.
	MaxHeld int
	// Refused may answer a refused request in place of Headers.Refuse: it returns true if it has. nil, or false, leaves it
	// to that. It must be safe for concurrent use, and keep neither d nor a.
	Refused func(w http.ResponseWriter, r *http.Request, d *weir.Decision, a *Attributes) bool
	// Adaptive bounds how many requests are under way at the same time; nil does not.
	Adaptive *Adaptive
	// Load is told of the requests that pass; nil for nobody.
	Load Load
	// OnError is told when the store failed on a request, or when a slot or a turn could not be given back to it;
	// nil means nobody. It must be safe for concurrent use. A client that hangs up is no error.
	OnError func(r *http.Request, err error)
}

// New returns middleware that lets a request pass to the handler only if l admits it.
//
// A refused request is answered as Headers.Refuse does (429 by default). A request that passes carries the rate-limit
// headers in its answer; the handler may change them. A request that a leaky bucket delays is really held until its
// turn, for as long as the rule's `wait` allows, in the order of the turns; if its client hangs up meanwhile, its turn is
// given back where nobody stands behind it. One that another limit with a `wait` refuses is held, in the order of arrival, until
// the limit admits it or the wait is over (docs/waiting.md). Slots of concurrency limits are released when the handler returns,
// also if it panics.
//
// If the store fails, requests that meet only limits with `on_store_error: allow` pass without headers; others are answered 503
// (temporary-reduced-capacity). Deciding locally meanwhile is the business of a store wrapped in store/fallback.
//
// The attributes of a request are those of Attributes. New fails if o.Domain is empty and the rules in force hold several domains, or if
// another option is wrong.
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
			next.ServeHTTP(p.Watch(w), r)
			p.Finish()
		})
	}, nil
}

// Gate is what New does in two steps: Enter before a request is handled, Leave after. Safe for concurrent use. Make one
// with NewGate.
type Gate struct {
	limiter *weir.Limiter
	o       Options
	lines   *hold.Lines
	passes  sync.Pool
}

// Pass is the admission of one request. Not safe for concurrent use.
type Pass struct {
	gate     *Gate
	visit    *hold.Visit
	attrs    Attributes
	request  weir.Request
	decision weir.Decision
	watch    *watch                     // of a request that met a rule with cost_after; else nil
	failed   bool                       // the store failed and the rules let the request through: there is no decision
	met      func(*weir.Decision) error // Pass.meet
	passage
}

// NewGate returns a Gate. It fails if o.Domain is empty and the rules in force hold several domains, or if another option is wrong.
func NewGate(l *weir.Limiter, o Options) (*Gate, error) {
	if err := checkLimiter(l, o.Domain); err != nil {
		return nil, err
	}
	if err := o.Headers.check(); err != nil {
		return nil, fmt.Errorf("httplimit: %w", err)
	}
	var err error
	if o.Identity, err = o.Identity.with(o.Attributes); err != nil {
		return nil, fmt.Errorf("httplimit: %w", err)
	}
	if o.CORS, err = ParseOrigins(o.CORS.Origins); err != nil {
		return nil, fmt.Errorf("httplimit: %w", err)
	}
	if o.Door == "" {
		o.Door = "middleware"
	}
	g := &Gate{limiter: l, o: o, lines: hold.New(o.MaxHeld)}
	g.passes.New = func() any {
		p := &Pass{gate: g, visit: g.lines.NewVisit()}
		p.visit.Held, p.visit.Failed, p.met = p.held, p.failure, p.meet
		return p
	}
	return g, nil
}

// checkLimiter tells of a Limiter that cannot be asked without a domain.
func checkLimiter(l *weir.Limiter, domain string) error {
	if l == nil {
		return errors.New("httplimit: a nil Limiter; make one with weir.New")
	}
	if rules, _ := l.Rules(); rules != nil && domain == "" {
		if domains := rules.Domains(); len(domains) > 1 {
			return fmt.Errorf("httplimit: the rules hold the domains %s; set Domain to one of them", strings.Join(domains, ", "))
		}
	}
	return nil
}

// Enter decides r, and holds it if it must wait. If r may pass it returns a Pass, on which Leave must be called when r has
// been handled. Else it has answered r on w, and returns nil. It may replace r.Body.
func (g *Gate) Enter(w http.ResponseWriter, r *http.Request) *Pass {
	p := g.passes.Get().(*Pass)
	p.attrs.Reset(r, g.o.ClientIP, g.o.Identity)
	p.request = weir.Request{Door: g.o.Door, Domain: g.o.Domain, Attributes: &p.attrs, Hits: 1, MaxDelay: weir.RuleDelay}
	if g.o.Adaptive != nil {
		p.request.Met = p.met
	}
	err := p.visit.Decide(r.Context(), g.limiter, &p.request, &p.decision)
	switch {
	case err == nil && p.decision.Allowed:
		if p.begin() {
			return p
		}
		err = errOverload
	case err == nil:
		p.permit.Return()
	case p.visit.HungUp || err == errOverload:
	default:
		p.failure(err)
		if p.decision.OpenWithoutStore() {
			p.failed = true
			if p.begin() {
				return p
			}
			err = errOverload
		}
	}
	p.refuse(w, r, err)
	p.Leave()
	return nil
}

// refuse answers a request that may not pass: because of the decision if err is nil.
func (p *Pass) refuse(w http.ResponseWriter, r *http.Request, err error) {
	o := &p.gate.o
	o.CORS.Allow(w.Header(), r, o.Headers)
	switch {
	case err == nil:
		if o.Refused == nil || !o.Refused(w, r, &p.decision, &p.attrs) {
			o.Headers.Refuse(w, r, &p.decision)
		}
	case err == errOverload:
		RefuseOverload(w)
	case p.visit.HungUp:
		w.WriteHeader(statusHungUp) // nobody reads it but a log
	default:
		RefuseStoreError(w)
	}
}

// statusHungUp is what servers log for a client that hung up before it was answered (nginx's).
const statusHungUp = 499

// failure tells of an error of the store.
func (p *Pass) failure(err error) {
	if p.gate.o.OnError != nil {
		p.gate.o.OnError(p.attrs.r, err)
	}
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

// WriteHeaders sets the rate-limit headers on h, as Headers.Write does, and lets pages of Options.CORS read them.
func (p *Pass) WriteHeaders(h http.Header) {
	if !p.failed {
		p.gate.o.Headers.Write(h, &p.decision)
		p.gate.o.CORS.Expose(h, p.attrs.r, p.gate.o.Headers)
	}
}

// Leave releases the slots that the request held in concurrency limits, and settles what it cost where that is known only afterwards. p must not be used any more.
func (p *Pass) Leave() {
	p.end()
	if p.watch != nil {
		p.settle()
	}
	if !p.failed {
		p.visit.Release(p.attrs.r.Context(), p.gate.limiter, &p.decision)
	}
	p.reset()
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

// Stats tells of the requests that a Gate holds, or held.
type Stats struct {
	Held    int // now
	Lines   int // now: one for each key of a limit for which somebody waits
	Longest int // requests in the longest line now

	Total      uint64 // were held at all
	Expired    uint64 // of these, were refused since their wait was over, or would have been too short
	HungUp     uint64 // of these, were given up by their clients
	TurnedAway uint64 // were refused since there was no room to wait
}

// Stats returns what is known at this moment.
func (g *Gate) Stats() Stats { return Stats(g.lines.Stats()) }

// Drain ends the holding, for a server that is about to stop: requests that wait for a limit to admit them are refused at once, as are
// those that would have to wait from then on. Those that have a turn in a leaky bucket keep it.
func (g *Gate) Drain() { g.lines.Shut() }

// Refunded is for weir.Hooks.Decided: where it is told of a refund that came through another door of this program, the requests
// that wait at g for what was given back ask at once, rather than within a second.
func (g *Gate) Refunded(r *weir.Request, d *weir.Decision) {
	for i := range d.Matches.Hits {
		if h := &d.Matches.Hits[i]; r.Hits < 0 {
			g.lines.Freed(h.Window.Counter.ID, h.Key)
		}
	}
}
