package httplimit

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/weir-rl/weir/httplimit/internal/limitfields"
)

// peer is the state that a RetryTransport keeps of one server. Safe for concurrent use.
type peer struct {
	users int       // requests that look at it now; guarded by RetryTransport.mu, as is used
	used  time.Time // when the last one came

	mu struct {
		sync.Mutex
		limits  []told        // at most limitfields.MaxHints
		until   time.Time     // no request before: Retry-After
		spread  time.Duration // and the time after it over which those are spread that waited
		flight  int64         // requests that were sent and not answered
		sent    uint64        // requests ever sent
		budget  float64       // retries that may be made
		changed chan struct{} // closed when an answer comes; nil if no request waits for one
	}
}

// told is a limit of a server, as the server described it last.
type told struct {
	limitfields.Hint
	at      uint64    // by the answer to which request
	end     time.Time // when the hint expires
	waiting int       // requests in the queue
	next    time.Time // when the next one of the queue goes
}

// gap is the time between two requests that waited: they use the quota evenly, rather than all at
// once. 0 if it is not known.
func (l *told) gap() time.Duration {
	switch {
	case l.Quota <= 0:
		return 0
	case l.Window > 0:
		return l.Window / time.Duration(l.Quota)
	}
	return l.Reset / time.Duration(l.Quota)
}

// place is where a request stands that must wait.
type place struct {
	goes   time.Time // when it may go; the zero Time if at once
	crowd  bool      // it may go earlier if an answer comes
	gap    time.Duration
	queue  string // the limit with that gap
	queued bool   // it has its place: after that only new limits of the server hold it up
}

// stand returns how a request stands now that has no place yet, or had s. p.mu is held.
func (p *peer) stand(now time.Time, s place) place {
	p.mu.limits = slices.DeleteFunc(p.mu.limits, func(l told) bool { return l.waiting == 0 && !now.Before(l.end) })
	at := place{}
	if s.queued {
		at = place{queued: true, gap: s.gap, queue: s.queue}
	}
	if p.mu.until.After(now) {
		at.goes = p.mu.until
	}
	crowd := time.Time{}
	for i := range p.mu.limits {
		l := &p.mu.limits[i]
		var goes time.Time
		valid := now.Before(l.end)
		if valid && l.Left == 0 {
			goes = l.end
		}
		if !s.queued && l.waiting > 0 && l.next.After(now) && l.next.After(goes) {
			goes = l.next
		}
		if valid && l.Left > 0 && p.mu.flight >= l.Left && l.end.After(crowd) {
			crowd = l.end
		}
		if goes.IsZero() {
			continue
		}
		if goes.After(at.goes) {
			at.goes = goes
		}
		if gap := l.gap(); gap > at.gap && !s.queued {
			at.gap, at.queue = gap, l.Name
		}
	}
	if at.goes.IsZero() && !crowd.IsZero() {
		at.goes, at.crowd = crowd, true
	}
	return at
}

// take takes the place, which may come later by the room given. p.mu is held.
func (p *peer) take(s place, now time.Time, room time.Duration) place {
	spread := min(s.goes.Sub(now)/4, maxSpread)
	switch {
	case s.crowd:
		spread = max(spread, time.Second)
	case s.queued: // a new limit says that it must wait
	case s.gap > 0:
		for i := range p.mu.limits {
			if l := &p.mu.limits[i]; l.Name == s.queue {
				l.waiting++
				l.next = s.goes.Add(s.gap)
			}
		}
		spread = min(s.gap, time.Second)
		s.queued = true
	default:
		spread = max(spread, p.mu.spread)
		s.queued = true
	}
	s.goes = s.goes.Add(jitter(min(spread, room)))
	return s
}

// give gives the place in a queue back. p.mu is held.
func (p *peer) give(s place) {
	if !s.queued || s.gap == 0 {
		return
	}
	for i := range p.mu.limits {
		if l := &p.mu.limits[i]; l.Name == s.queue && l.waiting > 0 {
			l.waiting--
		}
	}
}

// maxSpread is the longest time over which requests are spread that waited for an instant.
const maxSpread = 10 * time.Second

// jitter returns a random time from 0 to below d.
func jitter(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return rand.N(d)
}

// enter waits until a request may be sent, and returns its number. It waits until the latest
// instant, and not beyond the context's deadline; if it can be seen that this is too short, it
// fails at once.
func (p *peer) enter(ctx context.Context, latest time.Time) (number uint64, err error) {
	var s place // zero, or taken
	for {
		now := time.Now()
		p.mu.Lock()
		at := p.stand(now, s)
		if at.goes.IsZero() {
			p.give(s)
			p.mu.flight++
			p.mu.sent++
			number = p.mu.sent
			p.mu.Unlock()
			return number, nil
		}
		room, err := roomFor(ctx, at, now, latest)
		if err != nil {
			p.give(s)
			p.mu.Unlock()
			return 0, err
		}
		s = p.take(at, now, room)
		end := s.goes
		var changed chan struct{}
		if s.crowd {
			if p.mu.changed == nil {
				p.mu.changed = make(chan struct{})
			}
			if changed = p.mu.changed; latest.Before(end) {
				end = latest
			}
		}
		p.mu.Unlock()
		if err := sleep(ctx, time.Until(end), changed); err != nil {
			p.mu.Lock()
			p.give(s)
			p.mu.Unlock()
			return 0, err
		}
	}
}

// roomFor returns by how much the place may come later; an error if it comes too late already.
func roomFor(ctx context.Context, at place, now, latest time.Time) (time.Duration, error) {
	if at.crowd { // an answer may come any moment
		if now.Before(latest) {
			return maxSpread, nil
		}
		return 0, &WaitError{Wait: at.goes.Sub(now)}
	}
	deadline, ok := ctx.Deadline()
	switch {
	case ok && at.goes.After(deadline):
		return 0, &WaitError{Wait: at.goes.Sub(now), Deadline: true}
	case at.goes.After(latest):
		return 0, &WaitError{Wait: at.goes.Sub(now)}
	case ok && deadline.Before(latest):
		return deadline.Sub(at.goes), nil
	}
	return latest.Sub(at.goes), nil
}

// sleep waits for d, or until wake is closed; it fails if ctx ends first.
func sleep(ctx context.Context, d time.Duration, wake <-chan struct{}) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
	case <-wake:
	}
	return nil
}

// leave notes the answer to the request of that number: hints are the limits in its header; nil if
// none came. wait is Retry-After's, which holds for all requests, 0 for none.
func (p *peer) leave(number uint64, hints []limitfields.Hint, wait, spread time.Duration) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.flight--
	for _, h := range hints {
		p.note(number, h, now)
	}
	if until := now.Add(wait); wait > 0 && until.After(p.mu.until) {
		p.mu.until, p.mu.spread = until, spread
	}
	if p.mu.changed != nil {
		close(p.mu.changed)
		p.mu.changed = nil
	}
}

// note takes over a limit that a server announces, unless a newer announcement is known. p.mu is
// held.
func (p *peer) note(number uint64, h limitfields.Hint, now time.Time) {
	fresh := told{Hint: h, at: number, end: now.Add(h.Reset)}
	first := 0
	for i := range p.mu.limits {
		l := &p.mu.limits[i]
		if l.Name == h.Name {
			if number >= l.at || h.Left < l.Left || !now.Before(l.end) {
				fresh.next, fresh.waiting = l.next, l.waiting
				*l = fresh
			}
			return
		}
		if l.end.Before(p.mu.limits[first].end) {
			first = i
		}
	}
	switch {
	case h.Reset <= 0:
	case len(p.mu.limits) < limitfields.MaxHints:
		p.mu.limits = append(p.mu.limits, fresh)
	case h.Left < p.mu.limits[first].Left && p.mu.limits[first].waiting == 0:
		p.mu.limits[first] = fresh
	}
}

// deposit pays share of a retry into the budget, which holds most of them.
func (p *peer) deposit(share, most float64) {
	p.mu.Lock()
	p.mu.budget = min(most, p.mu.budget+share)
	p.mu.Unlock()
}

// withdraw takes a retry from the budget; false if there is none.
func (p *peer) withdraw() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.budget < 1 {
		return false
	}
	p.mu.budget--
	return true
}
