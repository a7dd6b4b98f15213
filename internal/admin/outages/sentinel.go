package outages

import (
	"context"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

const (
	// checkEvery is how often the counter is looked at, beside after each outage.
	checkEvery = 30 * time.Second
	// checkWithin bounds a look.
	checkWithin = 2 * time.Second
	// sentinelUnits are charged at first, and one more an hour. One becomes free each hour, so that
	// the counter is gone so many hours after the node is.
	sentinelUnits = 12
	// trustFor is for how long after a look an empty counter shows that the store has lost it.
	trustFor = 6 * time.Hour
	// mostCounters bounds the parts with a counter: to look at 16,384 partitions of a Redis Cluster
	// takes longer than checkWithin. Servers hold ranges of partitions, so that counters that are
	// spread evenly show what a server has lost, unless it holds less than a 1024th.
	mostCounters = 1024
)

// sentinel is a counter of this node alone in each part of a store, or in mostCounters parts that
// are spread evenly over more. The store keeps it as it keeps the counters of rules: if it is
// empty, so are they.
type sentinel struct {
	store   store.Store
	counter *rule.Counter
	keys    [][]byte  // one in each part
	sure    time.Time // when all were there last
	charged time.Time
	next    time.Time // the next look
}

func newSentinel(s store.Store) *sentinel {
	limit, err := algo.New(algo.Config{Algorithm: algo.TokenBucket, N: 2 * sentinelUnits,
		Window: 2 * sentinelUnits * time.Hour})
	if err != nil {
		panic(err) // it is the same each time
	}
	out := &sentinel{store: s, counter: &rule.Counter{ID: rand.Uint64(), Limit: limit}}
	parts := 1
	parted, _ := store.As[store.Parted](s)
	if parted != nil {
		parts = parted.Parts()
	}
	want := map[int]bool{} // parts that have no counter yet
	for i := range min(parts, mostCounters) {
		want[i*parts/min(parts, mostCounters)] = true
	}
	for i := 0; len(want) > 0; i++ {
		key := strconv.AppendInt(nil, int64(i), 10)
		part := 0
		if parted != nil {
			part = parted.PartOf(out.counter, key)
		}
		if want[part] {
			delete(want, part)
			out.keys = append(out.keys, key)
		}
	}
	return out
}

// look finds out whether the store has lost the counters since the last look. If there is an error,
// it is not known.
func (s *sentinel) look(ctx context.Context, now time.Time) (lost bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, checkWithin)
	defer cancel()
	results, err := s.ask(ctx, func(int) int64 { return 0 })
	if err != nil {
		return false, err
	}
	empty := make([]bool, len(s.keys))
	known := !s.sure.IsZero() && now.Sub(s.sure) < trustFor
	for i := range results {
		empty[i] = results[i].Remaining >= results[i].Limit
		lost = lost || empty[i] && known
	}
	more := now.Sub(s.charged) >= time.Hour
	_, err = s.ask(ctx, func(i int) int64 {
		switch {
		case empty[i]:
			return sentinelUnits
		case more:
			return 1
		}
		return 0
	})
	switch {
	case err == nil:
		s.sure = now
		if more {
			s.charged = now
		}
	case lost:
		s.sure = time.Time{} // it is told once
	}
	return lost, nil
}

// ask charges each counter with a cost.
func (s *sentinel) ask(ctx context.Context, cost func(i int) int64) ([]algo.Result, error) {
	charges := make([]store.Charge, len(s.keys))
	for i := range charges {
		charges[i] = store.Charge{Counter: s.counter, Limit: s.counter.Limit, Key: s.keys[i],
			Ask: algo.Ask{Cost: cost(i), MaxDelay: -1}}
	}
	results := make([]algo.Result, len(charges))
	_, err := s.store.Take(ctx, charges, results)
	return results, err
}

// watch looks at the sentinel, if it is time to. Run alone calls it.
func (l *Log) watch(ctx context.Context) {
	l.mu.Lock()
	now, away, returned := time.Now(), l.store.spell != nil && l.store.spell.Kind == insight.StoreAway, l.store.returned
	l.mu.Unlock()
	if away || !returned && now.Before(l.sentinel.next) {
		return
	}
	l.sentinel.next = now.Add(checkEvery)
	was := l.sentinel.sure
	lost, err := l.sentinel.look(ctx, now)
	if err != nil {
		if ctx.Err() == nil {
			l.sentinel.next = now.Add(lookEvery)
		}
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.store.returned = false
	if !lost {
		return
	}
	x := &insight.Outage{Store: l.o.Store, Kind: insight.StoreEmpty, From: was, To: new(time.Now().UTC()), Times: 1}
	if o := l.near(x); o != nil {
		x = o
	} else {
		l.add(x).Nodes[0].Does = "found it out"
	}
	x.CountersLost = true
}
