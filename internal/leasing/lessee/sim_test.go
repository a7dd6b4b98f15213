//go:build !race

// There is one goroutine, and much to compute.

package lessee

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/leasecheck"
)

// fleet is one key, the holders of it, and its store, in virtual time. A call takes a millisecond.
// Requests that come to a node while a call of it is under way go together in the next one, as the
// group commit of store/redis has it: that is one operation.
type fleet struct {
	limit       *algo.Limit
	terms       *Terms
	rng         *rand.Rand
	state, book algo.State
	nodes       []node
	events      events
	now         int64 // ns
	rates       func(node int, now int64) float64

	asked, admitted, ops int
	log                  []leasecheck.Admission
}

type node struct {
	Entry
	begun   bool
	first   int64 // when the key was first asked for, before it was begun
	busy    bool  // a call is under way
	waiting int   // requests that go with the next
	tell    bool  // something is to be told
}

// event is a request if it has no function.
type event struct {
	at   int64
	node int
	do   func()
}

type events []event

func (e events) Len() int           { return len(e) }
func (e events) Less(i, j int) bool { return e[i].at < e[j].at }
func (e events) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)        { *e = append(*e, x.(event)) }
func (e *events) Pop() any          { x := (*e)[len(*e)-1]; *e = (*e)[:len(*e)-1]; return x }

const wayThere = int64(500 * time.Microsecond)

func (f *fleet) µs() int64 { return t0 + f.now/1000 }

func (f *fleet) after(d int64, node int, do func()) { heap.Push(&f.events, event{f.now + d, node, do}) }

// arrive plans the next request to a node. A rate of 0 is looked at again later.
func (f *fleet) arrive(i int) {
	if rate := f.rates(i, f.now); rate > 0 {
		f.after(int64(f.rng.ExpFloat64()/rate*1e9), i, nil)
	} else {
		f.after(int64(time.Second), i, func() { f.arrive(i) })
	}
}

func (f *fleet) run(d time.Duration) {
	for i := range f.nodes {
		f.arrive(i)
		f.after(f.rng.Int64N(f.terms.E/8), i, func() { f.visit(i) })
	}
	for f.events[0].at < int64(d) {
		e := heap.Pop(&f.events).(event)
		if f.now = e.at; e.do != nil {
			e.do()
			continue
		}
		f.arrive(e.node)
		f.asked++
		f.request(e.node)
	}
}

func (f *fleet) admit() {
	f.admitted++
	f.log = append(f.log, leasecheck.Admission{Lo: f.µs(), Hi: f.µs(), Cost: 1})
}

func (f *fleet) request(i int) {
	n := &f.nodes[i]
	if n.begun {
		n.Note(f.terms, f.now, 1)
		if n.Use(f.now, 1) {
			f.admit()
			if n.Short(f.terms, f.now) {
				if n.Queue(); !n.busy {
					f.call(i)
				}
			}
			return
		}
		if refuses, _ := n.Refuses(f.now, 1); refuses {
			return
		}
	} else if n.first > 0 && f.now-n.first < f.terms.E {
		n.Entry, n.begun = Begin(f.terms, f.now), true
		n.Note(f.terms, f.now, 1)
	}
	n.first = f.now
	n.waiting++
	if !n.busy {
		f.call(i)
	}
}

func (f *fleet) visit(i int) {
	n := &f.nodes[i]
	within := f.terms.E/8 + int64(10*time.Millisecond)
	f.after(f.terms.E/8, i, func() { f.visit(i) })
	if !n.begun {
		return
	}
	tell, over, _ := n.Visit(f.terms, f.now, f.µs(), within)
	if over {
		n.begun, n.first = false, 0
	}
	if n.tell = n.tell || tell; tell && !n.busy {
		f.call(i)
	}
}

// call sends what waits at a node.
func (f *fleet) call(i int) {
	n := &f.nodes[i]
	requests, sent := n.waiting, f.now
	n.waiting, n.busy = 0, true
	f.ops++
	var h algo.Ahead
	begun := n.begun
	switch {
	case begun && n.tell && requests == 0:
		n.Tell(f.terms, f.now, f.µs(), f.terms.E/8+int64(10*time.Millisecond), true, &h)
	case begun:
		n.Unqueue()
		n.Ask(f.terms, f.now, f.µs(), false, true, &h)
	}
	n.tell = false
	f.after(wayThere, i, func() {
		f.limit.Learn(&f.state, &f.book, f.µs(), &h)
		r := f.limit.CheckWith(&f.state, &f.book, f.µs(), algo.Ask{})
		for range requests {
			if r = f.limit.TakeWith(&f.state, &f.book, f.µs(), algo.Ask{Cost: 1}); r.Allowed {
				f.admit()
			}
		}
		if r.Allowed {
			f.limit.Lend(&f.state, &f.book, f.µs(), &h)
		}
		decided := f.µs()
		f.after(wayThere, i, func() {
			if begun && n.begun {
				n.Hear(f.terms, Answer{Asked: sent, At: f.now, Now: decided}, int64(min(requests, 1)), &r, &h)
			}
			if n.busy = false; n.waiting > 0 || n.begun && (n.tell || n.flags&queued != 0) {
				f.call(i)
			}
		})
	})
}

// TestSimulatedSavings: how many operations of the store a decision takes, and how much of the
// limit is admitted; docs/operating/redis.md has the figures. Nothing is ever admitted beyond it.
func TestSimulatedSavings(t *testing.T) {
	bucket := func(n int64, w time.Duration, lease int) algo.Config {
		return algo.Config{Algorithm: algo.TokenBucket, N: n, Window: w, Lease: lease}
	}
	log := algo.Config{Algorithm: algo.SlidingLog, N: 10_000, Window: 10 * time.Second, Lease: 5}
	log20 := log
	log20.Lease = 20
	for _, row := range []struct {
		name    string
		c       algo.Config
		nodes   int
		load    float64
		seconds int
		skewed  bool
		ops     float64 // a decision, to a fifth
		least   float64 // part of the ideal that is admitted
	}{
		{"100,000/min", bucket(100_000, time.Minute, 5), 20, 0.5, 120, false, 0.021, 0.999},
		{"100,000/min", bucket(100_000, time.Minute, 5), 20, 1, 120, false, 0.010, 0.999},
		{"100,000/min", bucket(100_000, time.Minute, 5), 20, 3, 180, false, 0.040, 0.999},
		{"100,000/min, 90 % on one", bucket(100_000, time.Minute, 5), 20, 0.9, 120, true, 0.014, 0.999},
		{"100,000/min, 90 % on one", bucket(100_000, time.Minute, 5), 20, 3, 180, true, 0.006, 0.99},
		{"20,000/s", bucket(20_000, time.Second, 5), 20, 0.9, 10, false, 0.039, 0.999},
		{"20,000/s", bucket(20_000, time.Second, 5), 20, 3, 10, false, 0.065, 0.999},
		{"20,000/s", bucket(20_000, time.Second, 20), 20, 0.9, 10, false, 0.019, 0.999},
		{"20,000/s", bucket(20_000, time.Second, 20), 20, 3, 10, false, 0.042, 0.999},
		{"1,000,000/min", bucket(1_000_000, time.Minute, 5), 1000, 1, 30, false, 0.065, 0.999},
		{"1,000,000/min", bucket(1_000_000, time.Minute, 20), 1000, 1, 30, false, 0.029, 0.999},
		{"600/min", bucket(600, time.Minute, 5), 3, 0.9, 300, false, 0.37, 0.999},
		{"600/min", bucket(600, time.Minute, 5), 20, 0.9, 300, false, 1.01, 0.999},
		{"log of 10,000/10 s", log, 20, 3, 60, false, 0.064, 0.999},
		{"log of 10,000/10 s", log, 20, 1.2, 60, false, 0.112, 0.99},
		{"log of 10,000/10 s", log20, 20, 3, 60, false, 0.020, 0.999},
		{"log of 10,000/10 s", log20, 20, 1.2, 60, false, 0.034, 0.89},
	} {
		if !effort.All() && (row.c.N > 20_000 || row.c.Algorithm == algo.SlidingLog) {
			continue // it takes a second each
		}
		limit, err := algo.New(row.c)
		if err != nil {
			t.Fatal(err)
		}
		f := &fleet{limit: limit, terms: TermsOf(limit), rng: rand.New(rand.NewPCG(1, 2)),
			nodes: make([]node, row.nodes)}
		perSecond := float64(row.c.N) / row.c.Window.Seconds() * row.load
		f.rates = func(i int, now int64) float64 {
			if row.skewed {
				if int(now/int64(10*time.Second))%row.nodes == i {
					return perSecond * 0.9
				}
				return perSecond * 0.1 / float64(row.nodes-1)
			}
			return perSecond / float64(row.nodes)
		}
		f.run(time.Duration(row.seconds) * time.Second)
		ideal := math.Min(float64(f.asked), float64(row.c.N)/row.c.Window.Seconds()*float64(row.seconds)+
			float64(row.c.N))
		if row.c.Algorithm == algo.SlidingLog {
			ideal = math.Min(float64(f.asked), float64(row.c.N)*float64(row.seconds)/row.c.Window.Seconds())
		}
		ops, part := float64(f.ops)/float64(f.asked), float64(f.admitted)/ideal
		t.Logf("%-26s %2d %%, %4d nodes, load %.1f: %.3f operations a decision, %.4f admitted", row.name, row.c.Lease,
			row.nodes, row.load, ops, part)
		if ops > row.ops*1.2 || part < row.least {
			t.Errorf("%s, %d %%, load %.1f: %.3f operations a decision, %.4f admitted; want %.3f, %.3f", row.name,
				row.c.Lease, row.load, ops, part, row.ops, row.least)
		}
		if v, err := leasecheck.Check(row.c, 0, f.log); v != nil || err != nil {
			t.Errorf("%s: %v, %v", row.name, v, err)
		}
	}
}
