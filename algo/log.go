package algo

import (
	"encoding/binary"
	"sort"
	"time"
)

// A sliding log keeps in State.Ext a ring of the times of all admitted units, oldest first, each
// packed into 5 bytes (6 if the window is longer than 12 days): the time modulo 2^40 (2^48) µs.
// State.A is the newest time; all others are less than a window older, which makes them whole
// again. State.B is the tail's place in the ring and, in its high half, the number of units.

const longLog = int64(12*24*time.Hour) / int64(time.Microsecond)

// entrySize is how many bytes a unit takes.
func (l *Limit) entrySize() int {
	if l.w > longLog {
		return 6
	}
	return 5
}

// ring is a view of a log.
type ring struct {
	b     []byte
	entry int   // bytes a unit
	size  int   // units that b has room for
	tail  int   // place of the oldest unit
	n     int   // units
	ref   int64 // newest time
	most  int64 // no time counts as later than this
}

func (l *Limit) ring(s *State, now int64) ring {
	r := ring{b: s.Ext, entry: l.entrySize(), ref: s.A, most: now + l.w}
	r.size = len(r.b) / r.entry
	r.tail, r.n = int(uint32(s.B)), int(s.B>>32)
	if r.tail >= r.size || r.n > r.size {
		r.tail, r.n = 0, 0
	}
	return r
}

func (r *ring) offset(i int) int {
	p := r.tail + i
	if p >= r.size {
		p -= r.size
	}
	return p * r.entry
}

// at returns the time of the i-th oldest unit.
func (r *ring) at(i int) int64 {
	b := r.b[r.offset(i):]
	v := uint64(binary.LittleEndian.Uint32(b)) | uint64(b[4])<<32
	mask := uint64(1<<40 - 1)
	if r.entry == 6 {
		v |= uint64(b[5]) << 40
		mask = 1<<48 - 1
	}
	return min(r.ref-int64((uint64(r.ref)-v)&mask), r.most)
}

func (r *ring) put(i int, t int64) {
	b := r.b[r.offset(i):]
	binary.LittleEndian.PutUint32(b, uint32(t))
	b[4] = byte(t >> 32)
	if r.entry == 6 {
		b[5] = byte(t >> 40)
	}
}

// dead returns how many units are not later than t.
func (r *ring) dead(t int64) int {
	if r.n == 0 || r.at(0) > t {
		return 0
	}
	lo, hi := 0, 1 // at(lo) is dead
	for hi < r.n && r.at(hi) <= t {
		lo, hi = hi, 2*hi
	}
	hi = min(hi, r.n)
	return lo + 1 + sort.Search(hi-lo-1, func(i int) bool { return r.at(lo+1+i) > t })
}

// resize moves the units into a ring of another size.
func (r *ring) resize(size int) {
	b := make([]byte, size*r.entry)
	first := min(r.n, r.size-r.tail)
	copy(b, r.b[r.tail*r.entry:(r.tail+first)*r.entry])
	copy(b[first*r.entry:], r.b[:(r.n-first)*r.entry])
	r.b, r.size, r.tail = b, size, 0
}

// save writes the view back.
func (r *ring) save(s *State) {
	if r.n == 0 {
		*s = State{}
		return
	}
	s.A, s.B, s.Ext = r.ref, uint64(r.n)<<32|uint64(r.tail), r.b
}

// drop forgets the k oldest units.
func (r *ring) drop(k int) {
	r.n -= k
	if r.tail += k; r.tail >= r.size && r.size > 0 {
		r.tail -= r.size
	}
}

// mend pulls units from an impossible future back to the time at which they count.
func (r *ring) mend() {
	for i := r.n - 1; i >= 0; i-- {
		t := r.at(i)
		if t < r.most {
			break
		}
		r.put(i, t)
	}
	r.ref = r.most
}

func (l *Limit) log(res *Result, s *State, now, c int64, take bool) {
	r, eff := l.ring(s, now), now
	if r.n > 0 && r.ref > now {
		eff = min(r.ref, r.most)
		if take && r.ref > r.most {
			r.mend()
			r.save(s)
		}
	}
	dead := r.dead(eff - l.w)
	live := int64(r.n - dead)
	ok := true
	switch {
	case c > 0:
		ok = live <= l.admit-c
		if take && (ok || l.countDenied) {
			r.drop(dead)
			dead = 0
			l.append(&r, eff, c)
			r.save(s)
			live = int64(r.n)
		}
	case c < 0:
		if take && r.n > 0 {
			r.drop(dead)
			dead = 0
			r.n = int(max(0, live+c))
			if r.n > 0 {
				r.ref = r.at(r.n - 1)
			}
			r.save(s)
			live = int64(r.n)
		}
	default:
		ok = live <= l.admit || l.n == 0 && !l.countDenied
	}
	l.counted(res, live, ok)
	if live > 0 {
		res.ResetAfter = r.at(r.n-1) + l.w - now
	}
	if !ok && c != 0 {
		if c > l.admit {
			res.RetryAfter = Never
		} else {
			res.RetryAfter = r.at(dead+int(live+c-l.admit)-1) + l.w - now
		}
	}
}

// append adds c units at time t. Units counted for a denied request push the oldest out, so that at
// most one unit more than the capacity is kept; but never fewer than there were, since a capacity
// may grow again.
func (l *Limit) append(r *ring, t, c int64) {
	most := l.cap
	if l.countDenied {
		most++
	}
	keep := int(max(most, int64(r.n)))
	add := int(min(c, int64(keep)))
	if over := r.n + add - keep; over > 0 {
		r.drop(over)
	}
	if need := r.n + add; need > r.size {
		r.resize(min(max(need, 2*r.size, 4), keep))
	} else if r.size > 2*keep && r.size > 8 {
		r.resize(max(need, keep))
	}
	r.ref = t
	for i := r.n; i < r.n+add; i++ {
		r.put(i, t)
	}
	r.n += add
}

// carryLog keeps the units that lie in the new window.
func (l *Limit) carryLog(old *Limit, s *State, now int64) {
	from := old.ring(s, now)
	eff := min(max(now, from.ref), from.most)
	dead := from.dead(eff - min(l.w, old.w))
	if dead == from.n {
		*s = State{}
		return
	}
	from.drop(dead)
	to := ring{b: make([]byte, from.n*l.entrySize()), entry: l.entrySize(), size: from.n, n: from.n,
		ref: from.at(from.n - 1)}
	for i := range from.n {
		to.put(i, from.at(i))
	}
	to.save(s)
}
