// Package leasecheck says whether recorded admissions obey a limit for certain, when the instants
// at which they were decided are known only within bounds.
//
// Begin with Check (leasecheck.go). The algorithms are in windows.go and bucket.go. They know the
// guarantees of docs/how-it-works/algorithms.md, and nothing of how a limit is enforced: no states,
// no stores, no leases. The tests use Check on records of real nodes over a real Redis: processes
// that are stopped and killed, and networks that delay and lose (runs_test.go).
package leasecheck

import (
	"fmt"
	"math"
	"time"

	"github.com/weir-rl/weir/algo"
)

// Admission is one admitted request. Times are in µs since the Unix epoch, by one clock for all.
type Admission struct {
	Lo, Hi int64 // the decision fell between the two, both inclusive
	Cost   int64 // at least 1
	// Ends is when the window ends in which the request counts, if that is known; else 0. It is for
	// limits whose windows begin with a first request, whose ends nothing else shows.
	Ends int64
}

// Violation is a span of time in which certainly too much was admitted.
type Violation struct {
	From, To int64 // the span
	Admitted int64 // for a sliding window: the algorithm's estimate at To, at the least
	Allowed  int64
	Of       []int // indexes of the admissions that certainly lie in the span
}

func (v *Violation) String() string {
	return fmt.Sprintf("%d admitted, %d allowed, from %d to %d (%v)",
		v.Admitted, v.Allowed, v.From, v.To, time.Duration(v.To-v.From)*time.Microsecond)
}

// Check returns the worst violation of the guarantee of a limit, or nil if there may be none:
//
//   - fixed_window: no window holds more than the capacity;
//   - sliding_log: no half-open span as long as the window does;
//   - token_bucket: no span of length d holds more than the capacity and floor(d × N/W);
//   - sliding_window: what the algorithm estimates is never more than the capacity.
//
// The capacity is how much the limit admits at once at most, its soft margin included, and extra.
// An admission counts in a span only if all of [Lo, Hi] lies in it, and in an estimate by the least
// weight that it can have. So a violation is certain, but the wider the bounds, the more can
// escape.
//
// Check takes time proportional to n log n. An error means that c is no limit, or of a kind for
// which there is no such guarantee, or that numbers are too large to be certain.
func Check(c algo.Config, extra int64, admissions []Admission) (*Violation, error) {
	c.Lease, c.LeaseFor = 0, 0
	limit, err := algo.New(c)
	if err != nil {
		return nil, err
	}
	var total float64
	for i, a := range admissions {
		if a.Cost < 1 || a.Lo > a.Hi || a.Lo < 0 {
			return nil, fmt.Errorf("leasecheck: admission %d is no admission: %+v", i, a)
		}
		total += float64(a.Cost)
	}
	if len(admissions) == 0 {
		return nil, nil
	}
	if c.SoftFor != 0 || c.RefillInterval {
		return nil, fmt.Errorf(
			"leasecheck: there is no check for %v with a margin that closes or a refill at intervals", c.Algorithm)
	}
	w := c.Window.Microseconds()
	most := limit.Check(&algo.State{}, admissions[0].Lo, algo.Ask{}).SoftLimit + extra
	switch c.Algorithm {
	case algo.FixedWindow:
		if c.FirstRequest {
			return inFirst(w, most, admissions), nil
		}
		end, err := edges(c)
		if err != nil {
			return nil, err
		}
		return inFixed(end, most, admissions), nil
	case algo.SlidingLog:
		return inLog(w, most, admissions), nil
	case algo.SlidingWindow:
		if total*float64(w) > math.MaxInt64/4 {
			return nil, fmt.Errorf("leasecheck: %v units in windows of %v are too many", total, c.Window)
		}
		return inWindow(w/int64(max(1, c.Buckets)), max(1, c.Buckets), most, admissions), nil
	case algo.TokenBucket:
		first, last := admissions[0].Lo, admissions[0].Hi
		for _, a := range admissions {
			first, last = min(first, a.Lo), max(last, a.Hi)
		}
		if total*float64(w)+float64(last-first)*float64(c.N) > math.MaxInt64/4 {
			return nil, fmt.Errorf("leasecheck: %v units over %d µs are too many", total, last-first)
		}
		return inBucket(w, c.N, most, first, admissions), nil
	}
	return nil, fmt.Errorf("leasecheck: there is no check for %v", c.Algorithm)
}

// edges returns a function that returns when the window ends that holds an instant, which only
// package algo knows of calendars.
func edges(c algo.Config) (func(at int64) int64, error) {
	c.N, c.Soft, c.CountDenied = 1, 0, false
	l, err := algo.New(c)
	if err != nil {
		return nil, err
	}
	return func(at int64) int64 {
		var fresh algo.State
		return at + l.Take(&fresh, at, algo.Ask{Cost: 1}).ResetAfter
	}, nil
}

// worse returns the one of two violations that goes further beyond; of equals v.
func worse(v, u *Violation) *Violation {
	if v == nil || u.Admitted-u.Allowed > v.Admitted-v.Allowed {
		return u
	}
	return v
}

// fill adds the admissions for which in is true.
func (v *Violation) fill(admissions []Admission, in func(a *Admission) bool) *Violation {
	if v == nil {
		return nil
	}
	for i := range admissions {
		if in(&admissions[i]) {
			v.Of = append(v.Of, i)
		}
	}
	return v
}
