// Package door holds the common parts of all doors of weir, whatever they speak: which domain a
// request without one belongs to, which requests need trust, which are decided at once, how
// decisions are timed, and which hosts and paths are refused because servers read them in different
// ways. Begin with Domain and NeedsTrust.
package door

import (
	"cmp"
	"context"
	"encoding/hex"
	"log/slog"
	"net/http"

	"github.com/weir-rl/weir"
)

// ForwardAuthPath begins the path of each check of forward auth, which the HTTP door serves beside
// its API.
const ForwardAuthPath = "/api/v1/forward-auth"

// FreeHits is how many hits anybody may ask for at once.
const FreeHits = 1000

// NeedsTrust reports whether only trusted peers may ask for so many hits: a refund (below 0), or
// more than FreeHits.
func NeedsTrust(hits int64) bool { return hits < 0 || hits > FreeHits }

// Domain returns the domain of a request: the one that it names, else the one that is configured
// for the door, else the only domain that the rules hold. It returns "" if there is none of these.
func Domain(named, configured string, l *weir.Limiter) string {
	if named != "" {
		return named
	}
	return cmp.Or(configured, l.Phases().SoleDomain())
}

// DecideNow is Limiter.Decide as far as it needs not wait, for a goroutine that others wait for. If
// done is false DecideRest comes next, on another goroutine.
func DecideNow(ctx context.Context, l *weir.Limiter, r *weir.Request, d *weir.Decision) (done bool) {
	p := l.Phases()
	undecided, done := p.MatchNow(r, d)
	if !done || undecided && !p.ChargeNow(r, d) {
		return false
	}
	p.Tell(ctx, r, d)
	return true
}

// DecideRest is what DecideNow has left of Limiter.Decide.
func DecideRest(ctx context.Context, l *weir.Limiter, r *weir.Request, d *weir.Decision) error {
	if d.Rules == nil { // not even matched, or there are no rules yet (weir.RequireRules)
		return l.Decide(ctx, r, d)
	}
	p := l.Phases()
	if err := p.Charge(ctx, r, d); err != nil {
		return err
	}
	p.Tell(ctx, r, d)
	return nil
}

// Begin is s.Begin, and 0 for a nil Stopwatch.
func Begin(s weir.Stopwatch) (start int64) {
	if s == nil {
		return 0
	}
	return s.Begin()
}

// End is s.End of a decision that is in the sample.
func End(s weir.Stopwatch, start int64, r *weir.Request, d *weir.Decision) {
	if start != 0 {
		s.End(start, r, d)
	}
}

// Tracer follows requests in traces. A door without one reads no header for it.
type Tracer interface {
	// Follow begins the span of a decision, under the caller's that traceparent and tracestate name
	// (W3C Trace Context); "" is none. The result is for Request.Trace, and ctx carries the span to
	// the store; it is nil for a request that is not followed.
	Follow(ctx context.Context, traceparent, tracestate string) (context.Context, *weir.Trace)
	// Act is Follow for an act other than a decision, or one that a decision is only a part of: its
	// span goes on until End.
	Act(ctx context.Context, what Act, traceparent, tracestate string) (context.Context, *weir.Trace)
	// Note adds attributes to the span of a request or an act that is followed: texts, numbers,
	// booleans.
	Note(t *weir.Trace, list ...slog.Attr)
	// End ends the span of an act, or of a request whose decision failed with err.
	End(t *weir.Trace, err error)
}

// Act names the span of something that a Tracer follows beside decisions.
type Act string

// Acts that are followed beside decisions.
const (
	Reserve Act = "weir reserve" // a decision, and holding its charges
	Commit  Act = "weir commit"
	Cancel  Act = "weir cancel"
	Release Act = "weir release" // of a slot of a concurrency limit
	Forward Act = "weir forward" // an attempt to send a deferred request
)

// The attributes of spans that doors note.
const (
	AttributeDoor  = "weir.door"
	AttributeFound = "weir.found" // whether the reservation or the slot was there
)

// Follow is t.Follow with the headers of an HTTP request, and does nothing for a nil Tracer.
func Follow(ctx context.Context, t Tracer, h http.Header) (context.Context, *weir.Trace) {
	if t == nil {
		return ctx, nil
	}
	return t.Follow(ctx, h.Get("Traceparent"), h.Get("Tracestate"))
}

// Begun is t.Act with the headers of an HTTP request, and does nothing for a nil Tracer.
func Begun(ctx context.Context, t Tracer, what Act, h http.Header) (context.Context, *weir.Trace) {
	if t == nil {
		return ctx, nil
	}
	return t.Act(ctx, what, h.Get("Traceparent"), h.Get("Tracestate"))
}

// Found ends the span of an act that was followed: err is why it failed, else found says whether
// the act's object was there.
func Found(t Tracer, of *weir.Trace, door string, found bool, err error) {
	if of == nil {
		return
	}
	t.Note(of, slog.String(AttributeDoor, door))
	if err == nil {
		t.Note(of, slog.Bool(AttributeFound, found))
	}
	t.End(of, err)
}

// Traceparent is the field of W3C's Trace Context for work done on behalf of t, which must be a
// followed trace.
func Traceparent(t *weir.Trace) string {
	return "00-" + hex.EncodeToString(t.TraceID[:]) + "-" + hex.EncodeToString(t.SpanID[:]) + "-01"
}

// Followed is t.End of a request that was followed, and does nothing for one that was not.
func Followed(t Tracer, of *weir.Trace, err error) {
	if of != nil {
		t.End(of, err)
	}
}
