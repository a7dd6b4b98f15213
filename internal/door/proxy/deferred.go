package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/door/proxy/deferred"
	"github.com/weir-rl/weir/internal/util/clientip"
	"github.com/weir-rl/weir/internal/util/sparselog"
	"github.com/weir-rl/weir/overload"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// ticketPath is the path below which clients ask about a deferred request. The proxy answers it
// itself, without asking any limit. No API has paths of Weir's name.
const ticketPath = "/.weir/tickets/"

// Headers that the upstream gets with a deferred request. Since it may come more than once, a
// client that sends no Idempotency-Key of its own gets its ticket's for one
// (draft-ietf-httpapi-idempotency-key-header).
const (
	hdrIdempotency = "Idempotency-Key"
	hdrTicket      = "X-Weir-Ticket"
	hdrAttempt     = "X-Weir-Attempt"
)

// ownFields are those that only the proxy sets.
var ownFields = []string{hdrTicket, hdrAttempt}

// Deferral configures Options.Defer, for requests that rules with on_limit: {defer: …} refuse.
type Deferral struct {
	Queue deferred.Queue
	// MaxBody bounds the body of a request that is deferred, in bytes; a larger one is refused as
	// without deferring. 0 means 1 MiB.
	MaxBody int64
	// Tracer follows deferred requests whose original requests were followed; nil means that nobody
	// does.
	Tracer door.Tracer
	// Worker is how the queue is worked off; Ask, Send and Logf are filled in.
	Worker deferred.Options
}

// deferrals is the part of a proxy that defers.
type deferrals struct {
	Deferral
	proxy   *Proxy
	limiter *weir.Limiter
	worker  *deferred.Worker
	open    sync.Map // *opened by the ID of a job that is being forwarded
	reading *readings
}

func newDeferrals(p *Proxy, l *weir.Limiter, o *Deferral) (*deferrals, error) {
	if o.Queue == nil {
		return nil, errors.New("proxy: deferring needs a queue")
	}
	d := &deferrals{Deferral: *o, proxy: p, limiter: l, reading: newReadings(mostReading)}
	if d.MaxBody == 0 {
		d.MaxBody = 1 << 20
	}
	w := o.Worker
	w.Ask, w.Send, w.Logf = d.ask, d.send, p.o.Logf
	d.worker = deferred.NewWorker(o.Queue, w)
	return d, nil
}

// refused defers a refused request, and reports whether it has answered it.
func (s *deferrals) refused(w http.ResponseWriter, r *http.Request, d *weir.Decision, a *httplimit.Attributes) bool {
	queue := d.DeferTo()
	if queue == "" || answer.IsGRPC(r) || r.Header.Get("Upgrade") != "" || r.ContentLength > s.MaxBody ||
		a.Also() != nil {
		return false // of a request with several readings a job would hold one, and a call waits for its answer
	}
	attributes := maps.Collect(a.All())
	if !keepable(r, attributes) {
		return false
	}
	body, err := s.readBody(w, r)
	if err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			return false
		}
		if errors.Is(err, deferred.ErrFull) {
			s.noRoom(err)
			return false
		}
		status, detail := s.proxy.blame(w, r, err)
		answer.ProblemDetails(w, status, "", "", detail, nil)
		return true
	}
	j := &deferred.Job{
		ID: deferred.NewID(), Queue: queue, Line: lineOf(d), Queued: time.Now(), Domain: d.Domain,
		Attributes: attributes, Method: r.Method, URI: r.URL.RequestURI(), Host: r.Host, Proto: "http",
		RemoteAddr: r.RemoteAddr,
		Header:     r.Header.Clone(), Body: body, // the server uses its own again
	}
	if r.TLS != nil {
		j.Proto = "https"
	}
	switch err := s.Queue.Put(r.Context(), j); {
	case errors.Is(err, deferred.ErrFull): // refused, with the time at which to come back
		s.noRoom(err)
		return false
	case err != nil:
		if r.Context().Err() == nil {
			s.proxy.warn(&s.proxy.lines.notDeferred, "proxy: a request was refused, since it could not be deferred: %s",
				sparselog.Excerpt(err.Error()))
		}
		return false
	}
	s.worker.Wake()
	h := w.Header()
	h.Set("Location", ticketPath+j.ID)
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Type", "application/json")
	if d.RetryAfter != algo.Never {
		h.Set("Retry-After", strconv.FormatInt(max(1, (d.RetryAfter+999_999)/1_000_000), 10))
	}
	w.WriteHeader(http.StatusAccepted)
	_ = json.NewEncoder(w).Encode(map[string]string{"state": string(deferred.Queued), "ticket": j.ID,
		"status_url": ticketPath + j.ID})
	return true
}

// lineOf names the line for the limit and key that refuse longest.
func lineOf(d *weir.Decision) string {
	near := d.Nearest()
	h := fnv.New128a()
	for i := range d.Limits {
		if &d.Limits[i] == near && i < len(d.Matches.Hits) {
			_, _ = h.Write(binary.BigEndian.AppendUint64(nil, near.Window.Counter.ID))
			_, _ = h.Write(d.Matches.Hits[i].Key)
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

func (s *deferrals) readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	if b, ok := r.Body.(*clientBody); ok && s.proxy.o.BodyTimeout > 0 {
		b.within(s.proxy.o.BodyTimeout)
	}
	of := clientip.Network(s.proxy.o.ClientIP.Of(r))
	return s.reading.read(http.MaxBytesReader(w, r.Body, s.MaxBody), of)
}

// noRoom notes that a request was refused for want of room.
func (s *deferrals) noRoom(err error) {
	s.worker.NoRoom(err)
	s.proxy.warn(&s.proxy.lines.noRoom, "proxy: a request was refused, since it could not be deferred: %v", err)
}

// keepable reports whether a job can hold r as it is: it is kept as JSON, whose texts are UTF-8.
func keepable(r *http.Request, attributes map[string]string) bool {
	if !utf8.ValidString(r.URL.RequestURI()) || !utf8.ValidString(r.Host) {
		return false
	}
	for name, value := range attributes {
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			return false
		}
	}
	for _, lines := range r.Header {
		for _, line := range lines {
			if !utf8.ValidString(line) {
				return false
			}
		}
	}
	return true
}

// serveTicket reports the state of a deferred request. Every client that has the ticket may ask,
// and may drop the request while it waits.
func (s *deferrals) serveTicket(w http.ResponseWriter, r *http.Request) {
	id := strings.TrimPrefix(r.URL.Path, ticketPath)
	if !deferred.ValidID(id) {
		answer.ProblemDetails(w, http.StatusNotFound, "", "", "There is no such ticket.", nil)
		return
	}
	var t deferred.Ticket
	var err error
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		t, err = s.Queue.Ticket(r.Context(), id)
	case http.MethodDelete:
		if t, err = s.Queue.Ticket(r.Context(), id); err == nil && t.State != deferred.Queued {
			answer.ProblemDetails(w, http.StatusConflict, "", "", "The request does not wait any more.",
				map[string]any{"state": t.State})
			return
		}
		if err == nil {
			err = s.Queue.Drop(r.Context(), id)
		}
	default:
		w.Header().Set("Allow", "GET, HEAD, DELETE")
		answer.ProblemDetails(w, http.StatusMethodNotAllowed, "", "",
			"A ticket is asked for with GET, and dropped with DELETE.", nil)
		return
	}
	switch {
	case errors.Is(err, deferred.ErrGone):
		answer.ProblemDetails(w, http.StatusNotFound, "", "", "There is no such ticket.", nil)
	case errors.Is(err, deferred.ErrActive):
		answer.ProblemDetails(w, http.StatusConflict, "", "", "The request is being forwarded just now.", nil)
	case err != nil:
		s.proxy.warn(&s.proxy.lines.ticket, "proxy: a ticket: %s", sparselog.Excerpt(err.Error()))
		w.Header().Set("Retry-After", "1")
		answer.ProblemDetails(w, http.StatusServiceUnavailable, answer.TypeReducedCapacity, "",
			"The queue cannot be reached just now. Try again in a moment.", nil)
	case r.Method == http.MethodDelete:
		w.WriteHeader(http.StatusNoContent)
	default:
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		t.Error = "" // of the upstream and the network behind this proxy
		_ = json.NewEncoder(w).Encode(t)
	}
}

// opened is the decision on a job that may be forwarded, and its place at the upstream.
type opened struct {
	weir.Decision
	leave func() // gives its place at the upstream back; to be called once
}

// enter takes a place at the upstream for a job, which leave gives back: in its turn, with the
// requests of clients. false if there was none for a while.
func (s *deferrals) enter(ctx context.Context) (leave func(), ok bool) {
	p := s.proxy
	if p.places == nil || p.multiplexed.Load() { // no job has an Upgrade
		return nothing, true
	}
	ctx, cancel := context.WithTimeout(ctx, p.placeWait)
	defer cancel()
	if _, err := p.places.Enter(ctx, nil, 0); err != nil {
		return nil, false
	}
	return sync.OnceFunc(func() { p.places.Leave(nil) }), true
}

// askAgain is how long a job waits whose limit is closed for a time that is not known.
const askAgain = 10 * time.Second

// ask asks the limits for a job that waits, once there is a place for it: what finds none is not
// charged, and waits on without an attempt.
func (s *deferrals) ask(ctx context.Context, j *deferred.Job) (ok bool, leave func(), retry time.Duration, err error) {
	exit, ok := s.enter(ctx)
	if !ok {
		return false, nil, time.Second, nil
	}
	o := &opened{leave: exit}
	d, done := &o.Decision, exit // which also gives the place under Options.Overload back
	phases := s.limiter.Phases()
	request := weir.Request{Domain: j.Domain, Attributes: weir.Map(j.Attributes), Hits: 1, Door: "deferred"}
	undecided := phases.Match(&request, d)
	if undecided {
		if guard := s.proxy.o.Overload; guard != nil {
			permit, ok := guard.Acquire(overload.PriorityOf(d))
			if !ok {
				exit()
				return false, nil, time.Second, nil
			}
			// how long it takes teaches nothing: the worker waits its turn
			done = func() { exit(); permit.Return() }
		}
	}
	followed, trace := s.follow(ctx, j, "")
	if request.Trace = trace; trace != nil {
		defer func() { s.Tracer.End(trace, err) }()
	}
	if undecided {
		err = phases.Charge(followed, &request, d)
	}
	if err == nil {
		phases.Tell(ctx, &request, d)
	}
	switch {
	case err != nil:
		done()
		return false, nil, 0, fmt.Errorf("the limits cannot be asked: %w", err)
	case d.Allowed:
		s.open.Store(j.ID, o)
		return true, func() {
			s.open.Delete(j.ID)
			done()
			s.release(ctx, d)
		}, 0, nil
	}
	done()
	if after, ok := d.Retry(); ok {
		return false, nil, after, nil
	}
	if d.UnknownDomain() { // until a rule file declares it, or the job is too old
		return false, nil, askAgain, nil
	}
	for i := range d.Limits {
		// Closed by a signal, a schedule or a grant: that passes.
		if d.Refuses(&d.Limits[i]) && i < len(d.Matches.Hits) && d.InForce(i) != d.Limits[i].Window.Limit {
			return false, nil, askAgain, nil
		}
	}
	return false, nil, -1, nil
}

// follow begins a span below the span of the original request, if that was followed: of an act, or
// else of a decision. A job that was not followed when it came is not followed later.
func (s *deferrals) follow(ctx context.Context, j *deferred.Job, what door.Act) (context.Context, *weir.Trace) {
	if s.Tracer == nil {
		return ctx, nil
	}
	h := http.Header(j.Header)
	traceparent := h.Get("Traceparent")
	switch {
	case traceparent == "":
		return ctx, nil
	case what == "":
		return s.Tracer.Follow(ctx, traceparent, h.Get("Tracestate"))
	}
	return s.Tracer.Act(ctx, what, traceparent, h.Get("Tracestate"))
}

// release gives the slots back that a job held.
func (s *deferrals) release(ctx context.Context, d *weir.Decision) {
	for i := range d.Limits {
		if slot := d.Limits[i].Slot; slot != "" {
			ctx, done := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			if _, err := s.limiter.Release(ctx, slot); err != nil {
				s.proxy.warn(&s.proxy.lines.slotsKept, "proxy: a slot ends with its time-out: %s",
					sparselog.Excerpt(err.Error()))
			}
			done()
		}
	}
}

// send forwards a job as the proxy would have forwarded the request.
func (s *deferrals) send(ctx context.Context, j *deferred.Job) (status int, err error) {
	u, err := url.ParseRequestURI(j.URI)
	if err != nil {
		return 0, fmt.Errorf("a target that cannot be read: %w", err)
	}
	r := &http.Request{
		Method: j.Method, URL: u, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header(j.Header).Clone(), Host: j.Host,
		RemoteAddr: j.RemoteAddr, RequestURI: j.URI, ContentLength: int64(len(j.Body)), Body: http.NoBody,
	}
	if len(j.Body) > 0 {
		r.Body = io.NopCloser(bytes.NewReader(j.Body))
	}
	if j.Proto == "https" {
		r.TLS = &tls.ConnectionState{}
	}
	if r.Header == nil {
		r.Header = http.Header{}
	}
	r.Header.Del("Expect") // was answered when it was deferred
	// What Connection names is of the client's connection, and would be taken away later, our own
	// headers with it.
	for _, line := range r.Header["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			r.Header.Del(strings.TrimSpace(name))
		}
	}
	r.Header.Del("Connection")
	if r.Header.Get(hdrIdempotency) == "" {
		r.Header.Set(hdrIdempotency, j.ID)
	}
	r.Header.Set(hdrTicket, j.ID)
	r.Header.Set(hdrAttempt, strconv.Itoa(j.Attempts+1))
	ctx, trace := s.follow(ctx, j, door.Forward)
	if trace != nil {
		r.Header.Set("Traceparent", door.Traceparent(trace))
		defer func() {
			s.Tracer.Note(trace, slog.String(door.AttributeDoor, "deferred"), slog.Int("weir.attempt", j.Attempts+1))
			if status != 0 {
				s.Tracer.Note(trace, slog.Int("http.response.status_code", status))
			}
			s.Tracer.End(trace, err)
		}()
	}
	var attributes httplimit.Attributes
	attributes.Reset(r, s.proxy.o.ClientIP, nil)
	e := &exchange{Context: ctx, path: attributes.Path(), host: attributes.Host()}
	// makes a response that breaks off a panic
	r = r.WithContext(context.WithValue(e, http.ServerContextKey, http.DefaultServeMux))
	out := &unread{header: http.Header{}, start: time.Now()}
	defer func() {
		if o, ok := s.open.Load(j.ID); ok {
			o.(*opened).leave() // what follows needs no upstream
			s.settle(ctx, o.(*opened), out, err)
		}
	}()
	defer func() {
		if broken := recover(); broken != nil {
			if broken != http.ErrAbortHandler {
				panic(broken)
			}
			status, err = 0, errors.New("the upstream's answer broke off")
		}
	}()
	s.proxy.reverse.ServeHTTP(out, r)
	if e.err != nil {
		return 0, e.err
	}
	return out.status, nil
}

// settle replaces the estimates that rules with cost_after have charged by the cost of an attempt.
func (s *deferrals) settle(ctx context.Context, o *opened, a *unread, failed error) {
	info := rule.ResponseInfo{Status: a.status, Header: a.value, Bytes: a.bytes, Duration: time.Since(a.start)}
	if failed != nil {
		info.Status = http.StatusBadGateway
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err := s.limiter.Settle(ctx, &o.Decision, func(of *rule.Rule, estimate int64) (int64, bool) {
		info.Estimate = estimate
		return of.CostOf(info) // not ok if the rule has no cost_after
	})
	if err != nil && !errors.Is(err, store.ErrNoReservations) {
		s.proxy.warn(&s.proxy.lines.costsStayEstimates,
			"proxy: what a deferred request cost stays as it was estimated: %s", sparselog.Excerpt(err.Error()))
	}
}

// unread is the http.ResponseWriter of a deferred request, for whose answer no client waits.
type unread struct {
	header http.Header
	start  time.Time
	status int
	bytes  int64 // of the body
}

// value returns a header or a trailer by its name.
func (a *unread) value(name string) string { return answer.ResponseField(a.header, name) }

// Header implements http.ResponseWriter.
func (a *unread) Header() http.Header { return a.header }

// Write implements http.ResponseWriter.
func (a *unread) Write(p []byte) (int, error) {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	a.bytes += int64(len(p))
	return len(p), nil
}

// WriteHeader implements http.ResponseWriter.
func (a *unread) WriteHeader(status int) {
	if status >= 200 && a.status == 0 {
		a.status = status
	}
}

// Flush implements http.Flusher.
func (a *unread) Flush() {}
