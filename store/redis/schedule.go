package redis

import (
	"sync/atomic"

	"github.com/weir-rl/weir/algo"
)

// schedule is what is known of a limit that follows the clock on the wall.
type schedule struct {
	limits []*algo.Limit // that are in force at some time
	last   atomic.Pointer[reign]
}

// reign is a time in which one of them is in force for certain. Lua is told of it, and leaves calls at other instants to the node.
type reign struct {
	from, till int64 // µs since the Unix epoch
	twin       *twin // offTwin if there is none
	// For how much longer a bucket must be kept than it needs to be fresh under this limit, since others of the schedule refill
	// it more slowly: by a factor, and by so many µs more. A factor of 0 says nothing.
	slow, extra float64
}

func newSchedule(l *algo.Limit) *schedule {
	s := &schedule{}
	otherwise, phases, _ := l.Schedule()
	if otherwise != nil {
		s.limits = append(s.limits, otherwise)
	}
	for i := range phases {
		if of := phases[i].Limit; of != nil {
			s.limits = append(s.limits, of)
		}
	}
	return s
}

// reignAt returns what is in force at about an instant. It begins no later than that, and perhaps not as early as it could: the
// shapes that Lua has seen before are those with the same instants.
func (t *twin) reignAt(s *Store, about int64) *reign {
	last := &t.schedule.last
	if r := last.Load(); r != nil && about >= r.from && about < r.till {
		return r
	}
	in, till := t.limit.At(about)
	r := &reign{from: about, till: till, twin: offTwin}
	if in != nil {
		r.twin = s.twinOf(in)
		r.slow, r.extra = t.schedule.slower(r.twin)
	}
	last.Store(r)
	return r
}

// slower returns slow and extra for the time in which in is in force.
func (s *schedule) slower(in *twin) (slow, extra float64) {
	n := in.limit.Config().N
	if in.kind != kindBucket && in.kind != kindInterval || n == 0 {
		return 0, 0
	}
	least, unit := n, int64(1)
	for _, l := range s.limits {
		if m := l.Config().N; m > 0 {
			least = min(least, m)
		}
		unit = max(unit, l.Params().Unit)
	}
	slow = float64(n) / float64(least)
	if in.kind == kindInterval {
		// The last boundary is up to a window ago, and a refill that is not used up to the end counts whole.
		return slow, (slow + 1) * float64(in.w)
	}
	return slow, 4 * slow * float64(unit) // what the two limits may round
}

// freshAt returns an instant at which a state is fresh: the first, or a later one.
func freshAt(l *algo.Limit, st *algo.State, now int64) int64 {
	for at := now; at < now+algo.MaxWindow.Microseconds(); {
		r := l.Check(st, at, algo.Ask{})
		switch {
		case !r.Off && r.ResetAfter == algo.Never:
			return now + algo.MaxWindow.Microseconds()
		case !r.Off:
			return at + r.ResetAfter
		}
		_, at = l.At(at)
	}
	return now + algo.MaxWindow.Microseconds()
}
