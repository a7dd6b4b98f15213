// Package waiting says how long a caller waits for a store that answers over a network: as long as
// that gives signs of life.
package waiting

import (
	"sync"
	"sync/atomic"
	"time"
)

// Detector is a failure detector: it measures how long a server takes to answer, and says for how
// long it may be silent before it counts as away. Instants are of store.Monotonic, in ns. Call
// Begin first. Safe for concurrent use.
type Detector struct {
	sentAt   atomic.Int64 // when the oldest unanswered call was sent; 0 if there is none
	asideAt  atomic.Int64 // the same for calls of a second kind, one of which is under way at a time
	lastSign atomic.Int64 // when the server last gave a sign of life
	patience atomic.Int64 // for how long it may be silent
	// since when it cannot be reached, or says that it does not decide; 0 if that is not known
	refusedAt atomic.Int64
	// when this process ran again after it had stood still, and how often that was heeded since the
	// last sign of life
	resumedAt atomic.Int64
	stalls    atomic.Int64

	mu            sync.Mutex
	termEnd       int64
	longest       int64 // answer of this term
	longestBefore int64 // answer of the term before
}

// A server counts as away when it has been silent for several times as long as its longest answer
// took in the last minute or two (this term and the one before). A moving average with its
// deviation (RFC 6298) would forget the effect of a fork, or of a busy machine, on one answer in a
// thousand within some ten answers. Until there are answers, the server is taken to be slow. A term
// ends with the first answer after its time: after a quiet time, the last measurements still count,
// rather than none.
const (
	detectorTerm  = time.Minute
	firstTerm     = 10 * time.Second // the first guess is forgotten with the next answer after that
	firstGuess    = 250 * time.Millisecond
	silenceFactor = 4
)

// maxStalls is how often in a row a silent server is given time anew because this process stood
// still. On a machine that is always busy each wait ends late, and without this bound a server that
// is gone would never count as away.
const maxStalls = 3

// Begin makes a Detector ready, at an instant.
func (d *Detector) Begin(now int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.termEnd, d.longestBefore = now+int64(firstTerm), int64(firstGuess)
	d.patience.Store(silenceFactor * d.longestBefore)
}

// Sent notes that a call is sent. If no other one is under way, it finds out anew whether the
// server can be reached.
func (d *Detector) Sent(now int64) {
	if d.sentAt.CompareAndSwap(0, max(now, 1)) && d.refusedAt.Load() != 0 {
		d.refusedAt.Store(0)
	}
}

// Answered notes an answer, and how long it took. A call that fails on the way, or is given up, is
// no answer.
func (d *Detector) Answered(now, took int64) {
	d.Alive(now)
	d.sentAt.Store(0)
	d.mu.Lock()
	defer d.mu.Unlock()
	if now >= d.termEnd {
		d.longestBefore, d.longest, d.termEnd = d.longest, 0, now+int64(detectorTerm)
	}
	d.longest = max(d.longest, took)
	d.patience.Store(silenceFactor * max(d.longest, d.longestBefore))
}

// Lost notes that no call is under way any more, and that nothing was heard.
func (d *Detector) Lost() { d.sentAt.Store(0) }

// Broken notes that the connection broke on which a call waited for its answer, and that the call
// is sent again over another one. To connect takes some answers' time: the server may be silent
// for twice as long from now on. aside says that it is a call of the second kind.
func (d *Detector) Broken(now int64, aside bool) {
	at := max(1, now+d.patience.Load())
	if aside {
		d.asideAt.Store(at)
	} else {
		d.sentAt.Store(at)
	}
}

// Resumed notes that this process ran again at now, after it had stood still since an instant. An
// answer may wait to be read, or may have to be asked for again. It reports whether the server is
// to be given time anew, as it is a few times without a sign of life.
func (d *Detector) Resumed(since, now int64) bool {
	// All who wait note the same stall: it counts once.
	if last := d.resumedAt.Load(); last < since && d.resumedAt.CompareAndSwap(last, now) {
		d.stalls.Add(1)
	}
	return d.heedsStalls()
}

func (d *Detector) heedsStalls() bool { return d.stalls.Load() <= maxStalls }

// Awaited notes that the server counts as silent from an instant on, not before: until then it is
// taken to be busy with connections.
func (d *Detector) Awaited(from int64) {
	d.lastSign.Store(from)
	d.refusedAt.Store(0)
}

// Refused notes that the server cannot be reached, or does not decide. Until it answers again, it
// is not worth waiting for beyond the least time.
func (d *Detector) Refused(now int64) { d.refusedAt.CompareAndSwap(0, max(now, 1)) }

// Aside notes that a call of the second kind is sent.
func (d *Detector) Aside(now int64) { d.asideAt.Store(max(1, now)) }

// AsideOver notes that it is no longer under way.
func (d *Detector) AsideOver() { d.asideAt.Store(0) }

// Patience returns for how long the server may be silent, in ns.
func (d *Detector) Patience() int64 { return d.patience.Load() }

// Alive notes a sign of life that says nothing about how long an answer takes.
func (d *Detector) Alive(now int64) {
	d.Awaited(now)
	d.stalls.Store(0)
}

// OldestUnanswered returns when the oldest call without an answer was sent; 0 if there is
// none.
func (d *Detector) OldestUnanswered() int64 {
	asked, aside := d.sentAt.Load(), d.asideAt.Load()
	if asked == 0 || aside != 0 && aside < asked {
		return aside
	}
	return asked
}

// silentSince returns since when calls have been waiting for any sign of life; now if none is
// waiting.
func (d *Detector) silentSince(now int64) int64 {
	asked := d.OldestUnanswered()
	if asked == 0 {
		return now
	}
	return max(asked, d.lastSign.Load())
}

// SilentUntil returns when the server will have been silent too long, if it stays silent.
func (d *Detector) SilentUntil(now int64) int64 {
	if d.refuses() {
		return now
	}
	return d.silentSince(now) + d.patience.Load()
}

// refuses reports whether a call waits for a server that is not worth waiting for.
func (d *Detector) refuses() bool { return d.refusedAt.Load() != 0 && d.OldestUnanswered() != 0 }
