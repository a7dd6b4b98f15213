package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/internal/waiting"
)

// closing is a counter with a soft margin that closes, above n.
func closing(t *testing.T, n int64, percent int) *rule.Counter {
	t.Helper()
	l, err := algo.New(algo.Config{
		Algorithm: algo.FixedWindow, N: n, Window: 366 * 24 * time.Hour, Soft: percent, SoftFor: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	return &rule.Counter{ID: 1, Domain: "test", Limit: l, Margin: &rule.Counter{ID: 2, Domain: "test"}}
}

func costsOne(c *rule.Counter, key string) store.Charge {
	return store.Charge{Counter: c, Limit: c.Limit, Key: []byte(key), Ask: algo.Ask{Cost: 1, MaxDelay: -1}}
}

func openInternal(t *testing.T, url string) *Store {
	t.Helper()
	s, err := Open(Options{URL: url, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// TestSwapWaitsBySilence: a call that is decided by compare-and-swap is waited for as long as the
// server answers, and given up when it has been silent for too long.
func TestSwapWaitsBySilence(t *testing.T) {
	t.Parallel() // it waits
	server := redistest.Start(t)
	s := openInternal(t, server.URL())
	p := s.partitions[0]
	c, first := closing(t, 10, 100), [1]algo.Result{}
	ten := costsOne(c, "k")
	ten.Ask.Cost = 10
	if _, err := s.Take(t.Context(), []store.Charge{ten}, first[:]); err != nil || !first[0].Allowed {
		t.Fatal(first, err)
	}
	take := func() <-chan error {
		done := make(chan error, 1)
		go func() {
			var results [1]algo.Result
			_, _, err := s.TakeWithin(context.Background(), time.Millisecond, time.Hour,
				[]store.Charge{costsOne(c, "k")}, results[:])
			if err == nil && !results[0].Soft {
				err = fmt.Errorf("it was not admitted by the margin: %+v", results[0])
			}
			done <- err
		}()
		return done
	}
	p.swapLock <- struct{}{} // somebody else's takes its time
	done := take()
	wide := closing(t, 1_000_000, 100)
	begun := s.monotonic()
	for s.monotonic() < begun+2*p.detector.Patience() {
		var results [1]algo.Result
		if _, err := s.Take(t.Context(), []store.Charge{costsOne(wide, "other")}, results[:]); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-done:
			t.Fatalf("given up though the server answers: %v", err)
		default:
		}
	}
	<-p.swapLock
	if err := <-done; err != nil {
		t.Error(err)
	}

	// Where nothing else is asked, its own questions tell that the server is silent.
	p.swapLock <- struct{}{}
	done = take()
	patience.Until(t, "it waits",
		func() bool { p.mu.Lock(); defer p.mu.Unlock(); return p.swapping && len(p.swapQueue) == 0 })
	server.Pause()
	<-p.swapLock
	err := <-done
	server.Resume()
	f, _ := errors.AsType[*waiting.Failure](err)
	if !errors.Is(err, ErrDeadline) || f == nil || !f.Silent() || !f.Failed(0) {
		t.Errorf("from a server that is silent: %v (%+v)", err, f)
	}
}

// TestMarginUnderContention: callers of several nodes at one soft margin that closes, decided by
// compare-and-swap and overtaken again and again, are not given up while Redis answers.
func TestMarginUnderContention(t *testing.T) {
	const stores, callers, calls, n = 3, 16, 25, 600
	server := redistest.Start(t)
	c := closing(t, n, 100)
	var failed, silent, admitted atomic.Int64
	var all sync.WaitGroup
	for range stores {
		s := openInternal(t, server.URL())
		pulse := &s.partitions[0].detector
		pulse.Begin(s.monotonic() - int64(time.Minute)) // it has run for long: nothing is left of the guess
		for range callers {
			all.Go(func() {
				var results [1]algo.Result
				for range calls {
					_, _, err := s.TakeWithin(t.Context(), time.Millisecond, time.Minute,
						[]store.Charge{costsOne(c, "k")}, results[:])
					f, _ := errors.AsType[*waiting.Failure](err)
					switch {
					case err == nil && results[0].Allowed:
						admitted.Add(1)
					case err == nil:
					case f != nil && f.Silent():
						silent.Add(1)
					default:
						failed.Add(1)
						t.Log(err)
					}
				}
			})
		}
	}
	all.Wait()
	t.Logf("of %d calls %d were admitted, and %d found Redis silent", stores*callers*calls, admitted.Load(),
		silent.Load())
	if failed.Load() > 0 {
		t.Errorf("%d calls were given up while Redis answered", failed.Load())
	}
	if admitted.Load() > 2*n || admitted.Load()+silent.Load() < 2*n {
		t.Errorf("%d were admitted of a limit of %d with a margin as large", admitted.Load(), n)
	}
}

// TestSwapSeesWhatCameAndWent: a compare-and-swap that found no value fails if one was written
// meanwhile, even if that has expired by then: the two decisions did not know of each other.
func TestSwapSeesWhatCameAndWent(t *testing.T) {
	server := redistest.Start(t)
	s, other := openInternal(t, server.URL()), openInternal(t, server.URL())
	// A unit drains in a millisecond, and all of them not while the test runs.
	l, err := algo.New(algo.Config{
		Algorithm: algo.LeakyBucket, N: 3_600_000, Window: time.Hour, Soft: 100, SoftFor: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	c := &rule.Counter{ID: 1, Domain: "test", Limit: l, Margin: &rule.Counter{ID: 2, Domain: "test"}}
	// swap charges units, after meanwhile was called between reading and writing.
	swap := func(s *Store, key string, units int64, meanwhile func()) bool {
		charges := []store.Charge{costsOne(c, key)}
		charges[0].Ask.Cost = units
		done, err := s.partitions[0].trySwap(t.Context(), true, func(p *swapPlan) func(int64) {
			of := p.addCharges(charges)
			return func(now int64) {
				var results [1]algo.Result
				if p.decide(charges, nil, results[:], make([]uint64, 1), of, now); !results[0].Allowed {
					t.Errorf("%+v", results)
				}
				meanwhile()
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		return done
	}
	for by, write := range map[string]func(key string){
		"take": func(key string) {
			var results [1]algo.Result
			if _, err := other.Take(t.Context(), []store.Charge{costsOne(c, key)}, results[:]); err != nil ||
				!results[0].Allowed {
				t.Fatal(results, err)
			}
		},
		"swap": func(key string) {
			for !swap(other, key, 50, func() {}) { // it fails if it takes as long as its units do
			}
		},
	} {
		done := swap(s, by, 3_000_000, func() {
			write(by)
			patience.Until(t, "what was written has expired", func() bool {
				return !slices.ContainsFunc(server.Do("KEYS", "*").([]any), func(key any) bool {
					return !strings.Contains(key.(string), ":script:") // the memory of a script stays
				})
			})
		})
		if done {
			t.Errorf("%s: a charge that came between is lost", by)
		}
		if !swap(s, by, 3_000_000, func() {}) {
			t.Errorf("%s: it does not succeed when nothing comes between", by)
		}
		server.Do("FLUSHALL")
	}
}
