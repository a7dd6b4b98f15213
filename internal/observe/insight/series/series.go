// Package series holds counts over time, at several resolutions, and the file that keeps them over
// a restart.
package series

import (
	"slices"

	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
)

// ring is a ring of counts, each over step seconds. The number of a step is the Unix time
// divided by step.
type ring[B comparable] struct {
	step    int64
	last    int64 // number of the newest
	buckets []B
}

// advance makes the step of an instant the newest, if that is later.
func (w *ring[B]) advance(unix int64) {
	n, size := unix/w.step, int64(len(w.buckets))
	if size == 0 || n <= w.last {
		return
	}
	for i := max(w.last+1, n-size+1); i <= n; i++ {
		var empty B
		w.buckets[i%size] = empty
	}
	w.last = n
}

// at returns where to count an instant; nil if that is older than the ring, or there is none.
func (w *ring[B]) at(unix int64) *B {
	size := int64(len(w.buckets))
	if size == 0 {
		return nil
	}
	w.advance(unix)
	n := unix / w.step
	if n <= w.last-size {
		return nil
	}
	return &w.buckets[n%size]
}

// each calls f for the steps from one instant up to now, oldest first, empty ones too.
func (w *ring[B]) each(from, now int64, f func(unix int64, b *B)) {
	size := int64(len(w.buckets))
	var empty B
	for n := max(from/w.step, now/w.step-size+1); n <= now/w.step; n++ {
		if n > w.last || n <= w.last-size {
			f(n*w.step, &empty)
			continue
		}
		f(n*w.step, &w.buckets[n%size])
	}
}

// oldest returns when the oldest step that is not empty begins; the end of time if all are empty.
func (w *ring[B]) oldest() int64 {
	size := int64(len(w.buckets))
	var empty B
	for n := max(w.last-size+1, 0); n <= w.last; n++ {
		if w.buckets[n%size] != empty {
			return n * w.step
		}
	}
	return 1<<63 - 1
}

// wheel is a ring of buckets.
type wheel struct{ ring[snapshot.Bucket] }

func newWheel(step int64, n int) wheel {
	return wheel{ring[snapshot.Bucket]{step: step, buckets: make([]snapshot.Bucket, n)}}
}

// add counts at an instant; what is older than the ring is lost.
func (w *wheel) add(unix int64, b *snapshot.Bucket) {
	if into := w.at(unix); into != nil {
		into.Add(b)
	}
}

// within sums the counts from one instant to before another. A bucket that lies in that time in
// part counts in part.
func (w *wheel) within(from, to int64) (count snapshot.Counts) {
	w.each(from, to-1, func(unix int64, b *snapshot.Bucket) {
		part := min(unix+w.step, to) - max(unix, from)
		for i, v := range b {
			count[i] += (uint64(v)*uint64(part) + uint64(w.step)/2) / uint64(w.step)
		}
	})
	return count
}

// Tally is a ring of single counts. The zero value has no room, and counts nothing. Not safe for
// concurrent use.
type Tally struct{ ring[uint32] }

// NewTally returns a tally of n steps, each of so many seconds.
func NewTally(step int64, n int) Tally {
	return Tally{ring[uint32]{step: step, buckets: make([]uint32, n)}}
}

// HasRoom reports whether the tally counts.
func (t *Tally) HasRoom() bool { return len(t.buckets) > 0 }

// Clone returns a copy that counts by itself.
func (t *Tally) Clone() Tally {
	c := *t
	c.buckets = slices.Clone(t.buckets)
	return c
}

// Bytes returns the memory that the tally takes.
func (t *Tally) Bytes() int64 { return int64(len(t.buckets)) * 4 }

// Add counts n at an instant; what is older than the ring is lost.
func (t *Tally) Add(unix int64, n uint64) {
	if into := t.at(unix); into != nil {
		*into = uint32(min(uint64(*into)+n, 1<<32-1))
	}
}

// Sum returns the count from one instant up to now, by whole steps.
func (t *Tally) Sum(from, now int64) (n uint64) {
	if t.HasRoom() {
		t.each(from, now, func(_ int64, of *uint32) { n += uint64(*of) })
	}
	return n
}

// tenSteps is how many steps of ten minutes a series has: a week.
const tenSteps = 1008

// Series holds counts over time, at three resolutions: by the second for some minutes, by the
// minute for a day, by ten minutes for a week. A lean one has no seconds, and minutes for an hour.
// Not safe for concurrent use.
type Series struct{ second, minute, ten wheel }

// Nothing holds nothing, and nothing is ever written to it.
var Nothing = Series{newWheel(1, 0), newWheel(60, 0), newWheel(600, 0)}

// Minutes returns how many minutes a series has: a day, or an hour if lean.
func Minutes(lean bool) int {
	if lean {
		return 60
	}
	return snapshot.MinuteSteps
}

// New returns an empty series.
func New(lean bool) *Series {
	s := &Series{minute: newWheel(60, Minutes(lean)), ten: newWheel(600, tenSteps)}
	s.second.step = 1
	if !lean {
		s.second = newWheel(1, snapshot.SecondSteps)
	}
	return s
}

// Size returns the memory of a new series.
func Size(lean bool) int64 {
	n := Minutes(lean) + tenSteps
	if !lean {
		n += snapshot.SecondSteps
	}
	return int64(n) * snapshot.Lanes * 4
}

// Thin makes a series lean.
func (s *Series) Thin() {
	s.second = newWheel(1, 0)
	old := s.minute
	s.minute = newWheel(60, Minutes(true))
	old.each(max(old.last-int64(Minutes(true))+1, 0)*60, old.last*60,
		func(unix int64, b *snapshot.Bucket) { s.minute.add(unix, b) })
}

// Add counts at an instant.
func (s *Series) Add(unix int64, b *snapshot.Bucket) {
	s.second.add(unix, b)
	s.minute.add(unix, b)
	s.ten.add(unix, b)
}

// Advance lets time pass without counts.
func (s *Series) Advance(unix int64) { s.second.advance(unix) }

// wheelFor returns the finest wheel that reaches back so many seconds.
func (s *Series) wheelFor(over int64) *wheel {
	switch {
	case over <= snapshot.SecondSteps && len(s.second.buckets) > 0:
		return &s.second
	case over <= int64(len(s.minute.buckets))*60:
		return &s.minute
	}
	return &s.ten
}

// Bytes returns the memory that the series takes.
func (s *Series) Bytes() int64 {
	return int64(len(s.second.buckets)+len(s.minute.buckets)+len(s.ten.buckets)) * snapshot.Lanes * 4
}
