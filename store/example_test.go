package store_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// A mapStore is the smallest store: a map of states under a lock. It never forgets a key.
type mapStore struct {
	clock  func() int64
	mu     sync.Mutex
	states map[stateName]*state
}

type stateName struct {
	counter uint64
	key     string
}

// A state is kept with the limit that it was last charged under.
type state struct {
	algo.State
	limit *algo.Limit
}

func newMapStore(clock func() int64) *mapStore {
	if clock == nil {
		clock = func() int64 { return time.Now().UnixMicro() }
	}
	return &mapStore{clock: clock, states: map[stateName]*state{}}
}

// Take implements store.Store: it tries all charges on copies of the states, and makes them if the
// verdict on the whole call lets it.
func (s *mapStore) Take(_ context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	if len(charges) != len(results) {
		return 0, errors.New("there must be one result for each charge")
	}
	for i := range charges {
		if charges[i].Counter == nil || charges[i].Limit == nil {
			return 0, errors.New("a charge needs a Counter and a Limit")
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock()
	tried := map[*state]*algo.State{} // a charge sees what earlier ones of the call took
	try := func(st *state) *algo.State {
		if st == nil {
			return nil
		}
		if tried[st] == nil {
			c := st.State
			c.Ext = slices.Clone(c.Ext)
			tried[st] = &c
		}
		return tried[st]
	}
	var verdict store.Verdict
	for i := range charges {
		c := &charges[i]
		c.Ask.Slot = 1 + rand.Uint64N(1<<63)
		st, margin := s.statesOf(c, now)
		results[i] = c.Limit.TakeWith(try(st), try(margin), now, c.Ask)
		verdict.Add(c.Mode, &results[i])
	}
	for i := range charges {
		c, r := &charges[i], &results[i]
		st, margin := s.statesOf(c, now)
		if !verdict.Denied() || c.Mode == rule.Shadow {
			*r = c.Limit.TakeWith(&st.State, stateOf(margin), now, c.Ask)
		} else { // the verdict stays, but the rest tells the state as it is after the call
			own := *r
			if c.Limit.CountDenied() {
				*r = c.Limit.TakeWith(&st.State, stateOf(margin), now, c.Ask)
			} else {
				c.Limit.Mend(&st.State, now)
				c.Limit.MendMargin(stateOf(margin), now)
				*r = c.Limit.CheckWith(&st.State, stateOf(margin), now, c.Ask)
			}
			r.Allowed, r.RetryAfter, r.Delay, r.Soft = own.Allowed, own.RetryAfter, own.Delay, r.Soft && own.Allowed
		}
		took := r.Allowed && !r.Off && c.Ask.Cost > 0 && (!verdict.Denied() || c.Mode == rule.Shadow)
		if c.Limit.Algorithm() != algo.Concurrency || !took {
			c.Ask.Slot = 0
		}
	}
	return now, nil
}

// statesOf returns the state that a charge names, and its soft margin's; nil if that does not
// close.
func (s *mapStore) statesOf(c *store.Charge, now int64) (st, margin *state) {
	st = s.state(c.Counter, c.Limit, c.Key, now)
	if c.Counter.Margin != nil && c.Limit.Margin() != nil {
		margin = s.state(c.Counter.Margin, c.Limit.Margin(), c.Key, now)
	}
	return st, margin
}

// state returns the state of a key. A reload of the rules may have changed the counter's identity,
// or the window of its limit: then the state is carried over.
func (s *mapStore) state(c *rule.Counter, l *algo.Limit, key []byte, now int64) *state {
	name := stateName{c.ID, string(key)}
	st := s.states[name]
	for i := 0; st == nil && i < len(c.Previous); i++ {
		old := stateName{c.Previous[i].ID, string(key)}
		st = s.states[old]
		delete(s.states, old)
	}
	if st == nil {
		st = &state{limit: l}
	}
	if st.limit != l {
		if from, to := st.limit.Config(), l.Config(); from.Algorithm != to.Algorithm ||
			from.Window != to.Window || from.Buckets != to.Buckets {
			l.Carry(st.limit, &st.State, now)
		}
		st.limit = l
	}
	s.states[name] = st
	return st
}

func stateOf(st *state) *algo.State {
	if st == nil {
		return nil
	}
	return &st.State
}

// Release implements store.Store.
func (s *mapStore) Release(_ context.Context, c *rule.Counter, key []byte, slot uint64) (bool, error) {
	if c == nil {
		return false, errors.New("Release needs a Counter")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.states[stateName{c.ID, string(key)}]
	return st != nil && st.limit.Release(&st.State, s.clock(), slot), nil
}

// Close implements store.Store.
func (s *mapStore) Close() error { return nil }

// The smallest store: mapStore, in full in this file.
func ExampleStore() {
	var s store.Store = newMapStore(nil)
	defer s.Close()
	limit, err := algo.New(algo.Config{Algorithm: algo.TokenBucket, N: 1, Window: time.Hour})
	if err != nil {
		panic(err)
	}
	charges := []store.Charge{{
		Counter: &rule.Counter{ID: 1, Limit: limit}, Limit: limit, Key: []byte("alice"),
		Ask: algo.Ask{Cost: 1},
	}}
	results := make([]algo.Result, 1)
	for range 2 {
		if _, err := s.Take(context.Background(), charges, results); err != nil {
			panic(err)
		}
		fmt.Println(results[0].Allowed, results[0].Remaining)
	}
	// Output:
	// true 0
	// false 0
}
