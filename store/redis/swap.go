package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/rueidis"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// What is rare and long to tell is not told in Lua: a state that a leaping clock left in the future, one that is kept
// under an older identity of its counter, calls that name one state twice, and what a soft margin that closes has to admit. Such
// a decision is made here, by algo, on the states as they were at one instant, and takes effect if they are still the same (a
// compare-and-swap over all of them). If they are not, somebody else was admitted or charged meanwhile, and it is made again.
// Those that wait for it go together.

// maxSwaps bounds how often a decision is made again. Each time somebody else has come through.
const maxSwaps = 1000

// value is a value in Redis.
type value struct {
	key    string
	raw    string
	exists bool
	places []int // states that lie in it
}

// place is one state that a call names, once or more.
type place struct {
	twin    *twin // of the limit that has written it last
	counter *rule.Counter
	value   int
	margin  int   // 1 + place of the state of its soft margin; 0 for none
	older   []int // places of its older identities
	found   bool
	write   bool
	st      algo.State // in force
	tried   algo.State // with the earlier charges of the call tried on it
}

// scene is the states that a decision is about.
type scene struct {
	p      *partition
	hasty  bool  // it does not wait while keys are being moved
	serial int64 // of the last denial before it was read
	values []value
	places []place
	names  map[string]int   // values by key
	states map[stateKey]int // places
}

type stateKey struct {
	value int
	id    uint64 // of the counter
}

func (p *partition) newScene() *scene {
	return &scene{p: p, names: map[string]int{}, states: map[stateKey]int{}}
}

// add returns the place of a state, which it makes if there is none.
func (s *scene) add(c *rule.Counter, l *algo.Limit, key []byte) (at int, is bool) {
	t := s.p.store.twinOf(l)
	name := string(s.p.appendKey(nil, t.valueID(c), key))
	v, ok := s.names[name]
	if !ok {
		v = len(s.values)
		s.names[name] = v
		s.values = append(s.values, value{key: name})
	}
	at, is = s.states[stateKey{v, c.ID}]
	if !is {
		at = len(s.places)
		s.states[stateKey{v, c.ID}] = at
		s.places = append(s.places, place{twin: t, counter: c, value: v})
		s.values[v].places = append(s.values[v].places, at)
	}
	return at, is
}

// addCharges adds what charges name, and returns the place of each.
func (s *scene) addCharges(charges []weir.Charge) []int {
	of := make([]int, len(charges))
	for i := range charges {
		c := &charges[i]
		at, is := s.add(c.Counter, c.Limit, c.Key)
		of[i] = at
		s.addOlder(at, is, c.Counter, c.Key)
		if limit := marginOf(c.Counter, c.Limit.Margin()); limit != nil && s.places[at].margin == 0 {
			margin, is := s.add(c.Counter.Margin, limit, c.Key)
			s.places[at].margin = margin + 1
			s.addOlder(margin, is, c.Counter.Margin, c.Key)
		}
	}
	return of
}

// addOlder adds the older identities of a place that is new.
func (s *scene) addOlder(at int, is bool, c *rule.Counter, key []byte) {
	if is && len(s.places[at].older) > 0 {
		return
	}
	for _, previous := range c.Previous {
		old, _ := s.add(previous, previous.Limit, key)
		s.places[at].older = append(s.places[at].older, old)
	}
}

// marginOf returns the state of a place's soft margin, and that with the earlier charges of the call tried on it; nil if there is none.
func (s *scene) marginOf(at int) (st, tried *algo.State) {
	m := s.places[at].margin
	if m == 0 {
		return nil, nil
	}
	return &s.places[m-1].st, &s.places[m-1].tried
}

var errOvertaken = notCharged{errors.New("redis store: others changed the same keys")}

// swap changes states: prepare says which, and returns what changes them, once they are read. Both are called again as
// long as others come between. In a partition one node does one at a time: more would only overtake each other.
func (p *partition) swap(ctx context.Context, prepare func(s *scene) (change func(now int64))) error {
	select {
	case p.swaps <- struct{}{}:
		defer func() { <-p.swaps }()
	case <-ctx.Done():
		return notCharged{ctx.Err()}
	}
	for range maxSwaps {
		done, err := p.trySwap(ctx, false, prepare)
		if err != nil || done {
			return err
		}
	}
	return fmt.Errorf("%w, %d times", errOvertaken, maxSwaps)
}

// trySwap is one attempt, by whoever holds swaps; done is false if others came between.
func (p *partition) trySwap(ctx context.Context, hasty bool, prepare func(s *scene) (change func(now int64))) (done bool, err error) {
	clients, err := p.store.connected()
	if err != nil {
		return false, err
	}
	s := p.newScene()
	s.hasty = hasty
	change := prepare(s)
	now, err := s.read(ctx, clients.other)
	if err != nil {
		return false, notCharged{fmt.Errorf("redis store: %w", err)}
	}
	change(now)
	done, err = s.commit(ctx, clients.other, now)
	if err != nil {
		return false, fmt.Errorf("redis store: %w", err)
	}
	p.store.metrics.swaps.Add(1)
	return done, nil
}

// read reads the states, and carries those over that are kept under an older identity. What has a form that is not known
// counts as fresh, and is written over.
func (s *scene) read(ctx context.Context, client rueidis.Client) (now int64, err error) {
	keys := make([]string, len(s.values))
	for i := range s.values {
		keys[i] = s.values[i].key
	}
	result, err := s.p.store.callOnce(ctx, client, !s.hasty, functionRead, keys, []string{s.p.store.virtualNow()})
	if err != nil {
		return 0, err
	}
	raw, err := result.ToArray()
	if err != nil {
		return 0, err
	}
	if len(raw) != 2+len(keys) {
		return 0, fmt.Errorf("the reply of %s has %d values, not %d", functionRead, len(raw), 2+len(keys))
	}
	if now, err = raw[0].AsInt64(); err != nil {
		return 0, err
	}
	if s.serial, err = raw[1].AsInt64(); err != nil {
		return 0, err
	}
	raw = raw[2:]
	s.p.store.heard(now)
	for i := range keys {
		if raw[i].IsNil() {
			continue
		}
		if s.values[i].raw, err = raw[i].ToString(); err != nil {
			return 0, err
		}
		s.values[i].exists = true
	}
	for i := range s.places {
		pl := &s.places[i]
		var state string
		if state, pl.found = pl.twin.state(s.values[pl.value].raw, pl.counter); pl.found && pl.twin.decode([]byte(state), &pl.st) != nil {
			pl.st, pl.found, pl.write = algo.State{}, false, true
		}
	}
	for i := range s.places {
		s.inherit(&s.places[i], now)
	}
	return now, nil
}

// inherit carries a state over from an older identity, if there is none under its own.
func (s *scene) inherit(pl *place, now int64) {
	if pl.found {
		return
	}
	for _, at := range pl.older {
		old := &s.places[at]
		if !old.found {
			continue
		}
		if l := pl.twin.limit; l.Algorithm() == old.twin.limit.Algorithm() {
			pl.st = clone(&old.st)
			l.Carry(old.twin.limit, &pl.st, now)
		}
		old.st, old.found = algo.State{}, false
		pl.write, old.write = true, true
		return
	}
}

func clone(st *algo.State) algo.State {
	c := *st
	c.Ext = append([]byte(nil), st.Ext...)
	return c
}

// settle decides all or nothing, see weir.Store. of is the place of each charge.
func (s *scene) settle(charges []weir.Charge, results []algo.Result, slots []uint64, of []int, now int64) {
	for _, at := range of {
		s.places[at].tried = clone(&s.places[at].st)
		if st, tried := s.marginOf(at); st != nil {
			*tried = *st
		}
	}
	asks := make([]algo.Ask, len(charges))
	verdict := newVerdict()
	for i := range charges {
		c := &charges[i]
		asks[i] = c.Ask
		asks[i].Slot = slots[i]
		_, margin := s.marginOf(of[i])
		results[i] = c.Limit.TakeWith(&s.places[of[i]].tried, margin, now, asks[i])
		if !results[i].Off { // else it is as if it had not been met
			verdict.add(c.Mode, results[i].Allowed)
		}
	}
	denied := len(charges) > 1 && verdict.denied()
	for i := range charges {
		c, pl, r := &charges[i], &s.places[of[i]], &results[i]
		margin, _ := s.marginOf(of[i])
		c.Ask.Slot = 0
		if !denied || c.Mode == rule.Shadow {
			*r = c.Limit.TakeWith(&pl.st, margin, now, asks[i])
			if r.Allowed && !r.Off && asks[i].Cost > 0 {
				c.Ask.Slot = asks[i].Slot
			}
		} else {
			was := *r
			if c.Limit.CountDenied() {
				*r = c.Limit.TakeWith(&pl.st, margin, now, asks[i])
			} else {
				*r = c.Limit.CheckWith(&pl.st, margin, now, asks[i])
				c.Limit.Mend(&pl.st, now)
				if margin != nil {
					s.places[pl.margin-1].twin.limit.Mend(margin, now)
				}
			}
			r.Allowed, r.RetryAfter, r.Delay, r.Soft = was.Allowed, was.RetryAfter, was.Delay, r.Soft && was.Allowed
		}
		s.write(of[i], c.Limit)
	}
}

// replace makes settlements, each by itself.
func (s *scene) replace(settlements []weir.Settlement, of []int, now int64) {
	for i := range settlements {
		e := &settlements[i]
		e.Limit.Settle(&s.places[of[i]].st, now, e.At, e.Reserved, e.Actual)
		s.write(of[i], e.Limit)
	}
}

// write notes that a state has been kept under a limit, and is to be written.
func (s *scene) write(at int, l *algo.Limit) {
	pl := &s.places[at]
	pl.twin, pl.write = s.p.store.twinOf(l), true
	if pl.margin != 0 {
		s.places[pl.margin-1].write = true
	}
}

// commit writes what has changed, if nobody else has written meanwhile.
func (s *scene) commit(ctx context.Context, client rueidis.Client, now int64) (done bool, err error) {
	keys := make([]string, len(s.values))
	args := make([]string, 2, 2+4*len(s.values))
	args[0], args[1] = s.p.store.virtualNow(), strconv.FormatInt(s.serial, 10)
	changed := false
	for i := range s.values {
		v := &s.values[i]
		keys[i] = v.key
		has, next, fresh := "0", "=", ""
		if v.exists {
			has = "1"
		}
		if text, stop := s.next(v, now); text != v.raw {
			next, fresh, changed = text, stop, true
		}
		args = append(args, has, v.raw, next, fresh)
	}
	if !changed {
		return true, nil
	}
	result, err := s.p.store.callOnce(ctx, client, !s.hasty, functionSwap, keys, args)
	if err != nil {
		return false, err
	}
	n, err := result.ToInt64()
	return n == 1, err
}

// next returns what a value is to be, and when that is fresh.
func (s *scene) next(v *value, now int64) (text, fresh string) {
	var b []byte
	stop, sign := int64(0), ""
	ours := map[uint32]bool{}
	for _, i := range v.places {
		pl := &s.places[i]
		if !pl.write {
			continue
		}
		ours[tagOf(pl.counter)] = true
		if pl.st.B == 0 {
			continue
		}
		state := pl.twin.encode(&pl.st)
		if pl.twin.size > 0 {
			b = appendRecord(b, pl.counter, state)
		} else {
			b = state
		}
		stop = max(stop, freshAt(pl.twin.limit, &pl.st, now))
	}
	if len(ours) == 0 {
		return v.raw, ""
	}
	if pl := &s.places[v.places[0]]; pl.twin.size > 0 && !pl.twin.changes(pl.counter) {
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
