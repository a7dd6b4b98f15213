package redis

import (
	"encoding/binary"
	"fmt"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// The reply of take says what the states were before; the decisions that Lua made on them are made here again, by algo
// itself, to learn all that a Result tells. The number of decisions that were admitted must come out the same.

// held is what is known of one charge's state while the calls of a group are decided on it.
type held struct {
	st      algo.State
	told    bool // by a tally instead of st
	tally   tally
	charged int64 // units charged so far; told only
	most    int64 // what may be used at now; told only
}

const replyHead = 7 + 4

// read takes a reply apart, and fills in the results of all groups.
func (p *partition) read(reply []byte) error {
	if len(reply) < replyHead {
		return errReply
	}
	now, admitted := get56(reply), int(binary.LittleEndian.Uint32(reply[7:]))
	p.store.heard(now)
	rest := reply[replyHead:]
	found := 0
	for i := range p.runs {
		for c := p.runs[i].first; c != nil; c = c.peer {
			odd, left, err := p.hold(c, rest)
			if err != nil {
				return err
			}
			rest = left
			if odd {
				for same := c; same != nil; same = same.next {
					same.odd = true
				}
				continue
			}
			found += p.replay(c, now)
		}
	}
	if found != admitted {
		p.store.disagree(found, admitted)
	}
	return nil
}

var errReply = fmt.Errorf("the reply of %s has a form that is not known", functionTake)

// hold reads the states of a group's parts. odd is true if one of them was odd.
func (p *partition) hold(c *call, b []byte) (odd bool, rest []byte, err error) {
	if cap(p.held) < len(c.parts) {
		p.held = make([]held, len(c.parts), 2*len(c.parts))
	}
	p.held = p.held[:len(c.parts)]
	for j := range c.parts {
		t, h := c.parts[j].twin, &p.held[j]
		h.told, h.charged = false, 0
		size := t.size
		if size == 0 {
			if len(b) < 4 {
				return false, nil, errReply
			}
			n := binary.LittleEndian.Uint32(b)
			b = b[4:]
			if n == 0xFFFFFFFF {
				odd = true
				continue
			}
			size = int(n)
		}
		if len(b) < size {
			return false, nil, errReply
		}
		raw := b[:size]
		b = b[size:]
		switch {
		case t.size > 0 && raw[6] == 0xFF: // no time is as late
			odd = true
		case t.kind == kindOff:
			h.st = algo.State{}
		case (t.kind == kindLog || t.kind == kindSlots) && size == tallySize: // no state has that size
			h.told = true
			h.tally, err = decodeTally(raw)
		default:
			err = t.decode(raw, &h.st)
		}
		if err != nil {
			odd, err = true, nil // it is written afresh
		}
	}
	return odd, b, nil
}

// marginOf returns the state of the soft margin of a part's charge, which is the part after it; nil if there is none.
func (p *partition) marginOf(c *call, part int) *algo.State {
	if part++; part < len(c.parts) && c.parts[part].margin {
		return &p.held[part].st
	}
	return nil
}

// replay decides the calls of a group, in their order, on the states in held. It returns how many Lua has admitted. What only a
// soft margin lets pass Lua has not charged: such a call is odd.
func (p *partition) replay(head *call, now int64) (admitted int) {
	for c := head; c != nil; c = c.next {
		c.now = now
		if len(c.parts) == 1 && !p.held[0].told {
			ch := &c.charges[0]
			c.results[0] = ch.Limit.Take(&p.held[0].st, now, ch.Ask)
			if c.results[0].Allowed || ch.Mode == rule.Shadow {
				admitted++
			}
			continue
		}
		verdict, byLua := newVerdict(), newVerdict()
		short, charging := false, false // a tight charge is beyond what Lua grants; something would be charged
		for j := range c.parts {
			pt := &c.parts[j]
			if pt.margin {
				continue
			}
			h, ch, r := &p.held[j], &c.charges[pt.charge], &c.results[pt.charge]
			if h.told {
				h.most = pt.twin.idle.SoftLimit
				if m := p.marginOf(c, j); m != nil { // it is less while that is closed
					h.most = ch.Limit.CheckWith(&algo.State{}, m, now, algo.Ask{}).SoftLimit
				}
				*r = h.result(pt.twin, ch, now, h.admits(pt.twin, ch))
			} else {
				*r = ch.Limit.CheckWith(&h.st, p.marginOf(c, j), now, ch.Ask)
			}
			granted := r.Allowed && (!pt.tight || within(r, cost(ch)))
			if !r.Off { // else it is as if it had not been met
				verdict.add(ch.Mode, r.Allowed)
				byLua.add(ch.Mode, granted)
			}
			short, charging = short || r.Allowed && !granted, charging || ch.Ask.Cost != 0
		}
		denied := verdict.denied()
		if !byLua.denied() {
			admitted++
		}
		if short && charging && !denied {
			c.odd = true
			continue
		}
		for j := range c.parts {
			pt := &c.parts[j]
			if pt.margin {
				continue
			}
			h, t, ch, r := &p.held[j], pt.twin, &c.charges[pt.charge], &c.results[pt.charge]
			own := !denied || ch.Mode == rule.Shadow
			if !own && !t.countDenied || r.Off {
				continue
			}
			was := *r
			if h.told {
				*r = h.take(t, ch, now, was.Allowed)
			} else {
				*r = ch.Limit.TakeWith(&h.st, p.marginOf(c, j), now, ch.Ask)
			}
			if own && was.Allowed && ch.Ask.Cost > 0 && t.kind == kindSlots {
				ch.Ask.Slot = c.slots[pt.charge]
			}
		}
	}
	return admitted
}

// within reports whether what is admitted, and not charged yet, leaves the soft margin alone.
func within(r *algo.Result, cost int64) bool {
	if cost == 0 {
		return !r.Soft
	}
	return cost <= r.Remaining
}

// verdict says whether a decision over several charges is a denial, see weir.Store.
type verdict struct{ enforced, quotas, open bool }

func newVerdict() verdict { return verdict{enforced: true} }

func (v *verdict) add(m rule.Mode, allowed bool) {
	switch m {
	case rule.Enforce:
		v.enforced = v.enforced && allowed
	case rule.Quota:
		v.quotas, v.open = true, v.open || allowed
	}
}

func (v *verdict) denied() bool { return !v.enforced || v.quotas && !v.open }

// used is how many units are used now.
func (h *held) used(t *twin, cost int64) int64 {
	if cost < 0 || t.countDenied { // decided alone
		if h.charged != 0 {
			return h.tally.after
		}
		return h.tally.before
	}
	return h.tally.before + h.charged
}

func (h *held) admits(t *twin, c *weir.Charge) bool {
	cost := cost(c)
	switch used := h.used(t, cost); {
	case cost > 0:
		return used <= h.most-cost
	case cost == 0:
		return used <= h.most || t.numbers[1] == 0 && !t.countDenied
	}
	return true
}

// take charges, and tells the state after it.
func (h *held) take(t *twin, c *weir.Charge, now int64, allowed bool) algo.Result {
	if cost := cost(c); cost != 0 && (allowed || t.countDenied) {
		h.charged += cost
	}
	return h.result(t, c, now, allowed)
}

// result is what algo.Limit would tell of a log, or of slots.
func (h *held) result(t *twin, c *weir.Charge, now int64, allowed bool) algo.Result {
	cost := cost(c)
	used := h.used(t, cost)
	r := t.idle
	r.SoftLimit, r.Remaining = h.most, max(0, r.Limit-used)
	r.Allowed, r.Soft = allowed, allowed && used > r.Limit && used <= r.SoftLimit
	if used > 0 {
		r.ResetAfter = h.tally.newest + t.w - now
	}
	if !allowed && cost != 0 {
		if cost > r.SoftLimit {
			r.RetryAfter = algo.Never
		} else {
			r.RetryAfter = h.tally.pivot + t.w - now
		}
	}
	return r
}
