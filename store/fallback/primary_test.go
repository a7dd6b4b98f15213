package fallback

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

// fault is what is wrong with a primary.
type fault int32

const (
	none    fault = iota
	refuses       // fails at once
	hangs         // does not answer, and does nothing
	loses         // does what it is asked, but its answer is lost
)

var errDown = errors.New("connection refused")

// primary is a real store behind a network that can fail.
type primary struct {
	store.Store
	fault    atomic.Int32
	takes    atomic.Int64
	releases atomic.Int64
}

func (p *primary) set(f fault) { p.fault.Store(int32(f)) }

// wait is the network on the way there or back.
func (p *primary) wait(ctx context.Context, f fault) error {
	if fault(p.fault.Load()) != f {
		return nil
	}
	if f == refuses {
		return errDown
	}
	<-ctx.Done()
	return ctx.Err()
}

func (p *primary) do(ctx context.Context, f func()) error {
	if err := errors.Join(p.wait(ctx, refuses), p.wait(ctx, hangs)); err != nil {
		return err
	}
	f()
	return p.wait(ctx, loses)
}

func (p *primary) Take(ctx context.Context, charges []store.Charge, results []algo.Result) (now int64, err error) {
	p.takes.Add(1)
	lost := p.do(ctx, func() { now, err = p.Store.Take(ctx, charges, results) })
	return now, errors.Join(lost, err)
}

func (p *primary) Release(ctx context.Context, c *rule.Counter, key []byte, slot uint64) (ok bool, err error) {
	p.releases.Add(1)
	lost := p.do(ctx, func() { ok, err = p.Store.Release(ctx, c, key, slot) })
	return ok, errors.Join(lost, err)
}

// Close leaves the real store to the test: others may share it.
func (p *primary) Close() error { return nil }

// punctual is a store that keeps deadlines by itself.
type punctual struct {
	store.Store
	least, most time.Duration // of the last call
	remembers   []algo.Result // unless it is nil: what it answers from memory
}

func (p *punctual) TakeWithin(
	ctx context.Context, least, most time.Duration, charges []store.Charge, results []algo.Result,
) (int64, bool, error) {
	p.least, p.most = least, most
	if p.remembers != nil {
		copy(results, p.remembers)
		return time.Now().UnixMicro(), true, nil
	}
	now, err := p.Take(ctx, charges, results)
	return now, false, err
}

// quick is a store that can decide some calls without waiting.
type quick struct {
	store.Store
	store.Prompt
}

func newMemory(t testing.TB, clock func() int64) store.Store {
	t.Helper()
	if clock == nil {
		clock = func() int64 { return time.Now().UnixMicro() }
	}
	m, err := memory.New(memory.Options{Clock: clock, MaxKeys: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// newOver returns a Store over p, closed when the test ends.
func newOver(t testing.TB, p store.Store, o Options) *Store {
	t.Helper()
	if o.Local == nil {
		o.Local = newMemory(t, nil)
	}
	s, err := New(p, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

func newTest(t testing.TB, o Options) (*Store, *primary) {
	t.Helper()
	p := &primary{Store: newMemory(t, nil)}
	return newOver(t, p, o), p
}

var lastID atomic.Uint64

func counter(t testing.TB, c algo.Config) *rule.Counter {
	t.Helper()
	l, err := algo.New(c)
	if err != nil {
		t.Fatal(err)
	}
	id := lastID.Add(1)
	return &rule.Counter{ID: id, Domain: "test", Rule: fmt.Sprint("rule-", id), Window: fmt.Sprint("rule-", id),
		Limit: l}
}

// perHour is a window that no test outlives: the clock of synctest begins at midnight.
func perHour(t testing.TB, n int64) *rule.Counter {
	return counter(t, algo.Config{Algorithm: algo.FixedWindow, N: n, Window: time.Hour})
}

func charge(c *rule.Counter, key string, cost int64) store.Charge {
	return store.Charge{Counter: c, Limit: c.Limit, Key: []byte(key), Ask: algo.Ask{Cost: cost, MaxDelay: -1}}
}

func take(t testing.TB, s store.Store, charges ...store.Charge) []algo.Result {
	t.Helper()
	results := make([]algo.Result, len(charges))
	if _, err := s.Take(context.Background(), charges, results); err != nil {
		t.Fatal(err)
	}
	return results
}

// used returns what a store has counted of a key.
func used(t testing.TB, s store.Store, c *rule.Counter, key string) int64 {
	t.Helper()
	r := take(t, s, charge(c, key, 0))[0]
	return r.Limit - r.Remaining
}

// cut makes p fail, and asks for nothing until the breaker is open.
func cut(t testing.TB, s *Store, p *primary, f fault) {
	t.Helper()
	p.set(f)
	peek := charge(perHour(t, 1), "", 0)
	for range tripAfter {
		take(t, s, peek)
	}
	if state, _, _ := s.State(); state != Open {
		t.Fatalf("after %d failures in a row the breaker is %v", tripAfter, state)
	}
}

// mend lets p answer, and waits until the breaker has closed and all is settled.
func mend(t testing.TB, s *Store, p *primary) {
	t.Helper()
	p.set(none)
	time.Sleep(10 * time.Second) // of virtual time
	synctest.Wait()
	if state, _, cause := s.State(); state != Closed || !s.parts[0].missed.empty() {
		t.Fatalf("the breaker is %v (%v), %d keys are not settled", state, cause, len(s.parts[0].missed.entries))
	}
}
