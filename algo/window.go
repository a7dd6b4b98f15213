package algo

import (
	"encoding/binary"
	"fmt"
	"math"
)

// A sliding window keeps in State.A the beginning of its newest sub-window, in µs. With K = 1,
// State.B holds the counts, the current one in the high half and the previous one in the low. With
// K > 1, State.Ext is a ring of K + 1 counters of 32 bits, State.C the place of the newest, and
// State.B their sum. The length of State.Ext gives K, so that a limit may change its K under live
// states.

const maxCount = math.MaxUint32

func (l *Limit) compileWindow() error {
	c := &l.cfg
	l.k = c.Buckets
	l.sub = l.w / int64(l.k)
	l.perW = newDivisor(uint64(l.sub))
	if l.cap >= maxCount {
		return fmt.Errorf(
			"%d requests with a soft margin of %d%% are more than the %d that a sliding_window can count: lower the margin or the number of requests",
			c.N, c.Soft, int64(maxCount-1))
	}
	for i, u := range units {
		if l.sub%u != 0 {
			return fmt.Errorf(
				"%d requests%s in %v with %d buckets do not fit exact arithmetic: lower the number of requests to at most %d, or make the window a multiple of %d whole %s",
				c.N, softly(c.Soft), c.Window, l.k, lowered(maxInt/(l.sub/units[i-1])-1, c.Soft), l.k, unitNames[i])
		}
		if l.cap+1 <= maxInt/(l.sub/u) {
			l.unit = u
			break
		}
	}
	l.perU = newDivisor(uint64(l.unit))
	l.subU = uint64(l.sub / l.unit)
	l.perS = newDivisor(l.subU)
	return nil
}

func softly(percent int) string {
	if percent == 0 {
		return ""
	}
	return fmt.Sprintf(" (soft %d%%)", percent)
}

// lowered is a number that fits into most together with its soft margin.
func lowered(most int64, percent int) int64 { return most * 100 / int64(100+percent) }

func (l *Limit) window(r *Result, s *State, now, c int64, take bool) {
	if s.B != 0 && len(s.Ext) != l.extSize() {
		other := l.carryWindow(s, now, l.w/int64(max(1, len(s.Ext)/4-1)))
		if !take {
			s = &other
		} else {
			*s = other
		}
	}
	if l.k > 1 {
		l.windows(r, s, now, c, take)
		return
	}

	_, e := l.perW.divmod(uint64(now))
	elapsed := int64(e)
	start := now - elapsed
	var cur, prev uint64
	if s.B != 0 {
		cur, prev = s.B>>32, s.B&maxCount
		switch d := start - s.A; {
		case d == 0:
		case d > l.sub:
			cur, prev = 0, 0
		case d > 0:
			cur, prev = 0, cur
		default:
			elapsed = 0
			if start += l.sub; s.A < start {
				start = s.A
			} else if take {
				s.A = start
			}
		}
	}
	rest := l.rest(elapsed)
	used := int64(cur) + l.part(prev, rest)
	ok := true
	switch {
	case c > 0:
		ok = used <= l.admit-c
		if take && (ok || l.countDenied) {
			was := cur
			cur = min(cur+uint64(c), maxCount)
			used += int64(cur - was)
			s.A, s.B = start, cur<<32|prev
		}
	case c < 0:
		if take && s.B != 0 {
			back := min(uint64(-c), cur)
			cur -= back
			prev = monus(prev, uint64(-c)-back)
			used = int64(cur) + l.part(prev, rest)
			if s.A, s.B = start, cur<<32|prev; s.B == 0 {
				*s = State{}
			}
		}
	default:
		ok = used <= l.admit || l.n == 0 && !l.countDenied
	}
	l.counted(r, used, ok)
	if cur > 0 {
		r.ResetAfter = start + 2*l.sub - now
	} else if prev > 0 {
		r.ResetAfter = start + l.sub - now
	}
	if !ok && c != 0 {
		room := l.admit - c
		switch {
		case room < 0:
			r.RetryAfter = Never
		case int64(cur) <= room:
			r.RetryAfter = l.opens(start, room-int64(cur), prev) - now
		default:
			r.RetryAfter = l.opens(start+l.sub, room, cur) - now
		}
	}
}

// rest is how much of a sub-window's length still counts when elapsed µs of the current one have
// gone by, in units.
func (l *Limit) rest(elapsed int64) uint64 {
	e := uint64(elapsed)
	if l.unit != 1 {
		e, _ = l.perU.divmod(e)
	}
	return l.subU - e
}

// part is the share of count that still counts when rest of its sub-window does.
func (l *Limit) part(count, rest uint64) int64 {
	if count == 0 {
		return 0
	}
	if int64(count) <= l.cap {
		q, _ := l.perS.divmod(count * rest)
		return int64(q)
	}
	q, _ := mulDiv(count, rest, l.subU, false)
	return int64(q)
}

// opens returns the first instant in the sub-window that begins at start when count, cut by the
// window's edge, has shrunk to at most room.
func (l *Limit) opens(start, room int64, count uint64) int64 {
	if count == 0 {
		return start
	}
	// part(count, rest) ≤ room means count × rest < (room + 1) × S.
	rest := (uint64(room+1)*l.subU+count-1)/count - 1
	return start + int64(l.subU-min(rest, l.subU))*l.unit
}

// extSize is the length of State.Ext.
func (l *Limit) extSize() int {
	if l.k == 1 {
		return 0
	}
	return 4 * (l.k + 1)
}

// age returns the place of the sub-window that is j older than the newest.
func (l *Limit) age(s *State, j int) []byte {
	p := int(s.C) - j
	if p < 0 {
		p += l.k + 1
	}
	return s.Ext[4*p:]
}

func (l *Limit) count(s *State, j int) uint64 {
	return uint64(binary.LittleEndian.Uint32(l.age(s, j)))
}

// view is the reading of a state of K > 1 counters at an instant.
type view struct {
	start   int64  // of the current sub-window
	elapsed int64  // in it
	d       int    // how many sub-windows the current one is newer than the state's
	whole   uint64 // sum of the sub-windows that count whole
	cut     uint64 // count of the one that the window's old edge cuts
}

func (l *Limit) view(s *State, now int64, take bool) view {
	_, e := l.perW.divmod(uint64(now))
	v := view{start: now - int64(e), elapsed: int64(e)}
	if s.B == 0 && len(s.Ext) == 0 {
		v.d = l.k + 1
		return v
	}
	if ahead := s.A - v.start; ahead > 0 {
		v.elapsed = 0
		if v.start += l.w; s.A < v.start {
			v.start = s.A
		} else if take {
			s.A = v.start
		}
		v.cut = l.count(s, l.k)
		v.whole = s.B - v.cut
		return v
	}
	d, _ := l.perW.divmod(uint64(v.start - s.A))
	v.d = int(min(d, uint64(l.k)+1))
	switch {
	case v.d > l.k:
		return v
	case 2*v.d <= l.k:
		v.whole = s.B
		for j := l.k - v.d; j <= l.k; j++ {
			v.whole -= l.count(s, j)
		}
	default:
		for j := range l.k - v.d {
			v.whole += l.count(s, j)
		}
	}
	v.cut = l.count(s, l.k-v.d)
	return v
}

// turn brings the ring to the current sub-window of v.
func (l *Limit) turn(s *State, v *view) {
	if len(s.Ext) == 0 {
		s.Ext = make([]byte, l.extSize())
	} else if v.d > l.k {
		clear(s.Ext)
	} else {
		for range v.d {
			if s.C++; int(s.C) > l.k {
				s.C = 0
			}
			binary.LittleEndian.PutUint32(l.age(s, 0), 0)
		}
	}
	s.A, s.B, v.d = v.start, v.whole+v.cut, 0
}

func (l *Limit) windows(r *Result, s *State, now, c int64, take bool) {
	v := l.view(s, now, take)
	rest := l.rest(v.elapsed)
	used := int64(v.whole) + l.part(v.cut, rest)
	ok := true
	switch {
	case c > 0:
		ok = used <= l.admit-c
		if take && (ok || l.countDenied) {
			l.turn(s, &v)
			was := l.count(s, 0)
			add := min(uint64(c), maxCount-was)
			binary.LittleEndian.PutUint32(l.age(s, 0), uint32(was+add))
			v.whole += add
			s.B += add
			used += int64(add)
		}
	case c < 0:
		if take && s.B != 0 {
			l.turn(s, &v)
			l.refundWindows(s, &v, uint64(-c))
			used = int64(v.whole) + l.part(v.cut, rest)
		}
	default:
		ok = used <= l.admit || l.n == 0 && !l.countDenied
	}
	l.counted(r, used, ok)
	if v.whole+v.cut > 0 {
		j := v.d
		for l.count(s, j-v.d) == 0 {
			j++
		}
		r.ResetAfter = v.start + int64(l.k+1-j)*l.sub - now
	}
	if !ok && c != 0 {
		if c > l.admit {
			r.RetryAfter = Never
		} else {
			r.RetryAfter = l.opensLater(s, &v, uint64(l.admit-c)) - now
		}
	}
}

// refundWindows takes back from the newest sub-window first.
func (l *Limit) refundWindows(s *State, v *view, back uint64) {
	for j := 0; j <= l.k && back > 0; j++ {
		n := l.count(s, j)
		less := min(n, back)
		if less == 0 {
			continue
		}
		back -= less
		binary.LittleEndian.PutUint32(l.age(s, j), uint32(n-less))
		if j < l.k {
			v.whole -= less
		} else {
			v.cut -= less
		}
	}
	if s.B = v.whole + v.cut; s.B == 0 {
		*s = State{}
	}
}

// opensLater returns the first instant at which the sub-windows count for at most room. It ends
// even if they do not add up to B, as in a state out of a file that somebody made.
func (l *Limit) opensLater(s *State, v *view, room uint64) int64 {
	start, whole, cut := v.start, v.whole, v.cut
	for j := l.k - 1; whole > room && j >= 0; j-- {
		cut = 0
		if j >= v.d {
			cut = l.count(s, j-v.d)
		}
		whole -= cut
		start += l.sub
	}
	return l.opens(start, int64(room-whole), cut)
}

// carryWindow makes a state for l of one with sub-windows of another length: as if all that was
// counted in a sub-window had happened at its end (or just now, while it lasts).
func (l *Limit) carryWindow(s *State, now, oldSub int64) State {
	count := func(j int) uint64 {
		if j == 0 {
			return s.B >> 32
		}
		return s.B & maxCount
	}
	oldK := 1
	if len(s.Ext) >= 12 && len(s.Ext)%4 == 0 {
		oldK = len(s.Ext)/4 - 1
		from := Limit{k: oldK}
		if int(s.C) > oldK {
			return State{}
		}
		count = func(j int) uint64 { return from.count(s, j) }
	}
	eff := max(now, min(s.A, now+l.w))
	_, e := l.perW.divmod(uint64(eff))
	to := State{A: eff - int64(e)}
	counts := make([]uint64, l.k+1)
	for j := range oldK + 1 {
		start := s.A - int64(j)*oldSub
		if start+int64(oldK+1)*oldSub <= eff {
			break
		}
		d, r := l.perW.divmod(uint64(to.A - max(0, min(start+oldSub, to.A))))
		if r > 0 {
			d++
		}
		if d <= uint64(l.k) {
			counts[d] = min(counts[d]+count(j), maxCount)
		}
	}
	var total uint64
	for _, n := range counts {
		total += n
	}
	switch {
	case total == 0:
		return State{}
	case l.k == 1:
		to.B = counts[0]<<32 | counts[1]
		return to
	}
	to.Ext = make([]byte, l.extSize())
	for j, n := range counts {
		binary.LittleEndian.PutUint32(l.age(&to, j), uint32(n))
	}
	to.B = total
	return to
}
