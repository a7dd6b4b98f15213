package shed

import (
	"sync"
	"time"
)

// Queue holds requests that are decided away from their connections, as goroutines have room: the
// second line that these stand in. The probe does not stand in it, and the scheduler starts ready
// goroutines in no order that could be relied on. So the next goroutine to run takes the oldest
// request, and the age of that is the length of the line. Make one with NewQueue. Safe for
// concurrent use.
type Queue[T any] struct {
	door *Door

	mu      sync.Mutex
	waiting []turn[T] // from at on
	at      int
	control Control
	emptied time.Time // when the last request was taken behind which none waited
	started time.Time // when the last request was taken that was decided, and others waited
	pace    int64     // mean time between such, in ns
}

type turn[T any] struct {
	value T
	since time.Time
}

// maxKept bounds the room that an empty Queue keeps, in requests.
const maxKept = 8 << 10

// NewQueue returns a queue of requests that came through a door; d may be nil.
func NewQueue[T any](d *Door) *Queue[T] { return &Queue[T]{door: d} }

// Put adds requests. since is when they may have come, as Batch.Since says.
func (q *Queue[T]) Put(since time.Time, values ...T) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.door != nil && q.at == len(q.waiting) {
		// Where there is more to do than this process can, there is more as soon as it has done all
		// that it knew of. What others kept from a processor meanwhile has no line left then.
		if now := time.Now(); now.Sub(q.emptied) > short {
			q.control.Read(now, 0, q.door.bound)
		}
	}
	for _, v := range values {
		q.waiting = append(q.waiting, turn[T]{v, since})
	}
	q.tell()
}

// Take returns the oldest request, and whether it is late. There must be one.
func (q *Queue[T]) Take() (value T, late bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	t := q.waiting[q.at]
	q.waiting[q.at] = turn[T]{}
	if q.at++; q.at == len(q.waiting) {
		q.waiting, q.at = q.waiting[:0], 0
		if cap(q.waiting) > maxKept { // a rush was rare
			q.waiting = nil
		}
	} else if q.at >= 1024 && q.at > len(q.waiting)/2 {
		n := copy(q.waiting, q.waiting[q.at:])
		clear(q.waiting[n:])
		q.waiting, q.at = q.waiting[:n], 0
	}
	if q.door != nil {
		late = q.look(t.since)
		q.tell()
	}
	return t.value, late
}

// look takes a reading by a request that gets its turn, and reports whether it is late. mu must be
// held.
func (q *Queue[T]) look(since time.Time) (late bool) {
	d, now := q.door, time.Now()
	waited := now.Sub(since)
	q.control.Read(now, waited, d.bound)
	until := int64(0)
	if q.control.Overloaded() {
		until = int64(q.control.last.Add(calm).Sub(d.line.began))
	}
	d.behind.Store(until)
	late = d.isOverloaded() && waited > d.bound
	left := len(q.waiting) - q.at
	switch {
	case left == 0:
		q.emptied, q.started = now, time.Time{}
	case late:
	case q.started.IsZero():
		q.started = now
	default:
		// a processor that others had, too, is no news of the pace
		took := min(now.Sub(q.started), d.bound)
		q.pace += (int64(took) - q.pace) / paceOf
		q.started = now
	}
	return late
}

// paceOf is how many requests the pace is a mean of.
const paceOf = 64

// tell reports to the door how long the requests wait that are put in now. mu must be held.
func (q *Queue[T]) tell() {
	if q.door != nil {
		q.door.ahead.Store(int64(len(q.waiting)-q.at) * q.pace)
	}
}
