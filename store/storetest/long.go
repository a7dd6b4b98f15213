package storetest

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// Differential asks a store and the pure algorithms the same questions, steps times for each
// algorithm, and compares every field of every answer. It uses random costs, peeks, refunds, limits
// that change under live states, several limits at once, and a clock that goes on, stands still,
// and steps back. The store must not forget states that equal a fresh one, since a clock that steps
// back may make them differ again. The seed is printed; seed 0 takes a new one. WEIR_STEPS in the
// environment sets another number of steps.
func Differential(t *testing.T, newStore func(t *testing.T, clock func() int64) store.Store, steps int, seed uint64) {
	if text := os.Getenv("WEIR_STEPS"); text != "" {
		var err error
		if steps, err = strconv.Atoi(text); err != nil {
			t.Fatalf("WEIR_STEPS: %v", err)
		}
	}
	if seed == 0 {
		seed = rand.Uint64()
	}
	for i, a := range algorithms {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			t.Logf("seed %d", seed)
			d := &differential{rnd: rand.New(rand.NewPCG(seed, uint64(i))), a: a}
			d.clock = newVirtual()
			d.store, d.model = d.clock.make(t, newStore), newModel()
			d.model.keeps = true
			n := 0
			for n < steps {
				n += d.episode(t)
			}
			t.Logf("%d steps", n)
		})
	}
}

type differential struct {
	pair
	rnd *rand.Rand
	a   algo.Algorithm
}

// subject is a key with the limit that it has now.
type subject struct {
	c     *rule.Counter
	key   string
	limit *algo.Limit
}

// episode is some hundred steps on a few keys of some limits.
func (d *differential) episode(t *testing.T) (steps int) {
	rnd := d.rnd
	d.slots = nil
	var subjects []*subject
	var counters []*rule.Counter
	var group uint64
	if rnd.IntN(3) > 0 {
		group = rnd.Uint64()
	}
	for range 1 + rnd.IntN(3) {
		cfg := d.config()
		counter := counterOf(t, cfg)
		if rnd.IntN(5) == 0 {
			counter = counterFor(schedule(t, cfg))
		}
		join(counter, group)
		counters = append(counters, counter)
		for _, key := range keys[:1+rnd.IntN(len(keys))] {
			subjects = append(subjects, &subject{counter, key, counter.Limit})
		}
	}
	var last algo.Result
	steps = 50 + rnd.IntN(200)
	for range steps {
		d.passTime(last)
		if d.a == algo.Concurrency && len(d.slots) > 0 && rnd.IntN(3) == 0 {
			d.giveBackSlot(t)
			continue
		}
		n := 1
		if rnd.IntN(4) == 0 {
			n = 1 + rnd.IntN(3)
		}
		whole := n > 1 && rnd.IntN(2) == 0 // as the windows of one rule
		if whole {
			n = len(counters)
		}
		charges, of := make([]store.Charge, 0, n), make([]*subject, 0, n)
		for i := range n {
			s := subjects[rnd.IntN(len(subjects))]
			if whole {
				s = &subject{counters[i], "", counters[i].Limit}
			}
			c := charge(s.c, s.key, 0)
			c.Limit, c.Ask = s.limit, d.ask(s.limit, last)
			if n > 1 && (!whole || rnd.IntN(4) == 0) {
				c.Mode = []rule.Mode{rule.Enforce, rule.Enforce, rule.Shadow, rule.Quota}[rnd.IntN(4)]
			}
			charges, of = append(charges, c), append(of, s)
		}
		results := d.take(t, charges...)
		last = results[0]
		if rnd.IntN(10) == 0 {
			i := rnd.IntN(n)
			d.settleOne(t, &charges[i], results[i], rnd.Int64N(2*max(1, charges[i].Ask.Cost)+2))
		}
		if rnd.IntN(40) == 0 {
			of[0].limit = d.changed(t, of[0].limit)
		}
	}
	return steps
}

// config draws one of the limits that all stores are tested with, or a random one.
func (d *differential) config() algo.Config {
	rnd := d.rnd
	cfg := configs[d.a][rnd.IntN(len(configs[d.a]))]
	cfg.Algorithm = d.a
	if rnd.IntN(2) == 0 || cfg.Calendar != algo.NoCalendar {
		return cfg
	}
	cfg.N = []int64{0, 1, 2, 3, 7, 10, 60, 333, 1000, 99_991}[rnd.IntN(10)]
	if d.a == algo.Concurrency {
		cfg.N = min(cfg.N, 60)
		return cfg
	}
	cfg.Window = []time.Duration{time.Millisecond, time.Second, 7 * time.Second, time.Minute, time.Hour, 24 * time.Hour,
		30 * 24 * time.Hour}[rnd.IntN(7)]
	if d.a == algo.SlidingLog {
		cfg.N = min(cfg.N, 1000)
	}
	if cfg.Buckets > 1 {
		cfg.Buckets = []int{2, 4, 10, 60, 240}[rnd.IntN(5)]
		cfg.Window = max(cfg.Window, time.Minute)
	}
	if cfg.Burst > 0 {
		cfg.Burst = max(1, cfg.N/int64(1+rnd.IntN(4)))
	}
	return fit(cfg)
}

// changed is a limit of the same identity with another N.
func (d *differential) changed(t *testing.T, l *algo.Limit) *algo.Limit {
	cfg := l.Config()
	cfg.N = max(1, cfg.N+int64(d.rnd.IntN(9))-4)
	if d.rnd.IntN(3) == 0 {
		cfg.N = min(5*cfg.N, 100_000)
	}
	if cfg.Burst > 0 && d.rnd.IntN(2) == 0 {
		cfg.Burst = max(1, cfg.Burst+int64(d.rnd.IntN(5))-2)
	}
	if cfg.Algorithm == algo.SlidingLog {
		cfg.N = min(cfg.N, 2000)
	}
	return mustLimit(t, fit(cfg))
}

func (d *differential) ask(l *algo.Limit, last algo.Result) algo.Ask {
	rnd, n := d.rnd, l.Config().N
	ask := algo.Ask{Cost: 1, MaxDelay: -1}
	switch rnd.IntN(14) {
	case 0:
		ask.Cost, ask.Room = 0, rnd.IntN(3) > 0
	case 1:
		ask.Cost = -1 - rnd.Int64N(3)
	case 2:
		ask.Cost = 1 + rnd.Int64N(n+3)
	case 3:
		ask.Cost = algo.MaxCost
	case 4:
		ask.MaxDelay = rnd.Int64N(2_000_000)
	case 5:
		ask.Cost = max(1, last.Remaining)
	case 6:
		ask.Cost = last.Remaining + 1
	case 7:
		if l.Algorithm() == algo.LeakyBucket {
			ask.Cost, ask.LastEnds = -1, d.clock.read()+last.ResetAfter
		}
	case 8:
		ask.Cost = -1 - rnd.Int64N(n+3)
	}
	if l.Algorithm() == algo.Concurrency {
		ask.Cost = max(ask.Cost, 0)
	}
	return ask
}

// passTime advances the clock to an instant suggested by an answer, leaves it, runs it on, or steps
// it back.
func (d *differential) passTime(last algo.Result) {
	rnd := d.rnd
	var µs int64
	switch rnd.IntN(12) {
	case 0:
		µs = rnd.Int64N(3_000_000)
	case 1:
		µs = max(0, last.RetryAfter)
	case 2:
		µs = max(0, last.RetryAfter-1)
	case 3:
		µs = max(0, last.ResetAfter)
	case 4:
		µs = rnd.Int64N(90_000_000)
	case 5:
		µs = 1
	case 6:
		µs = -rnd.Int64N(400_000)
	case 7:
		if rnd.IntN(20) == 0 {
			µs = -rnd.Int64N(3_600_000_000)
		}
	}
	const day = int64(24 * time.Hour / time.Microsecond)
	if now := d.clock.read() + min(µs, 40*day); now > start-day && now < start+50*365*day {
		d.clock.now.Store(now)
	}
}

func (d *differential) giveBackSlot(t *testing.T) {
	i := d.rnd.IntN(len(d.slots))
	h := d.slots[i]
	if d.rnd.IntN(4) != 0 {
		d.slots = append(d.slots[:i], d.slots[i+1:]...)
	}
	got, err := d.store.Release(t.Context(), h.c, []byte(h.key), h.slot)
	if err != nil {
		t.Fatal(err)
	}
	if want := d.model.release(h.c, []byte(h.key), h.slot, d.clock.read()); got != want {
		t.Fatalf("Release: got %v, want %v", got, want)
	}
}
