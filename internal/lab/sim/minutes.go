package sim

import (
	"math"
	"slices"

	"github.com/weir-rl/weir/internal/observe/insight/judge"
)

// This file finds rushes in a log: the minutes in which the service failed, and how much a rule let
// through.

const (
	// keptMinutes is how many minutes of a rule are kept: a day, as on a server. With many rules it
	// is less.
	keptMinutes = 24 * 60
	// minuteKeys bounds the keys that are counted one by one in a minute of a rule, likewise.
	minuteKeys = 1 << 12
)

// answers counts the answers of the current minute, in the whole log.
type answers struct {
	minute      int64 // Unix seconds at which it begins; 0 before the first one
	all, failed int
	met         []*ruleTally // by a request of the minute
}

// ruleMinute is the current minute of a rule.
type ruleMinute struct {
	met, refused uint64
	keys         map[uint64]uint32 // requests that were admitted, by the hash of the key
	most         uint64            // keys with larger hashes are not counted; 0: all are
}

// note counts a request of a minute with its status; 0 if that is not known.
func (a *answers) note(now int64, status int) {
	if minute := now / 60e6 * 60; minute > a.minute {
		a.end()
		a.minute = minute
	}
	if status == 0 {
		return
	}
	if a.all++; status >= 500 {
		a.failed++
	}
}

// met counts a request of the current minute.
func (t *ruleTally) met(a *answers, hash uint64, refused bool) {
	m := &t.minute
	if m.met == 0 {
		a.met = append(a.met, t)
		if m.keys == nil {
			m.keys = map[uint64]uint32{}
		}
	}
	if m.met++; refused {
		m.refused++
	}
	if m.most > 0 && hash > m.most {
		return
	}
	n := m.keys[hash]
	if !refused {
		n++
	}
	bound := min(minuteKeys, t.keys.bound)
	if m.keys[hash] = n; len(m.keys) >= 2*bound {
		hashes := make([]uint64, 0, len(m.keys))
		for h := range m.keys {
			hashes = append(hashes, h)
		}
		slices.Sort(hashes)
		m.most = hashes[bound-1]
		for _, h := range hashes[bound:] {
			delete(m.keys, h)
		}
	}
}

// end ends the current minute.
func (a *answers) end() {
	saturated := judge.Failing(a.failed, a.all)
	for _, t := range a.met {
		t.endMinute(a.minute, saturated)
	}
	clear(a.met)
	a.met, a.all, a.failed = a.met[:0], 0, 0
}

// endMinute notes the current minute, which began at an instant.
func (t *ruleTally) endMinute(at int64, saturated bool) {
	m := &t.minute
	list, kept := t.facts.Minutes, min(keptMinutes, t.keys.bound)
	if len(list) >= 2*kept {
		list = append(list[:0], list[len(list)-kept:]...)
	}
	minute := judge.Minute{T: at, Saturated: saturated, Met: m.met, Refused: m.refused, Admitted: m.met - m.refused,
		Keys: float64(len(m.keys)), TopShare: -1}
	if saturated {
		minute.Signal = "answers"
	}
	if m.most > 0 {
		minute.Keys /= float64(m.most) / math.MaxUint64
	}
	top := max(int(minute.Keys/100), 1)
	minute.TopKeys = float64(top)
	if m.most == 0 && minute.Admitted > 0 { // else the top keys may not be among those counted
		counts := make([]uint32, 0, len(m.keys))
		for _, n := range m.keys {
			counts = append(counts, n)
		}
		slices.Sort(counts)
		sum := uint64(0)
		for _, n := range counts[max(len(counts)-top, 0):] {
			sum += uint64(n)
		}
		minute.TopShare = float64(sum) / float64(minute.Admitted)
	}
	t.facts.Minutes = append(list, minute)
	clear(m.keys)
	m.met, m.refused, m.most = 0, 0, 0
}
