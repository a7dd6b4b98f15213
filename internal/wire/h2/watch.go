package h2

import (
	"math/rand/v2"
	"time"
)

// watchAll enforces the time-outs of all connections from one goroutine. Comparing counters costs
// the connections nothing; a timer for each read and write would.
func (s *Server) watchAll() {
	every := time.Second
	o := &s.o
	for _, d := range []time.Duration{o.HandshakeTimeout, o.RequestTimeout, o.WriteTimeout, o.WindowTimeout,
		o.IdleTimeout, o.KeepaliveTime, o.KeepaliveTimeout, o.MaxAge, o.MaxAgeGrace} {
		every = min(every, max(d/4, time.Millisecond))
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	var sessions []*session
	for !s.unwatched() {
		select {
		case <-s.ctx.Done():
			return
		case now := <-ticker.C:
			sessions = s.sessions.AppendConns(sessions[:0])
			before, most, busy := s.most.Load(), int64(0), false
			for _, p := range sessions {
				c := p.open()
				if c == nil {
					continue
				}
				if !c.mu.TryLock() {
					busy = true
					continue
				}
				c.look(now)
				if !c.leaving {
					most = max(most, c.client.keeps.Load())
				}
				c.mu.Unlock()
			}
			if !busy {
				s.most.CompareAndSwap(before, most) // unless one has come to keep more meanwhile
			}
			clear(sessions)
		}
	}
}

// drainTime is how long a client may take to learn that its connection drains.
const drainTime = 5 * time.Second

// restTime is after how long a silence a connection gives its buffers back.
const restTime = 2 * time.Second

// watchState holds, for each counter of a connection, since when it has not changed.
type watchState struct {
	endAt                      time.Time // when its client is asked to open a new connection
	reads, calls, write, moved mark
	// when it was asked whether it is there, if it has not answered; else zero
	pinged  time.Time
	drainAt time.Time // when it began to drain
}

// mark is a counter and when it was first seen as it is.
type mark struct {
	n  uint64
	at time.Time
}

func (w *watchState) begin(now time.Time, o *Options) {
	// Spread by a tenth either way.
	w.endAt = now.Add(o.MaxAge - o.MaxAge/10 + rand.N(o.MaxAge/5+1))
	for _, m := range []*mark{&w.reads, &w.calls, &w.write, &w.moved} {
		m.at = now
	}
}

// since returns how long n has not changed.
func (m *mark) since(n uint64, now time.Time) time.Duration {
	if n != m.n {
		m.n, m.at = n, now
	}
	return now.Sub(m.at)
}

// look applies the time-outs to c and its calls. mu must be held.
func (c *conn) look(now time.Time) {
	if c.dead {
		return
	}
	o, w := &c.s.o, &c.watch
	silent := w.reads.since(c.reads, now)
	if len(c.streams) > 0 {
		w.calls.at = now
	}
	idle := w.calls.since(c.calls, now)
	if !c.writing {
		w.write.at = now
	}
	writing := w.write.since(c.writes, now)
	if len(c.queue) == 0 {
		w.moved.at = now
	}
	stalled := w.moved.since(c.moved, now)
	if silent == 0 {
		w.pinged = time.Time{}
	}
	if writing > o.WriteTimeout || stalled > o.WindowTimeout || now.Sub(w.endAt) > o.MaxAgeGrace ||
		!w.pinged.IsZero() && now.Sub(w.pinged) > o.KeepaliveTimeout {
		_ = c.nc.Close() // which ends the reader
		return
	}
	if !c.headerSince.IsZero() && now.Sub(c.headerSince) > o.HandshakeTimeout {
		_ = c.nc.Close()
		return
	}
	if silent > restTime {
		c.rest()
	}
	c.settle()
	if silent > o.KeepaliveTime && w.pinged.IsZero() {
		w.pinged = now
		c.out = appendPing(c.out, 0, alivePing[:])
		c.flushSoon()
	}
	for _, st := range c.streams {
		if st.request.unary != nil && !st.remoteClosed && !st.began.IsZero() && now.Sub(st.began) > o.RequestTimeout {
			c.resetLocked(st.id, cancelled)
			c.flushSoon()
		}
	}
	switch {
	case c.draining == warned && now.Sub(w.drainAt) > drainTime:
		c.drainNow()
		c.flushSoon()
	case c.draining != serving:
	case now.After(w.endAt):
		c.drainLocked("max_age")
	case idle > o.IdleTimeout:
		c.drainLocked("idle")
	}
}
