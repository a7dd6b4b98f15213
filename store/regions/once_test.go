package regions

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/redis"
)

// onceNode is a node that hears for its region when the test says so.
type onceNode struct {
	s       *Store
	links   []*redistest.FaultProxy // to its own store, and to the other region
	hearing *hearing                // nil while it does not hear
}

// TestExactlyOnce: what a region tells is charged once in another one, however many nodes hear it
// there, and although these are killed and their connections are reset at any moment.
// WEIR_REGIONS_ENTRIES is how many entries are told.
func TestExactlyOnce(t *testing.T) {
	t.Parallel()
	const keys, tellers, ahead, atATime = 50, 16, 4000, 2
	const each = 50 // entries after which a node is killed, or a connection reset
	entries := int64(number("WEIR_REGIONS_ENTRIES", uint64(effort.Of(2_000, 10_000))))
	c := borrowable(t, algo.Config{Algorithm: algo.FixedWindow, N: algo.MaxN, Window: algo.MaxWindow,
		FirstRequest: true}, rule.Regions{Over: 20, Tell: 2})
	eu, us := redistest.Start(t), redistest.Start(t)
	open := func(url string) *redis.Store {
		s, err := redis.Open(redis.Options{URL: url, Timeout: 30 * time.Second, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	own, other := open(eu.URL()), open(us.URL())
	_, begin, _, _, err := other.Told(t.Context(), 0, "", 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := own.Change(t.Context(), 0, "us", "", begin, nil, nil); err != nil {
		t.Fatal(err)
	}
	var nodes []*onceNode
	for range 3 {
		n := &onceNode{links: []*redistest.FaultProxy{redistest.Proxy(t, eu.Addr()), redistest.Proxy(t, us.Addr())}}
		mine := open("redis://" + n.links[0].Addr())
		if n.s, err = New(mine, Options{
			Region: "eu", Table: []Region{{"eu", 1}, {"us", 1}}, Own: mine, Peers: map[string]Neighbour{"us": open("redis://" + n.links[1].Addr())},
			Rules: rulesOf(c), Ready: func() bool { return false }, // the test says which of them hears
		}); err != nil {
			t.Fatal(err)
		}
		defer n.s.Close()
		nodes = append(nodes, n)
	}
	// heard is what is charged, by the states themselves.
	heard := func() (units int64) {
		charges, results := make([]store.Charge, keys), make([]algo.Result, keys)
		for i := range charges {
			charges[i] = store.Charge{Counter: c.Regions.All, Limit: c.Limit, Key: []byte(keyName(i))}
		}
		if _, err := own.Take(t.Context(), charges, results); err != nil {
			t.Error(err)
		}
		for i := range results {
			units += algo.MaxN - results[i].Remaining
		}
		return units
	}
	turns := make(chan struct{}, 1)
	var mu sync.Mutex
	var entered, units int64
	var running sync.WaitGroup
	for i := range tellers {
		running.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), 5))
			for {
				mu.Lock()
				if entered == entries || t.Failed() {
					mu.Unlock()
					return
				}
				entered++
				told := store.Told{Counter: c.Regions.All.ID, Key: []byte(keyName(rnd.IntN(keys))),
					Units: 1 + rnd.Int64N(5), At: time.Now().UnixMicro()}
				units += told.Units
				if entered%each == 0 {
					select {
					case turns <- struct{}{}:
					default:
					}
				}
				for entered%ahead == 0 && !t.Failed() && heard() < units-3*ahead { // the log is bounded
					time.Sleep(time.Millisecond)
				}
				mu.Unlock()
				if err := other.Tell(context.Background(), 0, []store.Told{told}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	ended := make(chan struct{})
	go func() { running.Wait(); close(ended) }()
	rnd := rand.New(rand.NewPCG(15, 6))
	kills, cuts := 0, 0
	hearing := func() (n int) {
		for _, node := range nodes {
			if node.hearing != nil {
				n++
			}
		}
		return n
	}
	step := func() {
		hearing := hearing()
		switch n := nodes[rnd.IntN(len(nodes))]; {
		case n.hearing == nil && hearing < atATime:
			n.hearing = n.s.x.begin(context.Background())
		case hearing == atATime && n.hearing != nil && rnd.IntN(3) > 0:
			n.hearing.end()
			n.hearing = nil
			kills++
		case hearing == atATime:
			n.links[rnd.IntN(2)].Cut()
			cuts++
		}
	}
	for done := false; !done; {
		select {
		case <-ended:
			done = true
		case <-turns:
			step()
		}
	}
	for i := 0; i < 100 || kills == 0 || cuts == 0 || hearing() < atATime; i++ { // and some more
		step()
	}
	patience.Until(t, "all is heard", func() bool {
		at, err := own.Position(t.Context(), 0, "us")
		_, end, _, _, err2 := other.Told(t.Context(), 0, "", 1, 0)
		return err == nil && err2 == nil && at == end
	})
	gaps := uint64(0)
	for _, n := range nodes {
		n.hearing.end()
		gaps += n.s.Stats().Peers[0].Gaps
	}
	t.Logf("%d entries; %d nodes killed while they heard, connections reset %d times", entries, kills, cuts)
	if got := heard(); got != units || gaps != 0 {
		t.Errorf("%d units told, %d heard; %d gaps, %d kills, %d cuts", units, got, gaps, kills, cuts)
	}
}
