package storetest

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"pgregory.net/rapid"
)

// drawLeased is a limit that lends.
func drawLeased(t *rapid.T, a algo.Algorithm) algo.Config {
	c := algo.Config{
		Algorithm: a, N: rapid.SampledFrom([]int64{5, 12, 40, 300}).Draw(t, "N"), Soft: rapid.SampledFrom([]int{0, 0, 50}).Draw(t, "soft"),
		Window: rapid.SampledFrom([]time.Duration{time.Second, 10 * time.Second, time.Minute}).Draw(t, "W"),
		Lease:  rapid.SampledFrom([]int{90, 50, 20}).Draw(t, "lease"), LeaseFor: rapid.SampledFrom([]time.Duration{0, algo.MinLeaseFor, time.Second}).Draw(t, "for"),
	}
	switch a {
	case algo.SlidingWindow:
		c.Buckets = rapid.SampledFrom([]int{1, 4}).Draw(t, "K")
	case algo.FixedWindow:
		switch rapid.IntRange(0, 3).Draw(t, "windows") {
		case 0:
			c.FirstRequest = true
		case 1:
			c.CountDenied = true
		case 2:
			c.Calendar, c.Window = algo.Day, 0
		}
	case algo.TokenBucket:
		c.Burst = rapid.SampledFrom([]int64{0, 10, 30}).Draw(t, "B")
	}
	return c
}

// loan is a holder's loan that it may report on.
type loan struct {
	c   *rule.Counter
	key string
	end int64
	got int64
}

// randomLender is a lender that does at random whatever a store can be asked for.
type randomLender struct {
	lender
	t        *rapid.T
	counters []*rule.Counter
	limits   map[*rule.Counter][]*algo.Limit // the first is in force, or is from some step on
	loans    []loan
	last     algo.Result
}

// testLendRandom holds a store against the pure algorithms: with any requests, reports and wishes,
// in any order, and with anything else that changes the states meanwhile.
func testLendRandom(t *testing.T, n newStore, a algo.Algorithm) {
	all := newLender(t, n)
	rapid.Check(t, func(rt *rapid.T) {
		// A failure is tried again at the same time of another day.
		all.clock.now.Add(day.Microseconds() - (all.clock.read()-start)%day.Microseconds())
		l := &randomLender{lender: lender{&pair{store: all.store, model: newModel(), clock: all.clock}}, t: rt,
			limits: map[*rule.Counter][]*algo.Limit{}}
		group := uint64(0)
		if rapid.Bool().Draw(rt, "group") {
			group = lastID.Add(1) << 32
		}
		for range rapid.IntRange(1, 3).Draw(rt, "counters") {
			cfg := drawLeased(rt, a)
			limit := mustLimit(t, cfg)
			if cfg.Calendar == 0 && rapid.IntRange(0, 3).Draw(rt, "scheduled") == 0 {
				limit = schedule(t, cfg)
			}
			c := counterFor(limit)
			join(c, group)
			more := cfg
			more.N += 3
			longer := more // the record is carried to generations of another length
			longer.LeaseFor = 400 * time.Millisecond
			l.counters = append(l.counters, c)
			l.limits[c] = []*algo.Limit{limit}
			if !limit.Scheduled() {
				l.limits[c] = append(l.limits[c], mustLimit(t, more), mustLimit(t, longer))
			}
		}
		l.counters = append(l.counters, counterOf(t, algo.Config{Algorithm: a, N: 5, Window: time.Minute})) // it does not lend
		l.limits[l.counters[len(l.counters)-1]] = []*algo.Limit{l.counters[len(l.counters)-1].Limit}
		for range rapid.IntRange(1, 50).Draw(rt, "steps") {
			l.step()
		}
	})
}

// step is one thing that happens.
func (l *randomLender) step() {
	t := l.t
	switch rapid.IntRange(0, 9).Draw(t, "what") {
	case 0:
		if len(l.loans) > 0 { // around the end of something that is out
			d := rapid.SampledFrom(l.loans).Draw(t, "end of").end - l.clock.read() +
				rapid.Int64Range(-1, 1).Draw(t, "around")
			l.clock.now.Add(max(0, d))
		}
	case 1, 2:
		l.pass(t, l.last)
	case 3:
		c := rapid.SampledFrom(l.counters).Draw(t, "counter")
		l.shown(t, c, l.limits[c][0], rapid.SampledFrom(keys).Draw(t, "key"))
	case 4:
		if c := rapid.SampledFrom(l.counters).Draw(t, "counter"); c.Lease != nil &&
			rapid.IntRange(0, 3).Draw(t, "reset") == 0 {
			l.reset(t, c, rapid.SampledFrom(keys).Draw(t, "key"))
		}
	case 5:
		i := rapid.IntRange(0, len(l.counters)-1).Draw(t, "counter")
		c := l.counters[i]
		// A store that keeps the states alone drains a bucket by the numbers of the rule.
		drains := l.limits[c][0] == c.Limit || c.Limit.Algorithm() != algo.TokenBucket
		if c.Lease != nil && c.Previous == nil && drains && rapid.IntRange(0, 5).Draw(t, "reload") == 0 {
			l.counters[i] = l.reload(c)
			break
		}
		if n := len(l.limits[c]); n > 1 && rapid.IntRange(0, 3).Draw(t, "other numbers") == 0 {
			l.limits[c] = l.limits[c][1:] // and never back, see testDifferential
		}
	default:
		l.call()
	}
}

// reload returns a counter that carries on c, under another W if there can be one.
func (l *randomLender) reload(c *rule.Counter) *rule.Counter {
	cfg := l.limits[c][0].Config()
	if cfg.Calendar == algo.NoCalendar {
		cfg.Window = rapid.SampledFrom([]time.Duration{500 * time.Millisecond, 20 * time.Second}).Draw(l.t, "other W")
	}
	next := counterFor(mustLimit(l.t, cfg))
	join(next, c.Group)
	succeed(next, c)
	l.limits[next] = []*algo.Limit{next.Limit}
	return next
}

// call is one call of TakeAhead, or of Take, and perhaps a settlement.
func (l *randomLender) call() {
	t := l.t
	var charges []store.Charge
	var ahead []algo.Ahead
	for range rapid.SampledFrom([]int{1, 1, 1, 2, 3, 12}).Draw(t, "charges") {
		c := rapid.SampledFrom(l.counters).Draw(t, "counter")
		key := rapid.SampledFrom(keys).Draw(t, "key")
		ch := charge(c, key, 0)
		ch.Limit = l.limits[c][0]
		ch.Ask = drawAsk(t, ch.Limit)
		ch.Mode = rapid.SampledFrom([]rule.Mode{rule.Enforce, rule.Enforce, rule.Enforce, rule.Shadow,
			rule.Quota}).Draw(t, "mode")
		h := algo.Ahead{Want: rapid.SampledFrom([]int64{-1, 0, 1, 2, 5, 50, 1000}).Draw(t, "want"),
			First: rapid.Bool().Draw(t, "first")}
		for i := range h.Told {
			if len(l.loans) > 0 && rapid.IntRange(0, 2).Draw(t, "tells") == 0 {
				// of this key or of another one, as much as there is or more, once or more often
				o := rapid.SampledFrom(l.loans).Draw(t, "loan")
				h.Told[i] = algo.Told{End: o.end, Used: rapid.Int64Range(-1, o.got+1).Draw(t, "used"),
					Returned: rapid.Int64Range(-1, o.got+1).Draw(t, "returned")}
			}
		}
		charges, ahead = append(charges, ch), append(ahead, h)
	}
	if rapid.IntRange(0, 3).Draw(t, "plain") == 0 {
		l.last = l.take(t, charges...)[0]
		return
	}
	results := l.ask(t, charges, ahead)
	l.last = results[0]
	for i, h := range ahead {
		if h.Got > 0 {
			l.loans = append(l.loans, loan{charges[i].Counter, string(charges[i].Key), h.Until, h.Got})
		}
	}
	l.settle(t, charges, results)
}

// testLendConcurrent: many holders of one key, in real time, each of which uses what it gets: not
// one request too many, and when everything is reported, not one too few.
func testLendConcurrent(t *testing.T, n newStore, a algo.Algorithm) {
	s, ok := n(t, nil).(store.Lender)
	if !ok {
		t.Fatal("the store is no store.Lender")
	}
	// No window turns, and nothing comes back, as long as the test takes.
	cfg := algo.Config{Algorithm: a, N: 20_000, Window: 240 * time.Hour, Lease: 10, LeaseFor: algo.MaxLeaseFor}
	if a == algo.FixedWindow {
		cfg.FirstRequest = true
	}
	if a == algo.TokenBucket {
		cfg.Window = algo.MaxWindow // a token in half an hour
	}
	c := counterOf(t, cfg)
	var admitted atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, callers)
	for g := range callers {
		wg.Go(func() { errs[g] = borrow(s, c, &admitted) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	if r, _ := take(t, s, charge(c, "k", 1)); r[0].Allowed {
		t.Error("all were refused, and another one is admitted")
	}
	if n := admitted.Load(); n != cfg.N {
		t.Errorf("%d were admitted, want %d", n, cfg.N)
	}
}

// borrow is a holder: it admits from the units that it has, and asks when it has none, until it is
// refused. At the end it reports everything.
func borrow(s store.Lender, c *rule.Counter, admitted *atomic.Int64) error {
	var held, used [2]int64
	var ends [2]int64
	tell := func() (told [2]algo.Told) {
		for i := range told {
			told[i] = algo.Told{End: ends[i], Used: used[i]}
			used[i] = 0
		}
		return told
	}
	charges, results := []store.Charge{charge(c, "k", 1)}, make([]algo.Result, 1)
	for {
		i := 0
		for i < 2 && held[i] == 0 {
			i++
		}
		if i < 2 {
			held[i], used[i] = held[i]-1, used[i]+1
			admitted.Add(1)
			continue
		}
		ahead := []algo.Ahead{{Told: tell(), Want: 50}}
		if _, _, err := s.TakeAhead(context.Background(), 0, 0, charges, ahead, results); err != nil {
			return err
		}
		if !results[0].Allowed {
			return nil
		}
		admitted.Add(1)
		if h := ahead[0]; h.Got > 0 {
			if i = 0; ends[0] != 0 && ends[0] != h.Until {
				i = 1
			}
			ends[i], held[i] = h.Until, held[i]+h.Got
		}
	}
}
