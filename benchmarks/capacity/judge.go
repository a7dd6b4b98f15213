package capacity

import "github.com/weir-rl/weir/algo"

// judge holds the admissions of one key against the guarantee of its limit, at the instants at
// which they were decided. It shares no code with package algo:
//
//   - fixed_window: no window, counted from the epoch, has more than N.
//   - sliding_log: the admission N places before is at least W old, so no half-open window of
//     length W has more than N.
//   - token_bucket: no interval of length d has more than B + floor(d × N / W). That holds for all
//     intervals if and only if a bucket that drains N each W, and to which each admission adds
//     one, never stands above B: the sum of every interval that ends now is in its level.
type judge struct {
	at    int64   // the last admission, in µs
	level int64   // units of the window; of the bucket, in 1/W
	ring  []int64 // the last admissions of a log
	next  int
}

// guarantee is the promise of a limit.
type guarantee struct {
	algorithm algo.Algorithm
	n, b, w   int64 // W in µs
}

func newGuarantee(l *algo.Limit) guarantee {
	c := l.Config()
	g := guarantee{algorithm: c.Algorithm, n: c.N, b: c.Burst, w: c.Window.Microseconds()}
	if g.b == algo.NoBurst {
		g.b = 0
	}
	return g
}

// admit notes an admission at an instant in µs, and reports whether it is within the guarantee.
// Instants must not go back.
func (g *guarantee) admit(j *judge, now int64) bool {
	switch g.algorithm {
	case algo.TokenBucket:
		j.level = max(0, j.level-g.drained(now-j.at)) + g.w
		j.at = now
		return j.level <= g.b*g.w
	case algo.SlidingLog:
		if int64(len(j.ring)) < g.n {
			j.ring = append(j.ring, now)
			return true
		}
		old := j.ring[j.next]
		j.ring[j.next] = now
		if j.next++; j.next == len(j.ring) {
			j.next = 0
		}
		return now-old >= g.w
	default:
		if now/g.w != j.at/g.w {
			j.level = 0
		}
		j.level++
		j.at = now
		return j.level <= g.n
	}
}

// drained returns how much a bucket loses in a time: all of it after B × W / N, beyond which the
// product could overflow.
func (g *guarantee) drained(d int64) int64 {
	if g.n > 0 && d > g.b*g.w/g.n {
		return g.b * g.w
	}
	return d * g.n
}
