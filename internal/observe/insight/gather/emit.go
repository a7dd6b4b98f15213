package gather

import (
	"slices"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/observe"
	"github.com/weir-rl/weir/rule"
)

// This file runs on the deciding path, for the decisions that are looked at.

// looked is a decision at one rule that is looked at. The rule's windows are d.Limits[begin:end].
type looked struct {
	gate       *gate
	begin, end int
	outcome    outcome
	hash       uint64 // of the key
	weights    weights
	turn       uint64 // by observe.Turn
}

// emit writes the events of one rule.
func (c *Collector) emit(t *table, r *weir.Request, d *weir.Decision, k looked) {
	ring := &c.rings[k.turn&uint64(len(c.rings)-1)]
	rest := uint16(0)
	if k.outcome == outcomeBanned {
		rest |= flagBanned
	}
	switch k.outcome {
	case outcomeStopped:
		rest |= flagStopped | flagPassed
	case outcomePassed, outcomeNear, outcomeSoft:
		rest |= flagPassed
	}
	if c.known(r) {
		rest |= flagKnown
	}
	group, retry := groupOf(d, k.begin, k.end)
	rest |= group
	with := uint32(0)
	if k.outcome == outcomeShared {
		with = otherRefusing(t, d, k.begin, k.end)
	}
	for i := k.begin; i < k.end; i++ {
		l, h := &d.Limits[i], &d.Matches.Hits[i]
		index := l.Window.Counter.Index
		if index >= len(t.limits) {
			continue
		}
		s, turn := ring.claim()
		if s == nil {
			c.wake()
			return
		}
		e := &s.e
		e.hash, e.decision, e.at, e.rule, e.window = k.hash, uint64(d.ID), d.Time, k.gate.number, t.limits[index].window
		e.with = with
		e.flags, e.status = rest, 0
		e.weights = k.weights
		if i == k.begin {
			e.flags |= flagFirst
		}
		if d.Refuses(l) || l.Mode == rule.Shadow && !l.Allowed {
			e.flags |= flagRefused
		}
		if l.Mode == rule.Shadow {
			e.flags |= flagShadow
		}
		e.retry = retry
		shift := t.limits[index].shift
		e.asked = clamp32(observe.Asked(r, d, i) >> shift)
		limit, used := wholeOf(d, i)
		e.limit, e.used = clamp32(limit>>shift), clamp32(used>>shift)
		if l.Soft {
			e.used = clamp32(limit>>shift + 1)
		}
		e.door = c.doors.number(r.Door)
		n, cut := copyKey(&e.key, h.Key, d.Rules.IPv6Prefix())
		if e.length = uint8(n); cut {
			e.flags |= flagCut
		}
		if ring.publish(s, turn) {
			c.wake()
		}
	}
}

// groupOf combines the verdicts of one rule's windows, d.Limits[begin:end]: the rule refuses if any
// window does. retry is the time at which the key was told to come back, in µs; 0 if it was not
// told.
func groupOf(d *weir.Decision, begin, end int) (flags uint16, retry int64) {
	after := int64(0)
	for i := begin; i < end; i++ {
		l := &d.Limits[i]
		if l.Near || l.Soft {
			flags |= flagRuleNear
		}
		if hasOwnNumbers(d, i) {
			flags |= flagOwn
		}
		switch {
		case d.Refuses(l):
			flags |= flagRuleRefused
		case l.Mode == rule.Shadow && !l.Allowed:
			flags |= flagRuleWould
		default:
			continue
		}
		if l.RetryAfter == algo.Never || after == algo.Never {
			after = algo.Never
		} else {
			after = max(after, l.RetryAfter)
		}
	}
	if flags&(flagRuleRefused|flagRuleWould) == 0 {
		return flags, 0
	}
	if !d.Allowed && d.RetryAfter != algo.Never && d.RetryAfter > 0 {
		after = d.RetryAfter // the time that the client was told
	}
	if after == algo.Never {
		return flags, 0
	}
	return flags, d.Time + after
}

// otherRefusing returns 1 plus the number of a rule that refuses d, other than the rule of
// d.Limits[begin:end]; 0 if there is none.
func otherRefusing(t *table, d *weir.Decision, begin, end int) uint32 {
	for i := range d.Limits {
		l := &d.Limits[i]
		if (i < begin || i >= end) && d.Refuses(l) && l.Window.Counter.Index < len(t.limits) {
			return t.limits[l.Window.Counter.Index].gate.number + 1
		}
	}
	return 0
}

// wholeOf returns the limit of d.Limits[i], and how much of it is used. A node that decides without
// the store does so on its share, and knows what is used of that: the same part of the whole.
func wholeOf(d *weir.Decision, i int) (limit, used int64) {
	l := &d.Limits[i]
	limit, used = l.Limit, l.Limit-l.Remaining
	if l.Window.Rule.Regions != nil { // a region has a ceiling of its own
		return limit, used
	}
	in := d.InForce(i)
	if in == nil || limit <= 0 || limit >= in.Capacity() {
		return limit, used
	}
	whole := in.Capacity()
	return whole, int64(float64(used)/float64(limit)*float64(whole) + 0.5)
}

// hasOwnNumbers reports whether the key has numbers of its own, by an override or a grant.
func hasOwnNumbers(d *weir.Decision, i int) bool {
	l := &d.Limits[i]
	w := l.Window
	if !slices.Contains(w.Rule.Windows, w) {
		return true
	}
	// A schedule or a signal changes the limit for all keys.
	if w.Limit == nil || w.Rule.Elastic != nil || w.Limit.Scheduled() {
		return false
	}
	limit, _ := wholeOf(d, i)
	return limit != w.Limit.Capacity()
}

func clamp32(n int64) uint32 { return uint32(min(max(n, 0), 1<<32-1)) }

// wake wakes the goroutine that gathers events.
func (c *Collector) wake() {
	select {
	case c.woken <- struct{}{}:
	default:
	}
}

// copyKey copies a key into an event, cut if it does not fit.
func copyKey(into *[keyRoom]byte, key []byte, ipv6Prefix int) (n int, cut bool) {
	if len(key) <= keyRoom {
		return copy(into[:], key), false
	}
	return rule.CutKey(into[:], key, ipv6Prefix), true
}
