package httplimit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/door/line"
	"github.com/weir-rl/weir/rule"
)

// LimitOptions configure NewLimitTransport. The zero value is right for rules of one domain that
// say themselves how long to wait.
type LimitOptions struct {
	// Domain of the rules; "" is the only one that the rules hold.
	Domain string
	// MaxWait is the longest time for which a request waits until its limits admit it. 0 leaves it
	// to the rules: one with a `wait` is waited for in the order of arrival, and a leaky bucket for
	// its turn; the others refuse at once. Above 0 all limits are waited for but those with
	// count_denied, those without a `wait` in no particular order, and each time that a request
	// asks counts as a refusal.
	MaxWait time.Duration
	// MaxHeld bounds the requests that wait at a time by a rule's `wait` or for a leaky bucket; 0
	// means 10,000.
	MaxHeld int
	// Attributes are more attributes by their names, such as the customer on whose behalf a request
	// is made; see Options.Attributes.
	Attributes map[string]func(*http.Request) string
	// Hits is the cost of a request, in hits; 0 asks and counts nothing. nil means 1. It must be
	// safe for concurrent use.
	Hits func(*http.Request) int64
	// OnError is called when the store failed on a request that went all the same, or when a slot
	// or a cost could not be given back to it; nil means it is not. It must be safe for concurrent
	// use.
	OnError func(r *http.Request, err error)
}

// LimitTransport is an http.RoundTripper that keeps the requests of this program within rules: a
// third party's limits, or a budget of our own. A request is sent only when the rules admit it;
// else it waits (LimitOptions.MaxWait), or fails with a *LimitedError.
//
// The rules see method, host, path, header.* and query.* of the request as it is to be sent, and
// LimitOptions.Attributes. A slot of a concurrency limit is given back when the body of the
// response has been read to its end or closed. The actual cost of a request, by the rule's
// cost_after (docs/guides/costs.md), is settled at the same time, with status 502 for one that got
// no response, and 499 if its context ended before that.
//
// If the store fails, requests that meet only limits with `on_store_error: allow` are sent; others
// fail with its error. Safe for concurrent use; make one with NewLimitTransport. Each redirect that
// a http.Client follows is a request of its own.
type LimitTransport struct {
	base     http.RoundTripper
	limiter  *weir.Limiter
	o        LimitOptions
	identity *Identity
	lines    *line.Lines
	pool     sync.Pool // of *outbound
}

// NewLimitTransport returns a LimitTransport that asks l, and sends by base; nil means
// http.DefaultTransport. Its errors say which option to change.
func NewLimitTransport(l *weir.Limiter, base http.RoundTripper, o LimitOptions) (*LimitTransport, error) {
	if err := checkLimiter(l, o.Domain); err != nil {
		return nil, err
	}
	if o.MaxWait < 0 {
		return nil, errors.New("httplimit: LimitOptions.MaxWait: must not be below 0")
	}
	identity, err := (*Identity)(nil).with(o.Attributes)
	if err != nil {
		return nil, fmt.Errorf("httplimit: %w", err)
	}
	if base == nil {
		base = http.DefaultTransport
	}
	t := &LimitTransport{base: base, limiter: l, o: o, identity: identity, lines: line.New(o.MaxHeld)}
	t.pool.New = func() any {
		out := &outbound{transport: t, visit: t.lines.NewVisit()}
		out.visit.Failed = out.failure
		return out
	}
	return t, nil
}

// LimitedError is why a request was not sent: the rules refuse it.
type LimitedError struct {
	// Limits names the rules that refuse.
	Limits []string
	// RetryAfter is when they would admit it; below 0 never.
	RetryAfter time.Duration
	// ID names the decision; 0 if it has none.
	ID     weir.DecisionID
	method string
	host   string
}

// Error implements error.
func (e *LimitedError) Error() string {
	when := "it asks for more than can ever be admitted"
	if e.RetryAfter >= 0 {
		when = "it may be sent in " + e.RetryAfter.String()
	}
	return fmt.Sprintf("httplimit: %s %s: not sent: refused by %s; %s", e.method, e.host,
		strings.Join(e.Limits, ", "), when)
}

// outbound is one request on its way.
type outbound struct {
	transport *LimitTransport
	visit     *line.Visit
	attrs     Attributes
	request   weir.Request
	decision  weir.Decision
	r         *http.Request
	start     time.Time
}

// RoundTrip implements http.RoundTripper.
func (t *LimitTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	out := t.pool.Get().(*outbound)
	out.r = r
	if err := out.admit(); err != nil {
		// limits in shadow may have given slots
		out.visit.Release(r.Context(), t.limiter, &out.decision)
		out.free()
		closeBody(r)
		return nil, err
	}
	if !out.lasts() {
		out.free()
		return t.base.RoundTrip(r)
	}
	out.start = time.Now()
	resp, err := t.base.RoundTrip(r)
	if err != nil {
		status := http.StatusBadGateway
		if r.Context().Err() != nil {
			status = statusHungUp
		}
		out.end(&http.Response{StatusCode: status}, 0)
		return nil, err
	}
	if resp.Body == nil || resp.Body == http.NoBody {
		out.end(resp, 0)
		return resp, nil
	}
	body := &inbound{ReadCloser: resp.Body, resp: resp}
	body.out.Store(out)
	resp.Body = body
	if _, upgraded := body.ReadCloser.(io.Writer); upgraded {
		resp.Body = inboundConn{body}
	}
	return resp, nil
}

// admit waits until the rules admit the request; else it returns why they do not.
func (out *outbound) admit() error {
	t, r := out.transport, out.r
	out.attrs.Reset(r, ClientIP{}, t.identity)
	if out.attrs.method == "" {
		out.attrs.method = http.MethodGet
	}
	if r.Host == "" {
		out.attrs.host = withoutRootDot(r.URL.Host)
	}
	out.request = weir.Request{Door: "client", Domain: t.o.Domain, Attributes: &out.attrs, Hits: 1,
		MaxDelay: weir.RuleDelay}
	if t.o.Hits != nil {
		out.request.Hits = t.o.Hits(r)
		out.request.Peek = out.request.Hits == 0
	}
	ctx := r.Context()
	var latest time.Time
	if t.o.MaxWait > 0 {
		latest = time.Now().Add(t.o.MaxWait)
		// A turn at the very instant of the deadline would come to nothing.
		if deadline, ok := ctx.Deadline(); ok && !deadline.After(latest) {
			latest = deadline.Add(-time.Microsecond)
		}
		out.request.MaxDelay = max(0, time.Until(latest))
	}
	for decide := out.visit.Decide; ; decide = out.visit.DecideAgain {
		switch err := decide(ctx, t.limiter, &out.request, &out.decision); {
		case out.visit.HungUp:
			return err
		case err != nil:
			return fmt.Errorf("httplimit: %s %s: not sent: the limits could not be checked: %w", out.attrs.method,
				r.URL.Host, err)
		case out.decision.WithoutStore != nil:
			out.failure(out.decision.WithoutStore)
		}
		if out.decision.Allowed {
			return nil
		}
		wait, ok := out.again(latest)
		if !ok {
			return out.refusal()
		}
		// What limits in shadow gave to a request that does not go yet.
		out.visit.Release(ctx, t.limiter, &out.decision)
		if err := sleep(ctx, wait, nil); err != nil {
			return err
		}
		out.request.MaxDelay = max(0, time.Until(latest))
	}
}

// again returns when a refused request asks again; ok is false if it does not. A limit that counts
// refusals has counted this one already: the request would push its own turn away if it were
// charged anew, and go uncharged if not.
func (out *outbound) again(latest time.Time) (wait time.Duration, ok bool) {
	d := &out.decision
	if wait, ok = d.Retry(); !ok || latest.IsZero() {
		return 0, false
	}
	now := time.Now()
	for i := range d.Limits {
		in := d.InForce(i)
		switch {
		case in == nil || !d.Refuses(&d.Limits[i]):
		case in.CountDenied():
			return 0, false
		case in.Delays():
			// Its turn comes when all before it have had theirs, however late it joins.
			if turn, ok := d.Limits[i].Reset(); !ok || now.Add(turn).After(latest) {
				return 0, false
			}
		case in.HasSlots():
			wait = min(wait, slotPoll) // a slot may come free at any time
		}
	}
	return wait, !now.Add(wait).After(latest)
}

// slotPoll is how often a request asks for a slot that has to wait for one without a line.
const slotPoll = 100 * time.Millisecond

// refusal is the error of a refused request.
func (out *outbound) refusal() error {
	d := &out.decision
	e := &LimitedError{Limits: d.LimitedBy(nil), RetryAfter: -1, ID: d.ID, method: out.attrs.method,
		host: out.r.URL.Host}
	if d.Banned.Rule != nil {
		e.Limits = []string{d.Banned.Rule.Name}
	}
	if after, ok := d.Retry(); ok {
		e.RetryAfter = after
	}
	return e
}

// lasts reports whether something is to be done when the request has ended.
func (out *outbound) lasts() bool {
	for i := range out.decision.Limits {
		if out.decision.Limits[i].Slot != "" {
			return true
		}
	}
	return line.CostsAfter(&out.decision)
}

// end settles the cost of the request, and gives back its slots.
func (out *outbound) end(resp *http.Response, bytes int64) {
	t, ctx := out.transport, out.r.Context()
	if line.CostsAfter(&out.decision) {
		field := func(name string) string {
			if v := resp.Trailer[http.CanonicalHeaderKey(name)]; len(v) > 0 {
				return v[len(v)-1]
			}
			return answer.ResponseField(resp.Header, name)
		}
		err := t.lines.Settle(ctx, t.limiter, &out.decision,
			rule.ResponseInfo{Status: resp.StatusCode, Header: field, Bytes: bytes, Duration: time.Since(out.start)})
		if err != nil {
			out.failure(err)
		}
	}
	out.visit.Release(context.WithoutCancel(ctx), t.limiter, &out.decision)
	out.free()
}

func (out *outbound) failure(err error) {
	if f := out.transport.o.OnError; f != nil {
		f(out.r, err)
	}
}

// free forgets the request and goes back to the pool.
func (out *outbound) free() {
	out.attrs.Reset(nil, ClientIP{}, nil)
	out.r, out.request = nil, weir.Request{}
	if cap(out.decision.Limits) > 256 { // do not keep a buffer that a rare request made large
		out.decision = weir.Decision{}
	}
	out.transport.pool.Put(out)
}

// inbound is the body of the response to a request that lasts until its end.
type inbound struct {
	io.ReadCloser
	resp  *http.Response
	bytes atomic.Int64
	out   atomic.Pointer[outbound] // nil when the request has ended
}

// Read implements io.Reader.
func (b *inbound) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.bytes.Add(int64(n))
	if err != nil {
		b.end()
	}
	return n, err
}

// Close implements io.Closer.
func (b *inbound) Close() error {
	err := b.ReadCloser.Close()
	b.end()
	return err
}

func (b *inbound) end() {
	if out := b.out.Swap(nil); out != nil {
		out.end(b.resp, b.bytes.Load())
	}
}

// inboundConn is an inbound of a connection that was upgraded, which is written to as well.
type inboundConn struct{ *inbound }

// Write implements io.Writer.
func (c inboundConn) Write(p []byte) (int, error) { return c.ReadCloser.(io.Writer).Write(p) }
