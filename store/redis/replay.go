package redis

import (
	"encoding/binary"
	"errors"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// The reply of take holds the states before the call. The decisions that Lua made on them are made
// here again, by algo itself, to compute complete Results. Both must admit the same number of
// decisions.

// replayState is the state of an operand while the calls of a group are decided on it.
type replayState struct {
	state    algo.State
	tallied  bool // known by a tally only; state is not valid
	tally    tally
	charged  int64     // units charged so far; if tallied
	capacity int64     // what may be used at now; if tallied
	out      algo.Lent // the units out; if tallied
	lent     int64     // units that Lua has lent
}

// The head of a reply: the instant, how many requests were admitted, and the name of the memory of
// the functions (again.go).
const (
	replyHead   = 15
	replyFormat = "<I7I4I4"
)

// How the reply goes on for a decision with limits that lend, but without reports and wishes: see
// bare.lua.
const (
	replyWhole = 'w'
	replyBare  = 'b'
	replyValue = 'v'
	replyNone  = 'n'
)

// read decodes a reply, and fills in the results of all groups.
func (p *partition) read(reply []byte) error {
	if len(reply) < replyHead {
		return errReply
	}
	now, admitted := get56(reply), int(binary.LittleEndian.Uint32(reply[7:]))
	p.store.noteClock(now)
	p.memory.Store(binary.LittleEndian.Uint32(reply[11:]))
	rest := reply[replyHead:]
	found := 0
	for i := range p.runs {
		for c := p.runs[i].first; c != nil; c = c.nextGroup {
			undecided, left, err := p.readStates(c, p.runs[i].lending, rest)
			if err != nil {
				return err
			}
			rest = left
			if undecided {
				for same := c; same != nil; same = same.next {
					same.undecided = true
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

var errReply = errors.New("the reply of weir_take has a form that is not known")

// readStates reads the states of a group's operands from a reply. undecided reports that Lua left
// the group to this node, or that a state has an unknown form.
func (p *partition) readStates(c *call, lending bool, b []byte) (undecided bool, rest []byte, err error) {
	if cap(p.states) < len(c.operands) {
		p.states = make([]replayState, len(c.operands), 2*len(c.operands))
	}
	p.states = p.states[:len(c.operands)]
	how := byte(replyWhole)
	if c.lends && !lending {
		if len(b) == 0 {
			return false, nil, errReply
		}
		how, b = b[0], b[1:]
	}
	for j := range c.operands {
		t, h := c.operands[j].codec, &p.states[j]
		h.tallied, h.charged, h.lent = false, 0, 0
		if how == replyNone || how != replyWhole && c.operands[j].isRecord {
			h.state = algo.State{Ext: h.state.Ext[:0]}
			continue
		}
		if how == replyValue {
			if len(b) < recordHead {
				return false, nil, errReply
			}
			b = b[recordHead:]
		}
		size, lends := t.size, lending && c.operands[j].record != nil
		if size == 0 {
			if len(b) < 4 {
				return false, nil, errReply
			}
			n := binary.LittleEndian.Uint32(b)
			if b = b[4:]; n == 0xFFFFFFFF {
				if undecided = true; lends && len(b) >= 4 {
					b = b[4:]
				}
				continue
			}
			size = int(n)
		}
		if len(b) < size {
			return false, nil, errReply
		}
		raw := b[:size]
		if b = b[size:]; lends {
			if len(b) < 4 {
				return false, nil, errReply
			}
			h.lent = int64(binary.LittleEndian.Uint32(b))
			b = b[4:]
		}
		switch {
		case t.size > 0 && raw[6] == 0xFF: // later than any instant: Lua fills it with 255
			undecided = true
		case t.kind == kindOff:
			h.state = algo.State{}
		case (t.hasLog() || t.hasSlots()) && size == tallySize:
			// a tally: no state has that size
			h.tallied = true
			h.tally, err = decodeTally(raw)
		default:
			err = t.decode(raw, &h.state)
		}
		if err != nil {
			undecided, err = true, nil // the swap writes a fresh one
		}
	}
	return undecided, b, nil
}

// besideOf returns the state of the soft margin of an operand, which is the operand after it, or
// its record, the operand before it; nil if there is neither.
func (p *partition) besideOf(c *call, at int) *algo.State {
	if c.operands[at].record != nil {
		return &p.states[at-1].state
	}
	if at++; at < len(c.operands) && c.operands[at].margin {
		return &p.states[at].state
	}
	return nil
}

// replay decides the calls of a group, in their order, on p.states, and returns how many of them
// Lua has admitted. Lua does not charge a call that only a soft margin admits: such a call is
// undecided.
func (p *partition) replay(head *call, now int64) (admitted int) {
	for c := head; c != nil; c = c.next {
		c.now = now
		if len(c.operands) == 1 && !p.states[0].tallied {
			ch := &c.charges[0]
			c.results[0] = ch.Limit.Take(&p.states[0].state, now, ch.Ask)
			if c.results[0].Allowed || ch.Mode == rule.Shadow {
				admitted++
			}
			continue
		}
		p.learn(c, now)
		var verdict, inLua store.Verdict
		// needsMargin: a soft margin that closes admits more than Lua grants. charging: the call
		// would charge something
		needsMargin, charging := false, false
		for j := range c.operands {
			op := &c.operands[j]
			if op.margin || op.isRecord {
				continue
			}
			h, ch, r := &p.states[j], &c.charges[op.charge], &c.results[op.charge]
			switch {
			case !h.tallied:
				*r = ch.Limit.CheckWith(&h.state, p.besideOf(c, j), now, ch.Ask)
			case op.idle:
				*r = ch.Limit.Check(&algo.State{}, now, ch.Ask)
			default:
				h.capacity = op.codec.idle.SoftLimit
				if m := p.besideOf(c, j); m != nil && op.record == nil { // less while the margin is closed
					h.capacity = ch.Limit.CheckWith(&algo.State{}, m, now, algo.Ask{}).SoftLimit
				}
				*r = h.result(op.codec, ch, now, h.admits(op.codec, ch))
			}
			granted := r.Allowed && (!op.marginCloses || within(r, needs(ch)))
			verdict.Add(ch.Mode, r)
			inLua.Add(ch.Mode, &algo.Result{Allowed: granted, Off: r.Off})
			needsMargin, charging = needsMargin || r.Allowed && !granted, charging || ch.Ask.Cost != 0
		}
		denied := verdict.Denied()
		if !inLua.Denied() {
			admitted++
		}
		if needsMargin && charging && !denied {
			c.undecided = true
			continue
		}
		for j := range c.operands {
			op := &c.operands[j]
			if op.margin || op.isRecord {
				continue
			}
			h, t, ch, r := &p.states[j], op.codec, &c.charges[op.charge], &c.results[op.charge]
			own := !denied || ch.Mode == rule.Shadow
			if !own && !t.countDenied || r.Off {
				continue
			}
			was := *r
			if h.tallied {
				*r = h.take(t, ch, now, was.Allowed)
			} else {
				*r = ch.Limit.TakeWith(&h.state, p.besideOf(c, j), now, ch.Ask)
			}
			if own && was.Allowed && ch.Ask.Cost > 0 && t.hasSlots() {
				ch.Ask.Slot = c.slots[op.charge]
			}
		}
		if !denied && len(c.ahead) > 0 {
			p.lend(c, now)
		}
	}
	return admitted
}

// within reports whether an admitted request, not charged yet, fits below the soft margin.
func within(r *algo.Result, cost int64) bool {
	if cost == 0 {
		return !r.Soft
	}
	return cost <= r.Remaining
}

// used returns how many units are used now.
func (h *replayState) used(t *codec, cost int64) int64 {
	if cost < 0 || t.countDenied { // such calls are not merged
		if h.charged != 0 {
			return h.tally.after
		}
		return h.tally.before
	}
	return h.tally.before + h.charged
}

// admits reports whether the limit admits a charge.
func (h *replayState) admits(t *codec, c *store.Charge) bool {
	cost := needs(c)
	switch used := h.used(t, cost) + h.outOf(t); {
	case cost > 0:
		return used <= h.capacity-cost
	case cost == 0:
		return used <= h.capacity || t.numbers[1] == 0 && !t.countDenied
	}
	return true
}

// take charges, and returns the result after it.
func (h *replayState) take(t *codec, c *store.Charge, now int64, allowed bool) algo.Result {
	if cost := cost(c); cost != 0 && (allowed || t.countDenied) {
		h.charged += cost
	}
	return h.result(t, c, now, allowed)
}

// result returns what algo.Limit would return for a log, or for slots.
func (h *replayState) result(t *codec, c *store.Charge, now int64, allowed bool) algo.Result {
	cost := needs(c)
	used := h.used(t, cost)
	r := t.idle
	r.SoftLimit, r.Remaining = h.capacity, max(0, r.Limit-used)
	r.Allowed, r.Soft = allowed, allowed && used > r.Limit && used <= r.SoftLimit
	if used > 0 {
		r.ResetAfter = h.tally.newest + t.w - now
	}
	if h.outOf(t) > 0 {
		h.lentResult(&r, t, cost, used, now)
		return r
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
