package httplimit

import (
	"context"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/overload"
)

// passage is the part of a Pass that deals with overload, and with the answer.
type passage struct {
	place    overload.Place
	answered bool      // the answer has begun, or there is none
	status   int       // of the answer, once answered; 0 if the client went away before
	passed   bool      // the request was passed on, and the hooks want to hear of its answer
	finished bool      // the handler has returned
	body     *sentBody // nil without one

	waited    time.Duration // as told by Waited
	sentFirst bool          // its body had come whole before that

	w       http.ResponseWriter // while Enter runs
	asked   bool                // Options.Ready was, or need not be
	unready bool                // it has answered the request

	dawdles bool // it was turned away, and its body may be long in coming
	kept    bool // its client has hung up, and it keeps its place
	unkept  bool // its client has hung up, and it was to be cut, for want of room
	shares  []share
	forget  func() // ends the context of Abandon
}

// veto turns a request away before it is charged, if there is no room for it.
func (p *Pass) veto(d *weir.Decision) bool {
	if p.crowdedOut(d) {
		return true
	}
	l := p.gate.o.Overload
	if l == nil {
		return false
	}
	refuses := p.place.Refuses(l, d)
	p.gate.makeRoom(d)
	return refuses
}

// begin notes that the request is passed on now; false if there is no room for it any more.
func (p *Pass) begin() bool {
	if l := p.gate.o.Overload; l != nil && !p.place.Permit.Held() {
		// No rule met it, so that nobody has asked yet, or it was held.
		if p.gate.o.Ready != nil && !p.isReady(&p.decision) || p.crowdedOut(&p.decision) {
			return false
		}
	}
	held := p.place.Permit.Held()
	entered := p.place.Enter(p.gate.o.Overload, p.gate.o.Load, &p.decision)
	if !held && p.gate.o.Overload != nil {
		p.gate.makeRoom(&p.decision)
	}
	if !entered {
		return false
	}
	p.passed = p.gate.limiter.Phases().HearsAnswers()
	if r := p.attrs.r; (p.place.Entered || p.Keeps()) && r.ContentLength != 0 && r.Body != nil &&
		r.Body != http.NoBody {
		p.body = &sentBody{ReadCloser: r.Body, start: p.place.Start, length: r.ContentLength}
		r.Body = p.body
	}
	return true
}

// Answered notes that the answer to the request has begun, with its final status. It is for callers
// that pass requests on by other means than the handler that New wraps, and know when the answer
// begins; without it Leave takes the time until then. Answers of 500 and above count as failures of
// an overloaded server, unless the client has hung up, which is none. Only the first call counts.
// Leave passes the status to weir.Hooks.Answered.
//
// The rest of the answer after the header, as in a stream, or on a connection that was upgraded,
// does not count as latency.
func (p *Pass) Answered(status int) {
	if p.answered || !p.place.Entered && !p.passed {
		return
	}
	p.answered = true
	if status = p.final(status); status != statusHungUp {
		p.status = status
	}
	if !p.place.Entered {
		return
	}
	var sent time.Duration // how long the client took to send its request
	known := true
	if p.body != nil {
		sent = time.Duration(p.body.end.Load())
		known = sent > 0 || p.body.read.Load() == 0
	}
	if p.sentFirst || sent == 0 { // else that is part of it
		sent += p.waited
	}
	failed := status >= http.StatusInternalServerError
	hungUp := status == statusHungUp || !p.kept && p.attrs.r.Context().Err() != nil
	if l := p.gate.o.Load; l != nil && known && !failed && !hungUp {
		l.Answered(time.Since(p.place.Start) - sent)
	}
	if !p.place.Permit.Streams() {
		return
	}
	p.place.Permit.Exclude(sent)
	switch {
	case failed:
		p.place.Permit.Drop()
	case hungUp:
		p.place.Permit.Cancel()
	case !known: // the client has not sent all of it, and the time is its own
		p.place.Permit.Return()
	default:
		p.place.Permit.Done()
	}
}

// Waited notes that the request waited for d before it was passed on, for something that a server
// behind has no part in. It does not count as latency.
func (p *Pass) Waited(d time.Duration) {
	p.waited += d
	p.sentFirst = p.body != nil && p.body.end.Load() > 0
}

// AnsweredHere is Answered for an answer that the server behind has no part in, such as a refusal:
// it says nothing of how busy that is.
func (p *Pass) AnsweredHere(status int) {
	if p.answered || !p.place.Entered && !p.passed {
		return
	}
	p.answered = true
	if status = p.final(status); status != statusHungUp {
		p.status = status
	}
	if p.place.Permit.Streams() {
		p.place.Permit.Return()
	}
}

// final returns the status that an answer counts as: a handler that was broken off has not failed.
func (p *Pass) final(status int) int {
	if status >= http.StatusInternalServerError && !p.kept && p.attrs.r.Context().Err() == context.Canceled {
		return statusHungUp
	}
	return status
}

// end notes that the request is over.
func (p *Pass) end() {
	if (p.place.Entered || p.passed) && !p.answered {
		switch {
		case p.attrs.r.Context().Err() != nil:
			p.Answered(statusHungUp)
		case p.finished:
			p.Answered(http.StatusOK)
		default: // the handler panicked
			p.Answered(http.StatusInternalServerError)
		}
	}
	p.place.Leave(p.gate.o.Load)
	p.settleAbandoned()
	if p.passed {
		p.gate.limiter.Phases().Answered(&p.request, &p.decision, weir.Answer{Status: p.status})
	}
	p.passage = passage{}
}

// watches reports whether the answer is to be watched for its beginning.
func (p *Pass) watches() bool { return (p.place.Entered || p.passed) && !p.answered }

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
