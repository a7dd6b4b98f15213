package outages

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/fallback"
	"github.com/weir-rl/weir/store/memory"
)

// failing is a store whose calls can be made to fail.
type failing struct {
	atomic.Pointer[memory.Store]
	fails atomic.Int64 // so many calls to come; below 0: all
}

func newMemory(t *testing.T) *memory.Store {
	t.Helper()
	s, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *failing) Take(ctx context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	if n := s.fails.Load(); n < 0 || n > 0 && s.fails.Add(-1) >= 0 {
		return 0, errors.Join(errors.New("cut off"), store.ErrNotCharged)
	}
	return s.Load().Take(ctx, charges, results)
}

func (s *failing) Release(ctx context.Context, c *rule.Counter, key []byte, slot uint64) (bool, error) {
	return s.Load().Release(ctx, c, key, slot)
}

func (s *failing) Close() error { return s.Load().Close() }

// bed is a log over a store that can fail.
type bed struct {
	*testing.T
	*Log
	primary  *failing
	fallback *fallback.Store
	limit    *algo.Limit
}

func newBed(t *testing.T) *bed {
	b := &bed{T: t, primary: new(failing)}
	b.primary.Store(newMemory(t))
	var err error
	if b.fallback, err = fallback.New(b.primary, fallback.Options{Local: newMemory(t), FixedNodes: 2,
		Transition: func(_, _ fallback.State, _ error) {
			if b.Log != nil {
				b.Look()
			}
		}}); err != nil {
		t.Fatal(err)
	}
	if b.limit, err = algo.New(algo.Config{Algorithm: algo.SlidingLog, N: 10, Window: 24 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	b.Log = New(Options{Node: "a", Store: "redis", Fallback: b.fallback, Counters: b.primary,
		Policies: func() insight.StorePolicies { return insight.StorePolicies{Local: 1} }})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); b.Log.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended; _ = b.fallback.Close() })
	b.pass(2 * time.Second)
	return b
}

// pass lets time pass.
func (b *bed) pass(d time.Duration) { time.Sleep(d); synctest.Wait() }

// ask charges a key some times.
func (b *bed) ask(n int, key string) {
	b.Helper()
	c := &rule.Counter{ID: 7, Domain: "shop", Rule: "search", Limit: b.limit}
	for range n {
		charges := []store.Charge{{Counter: c, Limit: b.limit, Key: []byte(key), Ask: algo.Ask{Cost: 1, MaxDelay: -1}}}
		if _, err := b.fallback.Take(b.Context(), charges, make([]algo.Result, 1)); err != nil {
			b.Fatal(err)
		}
	}
}

// only is the one outage.
func (b *bed) only() insight.Outage {
	b.Helper()
	list := b.List()
	if len(list) != 1 {
		b.Fatalf("%+v", list)
	}
	return list[0]
}

func in(t *testing.T, f func(b *bed)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { f(newBed(t)) })
}

// An outage has the requests that made it known, too. What went over is added when the store is
// back, which is not taken for one that lost its counters.
func TestAway(t *testing.T) {
	in(t, func(b *bed) {
		b.ask(3, "before")
		began := time.Now()
		b.primary.fails.Store(-1)
		b.ask(7, "ada")
		b.pass(10 * time.Second)
		o := b.only()
		if !o.Lasts() || o.Kind != insight.StoreAway || o.From.Before(began) || o.From.Sub(began) > time.Second ||
			o.Alone != 7 || o.ShareAdmitted != 5 || o.ShareRefused != 2 || o.Unsettled != 5 || o.Times != 1 ||
			o.Cause != "cut off; weir: nothing was charged" || o.Nodes[0] != (insight.OutageNode{Node: "a", Alone: 7,
			Does: "admits 1/2 of each limit"}) || o.Summary != "7 decided alone" {
			b.Errorf("%+v", o)
		}
		// Another node has used the limit up meanwhile.
		c := &rule.Counter{ID: 7, Limit: b.limit}
		if _, err := b.primary.Load().Take(b.Context(), []store.Charge{{Counter: c, Limit: b.limit, Key: []byte("ada"),
			Ask: algo.Ask{Cost: 8, MaxDelay: -1}}}, make([]algo.Result, 1)); err != nil {
			b.Fatal(err)
		}
		b.primary.fails.Store(0)
		b.pass(10 * time.Second)
		o = b.only()
		if lasted := o.To.Sub(o.From); lasted < 9*time.Second || lasted > 12*time.Second || o.Over != 3 ||
			o.Unsettled != 0 || o.Unsure != 0 || o.CountersLost || o.Summary != "7 decided alone, 3 over" {
			b.Errorf("%v, %+v", o.To, o)
		}
		// Going away again at once is the same outage, and later another one.
		b.primary.fails.Store(-1)
		b.ask(5, "bob")
		b.pass(2 * time.Second)
		if o = b.only(); !o.Lasts() || o.Times != 2 || o.Alone != 12 || o.Over != 3 {
			b.Errorf("%+v", o)
		}
		b.primary.fails.Store(0)
		b.pass(time.Minute)
		if o = b.only(); o.Lasts() || o.Summary != "12 decided alone, 3 over, 2 times" {
			b.Errorf("%+v", o)
		}
		b.primary.fails.Store(-1)
		b.ask(6, "eve")
		b.pass(2 * time.Second)
		if list := b.List(); len(list) != 2 || list[0].Alone != 12 || list[1].Alone != 6 ||
			list[1].Over != 0 || list[1].Times != 1 {
			b.Errorf("%+v", list)
		}
	})
}

// Single calls without an answer are an outage of their own kind, which ends when calls are
// answered again.
func TestUnanswered(t *testing.T) {
	in(t, func(b *bed) {
		b.primary.fails.Store(2)
		b.ask(4, "ada")
		b.pass(2 * time.Second)
		if o := b.only(); !o.Lasts() || o.Kind != insight.StoreUnanswered || o.Alone != 2 {
			b.Errorf("%+v", o)
		}
		b.pass(10 * time.Second)
		o := b.only()
		if o.Lasts() || o.Kind != insight.StoreUnanswered || o.Alone != 2 || o.Unsettled != 0 || o.CountersLost ||
			o.Title != "Redis did not answer in time" || o.Summary != "2 decided alone" {
			b.Errorf("%+v", o)
		}
	})
}

// A store that lost its counters in an outage says so there, and one that nobody missed by itself.
// It is told once.
func TestCountersLost(t *testing.T) {
	in(t, func(b *bed) {
		empty := func() {
			old := b.primary.Swap(newMemory(b.T))
			_ = old.Close()
		}
		b.primary.fails.Store(-1)
		b.ask(5, "ada")
		b.pass(time.Second)
		empty()
		b.primary.fails.Store(0)
		b.pass(10 * time.Second)
		if o := b.only(); o.Lasts() || !o.CountersLost || o.Kind != insight.StoreAway ||
			o.Summary != "5 decided alone, counters lost" {
			b.Errorf("%+v", o)
		}
		b.pass(10 * time.Minute)
		if len(b.List()) != 1 {
			b.Errorf("%+v", b.List())
		}
		empty()
		b.pass(time.Minute)
		list := b.List()
		if len(list) != 2 || list[1].Kind != insight.StoreEmpty || list[1].Lasts() || list[1].Alone != 0 ||
			list[1].Title != "Redis came back empty" || list[1].Summary != "counters lost" ||
			list[1].To.Sub(list[1].From) > checkEvery+2*time.Second {
			b.Errorf("%+v", list)
		}
		// For a day the counter that shows it stays.
		b.pass(24 * time.Hour)
		if len(b.List()) != 2 {
			b.Errorf("%+v", b.List())
		}
	})
}

// servers are a store of many parts, ranges of which several servers hold.
type servers struct {
	store.Store // nil: only Take is called
	all         []atomic.Pointer[memory.Store]
	asked       atomic.Int64 // charges
}

const manyParts = 16384

func (s *servers) Parts() int { return manyParts }

func (s *servers) PartOf(_ *rule.Counter, key []byte) int {
	h := fnv.New64a()
	_, _ = h.Write(key)
	return int(h.Sum64() % manyParts)
}

func (*servers) PartOfID(string) int                 { return 0 }
func (*servers) PingPart(context.Context, int) error { return nil }
func (*servers) Answers(int) uint64                  { return 0 }

func (s *servers) Take(ctx context.Context, charges []store.Charge, results []algo.Result) (now int64, err error) {
	s.asked.Add(int64(len(charges)))
	for i := range charges {
		server := &s.all[s.PartOf(nil, charges[i].Key)*len(s.all)/manyParts]
		if now, err = server.Load().Take(ctx, charges[i:i+1], results[i:i+1]); err != nil {
			return 0, err
		}
	}
	return now, nil
}

// A store of many parts is asked for some of them, and shows still which server lost its counters.
func TestManyParts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &servers{all: make([]atomic.Pointer[memory.Store], 100)}
		for i := range s.all {
			s.all[i].Store(newMemory(t))
		}
		x := newSentinel(s)
		for _, i := range []int{0, 41, 99} {
			if lost, err := x.look(t.Context(), time.Now()); err != nil || lost {
				t.Errorf("nothing is lost: %v, %v", lost, err)
			}
			_ = s.all[i].Swap(newMemory(t)).Close()
			if lost, err := x.look(t.Context(), time.Now()); err != nil || !lost {
				t.Errorf("server %d lost its counters: %v, %v", i, lost, err)
			}
		}
		if asked := s.asked.Load(); asked > 6*2*mostCounters {
			t.Errorf("%d counters were asked in 6 looks", asked)
		}
		for i := range s.all {
			_ = s.all[i].Load().Close()
		}
	})
}

// Of another region, or the database of the rules, there is no more to say than when it was away. A
// node that does not know any more ends it.
func TestOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		since, known := time.Time{}, true
		l := New(Options{Node: "a", Others: []Other{{Store: insight.OutageRegion, Region: "us", Does: "goes on",
			Away: func() (time.Time, string, bool) { return since, "cut", known }}}})
		for i := range 2 * most {
			since, known = time.Now(), true
			l.Look()
			time.Sleep(time.Minute)
			l.Look()
			if o := l.List()[len(l.List())-1]; !o.Lasts() || !o.From.Equal(since) ||
				o.Nodes[0].Does != "goes on" || o.Cause != "cut" {
				t.Fatalf("%+v", o)
			}
			if i%2 == 0 {
				since = time.Time{}
			} else {
				known = false
			}
			l.Look()
			if o := l.List()[len(l.List())-1]; o.Lasts() || !o.To.Equal(time.Now()) {
				t.Fatalf("%+v", o)
			}
			time.Sleep(time.Minute)
		}
		if n := len(l.List()); n != most {
			t.Error(fmt.Sprint(n), "are kept")
		}
	})
}
