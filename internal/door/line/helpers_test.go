package line

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

func load(t testing.TB, yaml string) *rule.Set {
	t.Helper()
	set, _, err := file.Load([]file.Source{{Name: "test.yaml", Data: []byte(yaml)}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// newLimiter is a limiter over the memory store and the wall clock, which is virtual in a bubble.
func newLimiter(t testing.TB, yaml string, options ...weir.Option) *weir.Limiter {
	t.Helper()
	store, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return over(t, store, yaml, options...)
}

// spied is a store of which each answer is seen before the limiter gets it.
type spied struct {
	store.Store
	took func(results []algo.Result)
}

func (s *spied) Take(ctx context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	now, err := s.Store.Take(ctx, charges, results)
	s.took(results)
	return now, err
}

// newSpied is a limiter over a memory store that is spied on.
func newSpied(t testing.TB, yaml string, took func(results []algo.Result)) *weir.Limiter {
	t.Helper()
	store, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return over(t, &spied{store, took}, yaml)
}

func over(t testing.TB, store store.Store, yaml string, options ...weir.Option) *weir.Limiter {
	t.Helper()
	l, err := weir.New(store, append(options, weir.WithRules(load(t, yaml)))...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// door holds requests and records their outcomes.
type door struct {
	lines   *Lines
	limiter *weir.Limiter
	start   time.Time
	failed  func(error)

	mu  sync.Mutex
	log []outcome
}

type outcome struct {
	name    string
	at      time.Duration
	left    int64
	allowed bool
	retry   time.Duration
	limit   string // the one that refused
	err     error
	hungUp  bool
}

func (o outcome) String() string {
	switch {
	case o.err != nil:
		return fmt.Sprintf("%s@%v gone", o.name, o.at)
	case o.allowed:
		return fmt.Sprintf("%s@%v", o.name, o.at)
	}
	return fmt.Sprintf("%s@%v refused by %s for %v", o.name, o.at, o.limit, o.retry)
}

func newDoor(lines *Lines, l *weir.Limiter) *door {
	return &door{lines: lines, limiter: l, start: time.Now()}
}

// pass sees one request through, and calls handle if it was admitted, before it gives its slots
// back.
func (d *door) pass(ctx context.Context, name string, hits int64, handle func(), attributes ...rule.Pair) outcome {
	v := d.lines.NewVisit()
	v.Failed = d.failed
	var decision weir.Decision
	r := weir.Request{Attributes: rule.Pairs(attributes), Hits: hits, Peek: hits == 0, MaxDelay: weir.RuleDelay}
	err := v.Decide(ctx, d.limiter, &r, &decision)
	o := outcome{name: name, at: time.Since(d.start), left: v.Left, allowed: err == nil && decision.Allowed,
		retry: time.Duration(decision.RetryAfter) * time.Microsecond, err: err, hungUp: v.HungUp}
	if err == nil && !decision.Allowed {
		o.limit = decision.Nearest().Window.Name
	}
	d.mu.Lock()
	d.log = append(d.log, o)
	d.mu.Unlock()
	if o.allowed && handle != nil {
		handle()
	}
	v.Release(ctx, d.limiter, &decision)
	return o
}

// sort puts outcomes of one instant in the order of names: goroutines that are let go together may
// note it in any order.
func (d *door) sort() {
	d.mu.Lock()
	defer d.mu.Unlock()
	slices.SortStableFunc(d.log,
		func(a, b outcome) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.name, b.name)) })
}

func (d *door) outcomes() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]string, len(d.log))
	for i, o := range d.log {
		out[i] = o.String()
	}
	return out
}

// empty fails the test if somebody is still held.
func (d *door) empty(t testing.TB) {
	t.Helper()
	if s := d.lines.Stats(); s.Held != 0 || s.Lines != 0 || s.Longest != 0 {
		t.Errorf("somebody is still held: %+v", s)
	}
}
