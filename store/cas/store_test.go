package cas_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/castest"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/cas"
)

// wide is a limit that admits all that these tests ask for, and counts it.
var wide = algo.Config{Algorithm: algo.FixedWindow, N: 1_000_000, Calendar: algo.Year}

func take(t testing.TB, s store.Store, charges ...store.Charge) []algo.Result {
	t.Helper()
	results := make([]algo.Result, len(charges))
	if _, err := s.Take(t.Context(), charges, results); err != nil {
		t.Fatal(err)
	}
	return results
}

// used returns how much of a wide limit is used.
func used(t testing.TB, s store.Store, c *rule.Counter, key string) int64 {
	t.Helper()
	return wide.N - take(t, s, charge(c, key, 0))[0].Remaining
}

// TestRoundTrips: a new key costs one round trip, a key that is known one, and one that another
// node knows two.
func TestRoundTrips(t *testing.T) {
	m := castest.New()
	s, c := open(t, m, cas.Options{}), counterOf(t, 1, wide)
	take(t, s, charge(c, "first", 1)) // learns the clock
	trips := func(s *cas.Store, want uint64, charges ...store.Charge) {
		t.Helper()
		before := s.Stats().Calls
		take(t, s, charges...)
		if n := s.Stats().Calls - before; n != want {
			t.Errorf("%d round trips, want %d", n, want)
		}
	}
	trips(s, 1, charge(c, "new", 1))
	trips(s, 1, charge(c, "new", 1))
	trips(s, 1, charge(c, "new", 0))
	trips(s, 1, charge(c, "new", 2*wide.N))
	trips(s, 1, charge(c, "a", 1), charge(c, "b", 1))
	other := open(t, m, cas.Options{})
	take(t, other, charge(c, "first", 1))
	trips(other, 2, charge(c, "new", 1))
	trips(other, 1, charge(c, "new", 1))
	trips(s, 2, charge(c, "new", 1))
	if n := used(t, s, c, "new"); n != 5 {
		t.Errorf("%d used, want 5", n)
	}
	if n := s.Stats(); n.Conflicts != 1 || n.Damaged != 0 {
		t.Errorf("%+v", n)
	}
	// A denied request, and a peek, write nothing.
	before := m.Counts().Changes
	trips(s, 1, charge(c, "new", 0))
	trips(s, 1, charge(c, "new", 2*wide.N))
	if n := m.Counts().Changes - before; n != 0 {
		t.Errorf("%d writes of what admits nothing", n)
	}
}

// gate lets no Swap of an engine begin from hold to release, each of which is to be called once.
func gate(m *castest.Memory) (hold, release func()) {
	open := make(chan struct{})
	var held atomic.Bool
	m.Before = func(_ context.Context, c castest.Call) error {
		if c == castest.Swap && held.Load() {
			<-open
		}
		return nil
	}
	return func() { held.Store(true) }, func() {
		held.Store(false)
		close(open)
	}
}

// TestMerged: calls that wait for one key go as one write, no matter who asks for how much.
func TestMerged(t *testing.T) {
	m := castest.New()
	hold, release := gate(m)
	s, c := open(t, m, cas.Options{Connections: 3, Timeout: time.Minute}), counterOf(t, 1, wide)
	take(t, s, charge(c, "k", 1))
	hold()
	before := m.Counts()
	var all sync.WaitGroup
	ask := func(charges ...store.Charge) {
		results := make([]algo.Result, len(charges))
		all.Go(func() {
			if _, err := s.Take(context.Background(), charges, results); err != nil {
				t.Error(err)
			}
		})
	}
	ask(charge(c, "k", 1))
	patience.Until(t, "the first is in flight", func() bool { return s.Flying() == 1 })
	for i := range 100 {
		ask(charge(c, "k", int64(1+i%3)), charge(c, fmt.Sprint("own ", i), 1))
	}
	// Another key is decided meanwhile, on another connection.
	patience.Until(t, "all others wait", func() bool { return s.Waiting() == 100 })
	ask(charge(c, "other", 1))
	patience.Until(t, "another key is in flight too", func() bool { return s.Flying() == 2 })
	release()
	all.Wait()
	if n := m.Counts().Swaps - before.Swaps; n > 4 {
		t.Errorf("%d writes for 100 decisions on one key", n)
	}
	if n := used(t, s, c, "k"); n != 2+100+33+66 {
		t.Errorf("%d used", n)
	}
	if n := s.Stats().Conflicts; n != 0 {
		t.Errorf("%d conflicts of a node with itself", n)
	}
}

// TestNodes: several nodes charge the same keys, and none of them is lost; it is so for calls on
// one key and on several, and where engines lock and where they do not.
func TestNodes(t *testing.T) {
	for name, engine := range map[string]func(m *castest.Memory) cas.Engine{
		"with locks":    func(m *castest.Memory) cas.Engine { return m },
		"without locks": func(m *castest.Memory) cas.Engine { return struct{ cas.Engine }{m} },
	} {
		t.Run(name, func(t *testing.T) {
			m := castest.New()
			c := counterOf(t, 1, wide)
			const nodes, callers, calls = 3, 4, 60
			var all sync.WaitGroup
			var last *cas.Store
			for n := range nodes {
				s := open(t, engine(m), cas.Options{})
				last = s
				for g := range callers {
					all.Go(func() {
						results := make([]algo.Result, 2)
						for i := range calls {
							charges := []store.Charge{charge(c, fmt.Sprint((n+g+i)%3), 1),
								charge(c, fmt.Sprint((n+g+i+1)%3), 1)}
							if _, err := s.Take(t.Context(), charges[:1+i%2], results[:1+i%2]); err != nil {
								t.Error(err)
							}
						}
					})
				}
			}
			all.Wait()
			sum := used(t, last, c, "0") + used(t, last, c, "1") + used(t, last, c, "2")
			if want := int64(nodes * callers * calls * 3 / 2); sum != want {
				t.Errorf("%d used, want %d", sum, want)
			}
		})
	}
}

// TestBoundedMemory: a node remembers so many keys, and forgets none of those that it decides on.
func TestBoundedMemory(t *testing.T) {
	s, c := open(t, castest.New(), cas.Options{KnownKeys: 100}), counterOf(t, 1, wide)
	charges := make([]store.Charge, 500)
	for i := range charges {
		charges[i] = charge(c, fmt.Sprint("together ", i), 1)
	}
	take(t, s, charges...)
	for i := range 2000 {
		take(t, s, charge(c, fmt.Sprint(i), 1))
	}
	if n := s.Stats().Keys; n > 120 {
		t.Errorf("%d keys are remembered, of 100", n)
	}
	for _, i := range []int{0, 77, 499} {
		if n := used(t, s, c, fmt.Sprint("together ", i)); n != 1 {
			t.Errorf("%d used, want 1", n)
		}
	}
}

// TestCountedMemory: what values take is counted, with the room for the next one, also of a node
// that changes nothing.
func TestCountedMemory(t *testing.T) {
	m := castest.New()
	c := counterOf(t, 1, algo.Config{Algorithm: algo.SlidingLog, N: 300, Window: time.Hour})
	writes, looks := open(t, m, cas.Options{}), open(t, m, cas.Options{})
	for i := range 300 {
		take(t, writes, charge(c, "long", 1), charge(c, fmt.Sprint(i), 1))
	}
	for i := range 300 {
		take(t, looks, charge(c, "long", 0), charge(c, fmt.Sprint(i), 0))
	}
	for _, s := range []*cas.Store{writes, looks} {
		patience.Until(t, "all is counted", func() bool {
			counted, taken := s.Counted()
			return counted == taken
		})
	}
}

// TestRefusals: a refusal is repeated from memory until something is given back.
func TestRefusals(t *testing.T) {
	s := open(t, castest.New(), cas.Options{RememberRefusals: time.Hour})
	c := counterOf(t, 1, algo.Config{Algorithm: algo.FixedWindow, N: 1, Calendar: algo.Year})
	take(t, s, charge(c, "k", 1), charge(c, "other", 1))
	results := make([]algo.Result, 1)
	one := []store.Charge{charge(c, "k", 1)}
	if _, ok := s.TakeNow(one, results); ok {
		t.Error("an answer from a memory that is empty")
	}
	take(t, s, one...)
	before := s.Stats()
	for range 5 {
		if r := take(t, s, one...); r[0].Allowed {
			t.Error("admitted")
		}
	}
	if _, ok := s.TakeNow(one, results); !ok || results[0].Allowed {
		t.Errorf("%v %+v", ok, results[0])
	}
	if after := s.Stats(); after.Calls != before.Calls || after.Remembered != before.Remembered+6 {
		t.Errorf("%+v", after)
	}
	take(t, s, charge(c, "k", -1))
	if r := take(t, s, one...); !r[0].Allowed {
		t.Errorf("after a refund: %+v", r[0])
	}
	take(t, s, one...)
	if ok, err := s.Reset(t.Context(), c, []byte("k")); err != nil || !ok {
		t.Errorf("Reset: %v %v", ok, err)
	}
	if r := take(t, s, one...); !r[0].Allowed {
		t.Errorf("after a reset: %+v", r[0])
	}
}

// TestRefusalsOfOthers: nodes tell each other which keys are free, as the packages of engines carry
// it.
func TestRefusalsOfOthers(t *testing.T) {
	m := castest.New()
	var here, there *cas.Store
	there = open(t, m, cas.Options{RememberRefusals: time.Hour})
	here = open(t, m, cas.Options{RememberRefusals: time.Hour,
		Freed: func(id uint64, key []byte) { there.ForgetHere(id, key) }})
	c := counterOf(t, 1, algo.Config{Algorithm: algo.FixedWindow, N: 1, Calendar: algo.Year})
	take(t, here, charge(c, "other", 1)) // only an answer tells it the engine's clock
	refuse := func() {
		t.Helper()
		take(t, there, charge(c, "k", 1))
		if r := take(t, there, charge(c, "k", 1)); r[0].Allowed {
			t.Fatalf("%+v", r[0])
		}
	}
	for what, free := range map[string]func(){
		"a refund": func() { take(t, here, charge(c, "k", -1)) },
		"a settlement": func() {
			now, ok := here.Now()
			if !ok {
				t.Fatal("no clock")
			}
			if err := here.Settle(t.Context(), []store.Settlement{{Counter: c, Limit: c.Limit, Key: []byte("k"), At: now, Reserved: 1}}); err != nil {
				t.Fatal(err)
			}
		},
		"a reset": func() {
			if _, err := here.Reset(t.Context(), c, []byte("k")); err != nil {
				t.Fatal(err)
			}
		},
		"all may have been missed": func() {
			take(t, open(t, m, cas.Options{}), charge(c, "k", -1)) // nobody hears of it
			there.ForgetAll()
		},
	} {
		refuse()
		if free(); !take(t, there, charge(c, "k", 1))[0].Allowed {
			t.Errorf("after %s the refusal is repeated", what)
		}
	}
}

// TestAcross: an engine that does not span places decides a call over several of them so that it is
// all or nothing, once all is said.
func TestAcross(t *testing.T) {
	m := castest.New()
	m.Apart = true
	s := open(t, m, cas.Options{})
	c, none := counterOf(t, 1, wide), counterOf(t, 2, algo.Config{Algorithm: algo.FixedWindow, N: 0, Window: time.Hour})
	slots := counterOf(t, 3, algo.Config{Algorithm: algo.Concurrency, N: 5})
	for i := range 20 {
		r := take(t, s, charge(c, "a", 1), charge(c, "b", 2), charge(slots, "c", 1))
		if !r[0].Allowed || !r[1].Allowed || r[2].Allowed != (i < 5) {
			t.Fatalf("%d: %+v", i, r)
		}
	}
	shadow := charge(c, "shadow", 1)
	shadow.Mode = rule.Shadow
	for range 20 {
		take(t, s, charge(c, "a", 1), charge(c, "d", 3), charge(none, "b", 1), shadow)
	}
	for key, want := range map[string]int64{"a": 5, "b": 10, "d": 0, "shadow": 20} {
		patience.Until(t, "what was denied is given back", func() bool { return used(t, s, c, key) == want })
	}
	if n := s.Stats().GivenBack; n < 30 {
		t.Errorf("%d charges were given back", n)
	}
	if r := take(t, s, charge(slots, "c", 0)); r[0].Remaining != 0 {
		t.Errorf("%+v: a denied call has given slots back that are others'", r[0])
	}
	// Where one place fails, the rest is given back.
	var fail atomic.Bool
	m.Before = func(_ context.Context, c castest.Call) error {
		if c == castest.Swap && fail.CompareAndSwap(true, false) {
			return fmt.Errorf("%w: refused", store.ErrNotCharged)
		}
		return nil
	}
	fail.Store(true)
	charges := []store.Charge{charge(c, "e", 1), charge(c, "f", 1)}
	_, err := s.Take(t.Context(), charges, make([]algo.Result, 2))
	pending, ok := errors.AsType[store.Pending](err)
	if !ok {
		t.Fatalf("one place failed: %v", err)
	}
	pending.Outcome(func(list []store.Outcome) {
		for _, o := range list {
			if !o.Known || o.Made {
				t.Errorf("%+v", list)
			}
		}
	})
	for _, key := range []string{"e", "f"} {
		patience.Until(t, "nothing is left of a call that failed", func() bool { return used(t, s, c, key) == 0 })
	}
}

// TestDamage: states that cannot be read count as fresh, and are reported.
func TestDamage(t *testing.T) {
	m := castest.New()
	s, c := open(t, m, cas.Options{}), counterOf(t, 1, wide)
	take(t, s, charge(c, "k", 5))
	var changes []cas.Change
	_, _, err := m.Scan(t.Context(), "", 10, func(name []byte, v cas.Value) {
		v.Data[len(v.Data)/2] ^= 1
		changes = append(changes, cas.Change{Key: cas.Key{Name: name}, Was: v.Version, Version: 1, Data: v.Data,
			Until: 1 << 60})
	})
	if err != nil || len(changes) != 1 {
		t.Fatal(err, len(changes))
	}
	if _, err := m.Swap(t.Context(), 0, []cas.Group{{Changes: changes}}); err != nil {
		t.Fatal(err)
	}
	if n := used(t, s, c, "k"); n != 0 || s.Stats().Damaged == 0 {
		t.Errorf("%d used, %+v", n, s.Stats())
	}
	take(t, s, charge(c, "k", 2))
	before := s.Stats().Damaged
	if n := used(t, open(t, m, cas.Options{}), c, "k"); n != 2 || s.Stats().Damaged != before {
		t.Errorf("%d used, %+v", n, s.Stats())
	}
}

// TestOptions: what makes no sense is refused, and named.
func TestOptions(t *testing.T) {
	for _, o := range []cas.Options{{Connections: -1}, {Connections: 5000}, {Timeout: -1}, {RememberRefusals: -1},
		{KnownKeys: -1}} {
		o.Name = "postgres store"
		if _, err := cas.New(castest.New(), o); err == nil {
			t.Errorf("%+v is let through", o)
		}
	}
	if _, err := cas.New(nil, cas.Options{}); err == nil {
		t.Error("there is no engine")
	}
}

// TestClose: calls that wait fail, certainly without a charge, and so do later ones.
func TestClose(t *testing.T) {
	m := castest.New()
	var held atomic.Bool
	m.Before = func(ctx context.Context, c castest.Call) error {
		if c == castest.Swap && held.Load() {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}
	s, err := cas.New(m, cas.Options{Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	c := counterOf(t, 1, wide)
	take(t, s, charge(c, "k", 1))
	held.Store(true)
	ended := make(chan error, 5)
	ask := func() {
		_, err := s.Take(context.Background(), []store.Charge{charge(c, "k", 1)}, make([]algo.Result, 1))
		ended <- err
	}
	go ask()
	patience.Until(t, "one is in flight", func() bool { return s.Flying() == 1 })
	for range 4 {
		go ask()
	}
	patience.Until(t, "the others wait", func() bool { return s.Waiting() == 4 })
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for range 5 {
		if err := <-ended; err == nil {
			t.Error("decided by a store that is closed")
		}
	}
	if _, err := s.Take(t.Context(), []store.Charge{charge(c, "k", 1)}, make([]algo.Result, 1)); !errors.Is(err,
		store.ErrNotCharged) {
		t.Errorf("after Close: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
