package memory

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/weir-rl/weir/internal/util/pq"
	"github.com/weir-rl/weir/store"
)

// DefaultMaxReservations is the default of Options.MaxReservations.
const DefaultMaxReservations = 100_000

// meanNote bounds the average size of a reservation's id and note, in bytes; maxNote bounds the
// size of one.
const (
	meanNote = 1 << 10
	maxNote  = 1 << 20
)

// reservations holds the notes. Its clock stands still when the store's clock is set back, so that
// no note is held for much longer than was asked.
type reservations struct {
	mu    sync.Mutex
	most  int
	bytes int
	byID  map[string]*reservation
	ends  pq.Heap[*reservation] // by end; made with byID
	last  int64                 // the store's clock when it was read last, µs
	time  int64                 // µs that went by on it
	dirty bool                  // changed since the last snapshot
}

type reservation struct {
	id    string
	note  []byte
	end   int64 // by reservations.time
	place int   // in the heap, under the lock
}

func (r *reservation) size() int { return len(r.id) + len(r.note) }

var _ store.Reserver = (*Store)(nil)

// setBack is by how much a clock must go back, in µs, to have been set back.
const setBack = int64(time.Second / time.Microsecond)

// pass lets the time go by since the clock was read last. The lock is held.
func (r *reservations) pass(now int64) {
	switch {
	case r.last == 0:
		r.last = now
	case now > r.last:
		r.time += now - r.last
		r.last = now
	case r.last-now > setBack:
		r.last = now
	}
}

// add holds a note. The lock is held.
func (r *reservations) add(id string, note []byte, left int64) error {
	switch {
	case len(id)+len(note) > maxNote:
		return fmt.Errorf("memory store: a reservation of %d bytes is too large, the most is %d: %w", len(id)+len(note),
			maxNote, store.ErrNotCharged)
	case len(r.byID) >= r.most:
		return fmt.Errorf(
			"memory store: it holds %d reservations, and no more than that: commit them sooner, hold them for a shorter time, or raise MaxReservations: %w",
			len(r.byID), store.ErrNotCharged)
	case r.bytes+len(id)+len(note) > maxNote+r.most*meanNote:
		return fmt.Errorf(
			"memory store: its %d reservations take %d bytes, and it has no room for more: commit them sooner, hold them for a shorter time, or raise MaxReservations: %w",
			len(r.byID), r.bytes, store.ErrNotCharged)
	case r.byID[id] != nil:
		return fmt.Errorf("memory store: there is a reservation of the id %q already: %w", id, store.ErrNotCharged)
	}
	h := &reservation{id: id, note: append([]byte(nil), note...), end: r.time + left}
	if r.byID == nil {
		r.byID = map[string]*reservation{}
		r.ends = pq.New(
			func(a, b *reservation) bool { return a.end < b.end },
			func(h *reservation, at int) { h.place = at },
		)
	}
	r.byID[id] = h
	r.bytes += h.size()
	r.ends.Push(h)
	r.dirty = true
	return nil
}

// remove removes a reservation and returns its note. The lock is held.
func (r *reservations) remove(h *reservation) []byte {
	r.ends.Remove(h.place)
	delete(r.byID, h.id)
	r.bytes -= h.size()
	r.dirty = true
	return h.note
}

// Hold implements store.Reserver. If it cannot hold the note, the error is store.ErrNotCharged. The
// bound is Options.MaxReservations, which includes reservations that have timed out and that
// Expired has not handed out yet.
func (s *Store) Hold(_ context.Context, id string, note []byte, timeout time.Duration) error {
	if timeout <= 0 {
		return fmt.Errorf("memory store: the time-out of a reservation is %v; it must be above 0: %w", timeout,
			store.ErrNotCharged)
	}
	r := &s.reservations
	now := s.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pass(now)
	return r.add(id, note, max(1, timeout.Microseconds()))
}

// Claim implements store.Reserver. It returns no error.
func (s *Store) Claim(_ context.Context, id string) (note []byte, ok bool, err error) {
	r := &s.reservations
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.byID[id]
	if h == nil {
		return nil, false, nil
	}
	return r.remove(h), true, nil
}

// Expired implements store.Reserver. It returns no error.
func (s *Store) Expired(_ context.Context, n int) (notes [][]byte, err error) {
	r := &s.reservations
	now := s.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pass(now)
	for len(notes) < n && r.ends.Len() > 0 && r.ends.Min().end <= r.time {
		notes = append(notes, r.remove(r.ends.Min()))
	}
	return notes, nil
}

// restore holds a note of a snapshot for the time that is left of it. since is the age of the
// snapshot.
func (r *reservations) restore(id string, note []byte, left, since, now int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pass(now)
	left = min(max(left, 0), maxLeft)
	return r.add(id, note, max(0, left-min(max(since, 0), left)))
}

// maxLeft bounds the time left in a file, which may be damaged: 285 years.
const maxLeft = 1<<53 - 1

// changed returns the reservations held at this moment, and whether any came or went since it was
// last asked. They never change, so they may be read without the lock.
func (r *reservations) changed() (held []*reservation, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ok, r.dirty = r.dirty, false
	return slices.Clone(r.ends.Items()), ok
}

// changes reports whether any came or went since changed was last asked.
func (r *reservations) changes() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dirty
}

// left returns how long one is still to be held; ok is false if it was handed out.
func (r *reservations) left(h *reservation, now int64) (left int64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pass(now)
	return h.end - r.time, r.byID[h.id] == h
}
