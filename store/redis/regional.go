package redis

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/internal/waiting"
)

// Changes that other regions reported. regions.lua makes all changes of a call, and moves the
// position of their log, in one step. If it leaves one of them to the node, it does nothing: the
// node then has the states that it left brought in order, as a decision that asks for nothing does,
// and calls again; and if that is not enough, makes all changes by one compare-and-swap, with the
// position among the values.

var _ store.Regional = (*Store)(nil)

// positionLife is how long a position is kept after the last change: longer than any use counts
// that was reported before it. Were it forgotten sooner, that use would be heard a second time.
const positionLife = 2 * algo.MaxWindow

// positionKey is where this part keeps the position of a log.
func (p *partition) positionKey(log string) string { return p.prefix + "heard:" + log }

// Position implements store.Regional.
func (s *Store) Position(ctx context.Context, part int, log string) (string, error) {
	p, err := s.partOf(part)
	if err != nil {
		return "", err
	}
	clients, err := s.connected()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, s.o.Timeout)
	defer cancel()
	c := clients.other
	at, err := c.Do(ctx, c.B().Get().Key(p.positionKey(log)).Build()).ToString()
	if err != nil && !rueidis.IsRedisNil(err) {
		return "", fmt.Errorf("redis store: %w", err)
	}
	return at, nil
}

// Lead implements store.Regional.
func (s *Store) Lead(ctx context.Context, task, holder string, term time.Duration) (leads bool, err error) {
	if task == "" || holder == "" || term < 0 {
		return false, errors.New("redis store: to lead needs a task, a holder, and a term that is not below 0")
	}
	clients, err := s.connected()
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.o.Timeout)
	defer cancel()
	key := s.partitions[0].prefix + "lead:" + task
	result, err := s.call(ctx, clients.other, lua().lead, []string{key},
		[]string{s.virtualNow(), holder, strconv.FormatInt(term.Microseconds(), 10)})
	if err != nil {
		return false, fmt.Errorf("redis store: %w", err)
	}
	n, err := result.ToInt64()
	return n == 1, err
}

// Change implements store.Regional.
func (s *Store) Change(
	ctx context.Context, part int, log, from, to string, changes []store.Change, done []store.Changed,
) (now int64, err error) {
	p, err := s.partOf(part)
	if err != nil {
		return 0, err
	}
	if err := p.checkChanges(changes, done); err != nil {
		return 0, notChargedError{err}
	}
	clients, err := s.connected()
	if err != nil {
		return 0, notChargedError{err}
	}
	ctx, cancel := context.WithTimeout(ctx, s.o.Timeout)
	defer cancel()
	b := &changeCall{p: p, log: log, from: from, to: to, changes: changes, done: done}
	defer b.release()
	b.build()
	for tries := 0; ; tries++ {
		if !b.forNode {
			reply, err := b.send(ctx, clients.other)
			if err != nil {
				return 0, err
			}
			if reply.decided {
				return reply.now, b.finish(reply)
			}
			if tries == 0 {
				// Most of them can be made then; and other nodes cannot get in between so long.
				if err := b.mend(ctx, reply.odd); err != nil {
					return 0, err
				}
				b.build() // another phase of a schedule may have begun
				continue
			}
		}
		now, ok, err := b.swap(ctx)
		switch {
		case err != nil:
			return 0, err
		case ok:
			return now, b.finish(changeReply{decided: true, moved: b.moved})
		case tries >= maxSwaps:
			return 0, fmt.Errorf("%w, %d times", errConflict, tries)
		}
	}
}

// checkChanges returns an error if a call cannot be understood.
func (p *partition) checkChanges(changes []store.Change, done []store.Changed) error {
	if err := store.CheckChanges(changes, done); err != nil {
		return fmt.Errorf("redis store: %w", err)
	}
	for i := range changes {
		c := &changes[i]
		if p.store.partitionOf(c.Counter, c.Key) != p {
			return fmt.Errorf("redis store: change %d is not of part %d", i, p.number)
		}
	}
	return nil
}

// changeCall is a call of Change on its way to Redis.
type changeCall struct {
	p             *partition
	log, from, to string
	changes       []store.Change
	done          []store.Changed

	forNode bool    // Lua cannot make one of the changes, whatever its state is
	calls   []*call // for the keys and operands of each change
	keys    []string
	args    []string
	leaked  bool // Redis' client may still hold views of the calls' keys
	moved   bool // the compare-and-swap found another position
}

type changeReply struct {
	now     int64
	decided bool
	moved   bool
	odd     []int // changes that are left to the node
}

// release gives the calls back.
func (b *changeCall) release() {
	for _, c := range b.calls {
		if !b.leaked {
			b.p.store.calls.Put(c)
		}
	}
	b.calls = b.calls[:0]
}

// unitsOf returns the units of a change as Lua gets them: 0 if they do not change the state.
func unitsOf(c *store.Change) int64 {
	if l := c.Limit; l.HasSlots() || l.Delays() && c.Units > 0 {
		return 0
	}
	return min(max(c.Units, -algo.MaxCost), algo.MaxCost)
}

// asCharge is a change as a decision that asks for nothing.
func asCharge(c *store.Change) store.Charge {
	return store.Charge{Counter: c.Counter, Limit: c.Limit, Key: c.Key, Ask: algo.Ask{MaxDelay: -1}}
}

// build prepares the call of Lua.
func (b *changeCall) build() {
	const never = 1<<53 - 1
	s := b.p.store
	b.release()
	position, counts := b.p.prefix, "0" // FCALL needs a key to find the server
	if b.log != "" {
		position, counts = b.p.positionKey(b.log), "1"
	}
	b.forNode, b.keys = false, append(b.keys[:0], position)
	shapes := map[string]int{}
	var texts []string
	list := make([]byte, 0, 20*len(b.changes))
	about := s.estimatedNow()
	var text []byte
	one := make([]store.Charge, 1)
	for i := range b.changes {
		ch := &b.changes[i]
		one[0] = asCharge(ch)
		c := s.newCall(b.p, one, nil)
		b.calls = append(b.calls, c)
		text = appendFloat(text[:0], float64(s.codecOf(ch.Limit).idle.Limit))
		if ch.Limit.Scheduled() {
			text = text[:0]
			if in, _ := ch.Limit.At(about); in != nil {
				text = appendFloat(text, float64(s.codecOf(in).idle.Limit))
			}
		}
		for j := range c.operands {
			op := &c.operands[j]
			// Where no limit is in force, a state is changed all the same.
			b.forNode = b.forNode || op.idle || op.codec.kind == kindOff
			text = op.append(text, &c.charges[0], about)
		}
		b.forNode = b.forNode || !c.disjoint
		at := shapes[string(text)]
		if at == 0 {
			at = len(shapes) + 1
			shapes[string(text)] = at
			texts = append(texts, string(text))
		}
		until := ch.Until
		switch {
		case until == 0 || until > never:
			until = never
		case until < 0:
			until = 1
		}
		list = binary.LittleEndian.AppendUint16(list, uint16(at))
		list = append56(list, unitsOf(ch))
		list = append56(append56(list, min(max(ch.Since, 0), never)), until)
		b.keys = append(b.keys, c.keys...)
	}
	b.args = append(b.args[:0], s.virtualNow(), counts, b.from, b.to,
		strconv.FormatInt(positionLife.Milliseconds(), 10), string(list))
	b.args = append(b.args, texts...)
}

// send calls Lua.
func (b *changeCall) send(ctx context.Context, client rueidis.Client) (reply changeReply, err error) {
	s := b.p.store
	l, a := b.p.lanes.take(b.p.memory.Load()), &attempts{p: b.p, client: client}
	defer b.p.lanes.put(l)
	result, err := s.callIn(ctx, a, l, true, lua().change, b.keys, b.args)
	b.leaked = b.leaked || err != nil || a.n > 0
	if err != nil {
		if didNothing(err) {
			err = notChargedError{err}
		}
		return reply, fmt.Errorf("redis store: %w", err)
	}
	text, err := result.AsBytes()
	if err != nil || len(text) < 8 {
		return reply, errors.Join(errChangeReply, err)
	}
	reply.now = get56(text)
	s.noteClock(reply.now)
	how := text[7]
	text = text[8:]
	switch how {
	case 0:
		reply.decided, reply.moved = true, true
		return reply, nil
	case 1:
		const size, notMade = 7, 1 << 53
		if len(text) != size*len(b.changes) {
			return reply, errChangeReply
		}
		reply.decided = true
		for i := range b.done {
			over := get56(text[size*i:])
			if b.done[i].Made = over != notMade; b.done[i].Made {
				b.done[i].Over = over
			}
		}
		return reply, nil
	}
	for ; len(text) >= 4; text = text[4:] {
		i := int(binary.LittleEndian.Uint32(text))
		if i >= len(b.changes) {
			return reply, errChangeReply
		}
		reply.odd = append(reply.odd, i)
	}
	return reply, nil
}

var errChangeReply = errors.New("redis store: the reply of weir_change has a form that is not known")

// finish ends remembered refusals of keys that got units back.
func (b *changeCall) finish(reply changeReply) error {
	if reply.moved {
		return store.ErrMoved
	}
	if r := b.p.store.refusals; r != nil {
		for i := range b.changes {
			if c := &b.changes[i]; c.Units < 0 && b.done[i].Made {
				r.invalidate(c.Counter.ID, c.Key)
			}
		}
	}
	return nil
}

// mend has states brought in order that Lua leaves to the node: those kept under an older identity,
// for generations of another length, or too far ahead.
func (b *changeCall) mend(ctx context.Context, odd []int) error {
	charges := make([]store.Charge, len(odd))
	for i, of := range odd {
		charges[i] = asCharge(&b.changes[of])
	}
	for at := 0; at < len(charges); at += maxSettlements {
		some := charges[at:min(at+maxSettlements, len(charges))]
		results, slots := make([]algo.Result, len(some)), make([]uint64, len(some))
		for i := range slots {
			slots[i] = newSlot()
		}
		if _, err := b.p.swapTake(&waiting.Waiter{Ctx: ctx}, some, nil, results, slots, false); err != nil {
			return notChargedError{err} // no change was made
		}
	}
	return nil
}

// swap makes the changes by compare-and-swap, once; ok is false after a conflict.
func (b *changeCall) swap(ctx context.Context) (now int64, ok bool, err error) {
	p := b.p
	select {
	case p.swapLock <- struct{}{}:
		defer func() { <-p.swapLock }()
	case <-ctx.Done():
		return 0, false, notChargedError{fmt.Errorf("redis store: %w", context.Cause(ctx))}
	}
	ok, err = p.trySwap(ctx, false, func(s *swapPlan) func(int64) {
		charges := make([]store.Charge, len(b.changes))
		for i := range b.changes {
			charges[i] = asCharge(&b.changes[i])
		}
		of := s.addCharges(charges)
		position := -1
		if b.log != "" {
			position = s.addText(p.positionKey(b.log))
		}
		return func(at int64) {
			now, b.moved = at, false
			if position >= 0 {
				v := &s.values[position]
				if b.moved = v.raw != b.from; b.moved {
					s.abandon()
					return
				}
				v.next, v.nextFresh = b.to, at+positionLife.Microseconds()
			}
			for i := range b.changes {
				c := &b.changes[i]
				if b.done[i] = c.Apply(&s.states[of[i]].St, s.lentOf(of[i]), at); b.done[i].Made {
					s.markWritten(of[i], c.Limit)
				}
			}
			b.leave(s, of)
		}
	})
	return now, ok, err
}

// leave leaves states without a change as they are, also states that the plan has carried over from
// an older identity: the result of that depends on when it is done.
func (b *changeCall) leave(s *swapPlan, of []int) {
	changed := make([]bool, len(s.states))
	for i, at := range of {
		changed[at] = changed[at] || b.done[i].Made
	}
	still := func(at int) {
		s.states[at].write = false
		for _, old := range s.states[at].older {
			s.states[old].write = false
		}
	}
	for _, at := range of {
		if changed[at] {
			continue
		}
		still(at)
		if beside := s.states[at].beside; beside != 0 {
			still(beside - 1)
		}
	}
}

// addText adds a value that holds no states, and returns its index.
func (s *swapPlan) addText(key string) int {
	s.values = append(s.values, value{key: key})
	return len(s.values) - 1
}

// abandon has nothing written.
func (s *swapPlan) abandon() {
	for i := range s.states {
		s.states[i].write = false
	}
}
