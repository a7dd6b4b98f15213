package shed

import "time"

// Batch is a connection's record of the requests that it has read at a time. Beside the line of the
// process they stand behind each other: a thousand may take long, where rules are many. The zero
// value is ready. Not safe for concurrent use.
type Batch struct {
	looked int       // requests of the batch
	untold int       // requests that the Door has not heard of
	late   bool      // those at hand are
	clock  time.Time // when the batch began, or soon after; zero until it matters
	from   time.Time // since when the oldest may have waited; zero without overload
	own    Control   // of how long the last of a batch wait for those before
}

// lookEvery is how many requests are taken between two looks at the line and the clock.
const lookEvery = 16

// Late is Door.Late for the next request of the batch.
func (b *Batch) Late(d *Door) bool {
	b.untold++
	if b.looked%lookEvery == 0 {
		b.late = b.look(d)
	}
	b.looked++
	return b.late
}

func (b *Batch) look(d *Door) (late bool) {
	late = d.Late(b.untold)
	b.untold = 0
	if d == nil {
		return false
	}
	overloaded := d.isOverloaded()
	if !overloaded && !b.own.Overloaded() && b.looked == 0 {
		return late
	}
	now := time.Now()
	if b.clock.IsZero() {
		b.clock = now
	}
	if overloaded && b.from.IsZero() {
		b.from = b.clock.Add(-d.line.Waited())
	}
	return late || overloaded && now.Sub(b.from)+time.Duration(d.ahead.Load()) > d.bound ||
		b.own.Overloaded() && now.Sub(b.clock) > d.bound
}

// Since returns since when the requests of the batch may have waited, for a Queue; begun is when
// the batch was read.
func (b *Batch) Since(begun time.Time) time.Time {
	if b.from.IsZero() {
		return begun
	}
	return b.from
}

// End ends the batch: all of it is decided, or turned away.
func (b *Batch) End(d *Door) {
	if b.looked == 0 || d == nil {
		return
	}
	if b.looked > lookEvery {
		now := time.Now()
		b.own.Read(now, now.Sub(b.clock), d.bound)
	} else if !b.own.Overloaded() {
		b.own = Control{}
	} else {
		b.own.Read(time.Now(), 0, d.bound)
	}
	b.looked, b.late, b.clock, b.from = 0, false, time.Time{}, time.Time{}
}
