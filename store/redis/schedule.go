package redis

import (
	"sync/atomic"

	"github.com/weir-rl/weir/algo"
)

// schedule describes a limit that follows a schedule.
type schedule struct {
	limits []*algo.Limit // each of which is in force at some time
	last   atomic.Pointer[phase]
}

// phase is a time in which one limit of a schedule is in force. Lua gets its bounds, and leaves a
// call at another instant undecided.
type phase struct {
	from, till int64  // µs since the Unix epoch
	codec      *codec // offTwin if there is none
	// How much longer a bucket must be kept than until it is fresh under this limit, because
	// another limit of the schedule refills it more slowly: a factor (0: no longer), and a number
	// of µs.
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

// phaseAt returns the phase at an instant. It may begin later than the phase of the schedule does,
// but no later than now; it is kept for later calls, so that Lua finds their shape in its cache.
func (t *codec) phaseAt(s *Store, now int64) *phase {
	last := &t.schedule.last
	if r := last.Load(); r != nil && now >= r.from && now < r.till {
		return r
	}
	in, till := t.limit.At(now)
	r := &phase{from: now, till: till, codec: offCodec}
	if in != nil {
		r.codec = s.codecOf(in)
		r.slow, r.extra = t.schedule.slower(r.codec)
	}
	last.Store(r)
	return r
}

// slower returns slow and extra for the time in which in is in force.
func (s *schedule) slower(in *codec) (slow, extra float64) {
	c := in.limit.Config()
	n := c.N
	if !c.Algorithm.HasBurst() || n == 0 {
		return 0, 0
	}
	lowest, unit := n, int64(1)
	for _, l := range s.limits {
		if m := l.Config().N; m > 0 {
			lowest = min(lowest, m)
		}
		unit = max(unit, l.Params().Unit)
	}
	slow = float64(n) / float64(lowest)
	if c.RefillInterval {
		// The last boundary is up to a window ago, and a refill that is not used up to the end
		// counts whole.
		return slow, (slow + 1) * float64(in.w)
	}
	return slow, 4 * slow * float64(unit) // the rounding of the two limits
}
