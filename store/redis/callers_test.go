package redis_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/redis"
	"github.com/weir-rl/weir/store/storetest"
)

// charge is a charge of a counter's own limit.
func charge(c *rule.Counter, key string, cost int64) store.Charge {
	return store.Charge{Counter: c, Limit: c.Limit, Key: []byte(key), Ask: algo.Ask{Cost: cost, MaxDelay: -1}}
}

// take is one decision that must not fail.
func take(t testing.TB, s store.Store, charges ...store.Charge) ([]algo.Result, int64) {
	t.Helper()
	results := make([]algo.Result, len(charges))
	now, err := s.Take(t.Context(), charges, results)
	if err != nil {
		t.Fatal(err)
	}
	return results, now
}

// used returns how many units of a key are used.
func used(t testing.TB, s store.Store, c *rule.Counter, key string) int64 {
	t.Helper()
	r, _ := take(t, s, charge(c, key, 0))
	return r[0].Limit - r[0].Remaining
}

// gate passes connections on to a server, and can keep back what the server answers: so that a call
// stays in flight, though it has been made.
type gate struct {
	listener net.Listener
	server   *redistest.Server
	counter  *rule.Counter // of the calls that block

	mu      sync.Mutex
	cond    sync.Cond
	shut    bool
	through int // answers that pass all the same
}

func startGate(t testing.TB, server *redistest.Server) *gate {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{listener: l, server: server, counter: counterOf(t,
		algo.Config{Algorithm: algo.FixedWindow, N: 1_000_000, Window: 366 * days})}
	g.cond.L = &g.mu
	t.Cleanup(func() {
		_ = l.Close()
		g.open()
	})
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", server.Addr())
			if err != nil {
				_ = client.Close()
				continue
			}
			go func() {
				_, _ = io.Copy(up, client)
				_ = up.Close()
			}()
			go func() {
				defer client.Close()
				buf := make([]byte, 64<<10)
				for {
					n, err := up.Read(buf)
					if err != nil {
						return
					}
					g.mu.Lock()
					for g.shut && g.through == 0 {
						g.cond.Wait()
					}
					g.through = max(0, g.through-1)
					g.mu.Unlock()
					if _, err := client.Write(buf[:n]); err != nil {
						return
					}
				}
			}()
		}
	}()
	return g
}

func (g *gate) url() string { return "redis://" + g.listener.Addr().String() }

// hold keeps back all answers that come from now on.
func (g *gate) hold() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut, g.through = true, 0
}

// open lets all answers through.
func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = false
	g.cond.Broadcast()
}

// one lets one answer through that is kept back, or the next one.
func (g *gate) one() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.through++
	g.cond.Broadcast()
}

// block puts a call in flight on a store that is behind the gate, and shuts the gate: what is asked
// from now on waits until pass lets the answer through.
func (g *gate) block(t testing.TB, s *redis.Store) (pass func()) {
	t.Helper()
	g.hold()
	calls := g.calls()
	var wg sync.WaitGroup
	wg.Go(func() {
		var results [1]algo.Result
		if _, err := s.Take(context.Background(), []store.Charge{charge(g.counter, "blocks", 1)}, results[:]); err != nil {
			t.Errorf("the call in flight: %v", err)
		}
	})
	eventually(t, "the call is made", func() bool { return g.calls() > calls })
	return func() {
		g.open()
		wg.Wait()
	}
}

// calls returns how many functions the server has called.
func (g *gate) calls() (n int) {
	text, _ := g.server.Do("INFO", "commandstats").(string)
	for _, command := range []string{"fcall", "evalsha"} { // a Redis 6 has no functions, but scripts
		if _, rest, ok := strings.Cut(text, "cmdstat_"+command+":calls="); ok {
			_, _ = fmt.Sscanf(rest, "%d", &n)
			return n
		}
	}
	return 0
}

// together has n calls made at the same time while one is in flight, and waits for them. It reports
// whether they left as one.
func (g *gate) together(t testing.TB, store *redis.Store, call func(i int), n int) bool {
	t.Helper()
	before := store.Stats()
	pass := g.block(t, store)
	var wg sync.WaitGroup
	var begun atomic.Int64
	for i := range n {
		wg.Go(func() {
			begun.Add(1)
			call(i)
		})
	}
	eventually(t, "all calls have begun", func() bool { return begun.Load() == int64(n) })
	pass()
	wg.Wait()
	after := store.Stats()
	batches := after.Failures - before.Failures
	for i := range after.Batches {
		batches += after.Batches[i] - before.Batches[i]
	}
	return batches == 2
}

// TestGivingUp: a caller that no longer waits blocks nobody and distorts nothing.
func TestGivingUp(t *testing.T) {
	server := redistest.Start(t)
	g := startGate(t, server)
	s := open(t, redis.Options{URL: g.url()})
	direct := open(t, redis.Options{URL: server.URL()})
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	for _, shape := range shapes {
		t.Run(shape.name, func(t *testing.T) {
			counter := counterOf(t, shape.c)
			var results [1]algo.Result
			// While it waits for its turn: it is not charged.
			pass := g.block(t, s)
			if _, err := s.Take(gone, []store.Charge{charge(counter, "k", 1)}, results[:]); !errors.Is(err,
				context.Canceled) {
				t.Errorf("a caller that has gone gets %v", err)
			}
			if _, _, err := s.TakeWithin(t.Context(), time.Microsecond, time.Microsecond, []store.Charge{charge(counter, "k", 1)}, results[:]); !errors.Is(err, redis.ErrDeadline) {
				t.Errorf("a caller that waits no longer gets %v", err)
			}
			pass()
			if n := used(t, s, counter, "k"); n != 0 {
				t.Errorf("callers that gave up before they were asked for are charged %d", n)
			}
			// While it is asked for, along with others: it may be charged, the others are as ever.
			for tries := 0; ; tries++ {
				key := fmt.Sprint("k ", tries)
				var answers [3]algo.Result
				var errs [3]error
				ctx, cancel := context.WithCancel(context.Background())
				var all sync.WaitGroup
				pass := g.block(t, s)
				var begun atomic.Int64
				back := make(chan struct{})
				for i := range answers {
					all.Go(func() {
						begun.Add(1)
						if i == 0 {
							_, errs[i] = s.Take(ctx, []store.Charge{charge(counter, key, 1)}, answers[i:i+1])
							close(back)
							return
						}
						_, errs[i] = s.Take(t.Context(), []store.Charge{charge(counter, key, 1)}, answers[i:i+1])
					})
				}
				eventually(t, "all calls have begun", func() bool { return begun.Load() == 3 })
				// The answer to the call that blocks comes through, that to the next one does not.
				g.one()
				n := int64(0)
				eventually(t, "the next call is made", func() bool { n = used(t, direct, counter, key); return n > 0 })
				cancel()
				if n < 3 { // they did not leave as one
					pass()
					all.Wait()
					if tries == 100 {
						t.Fatal("decisions made at the same time did not leave as one call")
					}
					continue
				}
				<-back
				pass()
				all.Wait()
				if !errors.Is(errs[0], context.Canceled) {
					t.Errorf("a caller that has gone gets %v", errs[0])
				}
				left := map[int64]bool{}
				for i := 1; i < 3; i++ {
					if errs[i] != nil || !answers[i].Allowed {
						t.Errorf("another caller gets %+v, %v", answers[i], errs[i])
					}
					left[answers[i].Remaining] = true
				}
				if len(left) != 2 {
					t.Errorf("the other callers get %+v", answers[1:])
				}
				if n := used(t, s, counter, key); n != 3 {
					t.Errorf("%d are charged of 3 that were asked for", n)
				}
				break
			}
		})
	}
}

// TestImpatience: of many callers half give up at any time. The others get all there is, and no
// more.
func TestImpatience(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, redis.Options{URL: server.URL()})
	counter := counterOf(t, algo.Config{Algorithm: algo.FixedWindow, N: 1_000_000, Window: 366 * days})
	var answered, gaveUp atomic.Int64
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			var results [1]algo.Result
			for n := range 500 {
				wait := time.Duration(0)
				if i%2 == 0 {
					wait = time.Duration(1 + n%300*int(time.Microsecond))
				}
				switch _, _, err := s.TakeWithin(t.Context(), wait, wait, []store.Charge{charge(counter, "k", 1)}, results[:]); {
				case err == nil:
					answered.Add(1)
				case wait > 0 && errors.Is(err, redis.ErrDeadline):
					gaveUp.Add(1)
				default:
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	n, least, most := used(t, s, counter, "k"), answered.Load(), answered.Load()+gaveUp.Load()
	t.Logf("%d answered, %d gave up, %d charged", least, gaveUp.Load(), n)
	if n < least || n > most {
		t.Errorf("%d were charged, want from %d to %d", n, least, most)
	}
}

// TestCloseUnderLoad: callers of a store that is closed get an error, at once; and nothing of it
// stays.
func TestCloseUnderLoad(t *testing.T) {
	server := redistest.Start(t)
	st := open(t, redis.Options{URL: server.URL()})
	counter := counterOf(t, algo.Config{Algorithm: algo.FixedWindow, N: 1_000_000_000, Window: 366 * days})
	begin := runtime.NumGoroutine()
	for range 20 {
		s := open(t, redis.Options{URL: server.URL(), RememberRefusals: time.Second, Heartbeat: time.Second})
		was := used(t, st, counter, "k")
		var charged, failed atomic.Int64
		var wg sync.WaitGroup
		for range 32 {
			wg.Go(func() {
				var results [1]algo.Result
				for {
					if _, err := s.Take(t.Context(), []store.Charge{charge(counter, "k", 1)}, results[:]); err != nil {
						failed.Add(1)
						return
					}
					charged.Add(1)
				}
			})
		}
		eventually(t, "there is load", func() bool { return charged.Load() > 100 })
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if n := used(t, st, counter, "k") - was; n < charged.Load() || n > charged.Load()+failed.Load() {
			t.Errorf("%d were charged, %d were told so, and %d that it failed", n, charged.Load(), failed.Load())
		}
		var results [1]algo.Result
		if _, err := s.Take(t.Context(), []store.Charge{charge(counter, "k", 1)}, results[:]); err == nil {
			t.Error("a store that is closed decides")
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	eventually(t, "all goroutines of closed stores have ended", func() bool { return runtime.NumGoroutine() <= begin })
}

// TestOpenBeforeRedis: a store can be opened while Redis is away, and decides as soon as it is
// there; and it goes on with another server, empty, in the place of the first.
func TestOpenBeforeRedis(t *testing.T) {
	server := redistest.Start(t)
	server.Stop()
	var mu sync.Mutex
	var logged []string
	s := open(t, redis.Options{URL: server.URL(), Logger: slog.New(logFunc(func(line string) {
		mu.Lock()
		defer mu.Unlock()
		logged = append(logged, line)
	}))})
	counter := counterOf(t, algo.Config{Algorithm: algo.Concurrency, N: 10, Timeout: time.Hour})
	var results [1]algo.Result
	charges := []store.Charge{charge(counter, "k", 1)}
	if _, err := s.Take(t.Context(), charges, results[:]); err == nil {
		t.Error("it decides without Redis")
	}
	if err := s.Ping(t.Context()); err == nil {
		t.Error("it says that Redis is there")
	}
	if _, err := s.Time(t.Context()); err == nil {
		t.Error("it knows Redis' clock")
	}
	if _, _, err := storetest.Peek(t.Context(), s, counter, []byte("k")); err == nil {
		t.Error("it knows a state")
	}
	if _, err := s.Release(t.Context(), counter, []byte("k"), 1); err == nil {
		t.Error("it gives back a slot")
	}
	for range 3 {
		server.Restart() // it keeps nothing, not even the functions
		eventually(t, "it decides", func() bool {
			_, err := s.Take(t.Context(), charges, results[:])
			return err == nil
		})
		if results[0].Remaining != 9 {
			t.Errorf("on an empty server: %+v", results[0])
		}
		if ok, err := s.Release(t.Context(), counter, []byte("k"), charges[0].Ask.Slot); !ok || err != nil {
			t.Errorf("a slot is given back: %v, %v", ok, err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	logged = slices.DeleteFunc(logged, func(line string) bool { return strings.Contains(line, "older than Redis 7") })
	if len(logged) != 1 || !strings.Contains(logged[0], server.Addr()) {
		t.Errorf("it logged %q, want one line that names the server", logged)
	}
}
