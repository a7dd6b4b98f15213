package regions

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
	"github.com/weir-rl/weir/store/storetest"
)

// start is when virtual time begins: 2026-01-01T00:00:00Z.
const start = int64(1767225600_000000)

// three are regions of the weights 2, 1 and 1, of which eu is the second by name.
var three = []Region{{"us", 1}, {"eu", 2}, {"ap", 1}}

// tb is what a test and a property have in common.
type tb interface {
	Helper()
	Fatal(args ...any)
	Cleanup(f func())
}

// newTest returns the store of a region over a store in memory.
func newTest(t tb, table []Region, region string, clock func() int64) *Store {
	t.Helper()
	m, err := memory.New(memory.Options{Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(m, Options{Region: region, Table: table})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

var lastID atomic.Uint64

func newCounter(l *algo.Limit) *rule.Counter {
	id := lastID.Add(1)
	return &rule.Counter{ID: id * 0x9E3779B97F4A7C15, Domain: "test", Rule: fmt.Sprintf("rule-%d", id),
		Window: fmt.Sprintf("rule-%d", id), Limit: l}
}

// counterOf returns a counter of a limit that holds over regions, with the records beside it.
func counterOf(l *algo.Limit, of rule.Regions) *rule.Counter {
	besides := func(c *rule.Counter) *rule.Counter {
		if m := l.Margin(); m != nil {
			c.Margin = newCounter(m)
		}
		if n := l.Lease(); n != nil {
			c.Lease = newCounter(n)
		}
		return c
	}
	c := besides(newCounter(l))
	if of.Over > 0 && !of.Sync {
		of.All = besides(newCounter(l))
	}
	c.Regions = &of
	return c
}

func limit(t tb, c algo.Config) *algo.Limit {
	t.Helper()
	l, err := algo.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func charge(c *rule.Counter, key string, cost int64) store.Charge {
	return store.Charge{Counter: c, Limit: c.Limit, Key: []byte(key), Ask: algo.Ask{Cost: cost, MaxDelay: -1}}
}

func take(t tb, s store.Store, charges ...store.Charge) []algo.Result {
	t.Helper()
	results := make([]algo.Result, len(charges))
	if _, err := s.Take(context.Background(), charges, results); err != nil {
		t.Fatal(err)
	}
	return results
}

// TestContract: limits that do not hold over regions are decided as by the wrapped store.
func TestContract(t *testing.T) {
	storetest.Run(t, func(t *testing.T, clock func() int64) store.Store { return newTest(t, three, "eu", clock) })
}

func TestMatrix(t *testing.T) { storetest.Matrix(t, newTest(t, three, "eu", nil)) }

// TestUnwrap: what must know of ceilings is not found behind the store, all else is.
func TestUnwrap(t *testing.T) {
	s := newTest(t, three, "eu", nil)
	if i, ok := store.As[store.Inspector](s); !ok || i != store.Inspector(s) {
		t.Error("the Inspector is not the Store")
	}
	if r, ok := store.As[store.Reserver](s); !ok || r != store.Reserver(s) {
		t.Error("the Reserver is not the Store")
	}
	if l, ok := store.As[store.Lender](s); !ok || l != s.Unwrap() {
		t.Error("the Lender is not the wrapped store")
	}
}

func TestNewFails(t *testing.T) {
	m, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for _, c := range []struct {
		inner store.Store
		o     Options
		want  string
	}{
		{nil, Options{Region: "eu", Table: three}, "needs the store"},
		{m, Options{Table: three}, `this region is ""`},
		{m, Options{Region: "eu"}, `none of the table`},
		{m, Options{Region: "sa", Table: three}, `this region is "sa", which is none of the table: ap, eu, us`},
		{m, Options{Region: "eu", Table: append(three[:3:3], Region{"us", 1})}, `"us" stands twice`},
		{m, Options{Region: "eu", Table: append(three[:3:3], Region{"", 1})}, `has no name`},
		{m, Options{Region: "eu", Table: []Region{{"eu", -1}}}, `is -1; it must be from 0 to`},
		{m, Options{Region: "eu", Table: []Region{{"eu", MaxWeight + 1}}}, `it must be from 0 to`},
		{m, Options{Region: "eu", Table: []Region{{"eu", 0}, {"us", 0}}}, `all weights are 0`},
		{m, Options{Region: "eu", Table: make([]Region, MaxRegions+1)}, `at most 100`},
	} {
		if _, err := New(c.inner, c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.o, err, c.want)
		}
	}
}

// TestDecide: rules as they are written, at limiters of two regions that do not hear each other.
func TestDecide(t *testing.T) {
	set, _, err := file.Load([]file.Source{{Name: "x.yaml", Data: []byte(`limits:
  - { name: strict, when: { path: /strict }, per: [user], allow: 10/hour, algorithm: sliding_log, consistency: { regions: { over: 0% } } }
  - { name: half, when: { path: /half }, per: [user], allow: 10/hour, algorithm: sliding_log, consistency: { regions: { over: 50% } } }
  - { name: sync, when: { path: /sync }, per: [user], allow: 10/hour, algorithm: sliding_log, consistency: { regions: sync } }
  - { name: alone, when: { path: /alone }, per: [user], allow: 10/hour, algorithm: sliding_log }
  - { name: slots, when: { path: /slots }, allow: 3 concurrent, consistency: { regions: { over: 0% } } }`)}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	table := []Region{{"eu", 1}, {"us", 1}}
	total := map[string]int{}
	for _, region := range []string{"eu", "us"} {
		l, err := weir.New(newTest(t, table, region, nil), weir.WithRules(set))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"strict", "half", "sync", "alone", "slots"} {
			for range 30 {
				var d weir.Decision
				if err := l.Decide(context.Background(), &weir.Request{Attributes: rule.Map{"path": "/" + name, "user": "ada"}}, &d); err != nil {
					t.Fatal(err)
				}
				whole := int64(10)
				if name == "slots" {
					whole = 3
				}
				if r := d.Limits[0].Result; r.Limit != whole || r.SoftLimit != whole {
					t.Errorf("%s: %+v", name, r)
				}
				if d.Allowed {
					total[name]++
				}
			}
		}
	}
	if want := "map[alone:20 half:15 slots:3 strict:10 sync:20]"; fmt.Sprint(total) != want {
		t.Errorf("admitted %v, want %v", total, want)
	}
}

// failing is a store that fails in a way that may become known later.
type failing struct {
	store.Store
	err error
}

func (f *failing) Take(context.Context, []store.Charge, []algo.Result) (int64, error) {
	return 0, f.err
}

type pending []store.Outcome

func (pending) Error() string                              { return "pending" }
func (p pending) Outcome(f func(outcomes []store.Outcome)) { f(p) }

// TestPending: what a call that failed has come to is told in the charges of the caller.
func TestPending(t *testing.T) {
	s := newTest(t, three, "eu", nil)
	f := &failing{Store: s.inner}
	s.inner = f
	l := limit(t, algo.Config{N: 100, Window: time.Minute})
	charges := []store.Charge{charge(newCounter(l), "k", 1), charge(counterOf(l, rule.Regions{Over: 20}), "k", 1),
		charge(counterOf(l, rule.Regions{}), "k", 1)}
	results := make([]algo.Result, len(charges))
	ask := func(outcomes ...store.Outcome) (got []store.Outcome) {
		t.Helper()
		f.err = fmt.Errorf("wrapped: %w", errors.Join(pending(outcomes), store.ErrNotCharged))
		_, err := s.Take(context.Background(), charges, results)
		p, ok := errors.AsType[store.Pending](err)
		if !ok || !errors.Is(err, store.ErrNotCharged) {
			t.Fatalf("%T: %v", err, err)
		}
		p.Outcome(func(o []store.Outcome) { got = o })
		return got
	}
	made := func(remaining int64) store.Outcome {
		return store.Outcome{Known: true, Made: true, Now: start,
			Result: algo.Result{Allowed: true, Limit: 60, SoftLimit: 60, Remaining: remaining}}
	}
	got := ask(made(9), made(8), made(7), made(6))
	if len(got) != 3 || got[0] != made(9) || !got[1].Made || got[1].Result.Remaining != 7 ||
		got[1].Result.Limit != 60 || !got[2].Made || got[2].Result.Remaining != 6 || got[2].Result.Limit != 100 {
		t.Errorf("%+v", got)
	}
	if got = ask(made(9), made(8), store.Outcome{Known: true, Now: start}, store.Outcome{}); got[1].Made ||
		!got[1].Known || got[1].Result.Allowed || got[2].Known {
		t.Errorf("%+v", got)
	}
	if got = ask(made(9), store.Outcome{}, made(8), made(7)); got[1].Known {
		t.Errorf("%+v", got)
	}
	if got = ask(); got != nil {
		t.Errorf("%+v of nothing that is known", got)
	}
	f.err = store.ErrNotCharged
	if _, err := s.Take(context.Background(), charges, results); err != store.ErrNotCharged { //nolint:errorlint // as it is
		t.Error(err)
	}
}
