package fallback_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store/fallback"
	"github.com/weir-rl/weir/store/redis"
	"github.com/weir-rl/weir/store/storetest"
)

// faultTime is how long a fault lasts after all nodes have noticed it, beside the decisions that
// use up their shares; WEIR_FAULT_SECONDS changes it (scripts/soak faults). During longTime nodes
// would think each other gone.
const (
	faultTime = 200 * time.Millisecond
	longTime  = 2 * time.Second
)

func faultLasts(t testing.TB, otherwise time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv("WEIR_FAULT_SECONDS")
	if text == "" {
		return otherwise
	}
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil || seconds <= 0 {
		t.Fatalf("WEIR_FAULT_SECONDS: %q is no number of seconds", text)
	}
	return time.Duration(seconds * float64(time.Second))
}

const (
	nodes       = 3
	deadline    = fallback.DefaultDeadline
	maxDeadline = time.Second
	// A node that Redis has not heard of for five heartbeats is gone; longTime is longer.
	heartbeat = 300 * time.Millisecond
	days      = 24 * time.Hour
	plenty    = 1_000_000 // more than any load asks for, also as a share
)

// kinds are what the clients ask for. No window and no slow bucket is over, or full again, before
// the test is.
func kinds() []kind {
	list := []kind{
		{Name: "fixed_window", Config: algo.Config{Algorithm: algo.FixedWindow, N: 100, Window: 366 * days}, Key: "small"},
		{Name: "sliding_window", Config: algo.Config{Algorithm: algo.SlidingWindow, N: 400, Window: 360 * days, Buckets: 60}, Key: "middle"},
		{Name: "sliding_log", Config: algo.Config{Algorithm: algo.SlidingLog, N: 250, Window: 366 * days}, Key: "log"},
		{Name: "fixed_window", Config: algo.Config{Algorithm: algo.FixedWindow, N: plenty, Window: 366 * days}, Key: "plenty"},
		{Name: "sliding_window", Config: algo.Config{Algorithm: algo.SlidingWindow, N: plenty, Window: 366 * days}, Key: "plenty"},
		{Name: "slow token_bucket", Config: algo.Config{Algorithm: algo.TokenBucket, N: 400, Window: 360 * days}, Key: "bucket"},
		{Name: "token_bucket", Config: algo.Config{Algorithm: algo.TokenBucket, N: 20, Window: time.Second, Burst: 100}, Key: "bucket"},
		{Name: "deny", Config: algo.Config{Algorithm: algo.FixedWindow, N: plenty, Window: 366 * days}, Key: "deny", Policy: rule.DenyAll},
		{Name: "allow", Config: algo.Config{Algorithm: algo.FixedWindow, N: 100, Window: 366 * days}, Key: "allow", Policy: rule.AllowAll},
	}
	for i := range list {
		list[i].ID = rand.Uint64()
	}
	return list
}

// bench is a Redis, what is between it and the nodes, and the nodes.
type bench struct {
	t      testing.TB
	server *redistest.Server
	proxy  *redistest.FaultProxy // nil: nothing is
	fleet  *fleet
}

// fault is something that goes wrong.
type fault struct {
	name       string
	proxy      bool // it is one of the network
	begin, end func(b *bench)
	// one that comes and goes, instead of begin and end
	again func(b *bench, round int) (end func())
	first bool // it has begun before the nodes are started
	// Redis keeps nothing on disk: its windows begin afresh
	forgets bool
	long    bool // it lasts for longTime
}

func (b *bench) do(args ...string) { b.t.Helper(); b.server.Do(args...) }

var faults = []fault{
	{name: "killed", long: true, begin: func(b *bench) { b.server.Kill() }, end: func(b *bench) { b.server.Restart() }},
	{name: "killed without a file", forgets: true, begin: func(b *bench) { b.server.Kill() }, end: func(b *bench) { b.server.Restart() }},
	{name: "hung", begin: func(b *bench) { b.server.Pause() }, end: func(b *bench) { b.server.Resume() }},
	{name: "slow by 500 ms", proxy: true, begin: func(b *bench) { b.proxy.Delay(500 * time.Millisecond) }, end: func(b *bench) { b.proxy.Delay(0) }},
	{name: "refuses connections", proxy: true, begin: func(b *bench) { b.proxy.Refuse(); b.proxy.Cut() }, end: func(b *bench) { b.proxy.Pass() }},
	{name: "black hole", long: true, proxy: true, begin: func(b *bench) { b.proxy.BlackHole() }, end: func(b *bench) { b.proxy.Pass() }},
	{name: "answers are lost", proxy: true, begin: func(b *bench) { b.proxy.LoseReplies() }, end: func(b *bench) { b.proxy.Pass() }},
	// A replica of nowhere keeps what it has, and may not write.
	{name: "READONLY", begin: func(b *bench) { b.do("REPLICAOF", "127.0.0.1", "1") }, end: func(b *bench) { b.do("REPLICAOF", "NO", "ONE") }},
	{name: "NOPERM", begin: func(b *bench) { b.do("ACL", "SETUSER", "default", "-fcall") }, end: func(b *bench) { b.do("ACL", "SETUSER", "default", "+fcall") }},
	{name: "out of memory", begin: func(b *bench) { b.do("CONFIG", "SET", "maxmemory", "1") }, end: func(b *bench) { b.do("CONFIG", "SET", "maxmemory", "0") }},
	{name: "away from the start", first: true, begin: func(b *bench) { b.server.Kill() }, end: func(b *bench) { b.server.Restart() }},
	{name: "comes and goes", proxy: true, again: func(b *bench, round int) func() {
		switch round % 4 {
		case 0:
			b.proxy.Refuse()
			b.proxy.Cut()
		case 1:
			b.proxy.BlackHole()
		case 2:
			b.proxy.LoseReplies()
		case 3:
			b.server.Pause()
			return b.server.Resume
		}
		return b.proxy.Pass
	}},
}

// TestFaults: three nodes under load while Redis is away in one way or another. Nothing crashes,
// nothing grows, no decision fails but those that are to, no key is admitted more than the bound,
// and when Redis is back it knows what was admitted.
func TestFaults(t *testing.T) {
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			if !effort.All() && f.name != "killed" {
				effort.Long(t, "one fault is enough")
			}
			t.Parallel()
			lasts := faultTime
			if f.long {
				lasts = longTime
			}
			t.Logf("\n%v", runFault(t, f, faultLoad(), faultLasts(t, lasts)))
		})
	}
}

func faultLoad() load { return load{Kinds: kinds(), Clients: 8, Pause: 8 * time.Millisecond} }

// rounds is how often a fault that comes and goes does at least.
const rounds = 5

// startBench starts a Redis, which forgets nothing when it is killed unless the fault says so, and
// nodes beside it. It returns what each node was before it opened its store.
func startBench(t testing.TB, f fault) (b *bench, idle []report) {
	t.Helper()
	options := []string{"maxmemory-policy noeviction"}
	if !f.forgets {
		options = append(options, "appendonly yes", "appendfsync always")
	}
	b = &bench{t: t, server: redistest.Start(t, options...)}
	url := b.server.URL()
	if f.proxy {
		b.proxy = redistest.Proxy(t, b.server.Addr())
		url = "redis://" + b.proxy.Addr()
	}
	b.fleet = startFleet(t, nodes)
	idle = b.fleet.ask(order{Measure: true})
	if f.first {
		f.begin(b)
	}
	b.fleet.all(func(i int) order {
		o := &setup{URL: url, Heartbeat: heartbeat, Deadline: deadline, MaxDeadline: maxDeadline, Nodes: nodes}
		if i > 0 {
			o.RememberRefusals = time.Second
		}
		return order{Open: o}
	})
	if !f.first {
		b.fleet.await("all nodes know of each other", func(_ int, r *report) bool { return r.Redis.Nodes == nodes })
	}
	if _, measures := t.(*testing.B); measures && !f.first {
		// Nodes that have run for a while know how long answers take.
		warm := faultLoad()
		warm.Kinds = kinds()
		b.start(warm, before)
		time.Sleep(11 * time.Second)
		b.fleet.ask(order{Stop: true})
	}
	return b, idle
}

// start starts a load on all nodes.
func (b *bench) start(l load, at phase) {
	b.t.Helper()
	b.fleet.all(func(int) order {
		own := l
		own.Seed = rand.Uint64()
		return order{Load: &own, Phase: at}
	})
}

// happen lets a fault come, stay and end.
func (b *bench) happen(f fault, lasts time.Duration) {
	b.t.Helper()
	if f.again == nil {
		if !f.first {
			f.begin(b)
		}
		b.fleet.await("all breakers are open", func(_ int, r *report) bool { return r.State != fallback.Closed })
		time.Sleep(lasts)
		b.fleet.goOn(during, 600) // on a busy machine it takes longer until a share is used up
		f.end(b)
		return
	}
	for round, began := 0, redistest.Clock(); round < rounds || redistest.Clock()-began < lasts; round++ {
		was := b.fleet.ask(order{})
		end := f.again(b, round)
		b.fleet.await("Redis is away for all nodes", func(i int, r *report) bool {
			return r.Stats.Trips > was[i].Stats.Trips || r.State != fallback.Closed
		})
		end()
		// The nodes that are slower find it gone once more.
		eventually(b.t, "Redis is back for a node", func() bool {
			return slices.ContainsFunc(b.fleet.ask(order{}), func(r report) bool { return r.State == fallback.Closed })
		})
	}
}

// course is what came of a fault.
type course struct {
	kinds     []kind
	outcomes  []outcome               // by kind
	charged   []int64                 // by kind: what Redis knows in the end
	unknown   []int64                 // by kind: units that it was asked for and may know
	earlier   []fallback.Stats        // of each node, before
	stats     fallback.Stats          // of all nodes, from then on
	latencies [phases][]time.Duration // sorted
	lasted    [phases]time.Duration
	opened    time.Duration // from the beginning of the fault until the last node's breaker opened
	// from the end of the fault until the last node's decisions were Redis' again
	returned time.Duration
	growth   string
}

// runFault runs a load through a fault, and checks what must hold.
func runFault(t testing.TB, f fault, l load, lasts time.Duration) *course {
	t.Helper()
	b, idle := startBench(t, f)
	var quiet []report // nil: there is nothing to compare to
	at := during
	if !f.first {
		own := l
		own.Kinds = kinds()
		b.start(own, before)
		b.fleet.goOn(before, 300)
		b.fleet.ask(order{Stop: true})
		b.fleet.await("all breakers are closed", func(_ int, r *report) bool { return r.State == fallback.Closed })
		quiet = b.fleet.ask(order{Measure: true})
		at = before
	}

	c := &course{kinds: l.Kinds}
	for _, r := range b.fleet.ask(order{}) {
		c.earlier = append(c.earlier, r.Stats)
	}
	var began [phases + 1]time.Duration
	began[before] = redistest.Clock()
	b.start(l, at)
	if !f.first {
		b.fleet.goOn(before, 600)
	}
	began[during] = redistest.Clock()
	b.fleet.ask(order{Phase: during})
	b.happen(f, lasts)
	began[after] = redistest.Clock()
	b.fleet.ask(order{Phase: after})
	for _, r := range b.fleet.await("Redis decides again", func(_ int, r *report) bool { return r.Returned != 0 }) {
		c.returned = max(c.returned, r.Returned-began[after])
	}
	b.fleet.goOn(after, 400)
	reports := b.fleet.ask(order{Stop: true})
	began[phases] = redistest.Clock()
	for i := range c.lasted {
		c.lasted[i] = began[i+1] - began[i]
		for _, r := range reports {
			c.latencies[i] = append(c.latencies[i], r.Latencies[i]...)
		}
		slices.Sort(c.latencies[i])
	}
	c.outcomes = make([]outcome, len(l.Kinds))
	for i, r := range reports {
		c.opened = max(c.opened, r.Opened-began[during])
		for j := range r.Outcomes {
			c.outcomes[j].add(r.Outcomes[j])
		}
		if s := plus(r.Stats, c.earlier[i], -1); s.LocalAllowed == 0 || s.LocalDenied == 0 {
			t.Errorf("node %d noticed nothing: %+v", i, s)
		}
		if r.FewestNodes < nodes {
			t.Errorf("node %d shared limits among %d nodes, while %d were alive", i, r.FewestNodes, nodes)
		}
	}
	c.settled(t, b, f.forgets)
	c.bounded(t, began[phases]-began[before], f.forgets)
	c.grown(t, b, quiet)
	b.fleet.ask(order{Close: true})
	// The goroutines of Redis' client end by themselves, some after Close has returned.
	eventually(t, "the goroutines of all nodes end after Close", func() bool {
		for i, r := range b.fleet.ask(order{Measure: true}) {
			if r.Goroutines > idle[i].Goroutines+2 {
				return false
			}
		}
		return true
	})
	return c
}

// settled waits until Redis knows what was admitted while it was away, as far as it has room.
func (c *course) settled(t testing.TB, b *bench, forgets bool) {
	t.Helper()
	store, err := redis.Open(redis.Options{URL: b.server.URL(), Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	n := len(c.kinds)
	least, most := make([]int64, n), make([]int64, n)
	var failed error
	look := func() bool {
		c.stats, c.unknown, c.charged = fallback.Stats{}, make([]int64, n), make([]int64, n)
		for i, r := range b.fleet.ask(order{}) {
			c.stats = plus(plus(c.stats, r.Stats, 1), c.earlier[i], -1)
			for j := range c.kinds {
				c.unknown[j] += r.Unknown[c.kinds[j].ID]
			}
			if r.Redis.Disagreements > 0 {
				t.Errorf("node %d: Lua and Go disagreed", i)
			}
		}
		all := c.stats.Open == 0
		for i := range c.kinds {
			k := &c.kinds[i]
			counter, err := k.counter()
			if err != nil {
				t.Fatal(err)
			}
			info, ok, err := storetest.Peek(t.Context(), store, counter, []byte(k.Key))
			if failed = err; err != nil {
				return false // on a busy machine a connection may not come about at once
			}
			if ok {
				c.charged[i] = info.Result.Limit - info.Result.Remaining
			}
			// Where Redis did not answer, it may have charged, and is not charged again. What it
			// has charged for a call that was refused is given back, when others may have found it
			// full.
			admitted, limit := c.outcomes[i].Admitted, k.size()
			least[i], most[i] = min(limit, admitted)-c.unknown[i], min(limit, admitted+c.unknown[i])
			switch {
			case forgets || k.Policy == rule.AllowAll || k.refills():
				least[i] = 0 // not all counts
			case k.Policy == rule.DenyAll:
				least[i] = admitted
			}
			all = all && c.charged[i] >= least[i]
		}
		return all
	}
	known := false
	defer func() {
		if !known {
			t.Logf("%v: Redis was charged %v, want %v to %v (%v); %+v", c.kinds, c.charged, least, most, failed,
				c.stats)
		}
	}()
	patience.Until(t, "Redis knows what was admitted", look)
	known = true
	for i := range c.kinds {
		if got := c.charged[i]; got < least[i] || got > most[i] {
			t.Errorf("%v: Redis was charged %d, want %d to %d", c.kinds[i], got, least[i], most[i])
		}
	}
	unknown := int64(0)
	for _, n := range c.unknown {
		unknown += n
	}
	if c.stats.Lost > uint64(unknown) {
		t.Errorf("%d units are lost, but only %d questions were not answered", c.stats.Lost, unknown)
	}
	s := &c.stats
	if sum := s.Settled + s.Excess + s.Lost + s.Lapsed + s.Returned; s.Admitted != s.LocalAllowed ||
		s.Admitted != sum || s.Open != 0 {
		t.Errorf("what was admitted locally is not accounted for: %+v", *s)
	}
}

// bounded checks that no key was admitted more than it may within one window.
func (c *course) bounded(t testing.TB, lasted time.Duration, forgets bool) {
	t.Helper()
	for i, o := range c.outcomes {
		k := &c.kinds[i]
		most := k.bound(lasted) + c.uncounted(k)
		if forgets {
			most += k.size()
		}
		switch {
		case o.Admitted > most:
			t.Errorf("%v: %d were admitted, at most %d may be", k, o.Admitted, most)
		case k.size() == plenty && o.Denied > 0:
			t.Errorf("%v: %d were denied, though there was plenty", k, o.Denied)
		case k.Policy == rule.DenyAll && (o.Unavailable == 0 || uint64(o.Unavailable) != c.stats.Refused):
			t.Errorf("%v: %d decisions failed, and the stores counted %d", k, o.Unavailable, c.stats.Refused)
		case k.Policy == rule.AllowAll && c.stats.Uncounted == 0:
			t.Errorf("%v: none was admitted uncounted", k)
		}
	}
}

// uncounted is how many of a kind were admitted without being counted.
func (c *course) uncounted(k *kind) int64 {
	if k.Policy == rule.AllowAll {
		return int64(c.stats.Uncounted)
	}
	return 0
}

func (k kind) String() string { return k.Name + " " + k.Key }

// size is how much of a kind there is at once.
func (k *kind) size() int64 { return max(k.Config.N, k.Config.Burst) }

// refills reports whether some charges are forgotten while a test runs.
func (k *kind) refills() bool { return k.Config.Window < days }

// bound is how much of a kind may be admitted within a time that lies in one window: what Redis
// has, and each node's share.
func (k *kind) bound(lasted time.Duration) int64 {
	share := func(n int64) int64 { return (n + nodes - 1) / nodes }
	switch {
	case k.Policy == rule.AllowAll || k.Policy == rule.DenyAll:
		return k.Config.N
	case k.refills():
		periods := float64(lasted) / float64(k.Config.Window)
		most := func(n, burst int64) int64 { return burst + int64(float64(n)*periods) + 1 }
		return most(k.Config.N, k.Config.Burst) + nodes*most(share(k.Config.N), share(k.Config.Burst))
	}
	return k.Config.N + nodes*share(k.Config.N)
}

// What a node may have more of than before, once all is quiet.
const (
	moreGoroutines = 3
	moreHeap       = 2 << 20
)

// grown waits until the nodes have no more goroutines and memory than before.
func (c *course) grown(t testing.TB, b *bench, quiet []report) {
	t.Helper()
	var now []report
	look := func() bool {
		now = b.fleet.ask(order{Measure: true})
		for i := range quiet {
			if now[i].Goroutines > quiet[i].Goroutines+moreGoroutines || now[i].Heap > quiet[i].Heap+moreHeap {
				return false
			}
		}
		return true
	}
	defer func() {
		for i := range quiet {
			c.growth += fmt.Sprintf("node %d: %d goroutines, before %d; %d KB, before %d\n", i, now[i].Goroutines,
				quiet[i].Goroutines, now[i].Heap>>10, quiet[i].Heap>>10)
		}
		if t.Failed() {
			t.Log(c.growth)
		}
	}()
	patience.Until(t, "the nodes have grown no more", look)
}

func (c *course) String() string {
	text := fmt.Sprintf("noticed after %v, back after %v; decisions %d / %d / %d\n%+v\n%s",
		c.opened.Round(time.Millisecond), c.returned.Round(time.Millisecond),
		len(c.latencies[before]), len(c.latencies[during]), len(c.latencies[after]), c.stats, c.growth)
	for i, k := range c.kinds {
		o := c.outcomes[i]
		text += fmt.Sprintf("%-24s %6d admitted of %7d, %6d denied, %5d failed; Redis was charged %d, unknown %d\n", k,
			o.Admitted,
			k.bound(c.lasted[before]+c.lasted[during]+c.lasted[after])+c.uncounted(&k), o.Denied, o.Unavailable,
			c.charged[i], c.unknown[i])
	}
	return text
}

// plus adds b to a, n times.
func plus(a, b fallback.Stats, n int64) fallback.Stats {
	times := uint64(n)
	a.Trips += times * b.Trips
	a.LocalAllowed += times * b.LocalAllowed
	a.LocalDenied += times * b.LocalDenied
	a.Uncounted += times * b.Uncounted
	a.Refused += times * b.Refused
	a.DeadlineMisses += times * b.DeadlineMisses
	a.Settled += times * b.Settled
	a.Excess += times * b.Excess
	a.Lost += times * b.Lost
	a.Lapsed += times * b.Lapsed
	a.Returned += times * b.Returned
	a.Open += times * b.Open
	a.Admitted += times * b.Admitted
	return a
}
