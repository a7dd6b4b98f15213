package memory

import (
	"container/heap"
	"context"
	"fmt"
	"sync"
	"time"

	weir "github.com/weir-rl/weir"
)

// DefaultMaxReservations is the default of Options.MaxReservations.
const DefaultMaxReservations = 100_000

// meanNote bounds the bytes of all ids and notes, as much for each reservation on average; maxNote those of one.
const (
	meanNote = 1 << 10
	maxNote  = 1 << 20
)

// reservations are the notes that are held. Their time is of a clock that stands still where the store's is set back, so that none
// is held for much longer than it asked for.
type reservations struct {
	mu    sync.Mutex
	most  int
	bytes int
	byID  map[string]*reservation
	ends  reservationHeap
	last  int64 // the store's clock when it was read last, µs
	time  int64 // µs that went by on it
	dirty bool  // changed since the last snapshot
}

type reservation struct {
	id    string
	note  []byte
	end   int64 // by reservations.time
	place int   // in the heap, under the lock
}

func (r *reservation) size() int { return len(r.id) + len(r.note) }

// reservationHeap has what ends first on top.
type reservationHeap []*reservation

func (h reservationHeap) Len() int           { return len(h) }
func (h reservationHeap) Less(i, j int) bool { return h[i].end < h[j].end }
func (h reservationHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i]; h[i].place, h[j].place = i, j }
func (h *reservationHeap) Push(x any)        { r := x.(*reservation); r.place = len(*h); *h = append(*h, r) }
func (h *reservationHeap) Pop() any {
	old := *h
	last := len(old) - 1
	r := old[last]
	old[last] = nil
	*h = old[:last]
	return r
}

var _ weir.Reserver = (*Store)(nil)

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
		return fmt.Errorf("memory store: a reservation of %d bytes is too large, the most is %d: %w", len(id)+len(note), maxNote, weir.ErrNotCharged)
	case len(r.byID) >= r.most:
		return fmt.Errorf("memory store: it holds %d reservations, and no more than that: commit them sooner, hold them for a shorter time, or raise MaxReservations: %w",
			len(r.byID), weir.ErrNotCharged)
	case r.bytes+len(id)+len(note) > maxNote+r.most*meanNote:
		return fmt.Errorf("memory store: its %d reservations take %d bytes, and it has no room for more: commit them sooner, hold them for a shorter time, or raise MaxReservations: %w",
			len(r.byID), r.bytes, weir.ErrNotCharged)
	case r.byID[id] != nil:
		return fmt.Errorf("memory store: there is a reservation of the id %q already: %w", id, weir.ErrNotCharged)
	}
	h := &reservation{id: id, note: append([]byte(nil), note...), end: r.time + left}
	if r.byID == nil {
		r.byID = map[string]*reservation{}
	}
	r.byID[id] = h
	r.bytes += h.size()
	heap.Push(&r.ends, h)
	r.dirty = true
	return nil
}

// remove forgets what is handed out. The lock is held.
func (r *reservations) remove(h *reservation) []byte {
	heap.Remove(&r.ends, h.place)
	delete(r.byID, h.id)
	r.bytes -= h.size()
	r.dirty = true
	return h.note
}

// Hold implements weir.Reserver. What it cannot hold it says in an error that is weir.ErrNotCharged: Options.MaxReservations are held,
// those included whose time-out has passed and that Expired has not handed out.
func (s *Store) Hold(_ context.Context, id string, note []byte, timeout time.Duration) error {
	if timeout <= 0 {
		return fmt.Errorf("memory store: the time-out of a reservation is %v; it must be above 0: %w", timeout, weir.ErrNotCharged)
	}
	r := &s.reservations
	now := s.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pass(now)
	return r.add(id, note, max(1, timeout.Microseconds()))
}

// Claim implements weir.Reserver. It returns no error.
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

// Expired implements weir.Reserver. It returns no error.
func (s *Store) Expired(_ context.Context, n int) (notes [][]byte, err error) {
	r := &s.reservations
	now := s.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pass(now)
	for len(notes) < n && len(r.ends) > 0 && r.ends[0].end <= r.time {
		notes = append(notes, r.remove(r.ends[0]))
	}
	return notes, nil
}

// empty forgets all; before the store is in use.
func (r *reservations) empty() {
	r.byID, r.ends, r.bytes, r.dirty = nil, nil, 0, false
}

// restore holds a note of a snapshot for the time that is left of it. since is the age of the snapshot.
func (r *reservations) restore(id string, note []byte, left, since, now int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pass(now)
	left = min(max(left, 0), maxLeft)
	return r.add(id, note, max(0, left-min(max(since, 0), left)))
}

// maxLeft bounds what a damaged file may say: 285 years.
const maxLeft = 1<<53 - 1

// all returns those that are held now. What they are may be read without the lock: it does not change.
func (r *reservations) all() []*reservation {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*reservation(nil), r.ends...)
}

// left returns how long one is still to be held; ok is false if it was handed out.
func (r *reservations) left(h *reservation, now int64) (left int64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pass(now)
	return h.end - r.time, r.byID[h.id] == h
}
