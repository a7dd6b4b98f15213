package resp

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/doortest"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
	"github.com/weir-rl/weir/store/redis"
)

// gate is a store that decides nothing until so many are asked at the same time, and from then on
// all.
type gate struct {
	store.Store
	mu      sync.Mutex
	waiting int
	wanted  int
	open    chan struct{}
}

// shut makes it wait for n.
func (g *gate) shut(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting, g.wanted, g.open = 0, n, make(chan struct{})
}

func (g *gate) Take(ctx context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	g.mu.Lock()
	open := g.open
	if g.waiting++; g.waiting == g.wanted {
		close(open)
	}
	g.mu.Unlock()
	<-open
	return g.Store.Take(ctx, charges, results)
}

// TestLanes: where a decision takes long, the decisions of a pipeline are made at the same time; on
// the same key one after the other, and the answers stay in order.
func TestLanes(t *testing.T) {
	now := newClock()
	local, err := memory.New(memory.Options{Clock: now.now})
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	store := &gate{Store: local}
	store.shut(5)
	d := openDoorOn(t, store, now, limitRules, Options{Concurrent: 1024})
	c := d.dial(t)
	// Five keys: were they not asked together, none would be answered. PING waits for them.
	var pipeline strings.Builder
	for range 3 {
		for _, key := range []string{"a", "b", "c", "d", "e"} {
			pipeline.WriteString(command("CL.THROTTLE", key, "1", "1", "60"))
		}
	}
	pipeline.WriteString("PING\r\n")
	c.send(pipeline.String())
	for i, want := range []string{"[0 2 1 -1 60]", "[0 2 0 -1 120]", "[1 2 0 60 120]"} {
		for range 5 {
			if got := c.reply(); got != want {
				t.Errorf("round %d: %s, want %s", i, got, want)
			}
		}
	}
	if got := c.reply(); got != "PONG" {
		t.Error(got)
	}
	// Rules: the same attributes in order, whatever the hits are; and other commands between.
	store.shut(3) // but the third command, which waits for the first
	c.send(command("WEIR.LIMIT", "shop", "1", "key", "ada") + command("WEIR.LIMIT", "shop", "1", "key", "bob") +
		command("WEIR.LIMIT", "shop", "2", "key", "ada") +
		command("THROTTLE", "a", "1", "1", "60"))
	for _, want := range []string{"[1 2 1 0 60000 []]", "[1 2 1 0 60000 []]", "[0 2 1 60000 60000 [each]]",
		"[1 1 0 60 0]"} {
		if got := c.reply(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	// A long pipeline with bad commands in it.
	pipeline.Reset()
	const n = 2000
	for i := range n {
		if i%100 == 7 {
			pipeline.WriteString(command("CL.THROTTLE"))
		} else {
			pipeline.WriteString(command("CL.THROTTLE", fmt.Sprint("long", i), fmt.Sprint(i), "1", "60"))
		}
	}
	c.send(pipeline.String())
	for i := range n {
		want := fmt.Sprintf("[0 %d %d -1 60]", i+1, i)
		if i%100 == 7 {
			want = "-" + cellUsage
		}
		if got := c.reply(); got != want {
			t.Fatalf("answer %d: %s, want %s", i, got, want)
		}
	}
}

// broken is a store that fails, or panics.
type broken struct {
	store.Store
	panics bool
}

var errBroken = errors.New("it is broken")

func (b broken) Take(context.Context, []store.Charge, []algo.Result) (int64, error) {
	if b.panics {
		panic("a defect")
	}
	return 0, errBroken
}

// TestStoreFails: a failure is an error reply, the connection goes on, and rules that admit without
// a store do.
func TestStoreFails(t *testing.T) {
	const rules = "domain: d\nlimits:\n  - {name: open, when: {path: /open}, allow: 1/min, on_store_error: allow}\n  - {name: shut, when: {path: /shut}, allow: 1/min, on_store_error: deny}\n"
	for _, concurrent := range []int{0, 8} {
		told := make(chan error, 100)
		d := openDoorOn(t, broken{}, newClock(), rules,
			Options{Concurrent: concurrent, StoreError: func(err error) { told <- err }})
		c := d.dial(t)
		c.send(command("CL.THROTTLE", "a", "1", "1", "1") + command("THROTTLE", "b", "1", "1", "1") +
			command("WEIR.LIMIT", "d", "1", "path", "/shut") + command("WEIR.LIMIT", "d", "1", "path", "/open"))
		for _, want := range []string{"-" + errStore, "-" + errStore, "-" + errStore, "[1 -1 -1 0 0 []]"} {
			if got := c.reply(); got != want {
				t.Errorf("%s, want %s", got, want)
			}
		}
		for range 2 {
			if err := <-told; err != errBroken {
				t.Errorf("told of %v", err)
			}
		}
	}
}

// TestDefect: a defect of ours ends a connection at most, and is logged.
func TestDefect(t *testing.T) {
	for _, concurrent := range []int{0, 8} {
		var mu sync.Mutex
		var told strings.Builder
		d := openDoorOn(t, broken{panics: true}, newClock(), "",
			Options{Concurrent: concurrent, Logger: doortest.LogTo(func(m string) {
				mu.Lock()
				defer mu.Unlock()
				told.WriteString(m)
			})})
		c := d.dial(t)
		c.send(command("CL.THROTTLE", "a", "1", "1", "1") + command("CL.THROTTLE", "b", "1", "1", "1") +
			command("CL.THROTTLE", "c", "1", "1", "1"))
		eventually(t, "it is told of", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return strings.Contains(told.String(), "a defect") && strings.Contains(told.String(), "goroutine")
		})
		eventually(t, "the connection is closed", func() bool { return d.Stats().Connections == 0 })
		d.served(t)
	}
}

// TestNodes: two servers on one Redis share their states, and a pipeline costs few round trips.
func TestNodes(t *testing.T) {
	server := redistest.Start(t)
	var doors []*served
	var stores []*redis.Store
	for range 2 {
		store, err := redis.Open(redis.Options{URL: "redis://" + server.Addr(), Timeout: 30 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		stores = append(stores, store)
		doors = append(doors, openDoorOn(t, store, newClock(), "", Options{Concurrent: 64}))
	}
	a, b := doors[0].dial(t), doors[1].dial(t)
	// 10 in 21 days: nothing comes back while the test runs.
	for i := range 11 {
		limited, left, c := 0, 9-i, a
		if i%2 == 1 {
			c = b
		}
		if i == 10 {
			limited, left = 1, 0
		}
		if got, want := c.do("CL.THROTTLE", "key", "9", "10", "1814400"), fmt.Sprintf("[%d 10 %d ", limited, left); !strings.HasPrefix(got, want) {
			t.Errorf("request %d: %s, want %s…", i, got, want)
		}
	}
	// Other numbers read what is used, on the other node too.
	for _, s := range []struct{ numbers, want string }{{"19 10 1814400 0", "[0 20 10 "}, {"9 1 86400 0", "[0 10 0 "},
		{"14 100 1814400 0", "[0 15 5 "}} {
		for _, c := range []*client{a, b} {
			if got := c.do(append([]string{"CL.THROTTLE", "key"}, strings.Fields(s.numbers)...)...); !strings.HasPrefix(
				got, s.want) {
				t.Errorf("%s: %s, want %s…", s.numbers, got, s.want)
			}
		}
	}
	const n = 128
	before := stores[0].Stats().Calls
	var pipeline strings.Builder
	for i := range n {
		pipeline.WriteString(command("CL.THROTTLE", fmt.Sprint("k", i), "9", "10", "1814400"))
	}
	a.send(pipeline.String())
	for range n {
		if got := a.reply(); !strings.HasPrefix(got, "[0 10 9 ") {
			t.Error(got)
		}
	}
	if calls := stores[0].Stats().Calls - before; calls > n/2 {
		t.Errorf("%d decisions took %d round trips", n, calls)
	}
}

// TestLaneOfTraced: where requests are followed in traces, commands on the same request stay in
// order, also in different spans; commands on others do not wait for them.
func TestLaneOfTraced(t *testing.T) {
	lane := func(traced bool, args ...string) uint64 {
		all := [][]byte{[]byte("WEIR.LIMIT")}
		for _, arg := range args {
			all = append(all, []byte(arg))
		}
		return orderKey(verbLimit, all, traced)
	}
	plain := lane(true, "shop", "1", "user", "ada")
	for _, args := range [][]string{
		{"shop", "2", "user", "ada", "traceparent", "00-1"},
		{"shop", "1", "traceparent", "00-2", "tracestate", "a=1", "user", "ada"},
		{"shop", "1", "user", "ada", "traceparent", "00-3", "FULL"},
	} {
		if lane(true, args...) != plain {
			t.Errorf("%q is in another lane", args)
		}
	}
	for _, args := range [][]string{{"shop", "1", "user", "bob"}, {"shop", "1", "user", "traceparent"},
		{"traceparent", "1", "user", "ada"}} {
		if lane(true, args...) == plain {
			t.Errorf("%q is in the same lane", args)
		}
	}
	if lane(false, "shop", "1", "user", "ada", "traceparent", "00-1") == lane(false, "shop", "1", "user", "ada",
		"traceparent", "00-2") {
		t.Error("without traces traceparent is an attribute as any other")
	}
}
