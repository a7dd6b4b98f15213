package fallback

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

func TestSettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newTest(t, Options{})
		whole, partly, refunded, given, shadow, peeked := perHour(t, 100), perHour(t, 10), perHour(t, 100),
			perHour(t, 100), perHour(t, 100), perHour(t, 100)
		counting := counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 10, Window: time.Hour, CountDenied: true})
		take(t, s, charge(whole, "k", 3), charge(given, "k", 9))
		take(t, p.Store, charge(partly, "k", 8), charge(counting, "k", 8)) // by another node
		cut(t, s, p, hangs)
		take(t, s, charge(whole, "k", 5))
		take(t, s, charge(whole, "k", 6))
		take(t, s, charge(whole, "l", 7))
		take(t, s, charge(partly, "k", 5), charge(refunded, "k", 5))
		take(t, s, charge(partly, "k", 6), charge(refunded, "k", 5)) // denied
		take(t, s, charge(refunded, "k", -2))
		take(t, s, charge(given, "k", -4))
		take(t, s, charge(counting, "k", 5))
		inShadow := charge(shadow, "k", 4)
		inShadow.Mode = rule.Shadow
		take(t, s, charge(partly, "k", 6), inShadow) // denied, but shadow goes by itself
		take(t, s, charge(peeked, "k", 0))
		mend(t, s, p)
		for i, test := range []struct {
			c    *rule.Counter
			key  string
			want int64
		}{{whole, "k", 14}, {whole, "l", 7}, {partly, "k", 10}, {refunded, "k", 3}, {given, "k", 5}, {shadow, "k", 4},
			{peeked, "k", 0}, {counting, "k", 10}} {
			if got := used(t, p.Store, test.c, test.key); got != test.want {
				t.Errorf("%d: %d are charged, want %d", i, got, test.want)
			}
		}
		if got := s.Stats(); got.Settled != 11+7+2+3+4 || got.Excess != 3+5 || got.Lost != 0 ||
			got.Returned != 2 || got.Admitted != got.Settled+got.Excess+got.Returned || got.Open != 0 {
			t.Errorf("%+v", got)
		}
		if used(t, s.o.Local, whole, "k") != 11 {
			t.Error("settling gave the share back")
		}
		// A second outage owes only what is new.
		cut(t, s, p, hangs)
		take(t, s, charge(whole, "k", 1))
		mend(t, s, p)
		if got := used(t, p.Store, whole, "k"); got != 15 {
			t.Errorf("%d are charged, want 15", got)
		}
	})
}

// TestSettlesWhatCounts: of a long outage only what still matters is charged.
func TestSettlesWhatCounts(t *testing.T) {
	for _, test := range []struct {
		name   string
		config algo.Config
		want   int64
	}{
		// One a second for 100 s; then the primary is charged a second or two later.
		{"sliding log", algo.Config{Algorithm: algo.SlidingLog, N: 100, Window: 10 * time.Second}, 9},
		{"bucket", algo.Config{Algorithm: algo.TokenBucket, N: 5, Window: 10 * time.Second, Burst: 20}, 19},
		{"bucket that is full again", algo.Config{Algorithm: algo.TokenBucket, N: 100, Window: 10 * time.Second}, 0},
		{"window that has passed", algo.Config{Algorithm: algo.FixedWindow, N: 100, Window: time.Second}, 0},
		{"window since midnight", algo.Config{Algorithm: algo.FixedWindow, N: 1000, Window: time.Hour}, 100},
		{"denied requests count", algo.Config{Algorithm: algo.FixedWindow, N: 50, Window: time.Hour, CountDenied: true}, 50},
		{"slots", algo.Config{Algorithm: algo.Concurrency, N: 1000}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, p := newTest(t, Options{})
				c := counter(t, test.config)
				cut(t, s, p, refuses)
				for range 100 {
					time.Sleep(time.Second)
					take(t, s, charge(c, "k", 1))
				}
				p.set(none)
				time.Sleep(2 * time.Second)
				synctest.Wait()
				if state, _, _ := s.State(); state != Closed || !s.parts[0].missed.empty() {
					t.Fatalf("%v, %d to settle", state, len(s.parts[0].missed.entries))
				}
				if got := int64(s.Stats().Settled); got < test.want || got > test.want+1 {
					t.Errorf("%d were charged, want %d or one more", got, test.want)
				}
			})
		})
	}
}

// between is a store beside which something happens after a debt has been asked for.
type between struct {
	store.Store
	then func()
}

func (b *between) Take(ctx context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	now, err := b.Store.Take(ctx, charges, results)
	if then := b.then; then != nil && len(charges) > 0 && charges[0].Mode == rule.Shadow && err == nil {
		b.then = nil
		then()
	}
	return now, err
}

// TestSettlesIntoWhatIsLeft: another node takes some of the room that the store was told; the rest
// is charged all the same.
func TestSettlesIntoWhatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &primary{Store: newMemory(t, nil)}
		b := &between{Store: p}
		s := newOver(t, b, Options{})
		c := perHour(t, 100)
		take(t, p.Store, charge(c, "k", 90)) // by another node
		cut(t, s, p, refuses)
		take(t, s, charge(c, "k", 20))
		b.then = func() { take(t, p.Store, charge(c, "k", 3)) }
		mend(t, s, p)
		if got := used(t, p.Store, c, "k"); got != 100 {
			t.Errorf("%d are charged, want all 100", got)
		}
		if got := s.Stats(); got.Settled != 7 || got.Excess != 13 {
			t.Errorf("%+v", got)
		}
	})
}

// certain is a store that charges nothing when it fails, and says so.
type certain struct{ store.Store }

func (c certain) Take(ctx context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	now, err := c.Store.Take(ctx, charges, results)
	if err != nil {
		err = errors.Join(err, store.ErrNotCharged)
	}
	return now, err
}

// TestSettlesWhatWasNotCharged: units that the primary has certainly not charged are charged later,
// for a call or a debt; and settling does not keep the breaker from hearing of failures.
func TestSettlesWhatWasNotCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &primary{Store: newMemory(t, nil)}
		opened := time.Time{}
		s := newOver(t, certain{p}, Options{Transition: func(_, to State, _ error) {
			if to == Open && opened.IsZero() {
				opened = time.Now()
			}
		}})
		c := perHour(t, 100)
		p.set(refuses)
		take(t, s, charge(c, "k", 1))
		time.Sleep(settleEvery) // it is asked for that, and refuses
		for range 2 * tripAfter {
			take(t, s, charge(c, "k", 1))
		}
		tripped := time.Now()
		synctest.Wait()
		if opened != tripped {
			t.Errorf("the breaker opened at %v, which was told at %v", tripped, opened)
		}
		mend(t, s, p)
		if got := used(t, p.Store, c, "k"); got != 1+2*tripAfter {
			t.Errorf("%d are charged, want %d", got, 1+2*tripAfter)
		}
		if got := s.Stats(); got.Settled != 1+2*tripAfter || got.Lost != 0 || got.Excess != 0 {
			t.Errorf("%+v", got)
		}
	})
}

// TestRefundsOfThePast are not made to a window that has come since.
func TestRefundsOfThePast(t *testing.T) {
	for _, test := range []struct {
		name   string
		config algo.Config
		want   int64 // charged of 9 in the end
	}{
		{"another window", algo.Config{Algorithm: algo.FixedWindow, N: 100, Window: time.Minute}, 9},
		{"the same window", algo.Config{Algorithm: algo.FixedWindow, N: 100, Window: time.Hour}, 5},
		// 2 min drain 4 of 9 in part
		{"bucket", algo.Config{Algorithm: algo.TokenBucket, N: 100, Window: time.Hour}, 4},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, p := newTest(t, Options{})
				c := counter(t, test.config)
				take(t, s, charge(c, "k", 9))
				cut(t, s, p, refuses)
				take(t, s, charge(c, "k", -4))
				time.Sleep(time.Minute)
				take(t, p.Store, charge(c, "k", 9-used(t, p.Store, c, "k"))) // by another node
				mend(t, s, p)
				if got := used(t, p.Store, c, "k"); got > test.want+1 || got < test.want {
					t.Errorf("%d are charged, want %d", got, test.want)
				}
			})
		})
	}
}

// TestSettlingIsCutShort: what is left when the primary goes away again is kept, and nothing is
// charged twice.
func TestSettlingIsCutShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newTest(t, Options{})
		c := perHour(t, 10)
		cut(t, s, p, hangs)
		const keys = 10 * settleBatch
		for i := range keys {
			take(t, s, charge(c, fmt.Sprint(i), 2))
		}
		sum := func() (units int64) {
			for i := range keys {
				n := used(t, p.Store, c, fmt.Sprint(i))
				if n > 2 {
					t.Fatalf("key %d is charged %d, want 2", i, n)
				}
				units += n
			}
			return units
		}
		p.set(none)
		for s.Stats().Settled == 0 {
			time.Sleep(time.Millisecond)
		}
		cut(t, s, p, loses)
		if n := sum(); n < 2*settleBatch || n > keys {
			t.Errorf("%d units were charged before it was cut short", n)
		}
		time.Sleep(time.Second)
		mend(t, s, p)
		if n := sum(); n != 2*keys {
			t.Errorf("%d units are charged, want %d", n, 2*keys)
		}
		if got := s.Stats(); got.Settled+got.Lost != 2*keys || got.Lost > 2*settleBatch || got.Excess != 0 {
			t.Errorf("%+v", got)
		}
	})
}

// TestSettlingStumbles: what goes astray when the primary goes away in the middle is one step.
func TestSettlingStumbles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newTest(t, Options{})
		c := perHour(t, 10)
		cut(t, s, p, refuses)
		const keys = 10 * settleBatch
		for i := range keys {
			take(t, s, charge(c, fmt.Sprint(i), 1))
		}
		p.set(none)
		for s.Stats().Settled == 0 {
			time.Sleep(time.Millisecond)
		}
		p.set(refuses)
		time.Sleep(settleEvery)
		cut(t, s, p, refuses)
		mend(t, s, p)
		charged := int64(0)
		for i := range keys {
			charged += used(t, p.Store, c, fmt.Sprint(i))
		}
		if charged != keys-settleBatch {
			t.Errorf("%d of %d units are charged", charged, keys)
		}
	})
}

// TestSettlesPaced: a primary that is back is not buried under what it missed.
func TestSettlesPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newTest(t, Options{})
		c := perHour(t, 10)
		cut(t, s, p, refuses)
		const steps = 20
		for i := range steps * settleBatch {
			take(t, s, charge(c, fmt.Sprint(i), 1))
		}
		p.set(none)
		for s.Stats().Settled == 0 {
			time.Sleep(time.Millisecond)
		}
		time.Sleep((steps - 2) * settleEvery)
		if s.parts[0].missed.empty() {
			t.Error("settled in less time than it should take")
		}
		time.Sleep(2 * settleEvery)
		synctest.Wait()
		if n := s.Stats().Settled; n != steps*settleBatch {
			t.Errorf("%d units are settled, want %d", n, steps*settleBatch)
		}
	})
}

// late is a store that holds up calls until the test lets them go on.
type late struct {
	store.Store
	goOn chan struct{}
}

func (l *late) Take(ctx context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	now, err := l.Store.Take(ctx, charges, results)
	<-l.goOn
	return now, err
}

// TestLateCall: a call that found the breaker open, and ends when all else has been settled long
// since, is settled too.
func TestLateCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		local := &late{newMemory(t, nil), make(chan struct{})}
		s, p := newTest(t, Options{Local: local})
		c := perHour(t, 100)
		go func() {
			for range tripAfter {
				local.goOn <- struct{}{}
			}
		}()
		cut(t, s, p, refuses)
		go func() {
			if _, err := s.Take(t.Context(), []store.Charge{charge(c, "k", 3)}, make([]algo.Result, 1)); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		mend(t, s, p)
		close(local.goOn)
		mend(t, s, p)
		if got := used(t, p.Store, c, "k"); got != 3 {
			t.Errorf("%d are charged, want 3", got)
		}
	})
}

// TestLostAnswer: a charge that the primary may have made is not made again.
func TestLostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newTest(t, Options{})
		c := perHour(t, 100)
		p.set(loses)
		for range tripAfter {
			take(t, s, charge(c, "k", 1))
		}
		take(t, s, charge(c, "k", 1))
		mend(t, s, p)
		if got := used(t, p.Store, c, "k"); got != tripAfter+1 {
			t.Errorf("%d are charged, want %d", got, tripAfter+1)
		}
	})
}

func TestLedgerIsBounded(t *testing.T) {
	var l ledger
	b := newBooks(newKnown(), nil)
	l.init(b, maxMissed)
	c := perHour(t, 10)
	add := func(i int, now, until int64) bool {
		ch := charge(c, fmt.Sprint(i), 1)
		was := b.reading()[lost]
		b.admit(1)
		l.add(&ch, c.Limit, 1, now, until)
		return b.reading()[lost] == was
	}
	for i := range maxMissed {
		if !add(i, 0, 10) {
			t.Fatalf("no room for key %d", i)
		}
	}
	if add(maxMissed, 9, 20) {
		t.Error("a key beyond the bound")
	}
	if !add(0, 9, 20) || l.entries[account{c.ID, "0"}].owed != 2 {
		t.Error("a key that is known finds no room")
	}
	for i := range 1000 { // until is over for all but one of the others
		if !add(maxMissed+i, 10, 20) {
			t.Fatal("no room though nearly all is past")
		}
	}
	if len(l.entries) != maxMissed {
		t.Errorf("%d keys", len(l.entries))
	}
	for i := range maxMissed {
		if !l.addRelease(c, nil, uint64(i)) {
			t.Fatalf("no room for slot %d", i)
		}
	}
	if l.addRelease(c, nil, 1) {
		t.Error("a slot beyond the bound")
	}
	for !l.empty() {
		l.take(1000)
	}
}

// TestStorm: calls from all sides while the primary comes and goes. No call fails, every charge
// that the primary made is accounted for, and no more is admitted than there is.
func TestStorm(t *testing.T) {
	for _, f := range []fault{refuses, hangs, loses} {
		t.Run(fmt.Sprint("fault ", f), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, p := newTest(t, Options{})
				const limit, callers, calls = 2000, 20, 1000
				window, slots := perHour(t, limit), counter(t,
					algo.Config{Algorithm: algo.Concurrency, N: callers, Timeout: time.Hour})
				var admitted atomic.Int64
				var wg sync.WaitGroup
				for g := range callers {
					wg.Go(func() {
						results := make([]algo.Result, 2)
						for range calls {
							charges := []store.Charge{charge(window, fmt.Sprint(g%3), 1), charge(slots, "k", 1)}
							if _, err := s.Take(t.Context(), charges, results); err != nil {
								t.Error(err)
								return
							}
							time.Sleep(time.Duration(g+1) * time.Millisecond)
							if !results[0].Allowed || !results[1].Allowed {
								continue
							}
							admitted.Add(1)
							if ok, err := s.Release(t.Context(), slots, []byte("k"), charges[1].Ask.Slot); !ok ||
								err != nil {
								t.Errorf("Release: %v, %v", ok, err)
							}
						}
					})
				}
				for range 5 {
					time.Sleep(time.Second)
					p.set(f)
					time.Sleep(time.Second)
					p.set(none)
				}
				wg.Wait()
				mend(t, s, p)
				charged, locally := int64(0), int64(0)
				for key := range 3 {
					charged += used(t, p.Store, window, fmt.Sprint(key))
					locally += used(t, s.o.Local, window, fmt.Sprint(key))
				}
				if n := admitted.Load(); n > 3*2*limit || n < 3*limit || n > charged+locally {
					t.Errorf("%d were admitted; the primary was charged %d, Local %d", n, charged, locally)
				}
				if s.Stats().Trips == 0 || s.Stats().Settled == 0 {
					t.Errorf("%+v", s.Stats())
				}
				if held := used(t, s.o.Local, slots, "k"); held != 0 {
					t.Errorf("%d slots of Local are held", held)
				}
				if held := used(t, p.Store, slots, "k"); held != 0 && f != loses {
					t.Errorf("%d slots of the primary are held", held)
				}
			})
		})
	}
}
