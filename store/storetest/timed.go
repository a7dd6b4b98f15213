package storetest

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"pgregory.net/rapid"
)

// fit turns off the closing of a soft margin in a limit that has no margin.
func fit(c algo.Config) algo.Config {
	size := c.N
	if c.Algorithm == algo.TokenBucket || c.Algorithm == algo.LeakyBucket {
		if c.Burst != 0 {
			size = max(0, c.Burst)
		}
	}
	if size*int64(c.Soft)/100 == 0 {
		c.SoftFor = 0
	}
	return c
}

// schedule is a limit that is c for half of each hour, twice as much for a third of it, and none
// for ten minutes.
func schedule(t testing.TB, c algo.Config) *algo.Limit {
	t.Helper()
	more := c
	if more.N *= 2; more.Burst > 0 {
		more.Burst *= 2
	}
	twice := mustLimit(t, more)
	var phases []algo.Phase
	for hour := range time.Duration(24) {
		phases = append(phases,
			algo.Phase{From: hour*time.Hour + 20*time.Minute, Until: hour*time.Hour + 40*time.Minute, Limit: twice},
			algo.Phase{From: hour*time.Hour + 50*time.Minute,
				Until: (hour*time.Hour + 60*time.Minute) % (24 * time.Hour)},
		)
	}
	l, err := algo.Scheduled(mustLimit(t, c), phases, nil)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// settle settles some of the charges that were made, if the store can.
func (p *pair) settle(t *rapid.T, charges []store.Charge, results []algo.Result) {
	for i := range charges {
		if rapid.IntRange(0, 5).Draw(t, "settle") == 0 {
			p.settleOne(t, &charges[i], results[i], rapid.Int64Range(0,
				2*max(1, min(charges[i].Ask.Cost, 50))+2).Draw(t, "actual"))
		}
	}
}

func (p *pair) settleOne(t rapid.TB, c *store.Charge, r algo.Result, actual int64) {
	t.Helper()
	s, ok := p.store.(store.Reserver)
	if !ok || !r.Allowed || r.Off || c.Ask.Cost < 0 {
		return
	}
	settlement := store.Settlement{Counter: c.Counter, Limit: c.Limit, Key: c.Key, At: p.clock.read(),
		Reserved: c.Ask.Cost, Actual: actual}
	if err := s.Settle(context.Background(), []store.Settlement{settlement}); err != nil {
		t.Fatalf("Settle: %v", err)
	}
	p.model.settle(&settlement, p.clock.read())
}

// testMargin follows one margin from its first use until it is open again, alone and together with
// another limit.
func testMargin(t *testing.T, n newStore) {
	for _, others := range []int{0, 1, 8} {
		t.Run(fmt.Sprint("beside ", others), func(t *testing.T) {
			p := newPair(t, n)
			c := counterOf(t, algo.Config{Algorithm: algo.FixedWindow, N: 100, Window: time.Minute, Soft: 10,
				SoftFor: 150 * time.Second})
			take := func(key string, cost int64) algo.Result {
				t.Helper()
				call := []store.Charge{charge(c, key, cost)}
				for i := range others {
					call = append(call, charge(counterOf(t, window(1000)), fmt.Sprint(key, i), 1))
				}
				return p.take(t, call...)[0]
			}
			for _, step := range []struct {
				at       time.Duration
				most     int64
				closed   bool
				retryFor time.Duration // of one more
			}{
				{0, 110, false, time.Minute},
				{time.Minute, 110, false, time.Minute},
				{2 * time.Minute, 110, false, time.Minute},
				{179 * time.Second, 0, true, time.Second},
				{3 * time.Minute, 100, true, time.Minute},
				{4 * time.Minute, 110, false, time.Minute},
			} {
				p.clock.now.Store(start + step.at.Microseconds())
				var admitted int64
				for _, cost := range []int64{90, 10, 5, 5, 1, 1} {
					if r := take("k", cost); r.Allowed {
						admitted += cost
						if r.Soft != (admitted > 100) {
							t.Errorf("at %v: %+v after %d", step.at, r, admitted)
						}
					}
				}
				if admitted != step.most {
					t.Errorf("at %v: %d admitted, want %d", step.at, admitted, step.most)
				}
				r := take("k", 1)
				if r.Allowed || r.RetryAfter != step.retryFor.Microseconds() || (r.SoftLimit == 100) != step.closed {
					t.Errorf("at %v: %+v", step.at, r)
				}
			}
			if r := take("another", 110); !r.Allowed || !r.Soft {
				t.Errorf("the margin of one key is another's: %+v", r)
			}
		})
	}
	// A call that another limit denies uses no margin, nor does a peek.
	p := newPair(t, n)
	c := counterOf(t, algo.Config{Algorithm: algo.TokenBucket, N: 10, Window: time.Hour, Soft: 50,
		SoftFor: time.Second})
	none := counterOf(t, window(0))
	p.take(t, charge(c, "k", 12), charge(none, "k", 1))
	p.take(t, charge(c, "k", 0))
	p.clock.advance(time.Minute)
	if r := p.take(t, charge(c, "k", 11)); !r[0].Allowed || !r[0].Soft {
		t.Errorf("%+v", r[0])
	}
	p.clock.advance(time.Second)
	if r := p.take(t, charge(c, "k", 1)); r[0].Allowed {
		t.Errorf("%+v in a margin that is closed", r[0])
	}
	// Twice in one call: the second sees the margin that the first used.
	p.clock.advance(5 * time.Hour)
	twice := counterOf(t, algo.Config{Algorithm: algo.SlidingLog, N: 2, Window: time.Hour, Soft: 100,
		SoftFor: time.Second})
	p.take(t, charge(twice, "k", 3), charge(twice, "k", 1))
	p.clock.advance(time.Second)
	shadow := charge(twice, "k", 1)
	shadow.Mode = rule.Shadow
	p.take(t, shadow, charge(twice, "k", 1), charge(twice, "l", 3), charge(twice, "l", 1))
	p.take(t, charge(twice, "l", 3), charge(twice, "l", 2))
	p.take(t, charge(twice, "l", 3))
	p.clock.advance(time.Second)
	p.take(t, charge(twice, "l", 1))
}

// testMarginMended: a call that another limit denies puts the state of a margin right by the
// numbers in force, as the same call alone would, whatever other numbers the counter has.
func testMarginMended(t *testing.T, n newStore) {
	soft := func(a algo.Algorithm, n, burst int64) algo.Config {
		return algo.Config{Algorithm: a, N: n, Window: time.Second, Burst: burst, Soft: 50,
			SoftFor: 300 * time.Millisecond}
	}
	for _, a := range []algo.Algorithm{algo.TokenBucket, algo.LeakyBucket} {
		for _, beside := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v, beside another: %v", a, beside), func(t *testing.T) {
				p := newPair(t, n)
				p.model.keeps = true
				c, none := counterOf(t, soft(a, 1, 60)), counterOf(t, window(0))
				all := c.Limit.Check(&algo.State{}, start, algo.Ask{}).SoftLimit
				if r := p.take(t, charge(c, "k", all)); !r[0].Soft {
					t.Fatalf("%+v uses no margin", r[0])
				}
				p.clock.advance(time.Second)
				// These numbers would have opened the margin again seconds ago.
				few := charge(c, "k", 1000)
				few.Limit = mustLimit(t, soft(a, 5, 4))
				call := []store.Charge{few}
				if beside {
					call = append(call, charge(none, "k", 1))
				}
				if r := p.take(t, call...); r[0].Allowed {
					t.Fatalf("%+v", r[0])
				}
				if r := p.take(t, charge(c, "k", 1)); !r[0].Allowed || !r[0].Soft {
					t.Errorf("%+v: the margin is closed", r[0])
				}
			})
		}
	}
	t.Run("while off", func(t *testing.T) {
		p := newPair(t, n)
		p.model.keeps = true
		cfg := algo.Config{Algorithm: algo.FixedWindow, N: 10, Window: time.Minute, Soft: 50, SoftFor: 10 * time.Second}
		c, none := counterFor(schedule(t, cfg)), counterOf(t, window(0))
		p.clock.advance(65 * time.Minute)
		p.take(t, charge(c, "k", 15))
		p.clock.advance(-10 * time.Minute)
		if r := p.take(t, charge(c, "k", 1), charge(none, "k", 1)); !r[0].Off || r[1].Allowed {
			t.Fatalf("%+v", r)
		}
		p.clock.advance(11 * time.Minute)
		if r := p.take(t, charge(c, "k", 11)); r[0].Allowed {
			t.Errorf("%+v: nothing was counted, but the margin is open", r[0])
		}
	})
}

// testSchedule lets the limit of one key change with the hour.
func testSchedule(t *testing.T, n newStore, a algo.Algorithm) {
	clock := newVirtual()
	s := clock.make(t, n)
	rapid.Check(t, func(rt *rapid.T) {
		p := &pair{store: s, model: newModel(), clock: clock}
		cfg := rapid.SampledFrom(configs[a]).Draw(rt, "limit")
		cfg.Algorithm = a
		counter, beside := counterFor(schedule(t, cfg)), counterOf(t, window(3))
		var last algo.Result
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			if rapid.IntRange(0, 3).Draw(rt, "to a change") == 0 {
				_, until := counter.Limit.At(clock.read())
				clock.now.Store(until - rapid.Int64Range(0, 1).Draw(rt, "before"))
			} else {
				p.pass(rt, last)
			}
			if rapid.IntRange(0, 3).Draw(rt, "release") == 0 {
				p.release(rt)
				continue
			}
			c := charge(counter, rapid.SampledFrom(keys).Draw(rt, "key"), 0)
			c.Ask = drawAsk(rt, c.Limit)
			call := []store.Charge{c}
			if rapid.IntRange(0, 2).Draw(rt, "beside") == 0 {
				call = append(call, charge(beside, string(c.Key), 1))
			}
			results := p.take(rt, call...)
			last = results[0]
			p.settle(rt, call, results)
		}
	})
}

// testScheduleOff: while there is no limit, nothing is counted, even if another limit decides in
// the same call.
func testScheduleOff(t *testing.T, n newStore) {
	p := newPair(t, n)
	c := counterFor(schedule(t, algo.Config{Algorithm: algo.SlidingLog, N: 3, Window: time.Hour}))
	beside := counterOf(t, window(1))
	off := algo.Result{Allowed: true, Off: true}
	p.take(t, charge(c, "k", 2))
	p.clock.advance(50 * time.Minute)
	for i := range 3 {
		r := p.take(t, charge(c, "k", 100), charge(beside, "k", 1))
		if r[0] != off || r[1].Allowed != (i == 0) {
			t.Errorf("%+v", r)
		}
		if r := p.take(t, charge(c, "l", 100)); r[0] != off {
			t.Errorf("%+v", r)
		}
	}
	p.clock.advance(9 * time.Minute)
	p.take(t, charge(c, "k", 1))
	p.clock.advance(59 * time.Second)
	p.take(t, charge(c, "k", 1))
	p.clock.advance(time.Second)
	if r := p.take(t, charge(c, "k", 3)); !r[0].Allowed {
		t.Errorf("after the hour: %+v", r[0])
	}
	if r := p.take(t, charge(c, "l", 4)); r[0].Allowed || r[0].RetryAfter != (20*time.Minute).Microseconds() {
		t.Errorf("more than now, and less than in twenty minutes: %+v", r[0])
	}
}

func reserver(t *testing.T, p *pair) store.Reserver {
	t.Helper()
	s, ok := p.store.(store.Reserver)
	if !ok {
		t.Skip("the store holds no reservations")
	}
	return s
}

// testSettle: unused units of a reservation come back, and units beyond it are owed.
func testSettle(t *testing.T, n newStore) {
	p := newPair(t, n)
	s := reserver(t, p)
	for _, a := range algorithms {
		for _, cfg := range configs[a] {
			cfg.Algorithm = a
			p.restart()
			c, other := counterOf(t, cfg), counterOf(t, cfg)
			join(c, c.ID)
			settle := func(list ...store.Settlement) {
				t.Helper()
				if err := s.Settle(t.Context(), list); err != nil {
					t.Fatalf("%+v: %v", cfg, err)
				}
				for i := range list {
					p.model.settle(&list[i], p.clock.read())
				}
			}
			settlement := func(c *rule.Counter, key string, reserved, actual int64) store.Settlement {
				return store.Settlement{Counter: c, Limit: c.Limit, Key: []byte(key), At: p.clock.read(),
					Reserved: reserved, Actual: actual}
			}
			look := func() {
				t.Helper()
				for _, key := range []string{"k", "l", "unknown"} {
					p.take(t, charge(c, key, 0), charge(other, key, 0))
					p.take(t, charge(c, key, 0))
				}
			}
			all := c.Limit.Check(&algo.State{}, start, algo.Ask{}).Remaining
			p.take(t, charge(c, "k", all), charge(c, "l", 1), charge(other, "l", 1))
			down, later := settlement(c, "k", all, 1), settlement(c, "l", 1, 0)
			settle(down)
			look()
			p.clock.advance(300 * time.Millisecond)
			settle(later, settlement(other, "l", 0, 1), settlement(other, "k", 0, 2))
			look()
			// More than there is room for, of a key that is known and of one that is not.
			settle(settlement(c, "k", 1, 3*all+5), settlement(c, "unknown", 1, 4))
			look()
			p.take(t, charge(c, "k", 1))
			settle(settlement(c, "k", 100, 1), settlement(c, "nobody", 100, 0), settlement(c, "l", 2, 2))
			look()
			settle()
			p.clock.advance(700 * time.Millisecond)
			look()
			// Under the next identity.
			if a == algo.Concurrency || cfg.Calendar != algo.NoCalendar {
				continue
			}
			wide := cfg
			wide.Window *= 2
			next := counterOf(t, wide)
			join(next, c.Group)
			succeed(next, c)
			settle(settlement(next, "k", 2, 1), settlement(next, "l", 0, 1))
			p.take(t, charge(next, "k", 1), charge(next, "l", 1))
		}
	}
}

// lastNote makes the ids of reservations differ over all tests.
var lastNote atomic.Uint64

func noteID() string { return fmt.Sprintf("note-%d\x00\xff", lastNote.Add(1)) }

// testReservations: a note is handed out once, to the call that claims it before its time-out, or
// else to a call of Expired.
func testReservations(t *testing.T, n newStore) {
	p := newPair(t, n)
	s := reserver(t, p)
	ctx := t.Context()
	claim := func(id string) {
		t.Helper()
		got, ok, err := s.Claim(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		if want, held := p.model.claim(id); ok != held || ok && !bytes.Equal(got, want) {
			t.Errorf("Claim: %q, %v, want %q, %v", got, ok, want, held)
		}
	}
	// expire hands out all that is over, some at a time.
	expire := func(some int) {
		t.Helper()
		want := map[string]int{}
		for _, text := range p.model.expired(p.clock.read()) {
			want[string(text)]++
		}
		for {
			got, err := s.Expired(ctx, some)
			if err != nil {
				t.Fatal(err)
			}
			if len(got) > some {
				t.Fatalf("%d notes, %d were asked for", len(got), some)
			}
			for _, text := range got {
				if want[string(text)]--; want[string(text)] < 0 {
					t.Errorf("Expired handed out %q", text)
				}
			}
			if len(got) < some {
				break
			}
		}
		for text, left := range want {
			if left > 0 {
				t.Errorf("Expired did not hand out %q", text)
			}
		}
	}
	rnd := 0
	var ids []string
	for i := range 40 {
		id := noteID()
		ids = append(ids, id)
		text := bytes.Repeat([]byte{byte(i), 0, '\n', 0xff}, i*i)
		timeout := time.Duration(1+i%7) * time.Second
		borrowed := bytes.Clone(text)
		if err := s.Hold(ctx, id, borrowed, timeout); err != nil {
			t.Fatal(err)
		}
		for j := range borrowed {
			borrowed[j] = 'x' // it is the caller's again
		}
		p.model.hold(id, text, p.clock.read()+timeout.Microseconds())
		if i%3 == 0 {
			p.clock.advance(250 * time.Millisecond)
		}
		if rnd = (rnd*7 + 3) % 11; rnd < 4 {
			claim(ids[rnd*i/4])
		}
		if i%8 == 5 {
			expire(1 + i%4)
		}
	}
	claim("nobody's")
	p.clock.advance(time.Second)
	expire(3)
	for _, id := range ids {
		claim(id)
		claim(id)
	}
	p.clock.advance(time.Hour)
	expire(100)

	// The first call gets it, and no other does.
	id := noteID()
	if err := s.Hold(ctx, id, []byte("one"), time.Minute); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var claims atomic.Int64
	for range 16 {
		wg.Go(func() {
			if _, ok, err := s.Claim(ctx, id); err != nil {
				t.Error(err)
			} else if ok {
				claims.Add(1)
			}
		})
	}
	wg.Wait()
	if claims.Load() != 1 {
		t.Errorf("%d have claimed one note", claims.Load())
	}
}
