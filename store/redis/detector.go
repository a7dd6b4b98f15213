package redis

import (
	"sync"
	"sync/atomic"
	"time"
)

// detector is a failure detector: it measures how long the server of a partition takes to answer,
// and says for how long it may be silent before it counts as away. Instants are of the store's
// monotonic clock, in ns. Safe for concurrent use.
type detector struct {
	sentAt     atomic.Int64 // when the oldest unanswered call was sent; 0 if there is none
	swapSentAt atomic.Int64 // the same for compare-and-swaps, of which one is under way at a time
	lastSign   atomic.Int64 // when the server last gave a sign of life
	patience   atomic.Int64 // for how long it may be silent

	mu            sync.Mutex
	termEnd       int64
	longest       int64 // answer of this term
	longestBefore int64 // answer of the term before
}

// A server counts as away when it has been silent for several times as long as its longest answer
// took in the last minute or two (this term and the one before). A moving average with its
// deviation (RFC 6298) would forget within some ten answers what a fork, or a busy machine, does to
// one answer in a thousand. Until there are answers, the server is taken to be slow. A term ends
// with the first answer after its time: if nothing was asked for long, the last measurements still
// count, rather than none.
const (
	detectorTerm  = time.Minute
	firstTerm     = 10 * time.Second // the first guess is forgotten with the next answer after that
	firstGuess    = 250 * time.Millisecond
	silenceFactor = 4
)

func (p *detector) init() {
	p.termEnd, p.longestBefore = int64(firstTerm), int64(firstGuess)
	p.patience.Store(silenceFactor * p.longestBefore)
}

// sent notes that a call is sent.
func (p *detector) sent(now int64) { p.sentAt.CompareAndSwap(0, max(now, 1)) }

// answered notes an answer, and how long it took. A call that fails on the way, or is given up, is
// no answer.
func (p *detector) answered(now, took int64) {
	p.lastSign.Store(now)
	p.sentAt.Store(0)
	p.mu.Lock()
	defer p.mu.Unlock()
	if now >= p.termEnd {
		p.longestBefore, p.longest, p.termEnd = p.longest, 0, now+int64(detectorTerm)
	}
	p.longest = max(p.longest, took)
	p.patience.Store(silenceFactor * max(p.longest, p.longestBefore))
}

// alive notes a sign of life that says nothing about how long an answer takes.
func (p *detector) alive(now int64) { p.lastSign.Store(now) }

// oldestUnanswered returns when the oldest call or swap without an answer was sent; 0 if there is
// none.
func (p *detector) oldestUnanswered() int64 {
	asked, swap := p.sentAt.Load(), p.swapSentAt.Load()
	if asked == 0 || swap != 0 && swap < asked {
		return swap
	}
	return asked
}

// silentSince returns since when calls have been waiting for any sign of life; now if none is
// waiting.
func (p *detector) silentSince(now int64) int64 {
	asked := p.oldestUnanswered()
	if asked == 0 {
		return now
	}
	return max(asked, p.lastSign.Load())
}

// silentUntil returns when the server will have been silent for too long, if it stays silent.
func (p *detector) silentUntil(now int64) int64 { return p.silentSince(now) + p.patience.Load() }
