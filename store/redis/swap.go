package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/internal/deciding"
)

// Rare and complicated cases are not in weir.lua: a state that a leaping clock left in the future,
// a state kept under an older identity of its counter, a call that names one state twice, and
// requests that a soft margin has to admit that closes. Such a decision is made here, by algo, on
// the states of one instant, and written by a compare-and-swap over all of them. If a state has
// changed meanwhile, another request was charged, and the decision is made again.

// maxSwaps bounds how often a decision is made again. Each time another request has come through.
const maxSwaps = 1000

// value is a value in Redis.
type value struct {
	key    string
	raw    string
	exists bool
	states []int // states that lie in it
	// of a value without states: the new one, "" if it stays; and when that is fresh, in µs
	next      string
	nextFresh int64
}

// stateRef is one state that a call names, once or more.
type stateRef struct {
	deciding.State
	codec   *codec // of the limit that writes it
	counter *rule.Counter
	value   int
	beside  int   // 1 + index of the state of its soft margin, or of its record; 0 for none
	each    int64 // of a record: the length of a generation under which it is kept
	older   []int // indices of the states under older identities of its counter
	found   bool
	write   bool
}

// swapPlan is the states that a compare-and-swap reads and writes.
type swapPlan struct {
	p        *partition
	failFast bool  // do not wait while a slot is migrating
	asKept   bool  // records keep the length of their generations
	changes  int64 // number of the last change when it was read
	readAt   int64 // when, by the monotonic clock
	values   []value
	states   []stateRef
	byKey    map[string]int   // index of a value
	byID     map[stateKey]int // index of a state
}

type stateKey struct {
	value int
	id    uint64 // of the counter
}

func (p *partition) newSwapPlan() *swapPlan {
	return &swapPlan{p: p, byKey: map[string]int{}, byID: map[stateKey]int{}}
}

// add returns the index of a state. is reports whether the plan had it already.
func (s *swapPlan) add(c *rule.Counter, l *algo.Limit, key []byte) (at int, is bool) {
	t := s.p.store.codecOf(l)
	name := string(s.p.appendKey(nil, t.valueID(c), key))
	v, ok := s.byKey[name]
	if !ok {
		v = len(s.values)
		s.byKey[name] = v
		s.values = append(s.values, value{key: name})
	}
	at, is = s.byID[stateKey{v, c.ID}]
	if !is {
		at = len(s.states)
		s.byID[stateKey{v, c.ID}] = at
		s.states = append(s.states, stateRef{codec: t, counter: c, value: v})
		s.values[v].states = append(s.values[v].states, at)
	}
	return at, is
}

// addCharges adds the states that charges name, and returns the index of each.
func (s *swapPlan) addCharges(charges []store.Charge) []int {
	of := make([]int, len(charges))
	for i := range charges {
		c := &charges[i]
		at, is := s.add(c.Counter, c.Limit, c.Key)
		of[i] = at
		s.addOlder(at, is, c.Counter, c.Key)
		if counter, limit := besideOf(c.Counter, c.Limit); limit != nil && s.states[at].beside == 0 {
			beside, is := s.add(counter, limit, c.Key)
			s.states[at].beside = beside + 1
			s.addOlder(beside, is, counter, c.Key)
			s.pairOlder(at, beside)
		}
	}
	return of
}

// addOlder adds the states under older identities of a state's counter, unless they have been
// added.
func (s *swapPlan) addOlder(at int, is bool, c *rule.Counter, key []byte) {
	if is && len(s.states[at].older) > 0 {
		return
	}
	for _, previous := range c.Previous {
		old, _ := s.add(previous, previous.Limit, key)
		s.states[at].older = append(s.states[at].older, old)
	}
}

// pairOlder pairs the older states of a counter with the records of their units lent.
func (s *swapPlan) pairOlder(at, record int) {
	if s.states[record].codec.kind != kindRecord {
		return
	}
	for _, old := range s.states[at].older {
		for _, beside := range s.states[record].older {
			if of := s.states[old].counter.Lease; of != nil && of.ID == s.states[beside].counter.ID {
				s.states[old].beside = beside + 1
			}
		}
	}
}

// besideOf returns the state of a soft margin, or the record of units lent; nil if there is none.
func (s *swapPlan) besideOf(at int) *deciding.State {
	m := s.states[at].beside
	if m == 0 {
		return nil
	}
	return &s.states[m-1].State
}

// lentOf returns the record of a state's units lent; nil if it has none.
func (s *swapPlan) lentOf(at int) *algo.State {
	if m := s.states[at].beside; m != 0 && s.states[m-1].codec.kind == kindRecord {
		return &s.states[m-1].St
	}
	return nil
}

var errConflict = notChargedError{errors.New("redis store: others changed the same keys")}

// swap changes states by compare-and-swap: prepare adds them to the plan, and returns the function
// that changes them once they are read. Both are called again after a conflict. A node runs one
// swap of a partition at a time: more would only conflict with each other.
func (p *partition) swap(ctx context.Context, prepare func(s *swapPlan) (change func(now int64))) error {
	select {
	case p.swapLock <- struct{}{}:
		defer func() { <-p.swapLock }()
	case <-ctx.Done():
		return notChargedError{ctx.Err()}
	}
	for range maxSwaps {
		done, err := p.trySwap(ctx, false, prepare)
		if err != nil || done {
			return err
		}
	}
	return fmt.Errorf("%w, %d times", errConflict, maxSwaps)
}

// trySwap is one attempt; done is false after a conflict. The caller holds swapLock.
func (p *partition) trySwap(
	ctx context.Context, failFast bool, prepare func(s *swapPlan) (change func(now int64)),
) (done bool, err error) {
	clients, err := p.store.connected()
	if err != nil {
		return false, err
	}
	s := p.newSwapPlan()
	s.failFast = failFast
	change := prepare(s)
	p.detector.Aside(p.store.monotonic())
	defer p.detector.AsideOver()
	now, err := s.read(ctx, clients.other)
	if err != nil {
		return false, notChargedError{fmt.Errorf("redis store: %w", err)}
	}
	p.detector.Alive(p.store.monotonic())
	change(now)
	done, err = s.commit(ctx, clients.other, now)
	if err != nil {
		return false, fmt.Errorf("redis store: %w", err)
	}
	p.store.metrics.swaps.Add(1)
	p.answers.Add(1)
	p.detector.Alive(p.store.monotonic())
	return done, nil
}

// mostBetween is how long after its values were read a plan may be committed.
const mostBetween = 30 * time.Second

// readHead is how many values begin a reply of read in weir.lua.
const readHead = 3

// read reads the states, and carries over those that are kept under an older identity. A state of
// an unknown form counts as fresh, and is overwritten.
func (s *swapPlan) read(ctx context.Context, client rueidis.Client) (now int64, err error) {
	keys := make([]string, len(s.values))
	for i := range s.values {
		keys[i] = s.values[i].key
	}
	a := &attempts{p: s.p, client: client, aside: true, repeatable: true}
	result, err := s.p.store.callIn(ctx, a, nil, !s.failFast, lua().read, keys, []string{s.p.store.virtualNow()})
	if err != nil {
		return 0, err
	}
	raw, err := result.ToArray()
	if err != nil {
		return 0, err
	}
	if len(raw) != readHead+len(keys) {
		return 0, fmt.Errorf("the reply of %s has %d values, not %d", lua().read, len(raw), readHead+len(keys))
	}
	if now, err = raw[0].AsInt64(); err != nil {
		return 0, err
	}
	s.readAt = s.p.store.monotonic()
	if s.changes, err = raw[1].AsInt64(); err != nil {
		return 0, err
	}
	name, err := raw[2].AsInt64()
	if err != nil {
		return 0, err
	}
	s.p.memory.Store(uint32(name))
	raw = raw[readHead:]
	s.p.store.noteClock(now)
	for i := range keys {
		if raw[i].IsNil() {
			continue
		}
		if s.values[i].raw, err = raw[i].ToString(); err != nil {
			return 0, err
		}
		s.values[i].exists = true
	}
	for i := range s.states {
		ref := &s.states[i]
		var state string
		if state, ref.found = ref.codec.state(s.values[ref.value].raw, ref.counter); ref.found &&
			ref.codec.decode([]byte(state), &ref.St) != nil {
			ref.St, ref.found, ref.write = algo.State{}, false, true
		}
		if ref.codec.kind == kindRecord {
			ref.each = ref.codec.w
			if r, err := decodeRecord(state); ref.found && err == nil {
				ref.each = r.each
			}
		}
	}
	for i := range s.states {
		s.inherit(i, now)
	}
	for i := range s.states {
		if !s.asKept {
			s.states[i].carryRecord()
		}
	}
	return now, nil
}

// carryRecord brings a record to the length of generations under which it is to be kept.
func (ref *stateRef) carryRecord() {
	if ref.codec.kind != kindRecord || ref.each == ref.codec.w {
		return
	}
	if old := ref.keptUnder(); old != nil {
		ref.codec.limit.Carry(old, &ref.St, 0)
	} else {
		ref.St = algo.State{} // it is no record
	}
	ref.each = ref.codec.w
}

// under returns l with generations of the length under which the record of a state is kept.
func (s *swapPlan) under(l *algo.Limit, at int) *algo.Limit {
	if m := s.states[at].beside; m != 0 && s.states[m-1].codec.kind == kindRecord {
		if record := s.states[m-1].keptUnder(); record != nil {
			return l.Lending(record)
		}
	}
	return l
}

// keptUnder returns the definition under which a record is kept; nil if it is no record.
func (ref *stateRef) keptUnder() *algo.Limit {
	if ref.each == ref.codec.w {
		return ref.codec.limit
	}
	c := ref.codec.limit.Config()
	c.Timeout = time.Duration(ref.each) * time.Microsecond
	l, _ := algo.New(c)
	return l
}

// inherit carries a state over from an older identity of its counter, if there is none under its
// own.
func (s *swapPlan) inherit(at int, now int64) {
	ref := &s.states[at]
	if ref.found {
		return
	}
	for _, at := range ref.older {
		old := &s.states[at]
		lease := s.lentOf(at)
		if !old.found && (lease == nil || lease.B == 0) {
			continue
		}
		if l := ref.codec.limit; l.Algorithm() == old.codec.limit.Algorithm() {
			ref.St = clone(&old.St)
			if lease != nil { // ended generations count by the old numbers
				s.under(old.codec.limit, at).Roll(&ref.St, lease, now)
			}
			if ref.each = old.each; ref.codec.kind != kindRecord { // see carryRecord
				l.Carry(old.codec.limit, &ref.St, now)
			}
		}
		old.St, old.found = algo.State{}, false
		ref.write, old.write = true, true
		return
	}
}

func clone(st *algo.State) algo.State {
	c := *st
	c.Ext = append([]byte(nil), st.Ext...)
	return c
}

// decide decides charges all or nothing (store.Verdict). of is the index of each one's state.
// ahead is empty if nothing may be lent.
func (s *swapPlan) decide(charges []store.Charge, ahead []algo.Ahead, results []algo.Result, slots []uint64, of []int,
	now int64) {
	for i, at := range of {
		if lease := s.lentOf(at); lease != nil {
			var none algo.Ahead
			h := &none
			if len(ahead) > 0 {
				h = &ahead[i]
			}
			charges[i].Limit.Learn(&s.states[at].St, lease, now, h)
		}
	}
	states, besides := make([]*deciding.State, len(of)), make([]*deciding.State, len(of))
	for i, at := range of {
		states[i], besides[i] = &s.states[at].State, s.besideOf(at)
	}
	denied := deciding.Take(charges, results, slots, states, besides, now)
	for i, at := range of {
		s.markWritten(at, charges[i].Limit)
	}
	for i := range ahead {
		if lease, r := s.lentOf(of[i]), &results[i]; lease != nil && !denied && r.Allowed && !r.Off {
			charges[i].Limit.Lend(&s.states[of[i]].St, lease, now, &ahead[i])
		}
	}
}

// settle makes settlements, each by itself. of is the index of each one's state.
func (s *swapPlan) settle(settlements []store.Settlement, of []int, now int64) {
	for i := range settlements {
		e := &settlements[i]
		e.Limit.Settle(&s.states[of[i]].St, s.lentOf(of[i]), now, e.At, e.Reserved, e.Actual)
		s.markWritten(of[i], e.Limit)
	}
}

// markWritten has a state written, as one kept under l.
func (s *swapPlan) markWritten(at int, l *algo.Limit) {
	ref := &s.states[at]
	ref.codec, ref.write = s.p.store.codecOf(l), true
	if ref.beside != 0 {
		s.states[ref.beside-1].write = true
	}
}

// commit writes the changed values; done is false if a value was changed since it was read.
func (s *swapPlan) commit(ctx context.Context, client rueidis.Client, now int64) (done bool, err error) {
	keys := make([]string, len(s.values))
	args := make([]string, 2, 2+4*len(s.values))
	args[0], args[1] = s.p.store.virtualNow(), strconv.FormatInt(s.changes, 10)
	changed := false
	for i := range s.values {
		v := &s.values[i]
		keys[i] = v.key
		has, next, fresh := "0", "=", ""
		if v.exists {
			has = "1"
		}
		if text, stop := s.nextValue(v, now); text != v.raw || s.mustLast(v) {
			next, fresh, changed = text, stop, true
		}
		args = append(args, has, v.raw, next, fresh)
	}
	if !changed {
		return true, nil
	}
	if s.p.store.monotonic()-s.readAt > int64(mostBetween) {
		return false, nil // a script may have forgotten a change since (CHANGED in kept.lua)
	}
	l := s.p.swapLane
	l.next(s.p.memory.Load())
	result, err := s.p.store.callIn(ctx, &attempts{p: s.p, client: client, aside: true}, l, !s.failFast, lua().swap,
		keys, args)
	if err != nil {
		return false, err
	}
	n, err := result.ToInt64()
	return n == 1, err
}

// mustLast reports whether a value is to be written because it must live as long as a record in
// another value, which is written.
func (s *swapPlan) mustLast(v *value) bool {
	for _, i := range v.states {
		ref := &s.states[i]
		if lease := s.lentOf(i); ref.write && ref.St.B != 0 && lease != nil && lease.B != 0 &&
			s.states[ref.beside-1].value != ref.value {
			return true
		}
	}
	return false
}

// nextValue returns the new text of a value, and the instant at which that is fresh, as swap in
// weir.lua wants them.
func (s *swapPlan) nextValue(v *value, now int64) (text, fresh string) {
	if v.next != "" {
		return v.next, strconv.FormatInt(v.nextFresh, 10)
	}
	var b []byte
	stop, sign := int64(0), ""
	ours := map[uint32]bool{}
	for _, i := range v.states {
		ref := &s.states[i]
		if !ref.write {
			continue
		}
		ours[tagOf(ref.counter)] = true
		if ref.St.B == 0 {
			continue
		}
		state := ref.codec.encode(&ref.St)
		if ref.codec.size > 0 {
			b = appendRecord(b, ref.counter, state)
		} else {
			b = state
		}
		stop = max(stop, deciding.FreshAt(ref.codec.limit, &ref.St, now))
		if lease := s.lentOf(i); lease != nil && lease.B != 0 {
			// Units that are out are charged on top of the state when they end.
			stop = max(stop, deciding.FreshAt(s.states[ref.beside-1].codec.limit, lease, now))
		}
	}
	if len(ours) == 0 {
		return v.raw, ""
	}
	if ref := &s.states[v.states[0]]; ref.codec.size > 0 && !ref.codec.changes(ref.counter) {
		others := 0
		for rest := v.raw; others < maxRecords; {
			tag, state, left, ok := cutRecord(rest)
			if !ok {
				break
			}
			if !ours[tag] {
				b = append(b, rest[:recordHead+len(state)]...)
				others++
				sign = "+"
			}
			rest = left
		}
	}
	if sign == "" && stop <= now {
		sign = "~"
	}
	return string(b), sign + strconv.FormatInt(stop, 10)
}
