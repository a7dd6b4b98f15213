package gather

import "github.com/weir-rl/weir/internal/observe/insight/snapshot"

// stepRing is a ring of counts, each over step seconds. The number of a step is the Unix time
// divided by step.
type stepRing[B comparable] struct {
	step    int64
	last    int64 // number of the newest
	buckets []B
}

// advance makes the step of an instant the newest, if that is later.
func (w *stepRing[B]) advance(unix int64) {
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
func (w *stepRing[B]) at(unix int64) *B {
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
func (w *stepRing[B]) each(from, now int64, f func(unix int64, b *B)) {
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
func (w *stepRing[B]) oldest() int64 {
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
type wheel struct{ stepRing[snapshot.Bucket] }

func newWheel(step int64, n int) wheel {
	return wheel{stepRing[snapshot.Bucket]{step: step, buckets: make([]snapshot.Bucket, n)}}
}

// add counts at an instant; what is older than the ring is lost.
func (w *wheel) add(unix int64, b *snapshot.Bucket) {
	if into := w.at(unix); into != nil {
		into.Add(b)
	}
}

// countWheel is a ring of single counts.
type countWheel struct{ stepRing[uint32] }

func newTally(step int64, n int) countWheel {
	return countWheel{stepRing[uint32]{step: step, buckets: make([]uint32, n)}}
}

// add counts at an instant; what is older than the ring is lost.
func (t *countWheel) add(unix int64, n uint64) {
	if into := t.at(unix); into != nil {
		*into = uint32(min(uint64(*into)+n, 1<<32-1))
	}
}

// sum returns the count from one instant up to now, by whole steps.
func (t *countWheel) sum(from, now int64) (n uint64) {
	if len(t.buckets) > 0 {
		t.each(from, now, func(_ int64, of *uint32) { n += uint64(*of) })
	}
	return n
}

// tenSteps is how many steps of ten minutes a series has: a week.
const tenSteps = 1008

// series holds the counts over time, at three resolutions.
type series struct{ second, minute, ten wheel }

// noSeries holds nothing, and nothing is ever written to it.
var noSeries = series{newWheel(1, 0), newWheel(60, 0), newWheel(600, 0)}

// minutesOf returns how many minutes a series has: a day, or an hour if lean.
func minutesOf(lean bool) int {
	if lean {
		return 60
	}
	return snapshot.MinuteSteps
}

func newSeries(lean bool) *series {
	s := &series{minute: newWheel(60, minutesOf(lean)), ten: newWheel(600, tenSteps)}
	s.second.step = 1
	if !lean {
		s.second = newWheel(1, snapshot.SecondSteps)
	}
	return s
}

// newSeriesSize returns the memory of a new series.
func newSeriesSize(lean bool) int64 {
	n := minutesOf(lean) + tenSteps
	if !lean {
		n += snapshot.SecondSteps
	}
	return int64(n) * snapshot.Lanes * 4
}

// thin makes a series lean.
func (s *series) thin() {
	s.second = newWheel(1, 0)
	old := s.minute
	s.minute = newWheel(60, minutesOf(true))
	old.each(max(old.last-int64(minutesOf(true))+1, 0)*60, old.last*60,
		func(unix int64, b *snapshot.Bucket) { s.minute.add(unix, b) })
}

func (s *series) add(unix int64, b *snapshot.Bucket) {
	s.second.add(unix, b)
	s.minute.add(unix, b)
	s.ten.add(unix, b)
}

// wheelFor returns the finest wheel that reaches back so many seconds.
func (s *series) wheelFor(over int64) *wheel {
	switch {
	case over <= snapshot.SecondSteps && len(s.second.buckets) > 0:
		return &s.second
	case over <= int64(len(s.minute.buckets))*60:
		return &s.minute
	}
	return &s.ten
}

// bytes returns the memory that the series takes.
func (s *series) bytes() int64 {
	return int64(len(s.second.buckets)+len(s.minute.buckets)+len(s.ten.buckets)) * snapshot.Lanes * 4
}
