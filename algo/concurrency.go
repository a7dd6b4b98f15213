package algo

import "encoding/binary"

// Concurrency keeps the holders of slots in State.Ext, in order of admission: the time of the
// admission in µs, the id, and the number of slots. State.A is the newest time, State.B the number
// of slots held, and State.C the number of entries at the front that are over. They are removed
// when they are half of all.

const slotSize = 8 + 8 + 8

// idleSlots is how many bytes an idle key may keep, so that a key in use again and again does not
// allocate.
const idleSlots = 8 * slotSize

type slot struct {
	since int64
	id    uint64
	units int64
}

func slotAt(s *State, i int) slot {
	b := s.Ext[i*slotSize:]
	return slot{
		int64(binary.LittleEndian.Uint64(b)),
		binary.LittleEndian.Uint64(b[8:]),
		int64(binary.LittleEndian.Uint64(b[16:])),
	}
}

// holders is the reading of a state at an instant.
type holders struct {
	first int   // entry that is the oldest not over
	n     int   // entries in all
	used  int64 // slots held
	eff   int64 // time that counts
	most  int64 // no admission counts as later than this
}

func (l *Limit) holders(s *State, now int64) holders {
	h := holders{first: int(s.C), n: len(s.Ext) / slotSize, used: int64(s.B), eff: now, most: now + l.w}
	if s.B > 0 && s.A > now {
		h.eff = min(s.A, h.most)
	}
	for h.first < h.n {
		e := slotAt(s, h.first)
		if min(e.since, h.most)+l.w > h.eff {
			break
		}
		h.used -= e.units
		h.first++
	}
	return h
}

// tidy removes the entries of s that are over.
func (h *holders) tidy(s *State) {
	if h.used == 0 {
		ext := s.Ext[:0]
		if cap(ext) > idleSlots {
			ext = nil
		}
		*s = State{Ext: ext}
		h.first, h.n = 0, 0
		return
	}
	if 2*h.first >= h.n && h.first > 0 {
		h.n = copy(s.Ext, s.Ext[h.first*slotSize:h.n*slotSize]) / slotSize
		s.Ext = s.Ext[:h.n*slotSize]
		h.first = 0
	}
	s.B, s.C = uint64(h.used), uint32(h.first)
}

func (l *Limit) slots(r *Result, s *State, now, c int64, id uint64, take bool) {
	h := l.holders(s, now)
	if take && s.B > 0 && s.A > h.most {
		h.mend(s)
	}
	ok := true
	if c > 0 {
		ok = h.used <= l.cap-c
		if take && ok {
			h.tidy(s)
			s.Ext = binary.LittleEndian.AppendUint64(s.Ext, uint64(h.eff))
			s.Ext = binary.LittleEndian.AppendUint64(s.Ext, id)
			s.Ext = binary.LittleEndian.AppendUint64(s.Ext, uint64(c))
			h.n++
			h.used += c
			s.A, s.B = h.eff, uint64(h.used)
		}
	} else if c == 0 {
		ok = h.used <= l.cap || l.n == 0
	}
	l.counted(r, h.used, ok)
	if h.used > 0 {
		r.ResetAfter = min(slotAt(s, h.n-1).since, h.most) + l.w - now
	}
	if !ok && c != 0 {
		if c > l.cap {
			r.RetryAfter = Never
			return
		}
		for i, over := h.first, h.used+c-l.cap; ; i++ {
			e := slotAt(s, i)
			if over -= e.units; over <= 0 {
				r.RetryAfter = min(e.since, h.most) + l.w - now
				return
			}
		}
	}
}

// mend pulls admissions from an impossible future back to the time at which they count.
func (h *holders) mend(s *State) {
	for i := h.n - 1; i >= h.first && slotAt(s, i).since > h.most; i-- {
		binary.LittleEndian.PutUint64(s.Ext[i*slotSize:], uint64(h.most))
	}
	s.A = h.most
}

// Release gives the slots back that were admitted under the id slot, and reports whether it still
// held any. Concurrency only.
func (l *Limit) Release(s *State, now int64, slot uint64) bool {
	if l.algo != Concurrency || s.B == 0 {
		return false
	}
	now = max(now, 0)
	l = l.inForce(now)
	h := l.holders(s, now)
	held := false
	kept := h.first
	for i := h.first; i < h.n; i++ {
		e := slotAt(s, i)
		if e.id == slot {
			held = true
			h.used -= e.units
			continue
		}
		if kept != i {
			copy(s.Ext[kept*slotSize:], s.Ext[i*slotSize:(i+1)*slotSize])
		}
		kept++
	}
	if !held {
		return false
	}
	h.n = kept
	s.Ext = s.Ext[:kept*slotSize]
	h.tidy(s)
	if s.B > 0 {
		s.A = slotAt(s, h.n-1).since
	}
	return true
}
