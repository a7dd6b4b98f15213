package cas

import "runtime"

// The queue of calls. A connection that is free takes all waiting calls that have no key in flight
// on another connection, in their order: so decisions on one key are made in groups, one write for
// each, and a node never conflicts with itself. No timer is involved: a call that finds a
// connection free is sent at once.

// maxCalls bounds the calls that are sent together, and maxValues the values that they name, unless
// a single call names more.
const (
	maxCalls  = 4096
	maxValues = 512
)

// lockFrom is how often a call may find that others were quicker, until the keys are locked.
const lockFrom = 2

// maxAttempts bounds how often a call is decided anew. Each time another node has come through.
const maxAttempts = 1000

// enqueue queues a call. Its done receives a value once it is delivered.
func (s *Store) enqueue(c *call) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	for i, name := range c.names {
		c.entries = append(c.entries, s.known.pin(name, c.places[i]))
	}
	c.stage = queued
	s.queue = append(s.queue, c)
	s.wakeOne()
	return nil
}

// wakeOne has an idle connection look at the queue; s.mu is held.
func (s *Store) wakeOne() {
	switch {
	case s.closed:
	case s.idle > 0:
		s.idle--
		s.wake <- struct{}{} // never blocks: it has room for all
	case s.workers < s.o.Connections:
		s.workers++
		s.life.Go((&worker{store: s}).run)
	}
}

// giveUp withdraws a call whose caller stops waiting. done reports that it was delivered meanwhile.
// If not, charged reports whether it was sent, and so may be charged. The call is not the caller's
// any more then.
func (s *Store) giveUp(c *call) (done, charged bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case c.stage == delivered:
		return true, true
	case c.stage == queued && c.settles:
		return false, true
	case c.stage == queued: // perhaps again, after others were quicker: then nothing of it was made
		c.stage = withdrawn
		return false, false
	}
	c.stage = abandoned
	return false, true
}

// gather lets goroutines that are about to call enqueue do so, so that their calls join the batch.
// It does not wait: where no goroutine is ready to run, it takes no time.
func (s *Store) gather() {
	for n, before := 0, -1; n != before && n < maxCalls; {
		before = n
		runtime.Gosched()
		s.mu.Lock()
		n = len(s.queue)
		s.mu.Unlock()
	}
}

// take takes a batch off the queue. lock says that its keys are to be locked. An empty batch says
// that there is nothing to do; the worker is idle then.
func (s *Store) take(w *worker) (lock bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scans++
	w.batch, w.entries = w.batch[:0], w.entries[:0]
	kept, left := s.queue[:0], false
	for i, c := range s.queue {
		if c.stage == withdrawn {
			s.unpin(c)
			s.dropped = append(s.dropped, c)
			continue
		}
		if len(w.batch) == maxCalls {
			kept = append(kept, s.queue[i:]...)
			left = true
			break
		}
		wants, free := s.locker != nil && c.attempts >= lockFrom, s.isFree(w, c)
		if !free || len(w.batch) > 0 && !s.joins(w, c, lock, wants) {
			for _, e := range c.entries {
				e.claimed = s.scans
			}
			kept = append(kept, c)
			left = left || free
			continue
		}
		lock = lock || wants
		for _, e := range c.entries {
			if e.owner != w {
				e.owner, e.group = w, -1
				w.entries = append(w.entries, e)
			}
		}
		c.stage = sent
		w.batch = append(w.batch, c)
	}
	clear(s.queue[len(kept):])
	s.queue = kept
	if len(w.batch) == 0 {
		s.idle++
	} else if left {
		s.wakeOne()
	}
	return lock
}

// isFree reports whether no key of a call is in flight on another connection, nor kept by a call
// that came before and waits.
func (s *Store) isFree(w *worker, c *call) bool {
	for _, e := range c.entries {
		if e.owner != nil && e.owner != w || e.claimed == s.scans {
			return false
		}
	}
	return true
}

// joins reports whether a call whose keys are free may go with the batch. One that is to be locked
// begins a batch, which only calls on the same keys join.
func (s *Store) joins(w *worker, c *call, lock, wants bool) bool {
	adds := 0
	for _, e := range c.entries {
		if e.owner != w {
			adds++
		}
	}
	switch {
	case lock:
		return adds == 0
	case wants, !s.spans && c.places[0] != w.batch[0].places[0]:
		return false
	}
	return adds == 0 || len(w.entries)+adds <= maxValues
}

func (s *Store) unpin(c *call) {
	for _, e := range c.entries {
		e.pins--
	}
}

// deliver hands results to the callers that still wait, and outcomes to those that gave up.
func (s *Store) deliver(ready []*call) {
	var late []*call
	s.mu.Lock()
	for _, c := range ready {
		s.unpin(c)
		switch c.stage {
		case sent:
			c.stage = delivered
			c.done <- struct{}{}
		case abandoned:
			c.stage = finished
			if c.onOutcome != nil {
				late = append(late, c)
			}
		}
	}
	s.mu.Unlock()
	for _, c := range late {
		c.onOutcome(c.outcome())
	}
}

// finish drops the worker's hold on its calls and keys. again are calls that are to be decided
// anew: they go to the head of the queue.
func (s *Store) finish(w *worker, again []*call) {
	var gone []*call
	s.mu.Lock()
	kept := again[:0]
	for _, c := range again {
		if c.stage == abandoned && !c.settles || s.closed {
			if c.err = errGivenUp; s.closed {
				c.err = errClosed
			}
			gone = append(gone, c)
			continue
		}
		c.stage = queued
		kept = append(kept, c)
	}
	if len(kept) > 0 {
		s.queue = append(s.queue, kept...) // grow
		copy(s.queue[len(kept):], s.queue)
		copy(s.queue, kept)
	}
	for _, e := range w.entries {
		e.owner = nil
		s.known.count(e)
	}
	clear(w.entries)
	dropped := s.dropped
	s.dropped = nil
	s.mu.Unlock()
	if len(gone) > 0 {
		s.deliver(gone)
	}
	for _, c := range dropped {
		s.putCall(c)
	}
}
