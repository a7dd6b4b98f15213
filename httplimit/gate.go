package httplimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/door/line"
	"github.com/weir-rl/weir/internal/util/httpfield"
	"github.com/weir-rl/weir/overload"
)

// Options configure New and NewGate. The zero value is right for a server that is its clients'
// peer, with rules of one domain.
type Options struct {
	// Domain of the rules; "" is the only one that the rules hold.
	Domain string
	// Door is the name that weir.Hooks see as weir.Request.Door; "" means "middleware".
	Door string
	// Headers are the families to write; the zero value is XDelta and Draft11.
	Headers Headers
	// CORS lets pages of other origins read these; by default none.
	CORS CORS
	// ClientIP lists the proxies whose word for the client is believed; none by default.
	ClientIP ClientIP
	// Identity supplies more attributes; nil for none.
	Identity *Identity
	// Attributes are more attributes by their names, for facts that a handler in front of this one
	// has established, such as the user's name:
	//
	//	"user": func(r *http.Request) string {
	//		name, _ := r.Context().Value(userKey{}).(string)
	//		return name
	//	}
	//
	// A function is called when a rule asks, at most once for a request, and must be safe for
	// concurrent use; "" counts as absent.
	Attributes map[string]func(*http.Request) string
	// EncodedSlash decides over requests whose path holds %2F, %5C or a backslash; by
	// default they are refused.
	EncodedSlash EncodedSlash
	// Fields refuses requests with fields that servers read in different ways, as far as rules or
	// the Identity read them: those that come twice, and those under a name like theirs. nil is one
	// of its own that refuses all of them.
	Fields *FieldGuard
	// MaxHeld bounds the requests that are held at a time, of all keys together; 0 means 10,000,
	// below 0 that no request is held. The waiting requests of one key are at most as many as there
	// is room left, so that none takes more than half.
	MaxHeld int
	// Refused may answer a refused request in place of Headers.Refuse: it returns true if it has.
	// nil, or false, leaves it to that. It must be safe for concurrent use, and keep neither d nor
	// a.
	Refused func(w http.ResponseWriter, r *http.Request, d *weir.Decision, a *Attributes) bool
	// Overload bounds how many requests are under way at the same time; nil does not. Those that
	// find no room are answered 503 at once, and charged to no limit unless they were held before.
	// Requests that a rule file exempts always pass.
	Overload *overload.Limiter
	// Ready is for a handler that passes requests on. It is called before a request with a body
	// takes a place that others then lack, room under Overload or a slot of a limit on concurrency,
	// and is charged. It may wait for the body, so that a client that is slow to send it keeps no
	// place meanwhile. false says that it has answered the request, which is over. nil waits for
	// nothing. It must be safe for concurrent use.
	Ready func(w http.ResponseWriter, r *http.Request) bool
	// KeepAbandoned is for such a handler, too, and says that it calls Pass.Abandon, or
	// Pass.AbandonUnsent. A request whose client hangs up then keeps its place until Leave, since
	// the server behind works on it. Where there are four places or more, the abandoned requests of
	// one address keep half of them at most, and while they do, it gets no further one: its
	// requests are answered 503.
	KeepAbandoned bool
	// KeptWhile returns a context that ends when an abandoned request is kept no longer, because
	// others need its place; nil for a request that is kept to its end. A nil function is for none.
	// It must be safe for concurrent use.
	KeptWhile func(*http.Request) context.Context
	// Load measures the requests that pass; nil for none.
	Load overload.Load
	// Trace returns the trace that a request is part of, for weir.Request.Trace; nil for a request
	// that is not followed. A nil function follows none.
	Trace func(*http.Request) *weir.Trace
	// Stopwatch times a sample of the decisions, but not of requests that were held; nil times
	// none.
	Stopwatch weir.Stopwatch
	// OnError is called when the store failed on a request, or when a slot or a turn could not be
	// given back to it; nil means it is not. It must be safe for concurrent use. A client that
	// hangs up is no error.
	OnError func(r *http.Request, err error)
	// Logger logs, when the middleware is made, the rules in force that no request can meet,
	// because they need an attribute that is not known here: these rules limit nothing. It also
	// logs doubts about ClientIP (ClientIP.Remark). nil means slog.Default().
	Logger *slog.Logger
}

// New returns middleware that lets a request pass to the handler only if l admits it.
//
// A refused request is answered as Headers.Refuse does (429 by default). A request that passes
// carries the rate-limit headers in its answer; the handler may change them. A request that a leaky
// bucket delays is really held until its turn, for as long as the rule's `wait` allows, in the
// order of the turns; if its client hangs up meanwhile, its turn is given back if no request stands
// behind it. One that another limit with a `wait` refuses is held, in the order of arrival, until
// the limit admits it or the wait is over (docs/guides/waiting.md). Slots of concurrency limits are
// released when the handler returns, also if it panics.
//
// If the store fails, requests that meet only limits with `on_store_error: allow` pass without
// headers; others are answered 503 (temporary-reduced-capacity). Deciding locally meanwhile is the
// business of a store wrapped in store/fallback.
//
// A request whose host or path servers read in different ways is answered 400: see ValidHost,
// Options.EncodedSlash and door.AmbiguousPath; one with such fields 400 or 401: see FieldGuard.
//
// Type Attributes lists the attributes of a request. New fails if o.Domain is empty and the rules
// in force hold several domains, or if another option is wrong.
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

// Gate is the middleware of New in two steps: Enter before a request is handled, Leave after. Safe
// for concurrent use. Make one with NewGate.
type Gate struct {
	limiter *weir.Limiter
	o       Options
	lines   *line.Lines
	passes  sync.Pool

	abandoned abandoned
}

// Pass is the admission of one request. Not safe for concurrent use.
type Pass struct {
	gate     *Gate
	visit    *line.Visit
	attrs    Attributes
	request  weir.Request
	decision weir.Decision
	watch    *watch // sees the answer; nil if nobody needs to
	wrote    bool   // WriteHeaders has written rate-limit headers, and the answer has not begun
	passage
}

// NewGate returns a Gate. It fails if o.Domain is empty and the rules in force hold several
// domains, or if another option is wrong.
func NewGate(l *weir.Limiter, o Options) (*Gate, error) {
	if err := checkLimiter(l, o.Domain); err != nil {
		return nil, err
	}
	if err := o.Headers.check(); err != nil {
		return nil, fmt.Errorf("httplimit: %w", err)
	}
	if err := o.ClientIP.Check(); err != nil {
		return nil, fmt.Errorf("httplimit: ClientIP: %w", err)
	}
	if o.ClientIP.Header != "" {
		o.ClientIP.Header = o.ClientIP.Field()
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
	if o.Fields == nil {
		o.Fields = &FieldGuard{Logger: o.Logger}
	}
	g := &Gate{limiter: l, o: o, lines: line.New(o.MaxHeld)}
	g.abandoned.of, g.abandoned.slow, g.abandoned.all = map[share]int{}, map[share]int{}, map[share]int{}
	g.abandoned.unread, g.abandoned.spare = map[share]int{}, map[netip.Addr][]*Dawdling{}
	g.abandoned.ending, g.abandoned.end = context.WithCancel(context.Background())
	g.warnOfLacking()
	if remark := o.ClientIP.Remark(); remark != "" {
		cmp.Or(o.Logger, slog.Default()).Warn("httplimit: ClientIP: " + remark)
	}
	g.passes.New = func() any {
		p := &Pass{gate: g, visit: g.lines.NewVisit()}
		p.visit.Held, p.visit.Failed = p.held, p.failure
		if o.Overload != nil || o.KeepAbandoned || o.Ready != nil {
			p.visit.Veto = p.veto
		}
		if o.Ready != nil {
			p.visit.Ready = p.isReady
		}
		return p
	}
	return g, nil
}

// warnOfLacking logs the rules that no request can meet.
func (g *Gate) warnOfLacking() {
	rules, _ := g.limiter.Rules()
	if rules == nil {
		return
	}
	domain := rules.DomainFor(g.o.Domain)
	lacks := rules.Lacking(domain, func(attribute string) bool {
		return httpfield.RequestAttribute(attribute) || g.o.Identity.has(attribute)
	})
	if len(lacks) > 0 {
		cmp.Or(g.o.Logger, slog.Default()).Warn(
			"httplimit: rules limit nothing here, since no request has an attribute that they need; Options.Identity and Options.Attributes supply more",
			"domain", domain, "rules", door.DescribeLacks(lacks))
	}
}

// checkLimiter returns an error for a Limiter that cannot be asked without a domain.
func checkLimiter(l *weir.Limiter, domain string) error {
	if l == nil {
		return errors.New("httplimit: a nil Limiter; make one with weir.New")
	}
	if rules, _ := l.Rules(); rules != nil && domain == "" {
		if domains := rules.Domains(); len(domains) > 1 {
			return fmt.Errorf("httplimit: the rules hold the domains %s; set Domain to one of them",
				strings.Join(domains, ", "))
		}
	}
	return nil
}

// Enter decides r, and holds it if it must wait. If r may pass it returns a Pass, on which Leave
// must be called when r has been handled. Else it has answered r on w, and returns nil. It may
// replace r.Body.
func (g *Gate) Enter(w http.ResponseWriter, r *http.Request) *Pass {
	p := g.passes.Get().(*Pass)
	p.attrs.Reset(r, g.o.ClientIP, g.o.Identity)
	w = answer.ForGRPC(w, r) // this writes our own answers, never a server's behind
	if g.refuseTarget(w, r, &p.attrs) || g.refuseFields(w, r, &p.attrs) {
		p.reset()
		return nil
	}
	p.request = weir.Request{Door: g.o.Door, Domain: g.o.Domain, Attributes: &p.attrs, Also: p.attrs.also, Hits: 1,
		MaxDelay: weir.RuleDelay}
	if g.o.Trace != nil {
		p.request.Trace = g.o.Trace(r)
	}
	p.w, p.visit.Deadline = w, clientDeadline(r)
	start := door.Begin(g.o.Stopwatch)
	err := p.visit.Decide(r.Context(), g.limiter, &p.request, &p.decision)
	switch {
	case p.visit.WasHeld() || p.asked: // it took as long as it had to wait
	case err != nil:
		door.End(g.o.Stopwatch, start, nil, nil)
	default:
		door.End(g.o.Stopwatch, start, &p.request, &p.decision)
	}
	if failure := cmp.Or(err, p.decision.WithoutStore); failure != nil && !p.visit.HungUp {
		p.failure(failure)
	}
	admitted := err == nil && p.decision.Allowed
	if admitted && p.begin() {
		return p
	}
	p.place.Permit.Return() // before the answer, which may take long
	o := &g.o
	o.CORS.Allow(w.Header(), r, o.Headers)
	switch {
	case p.unready: // and answered
	case p.visit.HungUp:
		w.WriteHeader(statusHungUp) // only a log reads it
	case err != nil:
		answer.StoreError(w)
	case admitted || p.visit.Vetoed: // by the limits, but there is no room
		if p.dawdles && r.ProtoMajor == 1 {
			w.Header().Set("Connection", "close") // or net/http waits for the body before it answers
		}
		answer.Overload(w)
	case o.Refused == nil || !o.Refused(w, r, &p.decision, &p.attrs):
		o.Headers.Refuse(w, r, &p.decision)
	}
	p.Leave()
	return nil
}

// statusHungUp is what servers log for a client that hung up before it was answered (nginx's).
const statusHungUp = 499

// failure reports an error of the store to Options.OnError.
func (p *Pass) failure(err error) {
	if p.gate.o.OnError != nil {
		p.gate.o.OnError(p.attrs.r, err)
	}
}

// Decision returns the decision that let the request pass; nil if there is none, because the store
// failed and the rules admit without it. It is valid until Leave.
func (p *Pass) Decision() *weir.Decision {
	if p.decision.WithoutStore != nil {
		return nil
	}
	return &p.decision
}

// Attributes returns the request's attributes. They are valid until Leave.
func (p *Pass) Attributes() *Attributes { return &p.attrs }

// WriteHeaders sets the rate-limit headers on h, as Headers.Write does, and lets pages of
// Options.CORS read them.
func (p *Pass) WriteHeaders(h http.Header) {
	if p.decision.WithoutStore == nil {
		p.wrote = p.gate.o.Headers.write(h, &p.decision)
		p.gate.o.CORS.Expose(h, p.attrs.r, p.gate.o.Headers)
	}
}

// gather joins the rate-limit headers that a handler has added with ours in h.
func (p *Pass) gather(h http.Header) {
	if p.wrote {
		p.wrote = false
		p.gate.o.Headers.gather(h, &p.decision)
	}
}

// Leave releases the slots that the request held in concurrency limits, settles a cost that is
// known only afterwards, and calls weir.Hooks.Answered with the answer. p must not be used any
// more.
func (p *Pass) Leave() {
	p.end()
	if p.watch != nil {
		p.settle()
	}
	p.visit.Release(p.attrs.r.Context(), p.gate.limiter, &p.decision)
	p.reset()
}

// reset forgets the request and goes back to the pool.
func (p *Pass) reset() {
	p.attrs.Reset(nil, ClientIP{}, nil)
	p.request, p.wrote = weir.Request{}, false
	if cap(p.decision.Limits) > 256 { // do not keep a buffer that a rare request made large
		p.decision = weir.Decision{}
	}
	p.gate.passes.Put(p)
}

// FieldStats counts the requests with fields that servers read in different ways.
func (g *Gate) FieldStats() FieldStats { return g.o.Fields.Stats() }

// Stats counts the requests that a Gate holds, or held.
type Stats struct {
	Held    int // now
	Lines   int // now: one for each key of a limit for which a request waits
	Longest int // requests in the longest line now

	Total uint64 // were held at all
	// of these, were refused since their wait was over, or would have been too short
	Expired    uint64
	HungUp     uint64 // of these, were given up by their clients
	TurnedAway uint64 // were refused since there was no room to wait
}

// Stats returns a reading.
func (g *Gate) Stats() Stats { return Stats(g.lines.Stats()) }

// Drain ends the holding, for a server that is about to stop: requests that wait for a limit to
// admit them are refused at once, as are those that would have to wait from then on. Those that
// have a turn in a leaky bucket keep it. Abandoned requests are waited for no more.
func (g *Gate) Drain() {
	g.lines.Shut()
	g.abandoned.end()
}

// Refunded is for weir.Hooks.Decided. After a refund through another door of this program, the
// requests that wait at g for the refunded limit ask again at once, rather than within a second.
func (g *Gate) Refunded(r *weir.Request, d *weir.Decision) {
	for i := range d.Matches.Hits {
		if h := &d.Matches.Hits[i]; r.Cost() < 0 {
			g.lines.Freed(h.Window.Counter.ID, h.Key)
		}
	}
}
