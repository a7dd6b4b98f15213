package httplimit

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/overload"
)

// AdaptiveOptions configure NewAdaptive. The zero value finds a limit from 1 to 10,000, beginning at 20.
type AdaptiveOptions struct {
	// Fixed is a limit that stays; 0 finds one.
	Fixed int
	// Min and Max bound the limit that is found, and Initial is where it begins. 0 means 1, 10,000 and 20.
	Min, Max, Initial int
}

// Adaptive limits how many requests are under way at the same time, so that what is behind stays quick (docs/overload.md). It
// finds the limit from how long the answers take to begin, or has a fixed one. The rest is refused at once with 503, the least
// important first: a rule's `priority` says what is critical, default or sheddable. Requests that a rule file exempts always pass.
//
// Set it in Options. The same may serve several gates in front of the same servers. Safe for concurrent use; make one with
// NewAdaptive.
type Adaptive struct{ limiter *overload.Limiter }

// NewAdaptive returns an Adaptive. Its errors say which option to change.
func NewAdaptive(o AdaptiveOptions) (*Adaptive, error) {
	l, err := overload.New(overload.Options(o))
	if err != nil {
		return nil, err
	}
	return &Adaptive{l}, nil
}

// AdaptiveStats is a reading of an Adaptive. Arrays are of sheddable, default and critical requests, in this order.
type AdaptiveStats struct {
	Limit    int // in force
	InFlight int
	// Room is how many may be under way for a request of each priority to be admitted.
	Room [3]int
	// Admitted and Refused count requests since it was made.
	Admitted, Refused [3]uint64
	// Baseline is the time to an answer of a server that is not busy, and Latency that of late; 0 if it is not known.
	Baseline, Latency time.Duration
}

// Stats returns a reading.
func (a *Adaptive) Stats() AdaptiveStats { return AdaptiveStats(a.limiter.Stats()) }

// WouldAdmit reports whether a request that decision is about would be admitted now: of Decision.Priority, or exempt.
func (a *Adaptive) WouldAdmit(decision *weir.Decision) bool {
	return a.limiter.WouldAdmit(importance(decision))
}

// Hold counts a request that is passed on by another way than a Gate, until done is called; ok is false if it is to wait. Nothing is
// learnt from how long it takes.
func (a *Adaptive) Hold(decision *weir.Decision) (done func(), ok bool) {
	permit, ok := a.limiter.Acquire(importance(decision))
	return permit.Return, ok
}

// Load is told of the requests that pass, to know how busy a service is (signals of elastic limits). It must be quick, and safe for
// concurrent use.
type Load interface {
	Enter()                         // a request is passed on
	Answered(latency time.Duration) // its answer has begun, this long after it was sent to its end; not for answers of 500 and above
	Leave()                         // it is over; once for each Enter
}

// importance is what counts of d under overload.
func importance(d *weir.Decision) overload.Priority {
	if d.Exempt {
		return overload.Always
	}
	return overload.Priority(d.Priority())
}

// errOverload is what Pass.meet refuses with.
var errOverload = errors.New("httplimit: overloaded")

// passage is the part of a Pass that deals with overload.
type passage struct {
	permit   overload.Permit
	entered  bool // it was passed on
	held     bool // it is, or was, held
	answered bool // the answer has begun, or there is none
	finished bool // the handler has returned
	start    time.Time
	body     *sentBody // nil without one
}

// meet is the request's Met: a request for which there is no room is refused before anything is charged. One that has been held
// takes no place while it waits for its turn to ask again; see begin.
func (p *Pass) meet(d *weir.Decision) error {
	a := p.gate.o.Adaptive
	if a == nil {
		return nil
	}
	p.permit.Return()
	if p.passage.held {
		if !a.limiter.WouldAdmit(importance(d)) {
			return errOverload
		}
		return nil
	}
	var ok bool
	if p.permit, ok = a.limiter.Acquire(importance(d)); !ok {
		return errOverload
	}
	return nil
}

// wait tells that the request is about to be held.
func (p *Pass) wait() {
	p.permit.Return()
	p.passage.held = true
}

// begin tells that the request is passed on now; false if there is no room for it any more.
func (p *Pass) begin() bool {
	o := &p.gate.o
	if o.Adaptive == nil && o.Load == nil {
		return true
	}
	if o.Adaptive != nil && !p.permit.Held() {
		var ok bool
		if p.permit, ok = o.Adaptive.limiter.Acquire(importance(&p.decision)); !ok {
			return false
		}
	}
	p.entered, p.start = true, time.Now()
	p.permit.Restart()
	if r := p.attrs.r; r.ContentLength != 0 && r.Body != nil && r.Body != http.NoBody {
		p.body = &sentBody{ReadCloser: r.Body, start: p.start, length: r.ContentLength}
		r.Body = p.body
	}
	if o.Load != nil {
		o.Load.Enter()
	}
	return true
}

// Answered tells that the answer to the request has begun, with its final status. It is for who passes requests on by other means than
// the handler that New wraps, and knows; without it Leave takes the time until then. Answers of 500 and above count as failures of
// an overloaded server. Only the first call counts.
//
// What is sent after the header, as in a stream, or on a connection that was upgraded, does not count as latency.
func (p *Pass) Answered(status int) {
	if !p.entered || p.answered {
		return
	}
	p.answered = true
	var sent time.Duration // how long the client took to send its request
	known := true
	if p.body != nil {
		sent = time.Duration(p.body.end.Load())
		known = sent > 0 || p.body.read.Load() == 0
	}
	failed := status >= http.StatusInternalServerError
	if l := p.gate.o.Load; l != nil && known && !failed && p.attrs.r.Context().Err() == nil {
		l.Answered(time.Since(p.start) - sent)
	}
	if !p.permit.Streams() {
		return
	}
	p.permit.Exclude(sent)
	switch {
	case failed:
		p.permit.Drop()
	case p.attrs.r.Context().Err() != nil:
		p.permit.Cancel()
	case !known: // the client has not sent all of it, and the time is its own
		p.permit.Return()
	default:
		p.permit.Done()
	}
}

// end tells that the request is over.
func (p *Pass) end() {
	if p.entered {
		switch {
		case p.finished, p.attrs.r.Context().Err() != nil:
			p.Answered(http.StatusOK)
		default: // the handler panicked
			p.Answered(http.StatusInternalServerError)
		}
		p.permit.Done() // of a fixed limit
		if l := p.gate.o.Load; l != nil {
			l.Leave()
		}
	}
	p.permit.Return() // of a request that was not passed on
	p.passage = passage{}
}

// watches reports whether the answer is to be watched for its beginning.
func (p *Pass) watches() bool { return p.entered && !p.answered }

// sentBody notes when the end of a body was reached.
type sentBody struct {
	io.ReadCloser
	start  time.Time
	length int64 // below 0 if it is not known
	read   atomic.Int64
	end    atomic.Int64 // ns since start; 0 if not yet
}

// Read implements io.Reader.
func (b *sentBody) Read(to []byte) (int, error) {
	n, err := b.ReadCloser.Read(to)
	if read := b.read.Add(int64(n)); err == io.EOF || read == b.length {
		b.end.CompareAndSwap(0, max(1, int64(time.Since(b.start))))
	}
	return n, err
}

// RefuseOverload answers 503 for a request that was turned away since what is behind is overloaded, with the problem type
// temporary-reduced-capacity.
func RefuseOverload(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	Problem(w, http.StatusServiceUnavailable, TypeReducedCapacity, titleReducedCapacity,
		"This service is busier than it can be just now, and has to turn some requests away. Yours has not been counted against any limit. Try again in a moment.", nil)
}
