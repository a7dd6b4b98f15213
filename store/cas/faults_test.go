package cas_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/castest"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/cas"
	"github.com/weir-rl/weir/store/fallback"
	"github.com/weir-rl/weir/store/memory"
)

// TestLostAnswers: the outcome of a write whose answer was lost is found out, while other nodes
// write on top of it: every call is answered, and each admission is charged once.
func TestLostAnswers(t *testing.T) {
	for name, apart := range map[string]bool{"locks": false, "compares alone": true} {
		t.Run(name, func(t *testing.T) { testLostAnswers(t, apart) })
	}
}

func testLostAnswers(t *testing.T, apart bool) {
	m := castest.New()
	var faults atomic.Bool
	m.Before = func(_ context.Context, c castest.Call) error {
		switch {
		case !faults.Load():
		case (c == castest.Swap || c == castest.Unlock) && rand.IntN(10) == 0:
			return castest.ErrLost // the question was
		case rand.IntN(20) == 0:
			return fmt.Errorf("%w: %w", store.ErrNotCharged, cas.ErrBroken)
		}
		return nil
	}
	m.After = func(_ context.Context, c castest.Call) error {
		if faults.Load() && (c == castest.Swap || c == castest.Unlock) && rand.IntN(4) == 0 {
			return castest.ErrLost
		}
		return nil
	}
	var engine cas.Engine = m
	if apart {
		engine = far{m, 0} // that is no cas.Locker
	}
	c, slots := counterOf(t, 1, wide), counterOf(t, 2,
		algo.Config{Algorithm: algo.Concurrency, N: 1000, Timeout: time.Hour})
	var nodes []*cas.Store
	for range 3 {
		s := open(t, engine, cas.Options{Timeout: patience.Left(t)})
		take(t, s, charge(c, "k", 0))
		nodes = append(nodes, s)
	}
	faults.Store(true)
	var all sync.WaitGroup
	var admitted atomic.Int64
	for g := range 9 {
		s := nodes[g%3]
		all.Go(func() {
			for i := range 60 {
				charges, results := []store.Charge{charge(c, "k", 1), charge(c, fmt.Sprint(g, i%5), 1)},
					make([]algo.Result, 2)
				if _, err := s.Take(t.Context(), charges[:1+i%2], results[:1+i%2]); err != nil {
					t.Error(err)
					return
				}
				admitted.Add(1)
				// What is taken and given back leaves nothing behind, and a value goes and comes.
				held := charge(slots, "slots", 1)
				if _, err := s.Take(t.Context(), []store.Charge{held}, results[:1]); err != nil || !results[0].Allowed {
					t.Error(results[0], err)
					return
				}
				held = charge(slots, "slots", 1)
				one := []store.Charge{held}
				if _, err := s.Take(t.Context(), one, results[:1]); err != nil {
					t.Error(err)
					return
				}
				if ok, err := s.Release(t.Context(), slots, []byte("slots"), one[0].Ask.Slot); !ok || err != nil {
					t.Errorf("a slot that is held is given back: %v, %v", ok, err)
				}
			}
		})
	}
	all.Wait()
	faults.Store(false)
	if n := used(t, nodes[0], c, "k"); n != admitted.Load() {
		t.Errorf("%d charged; %d were admitted", n, admitted.Load())
	}
	r := take(t, nodes[1], charge(slots, "slots", 0))
	if n := r[0].Limit - r[0].Remaining; n != 9*60 {
		t.Errorf("%d slots are held; %d were taken, and not given back", n, 9*60)
	}
	learned, lost := uint64(0), uint64(0)
	for _, s := range nodes {
		learned, lost = learned+s.Stats().Learned, lost+s.Stats().Lost
	}
	if learned == 0 || lost > 0 {
		t.Errorf("%d were found out, and %d were not", learned, lost)
	}
}

// TestSettledTogether: the outcomes of all groups of a write whose answer was lost are asked for at
// once.
func TestSettledTogether(t *testing.T) {
	m := castest.New()
	hold, release := gate(m)
	var lose atomic.Int64
	m.After = func(_ context.Context, c castest.Call) error {
		// The second is the one that all have waited for.
		if c == castest.Swap && lose.Add(-1) == 0 {
			return castest.ErrLost
		}
		return nil
	}
	s, c := open(t, m, cas.Options{Connections: 1, Timeout: time.Minute}), counterOf(t, 1, wide)
	take(t, s, charge(c, "k", 1)) // learns the clock
	hold()
	const keys = 20
	var all sync.WaitGroup
	ask := func(key string) {
		all.Go(func() {
			if _, err := s.Take(t.Context(), []store.Charge{charge(c, key, 1)}, make([]algo.Result, 1)); err != nil {
				t.Error(err)
			}
		})
	}
	ask("k")
	patience.Until(t, "the first is in flight", func() bool { return s.Flying() == 1 })
	for i := range keys {
		ask(fmt.Sprint(i))
	}
	patience.Until(t, "the others wait", func() bool { return s.Waiting() == keys })
	before, learned := m.Counts(), s.Stats().Learned
	lose.Store(2)
	release()
	all.Wait()
	if n := m.Counts().Swaps - before.Swaps; n != 3 {
		t.Errorf("%d writes for two batches, of which one was sent again", n)
	}
	if n := s.Stats().Learned - learned; n != keys {
		t.Errorf("of %d groups, %d are known to be made", keys, n)
	}
	for i := range keys {
		if n := used(t, s, c, fmt.Sprint(i)); n != 1 {
			t.Errorf("%d: %d used, want 1", i, n)
		}
	}
}

// TestBroken: a call that meets connections that broke is asked again, for as long as one call may
// take; not where the database has not answered for that long.
func TestBroken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)))
		m := castest.New()
		var broken atomic.Int64
		m.Before = func(context.Context, castest.Call) error {
			if broken.Add(-1) >= 0 {
				return fmt.Errorf("%w: %w", store.ErrNotCharged, cas.ErrBroken)
			}
			return nil
		}
		const timeout = time.Second
		s, c := open(t, m, cas.Options{Timeout: timeout}), counterOf(t, 1, wide)
		take(t, s, charge(c, "k", 1))
		for _, n := range []int64{1, 10, 30} {
			broken.Store(n)
			take(t, s, charge(c, "k", 1))
		}
		ask := func() (time.Duration, error) {
			before := time.Now()
			_, err := s.Take(t.Context(), []store.Charge{charge(c, "k", 1)}, make([]algo.Result, 1))
			return time.Since(before), err
		}
		broken.Store(1 << 40)
		if took, err := ask(); !errors.Is(err, cas.ErrBroken) || !errors.Is(err, store.ErrNotCharged) ||
			took < timeout || took > 2*timeout {
			t.Errorf("without an end: %v after %v", err, took)
		}
		if took, err := ask(); !errors.Is(err, cas.ErrBroken) || took > 0 {
			t.Errorf("and once more: %v after %v", err, took)
		}
		broken.Store(0)
		if n := used(t, s, c, "k"); n != 4 {
			t.Errorf("%d used, want 4", n)
		}
	})
}

// TestOverslept: a call that did nothing, and ended so late that the process did not run meanwhile,
// is asked again, though nothing was heard of the database for longer than a call may take. One
// that was given up in time is not.
func TestOverslept(t *testing.T) {
	for _, test := range []struct {
		late, read time.Duration // read: the batch has spent that time already, on a Read
		ok         bool
	}{{0, 0, false}, {200 * time.Millisecond, 0, true}, {0, 900 * time.Millisecond, false},
		{200 * time.Millisecond, 900 * time.Millisecond, true}} {
		for _, at := range []castest.Call{castest.Swap, castest.Lock} {
			if at == castest.Lock && test.read > 0 {
				continue
			}
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(time.Until(time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)))
				m := castest.New()
				var sleeps atomic.Bool
				const timeout = time.Second
				m.Before = func(_ context.Context, call castest.Call) error {
					if call == castest.Read && sleeps.Load() {
						time.Sleep(test.read)
					}
					if call == at && sleeps.CompareAndSwap(true, false) {
						time.Sleep(timeout - test.read + test.late)
						return fmt.Errorf("%w: %w", store.ErrNotCharged, context.DeadlineExceeded)
					}
					return nil
				}
				s, c := open(t, m, cas.Options{Timeout: timeout}), counterOf(t, 1, wide)
				want := int64(0)
				if test.read == 0 { // else the first decision has to read the clock
					take(t, s, charge(c, "k", 1))
					want++
				}
				if at == castest.Lock {
					m.Conflict = func(*cas.Group) bool { return true }
				}
				sleeps.Store(true)
				_, err := s.Take(t.Context(), []store.Charge{charge(c, "k", 1)}, make([]algo.Result, 1))
				if (err == nil) != test.ok || sleeps.Load() {
					t.Errorf("%v, %v late: %v; it was met: %v", at, test.late, err, !sleeps.Load())
				}
				if test.ok {
					want++
				}
				if n := used(t, s, c, "k"); n != want {
					t.Errorf("%v, %v late: %d used, want %d", at, test.late, n, want)
				}
			})
		}
	}
}

// TestProbe: a probe does what decisions do, so that one that takes no writes does not count as
// back.
func TestProbe(t *testing.T) {
	m := castest.New()
	var readOnly atomic.Bool
	m.Before = func(_ context.Context, c castest.Call) error {
		if readOnly.Load() && c != castest.Read {
			return fmt.Errorf("%w: read-only", store.ErrNotCharged)
		}
		return nil
	}
	s := open(t, m, cas.Options{})
	for i := range 20 {
		if err := s.PingPart(t.Context(), 0); err != nil {
			t.Fatalf("%d: %v", i, err)
		}
	}
	readOnly.Store(true)
	if err := s.PingPart(t.Context(), 0); err == nil {
		t.Error("a probe of a database that takes no writes succeeds")
	}
	if _, err := s.Time(t.Context()); err != nil {
		t.Error("it cannot be read:", err)
	}
}

// short is an engine whose locks bring no values.
type short struct{ *castest.Memory }

func (e short) Lock(ctx context.Context, keys []cas.Key) (cas.Lock, []cas.Value, int64, error) {
	l, _, clock, err := e.Memory.Lock(ctx, keys)
	return l, nil, clock, err
}

// TestIncompleteLock: where the values that were locked do not come, nothing is decided, and the
// keys are free again.
func TestIncompleteLock(t *testing.T) {
	m := castest.New()
	m.Conflict = func(*cas.Group) bool { return true }
	c := counterOf(t, 1, wide)
	s, other := open(t, short{m}, cas.Options{}), open(t, m, cas.Options{})
	take(t, other, charge(c, "k", 1))
	for range 2 {
		_, err := s.Take(t.Context(), []store.Charge{charge(c, "k", 1)}, make([]algo.Result, 1))
		if !errors.Is(err, store.ErrNotCharged) {
			t.Errorf("without the values: %v", err)
		}
	}
	if n := used(t, other, c, "k"); n != 1 {
		t.Errorf("%d used, want 1", n)
	}
}

// TestGivenUp: a caller that gives up learns the outcome of its call later, or that it was not
// sent.
func TestGivenUp(t *testing.T) {
	m := castest.New()
	hold, release := gate(m)
	s, c := open(t, m, cas.Options{Timeout: time.Minute}), counterOf(t, 1, wide)
	take(t, s, charge(c, "k", 1))
	hold()
	ask := func() (chan error, context.CancelFunc) {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := s.Take(ctx, []store.Charge{charge(c, "k", 5)}, make([]algo.Result, 1))
			ended <- err
		}()
		return ended, cancel
	}
	first, cancelFirst := ask()
	patience.Until(t, "the first is in flight", func() bool { return s.Flying() == 1 })
	second, cancelSecond := ask()
	patience.Until(t, "the second waits", func() bool { return s.Waiting() == 1 })
	cancelSecond()
	if err := <-second; !errors.Is(err, store.ErrNotCharged) || !errors.Is(err, context.Canceled) {
		t.Errorf("given up before it was sent: %v", err)
	}
	cancelFirst()
	err := <-first
	pending, ok := errors.AsType[store.Pending](err)
	if !ok || errors.Is(err, store.ErrNotCharged) {
		t.Fatalf("given up after it was sent: %v", err)
	}
	outcomes := make(chan []store.Outcome, 1)
	pending.Outcome(func(list []store.Outcome) { outcomes <- list })
	release()
	if list := <-outcomes; len(list) != 1 || !list[0].Known || !list[0].Made || list[0].Now == 0 ||
		!list[0].Result.Allowed {
		t.Errorf("%+v", list)
	}
	if n := used(t, s, c, "k"); n != 6 {
		t.Errorf("%d used, want 6", n)
	}
}

// TestDeadline: a database that is silent is waited for as long as it is known to take, and its
// part is told to be silent.
func TestDeadline(t *testing.T) {
	m := castest.New()
	hold, release := gate(m)
	s, c := open(t, m, cas.Options{Timeout: time.Minute}), counterOf(t, 1, wide)
	take(t, s, charge(c, "k", 1))
	hold()
	_, _, err := s.TakeWithin(t.Context(), time.Millisecond, 24*time.Hour, []store.Charge{charge(c, "k", 1)},
		make([]algo.Result, 1))
	blamed, ok := errors.AsType[store.PartError](err)
	if !ok || !errors.Is(err, cas.ErrDeadline) || !errors.Is(err, context.DeadlineExceeded) || !blamed.Failed(0) ||
		blamed.Failed(1) || !blamed.Silent() {
		t.Errorf("%v", err)
	}
	release()
}

// TestSkew: the engine's clock is set forth and back while the node runs, and it goes on at once by
// the new time.
func TestSkew(t *testing.T) {
	m := castest.New()
	var offset atomic.Int64
	m.Clock = func() int64 { return time.Now().UnixMicro() + offset.Load() }
	s, c := open(t, m, cas.Options{}), counterOf(t, 1, wide)
	for _, hours := range []int64{0, 5, 2, 200, 0} {
		offset.Store(hours * time.Hour.Microseconds())
		results := make([]algo.Result, 1)
		before := m.Clock()
		now, err := s.Take(t.Context(), []store.Charge{charge(c, "k", 1)}, results)
		if after := m.Clock(); err != nil || now < before-2*cas.MaxSkew || now > after {
			t.Errorf("%d hours: decided %v after the call, %v before its end: %v", hours, now-before, after-now, err)
		}
	}
	if n := used(t, s, c, "k"); n != 5 {
		t.Errorf("%d used, want 5", n)
	}
}

// TestNeverLate: the instant of a decision is never later than the engine's clock, whatever the
// network takes.
func TestNeverLate(t *testing.T) {
	m := castest.New()
	delay := func(_ context.Context, _ castest.Call) error {
		time.Sleep(rand.N(2 * time.Millisecond)) // a network
		return nil
	}
	m.Before, m.After = delay, delay
	s, c := open(t, m, cas.Options{}), counterOf(t, 1, wide)
	last := int64(0)
	for range 50 {
		now, err := s.Take(t.Context(), []store.Charge{charge(c, "k", 1)}, make([]algo.Result, 1))
		if after := time.Now().UnixMicro(); err != nil || now > after {
			t.Fatalf("decided at an instant %d µs ahead: %v", now-after, err)
		}
		if now < last {
			t.Errorf("decided %d µs before the decision before", last-now)
		}
		last = now
	}
}

// TestBehindFallback: package fallback finds in a Store all that it wants of a primary: it decides
// by itself while the database is away, and charges it for that when it is back.
func TestBehindFallback(t *testing.T) {
	m := castest.New()
	var away atomic.Bool
	m.Before = func(context.Context, castest.Call) error {
		if away.Load() {
			return fmt.Errorf("%w: connection refused", store.ErrNotCharged)
		}
		return nil
	}
	primary, c := open(t, m, cas.Options{}), counterOf(t, 1, wide)
	local, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := fallback.New(primary, fallback.Options{Local: local, Deadline: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	take(t, s, charge(c, "k", 1))
	away.Store(true)
	for range 20 {
		if r := take(t, s, charge(c, "k", 1)); !r[0].Allowed {
			t.Fatalf("%+v", r[0])
		}
	}
	if gone, parts := s.Away(); gone != 1 || parts != 1 {
		t.Errorf("%d parts of %d are away", gone, parts)
	}
	away.Store(false)
	patience.Until(t, "what was admitted meanwhile is charged", func() bool { return used(t, primary, c, "k") == 21 })
}

// TestTurns: where nothing can be locked, a node that decides on a key without a break lets others
// come through, that are further away.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// A bubble begins in 2000, before this process, and its monotonic clock below 0.
		time.Sleep(time.Until(time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)))
		testTurns(t)
	})
}

func testTurns(t *testing.T) {
	t.Helper()
	m := castest.New()
	c := counterOf(t, 1, wide)
	var made [2]atomic.Int64
	var all sync.WaitGroup
	for n := range made {
		s := open(t, far{m, time.Duration(1+3*n) * 500 * time.Microsecond}, cas.Options{})
		for range 16 {
			all.Go(func() {
				results := make([]algo.Result, 1)
				for made[0].Load() < 8_000 && made[1].Load() < 8_000 {
					if _, err := s.Take(t.Context(), []store.Charge{charge(c, "k", 1)}, results); err != nil {
						t.Error(err)
						return
					}
					made[n].Add(1)
				}
			})
		}
	}
	all.Wait()
	a, b := made[0].Load(), made[1].Load()
	t.Logf("one node made %d decisions, and the other %d", a, b)
	if min(a, b) < 100 {
		t.Error("one was kept out")
	}
}

// TestNewClientsOfABusyKey: a key that others change again and again is locked after two times,
// also if each try brings a client that this node has not seen before.
func TestNewClientsOfABusyKey(t *testing.T) {
	m := castest.New()
	var s *cas.Store
	busy, clients := counterOf(t, 1, wide), counterOf(t, 2, wide)
	var conflicts, armed atomic.Int64
	var all sync.WaitGroup
	ask := func(client int64) {
		charges := []store.Charge{charge(busy, "busy", 1), charge(clients, fmt.Sprint("client ", client), 1)}
		all.Go(func() {
			if _, err := s.Take(t.Context(), charges, make([]algo.Result, 2)); err != nil {
				t.Error(err)
			}
		})
	}
	m.Conflict = func(*cas.Group) bool {
		if armed.Load() == 0 || conflicts.Load() == 10 {
			return false
		}
		ask(conflicts.Add(1))
		patience.Until(t, "a new client has come", func() bool { return s.Waiting() > 0 })
		return true
	}
	s = open(t, m, cas.Options{Timeout: time.Minute})
	take(t, s, charge(busy, "busy", 1))
	armed.Store(1)
	ask(0)
	all.Wait()
	if s.Stats().Locks == 0 {
		t.Errorf("others were quicker %d times, and nothing was locked", conflicts.Load())
	}
	if n, want := used(t, s, busy, "busy"), 2+conflicts.Load(); n != want {
		t.Errorf("%d were counted, want %d", n, want)
	}
}

// far is an engine some way off, that locks nothing.
type far struct {
	cas.Engine
	way time.Duration
}

func (f far) Swap(ctx context.Context, now int64, groups []cas.Group) (int64, error) {
	time.Sleep(f.way)
	defer time.Sleep(f.way)
	return f.Engine.Swap(ctx, now, groups)
}
