package httplimit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/httplimit/internal/limitfields"
)

// RetryOptions configure NewRetryTransport. The zero value is right for most programs.
type RetryOptions struct {
	// MaxAttempts is how often a request is sent at most; 0 means 4, 1 never again.
	MaxAttempts int
	// MaxWait is the longest time that a request spends waiting, of all its attempts together; 0
	// means one minute.
	MaxWait time.Duration
	// Backoff is the longest wait before the second attempt where the server does not say how long
	// to wait; it doubles with each further attempt, up to MaxBackoff, and a random part of it is
	// waited for. 0 means 200 ms and 10 s.
	Backoff, MaxBackoff time.Duration
	// RetryShare bounds the retries to a server to a share of the requests to it, so that a server
	// in trouble is not kept there; 0 means 0.1. RetryBurst is how many may be made beyond that; 0
	// means 10.
	RetryShare float64
	RetryBurst int
	// MaxServers bounds the servers whose limits are remembered; 0 means 1,024.
	MaxServers int
	// Key names the group of requests that a server limits together; nil means URL.Host. For a
	// client that speaks with several identities, or to a server with separate limits for its
	// paths, add those. It must be safe for concurrent use.
	Key func(*http.Request) string
	// Repeatable reports whether a request may be sent again after a server refused it for its
	// limits; nil means one with a safe or idempotent method (RFC 9110 9.2.2) or an
	// Idempotency-Key. One with a body that cannot be read again never is. It must be safe for
	// concurrent use.
	Repeatable func(*http.Request) bool
}

// RetryTransport is an http.RoundTripper that obeys the limits of the servers that it asks:
//
//   - A request that a server refuses for its limits is sent again, if that does no harm (see
//     RetryOptions.Repeatable): after the time that the server asks for, or after a backoff with
//     full jitter if it names none. A refusal is a 429 or a 503, a 403 by which GitHub refuses, or
//     a 400 by which AWS does. The time stands in Retry-After, in Retry-After-Ms, in the field that
//     says when a used-up limit is there again, or in the body as Google and AWS write it there.
//   - The limits that a server announces (RateLimit, RateLimit-Remaining, X-RateLimit-Remaining,
//     X-RateLimit-Remaining-Requests, Anthropic-RateLimit-Requests-Remaining and the fields that
//     belong to them) hold for all requests to it. While no request is left, all wait before they
//     are sent; while some are left, no more than that are sent at a time. Those that waited follow
//     one another at the pace of the limit, if that is known.
//   - If a wait would last beyond the context's deadline, or MaxWait, a request fails at once with
//     a *WaitError, or the server's refusal is returned as it is.
//
// A body in which a time may stand is read ahead, up to 16 KiB and for a second, and is handed on
// whole. Retries do not add to the load of a server that is overloaded already: they are a small
// share of all requests (RetryShare). Nothing is retried for other reasons, such as a connection
// that broke. Safe for concurrent use; make one with NewRetryTransport.
type RetryTransport struct {
	base http.RoundTripper
	o    RetryOptions

	mu    sync.Mutex
	peers map[string]*peer

	retries, spent, waits atomic.Uint64
}

// NewRetryTransport returns a RetryTransport that sends requests by base; nil means
// http.DefaultTransport. Its errors say which option to change.
func NewRetryTransport(base http.RoundTripper, o RetryOptions) (*RetryTransport, error) {
	if base == nil {
		base = http.DefaultTransport
	}
	switch {
	case o.MaxAttempts < 0 || o.MaxWait < 0 || o.Backoff < 0 || o.MaxBackoff < 0 || o.RetryBurst < 0 ||
		o.MaxServers < 0:
		return nil, errors.New("httplimit: RetryOptions: numbers and times must not be below 0")
	case !(o.RetryShare >= 0 && o.RetryShare <= 1):
		return nil, errors.New("httplimit: RetryOptions.RetryShare: must be from 0 to 1")
	}
	setDefault(&o.MaxAttempts, 4)
	setDefault(&o.MaxWait, time.Minute)
	setDefault(&o.Backoff, 200*time.Millisecond)
	setDefault(&o.MaxBackoff, 10*time.Second)
	setDefault(&o.RetryShare, 0.1)
	setDefault(&o.RetryBurst, 10)
	setDefault(&o.MaxServers, 1024)
	return &RetryTransport{base: base, o: o, peers: map[string]*peer{}}, nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// WaitError is why a request was not sent: it would have to wait for longer than it may.
type WaitError struct {
	// Wait is how long it would have to wait at least.
	Wait time.Duration
	// Deadline is true if that is beyond the deadline of the request's context, else it is beyond
	// RetryOptions.MaxWait.
	Deadline bool
	method   string
	host     string
}

// Error implements error.
func (e *WaitError) Error() string {
	bound := "for longer than RetryOptions.MaxWait"
	if e.Deadline {
		bound = "beyond the deadline"
	}
	return fmt.Sprintf("httplimit: %s %s: not sent: the server asks to wait for %v, %s", e.method, e.host,
		e.Wait.Round(time.Millisecond), bound)
}

// Unwrap makes it a context.DeadlineExceeded if that is the reason.
func (e *WaitError) Unwrap() error {
	if e.Deadline {
		return context.DeadlineExceeded
	}
	return nil
}

// RetryStats counts the work of a RetryTransport.
type RetryStats struct {
	Retries uint64 // requests sent again
	Spent   uint64 // refusals that were returned since there had been too many retries
	Waits   uint64 // requests that failed with a WaitError
}

// Stats returns the present counts.
func (t *RetryTransport) Stats() RetryStats {
	return RetryStats{Retries: t.retries.Load(), Spent: t.spent.Load(), Waits: t.waits.Load()}
}

// RoundTrip implements http.RoundTripper.
func (t *RetryTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	p, forget := t.peerOf(r)
	defer forget()
	p.deposit(t.o.RetryShare, float64(t.o.RetryBurst))
	ctx := r.Context()
	latest := time.Now().Add(t.o.MaxWait)
	for attempt, out := 1, r; ; attempt++ {
		number, err := p.enter(ctx, latest)
		if err != nil {
			closeBody(out)
			return nil, t.failure(err, r)
		}
		resp, err := t.base.RoundTrip(out)
		if err != nil {
			p.leave(number, nil, 0, 0)
			return nil, err
		}
		now := time.Now()
		var scratch [limitfields.MaxHints]limitfields.Hint
		hints := limitfields.AppendHints(scratch[:0], resp.Header, now)
		told := limitfields.RefusalOf(ctx, resp, hints, now)
		backoff := t.backoff(attempt)
		var wait time.Duration
		if told.Refused {
			wait = told.Wait
		}
		p.leave(number, hints, min(wait, max(limitfields.MaxReset, t.o.MaxWait)), backoff)
		resp.Request = r
		if !told.Refused || told.Never || attempt >= t.o.MaxAttempts || !t.repeatable(r) {
			return resp, nil
		}
		// where the server did not say for how long; else all that ask it wait, in enter
		var pause time.Duration
		if wait == 0 {
			pause = jitter(backoff)
		}
		if at := now.Add(min(wait, math.MaxInt64/2) + pause); at.After(latest) || pastDeadline(ctx, at) {
			return resp, nil
		}
		if !p.withdraw() {
			t.spent.Add(1)
			return resp, nil
		}
		again, err := repeat(r)
		if err != nil {
			return resp, nil // the body is not to be had again
		}
		discard(resp)
		if err := sleep(ctx, pause, nil); err != nil {
			closeBody(again)
			return nil, err
		}
		t.retries.Add(1)
		out = again
	}
}

// failure completes an error of peer.enter.
func (t *RetryTransport) failure(err error, r *http.Request) error {
	if w, ok := errors.AsType[*WaitError](err); ok {
		t.waits.Add(1)
		w.method, w.host = r.Method, r.URL.Host
		if w.method == "" {
			w.method = http.MethodGet
		}
	}
	return err
}

// backoff is the longest wait after an attempt where the server does not say how long to wait.
func (t *RetryTransport) backoff(attempt int) time.Duration {
	d := t.o.Backoff
	for range attempt - 1 {
		if d >= t.o.MaxBackoff/2 {
			return t.o.MaxBackoff
		}
		d *= 2
	}
	return min(d, t.o.MaxBackoff)
}

func pastDeadline(ctx context.Context, at time.Time) bool {
	deadline, ok := ctx.Deadline()
	return ok && at.After(deadline)
}

// repeatable reports whether r may be sent again.
func (t *RetryTransport) repeatable(r *http.Request) bool {
	if r.Body != nil && r.Body != http.NoBody && r.GetBody == nil {
		return false
	}
	if t.o.Repeatable != nil {
		return t.o.Repeatable(r)
	}
	switch r.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	return len(r.Header["Idempotency-Key"]) > 0 || len(r.Header["X-Idempotency-Key"]) > 0
}

// repeat returns r with its body from the beginning.
func repeat(r *http.Request) (*http.Request, error) {
	again := r.WithContext(r.Context()) // a copy
	if r.Body != nil && r.Body != http.NoBody {
		body, err := r.GetBody()
		if err != nil {
			return nil, err
		}
		again.Body = body
	}
	return again, nil
}

func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}

// discard reads the rest of a small answer, so that its connection can be used again, and
// closes it. One that does not come within a second is given up.
func discard(resp *http.Response) {
	const most = 16 << 10
	if resp.ContentLength <= most {
		slow := time.AfterFunc(time.Second, func() { _ = resp.Body.Close() })
		_, _ = io.CopyN(io.Discard, resp.Body, most)
		slow.Stop()
	}
	_ = resp.Body.Close()
}

// peerOf returns the state of the server that r goes to; forget is called when that is needed
// no more.
func (t *RetryTransport) peerOf(r *http.Request) (p *peer, forget func()) {
	key := ""
	if t.o.Key != nil {
		key = t.o.Key(r)
	} else {
		key = r.URL.Host
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p = t.peers[key]
	if p == nil {
		p = &peer{}
		p.mu.budget = float64(t.o.RetryBurst)
		if len(t.peers) < t.o.MaxServers || t.evict() {
			t.peers[key] = p
		}
	}
	p.users++
	p.used = time.Now()
	return p, func() {
		t.mu.Lock()
		p.users--
		t.mu.Unlock()
	}
}

// evict forgets a server that has not been asked for a long time, and is not being asked; false if
// none was found. t.mu is held.
func (t *RetryTransport) evict() bool {
	oldest, seen := "", 0
	var used time.Time
	for key, p := range t.peers { // in random order: a sample is enough
		if p.users == 0 && (used.IsZero() || p.used.Before(used)) {
			oldest, used = key, p.used
		}
		if seen++; seen == 32 {
			break
		}
	}
	if used.IsZero() {
		return false
	}
	delete(t.peers, oldest)
	return true
}
