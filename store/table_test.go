//go:build !race

package store_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/cassandratest"
	"github.com/weir-rl/weir/internal/testkit/histogram"
	"github.com/weir-rl/weir/internal/testkit/pgtest"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/internal/testkit/testproc"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/cassandra"
	"github.com/weir-rl/weir/store/memory"
	"github.com/weir-rl/weir/store/postgres"
	"github.com/weir-rl/weir/store/redis"
)

// measured is a kind of store with its servers, as the table of docs/operating/stores.md has it.
type measured struct {
	open func() (store.Store, error) // one more node
	cpu  func() time.Duration        // of the servers
	size func() int64                // bytes of all that is stored
	kill func()                      // ends the servers at once, and starts them again; nil: none
}

// patient is longer than any call takes: what is slow is to be in the figures.
const patient = 30 * time.Second

var kinds = []struct {
	name  string
	start func(b *testing.B) *measured
}{
	{"memory", func(*testing.B) *measured {
		return &measured{
			open: func() (store.Store, error) { return memory.New(memory.Options{}) },
			cpu:  func() time.Duration { return 0 },
			size: func() int64 {
				runtime.GC()
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				return int64(m.HeapAlloc)
			},
		}
	}},
	{"Redis", func(b *testing.B) *measured {
		s := redistest.Start(b)
		return onRedis(s.URL(), []*redistest.Server{s})
	}},
	{"Redis Cluster", func(b *testing.B) *measured {
		c := redistest.StartCluster(b, 3, 0)
		return onRedis(c.URL(), c.Nodes())
	}},
	{"PostgreSQL", func(b *testing.B) *measured { return onPostgres(b, "logged") }},
	{"PostgreSQL, unlogged", func(b *testing.B) *measured { return onPostgres(b, "unlogged") }},
	{"Cassandra", func(b *testing.B) *measured { return onCassandra(b) }},
	{"Cassandra, paxos v2", func(b *testing.B) *measured {
		return onCassandra(b, "paxos_variant: v2", "paxos_state_purging: repaired")
	}},
}

func onRedis(url string, servers []*redistest.Server) *measured {
	return &measured{
		open: func() (store.Store, error) { return redis.Open(redis.Options{URL: url, Timeout: patient}) },
		cpu: func() (sum time.Duration) {
			for _, s := range servers {
				sum += s.CPU()
			}
			return sum
		},
		size: func() (sum int64) {
			for _, s := range servers {
				sum += s.UsedMemory()
			}
			return sum
		},
		kill: func() {
			for _, s := range servers {
				s.Kill()
			}
			for _, s := range servers {
				s.Restart()
			}
		},
	}
}

func onPostgres(b *testing.B, tables string) *measured {
	s := pgtest.Start(b, "fsync = on", "shared_buffers = 128MB", "max_wal_size = 1GB")
	return &measured{
		open: func() (store.Store, error) {
			return postgres.Open(postgres.Options{URL: s.URL() + "&weir_tables=" + tables, Timeout: patient})
		},
		cpu: s.CPU,
		size: func() int64 {
			return s.Number(`select coalesce(sum(pg_total_relation_size(oid)), 0)::bigint from pg_class
				where relkind in ('r', 'p') and relnamespace = (select oid from pg_namespace where nspname = 'weir')`)
		},
		kill: func() { s.Kill(); s.Restart() },
	}
}

func onCassandra(b *testing.B, options ...string) *measured {
	s := cassandratest.Start(b, options...)
	keyspace := s.Keyspace()
	return &measured{
		open: func() (store.Store, error) {
			return cassandra.Open(cassandra.Options{URL: s.URL(keyspace), Timeout: patient})
		},
		cpu:  s.CPU,
		size: func() int64 { return s.Size(keyspace) },
		kill: func() { s.Kill(); s.Restart() },
	}
}

// tableLoad is what is asked of a store.
type tableLoad struct {
	name                 string
	nodes, callers, keys int
	limit                int64
}

const (
	users  = 10_000
	plenty = 1_000_000_000
)

var tableLoads = []tableLoad{
	{"one caller", 1, 1, users, plenty},
	{"10,000 users", 1, 64, users, plenty},
	{"one user", 1, 64, 1, plenty},
	{"one user, refused", 1, 64, 1, 1},
	{"16 users, 4 nodes", 4, 64, 16, plenty},
	{"one user, 4 nodes", 4, 64, 1, plenty},
}

var tableKeys = func() (keys [users][]byte) {
	for i := range keys {
		keys[i] = fmt.Append(nil, "user ", i)
	}
	return keys
}()

// BenchmarkTable prints the rows of the table of docs/operating/stores.md, one kind of store after
// the other; scripts/measure stores does all of it. Each load lasts three times WEIR_TABLE_SECONDS
// (1), of which the median counts.
func BenchmarkTable(b *testing.B) {
	seconds, err := strconv.ParseFloat(cmp.Or(os.Getenv("WEIR_TABLE_SECONDS"), "1"), 64)
	if err != nil {
		b.Fatal("WEIR_TABLE_SECONDS: ", err)
	}
	for _, kind := range kinds {
		b.Run(kind.name, func(b *testing.B) {
			m := kind.start(b)
			t := &table{b: b, kind: kind.name, of: m, lasts: time.Duration(seconds * float64(time.Second))}
			t.node()
			before := t.size()
			for i := range tableLoads {
				if l := &tableLoads[i]; l.nodes == 1 || m.kill != nil {
					t.measure(l)
				}
			}
			t.row("stored", fmt.Sprintf("%d bytes a user", (t.size()-before)/users))
			if m.kill != nil {
				t.row("killed, and started again", fmt.Sprintf("%d of %d units lost", t.lost(), charged))
			}
		})
	}
}

// table makes the rows of one kind of store.
type table struct {
	b     *testing.B
	kind  string
	of    *measured
	lasts time.Duration
	nodes []store.Store
	all   *rule.Counter
}

// row prints a row, without what goes to columns that it does not have.
func (t *table) row(load string, cells ...string) {
	line := fmt.Sprintf("\n| %s | %s |", t.kind, load)
	for i := range 5 {
		if i < len(cells) {
			line += " " + cells[i]
		}
		line += " |"
	}
	fmt.Println(line)
}

// node opens one more node, and waits until it decides.
func (t *table) node() store.Store {
	t.b.Helper()
	s, err := t.of.open()
	if err != nil {
		t.b.Fatal(err)
	}
	t.b.Cleanup(func() { _ = s.Close() })
	t.nodes = append(t.nodes, s)
	t.await(s)
	return s
}

// await waits until a node decides.
func (t *table) await(s store.Store) {
	t.b.Helper()
	c := t.counter(plenty)
	for begun := time.Now(); ; time.Sleep(time.Millisecond) {
		_, err := ask(s, c, 0, 1)
		if err == nil {
			return
		}
		if time.Since(begun) > patient {
			t.b.Fatal(err)
		}
	}
}

// size returns how many bytes are stored. Cassandra is restarted for it, so that its nodes have to
// connect again.
func (t *table) size() int64 {
	t.b.Helper()
	n := t.of.size()
	for _, s := range t.nodes {
		t.await(s)
	}
	return n
}

func (t *table) counter(limit int64) *rule.Counter {
	t.b.Helper()
	l, err := algo.New(algo.Config{Algorithm: algo.FixedWindow, N: limit, Window: 24 * time.Hour})
	if err != nil {
		t.b.Fatal(err)
	}
	return &rule.Counter{ID: rand.Uint64(), Limit: l}
}

func ask(s store.Store, c *rule.Counter, key int, cost int64) (algo.Result, error) {
	charges := [1]store.Charge{{Counter: c, Limit: c.Limit, Key: tableKeys[key],
		Ask: algo.Ask{Cost: cost, MaxDelay: -1}}}
	var results [1]algo.Result
	_, err := s.Take(context.Background(), charges[:], results[:])
	return results[0], err
}

// reading is what one round of a load has shown.
type reading struct {
	rate           float64
	took           histogram.Histogram
	client, server time.Duration // for each decision
}

// measure measures a load, and prints its row.
func (t *table) measure(l *tableLoad) {
	for len(t.nodes) < l.nodes {
		t.node()
	}
	c := t.counter(l.limit)
	if l.keys == users {
		c = t.everybody()
	}
	t.round(l, c) // what is compiled as it runs is compiled then
	var rounds []*reading
	for range 3 {
		rounds = append(rounds, t.round(l, c))
	}
	slices.SortFunc(rounds, func(a, b *reading) int { return cmp.Compare(a.rate, b.rate) })
	r := rounds[1]
	t.row(l.name, rounded(r.rate), brief(r.took.Quantile(0.5)), brief(r.took.Quantile(0.99)), brief(r.client),
		brief(r.server))
}

// everybody returns the counter of all users, each of whom was seen once.
func (t *table) everybody() *rule.Counter {
	if t.all != nil {
		return t.all
	}
	t.all = t.counter(plenty)
	t.callers(&tableLoad{nodes: 1, callers: 64, keys: users}, func(s store.Store, next func() (int, bool)) {
		for key, ok := next(); ok; key, ok = next() {
			t.ask(s, t.all, key)
		}
	})
	return t.all
}

func (t *table) ask(s store.Store, c *rule.Counter, key int) {
	if _, err := ask(s, c, key, 1); err != nil {
		t.b.Error(err)
	}
}

// callers runs f for each caller of each node. next numbers the users, each of them once.
func (t *table) callers(l *tableLoad, f func(s store.Store, next func() (int, bool))) {
	var drawn atomic.Int64
	next := func() (int, bool) {
		n := int(drawn.Add(1)) - 1
		return n, n < l.keys
	}
	var all sync.WaitGroup
	for _, s := range t.nodes[:l.nodes] {
		for range l.callers {
			all.Go(func() { f(s, next) })
		}
	}
	all.Wait()
	if t.b.Failed() {
		t.b.FailNow() // what was measured is of no use
	}
}

// round asks for as long as a round lasts.
func (t *table) round(l *tableLoad, c *rule.Counter) *reading {
	r := &reading{}
	var mu sync.Mutex
	server, client, begun := t.of.cpu(), t.spent(), time.Now()
	t.callers(l, func(s store.Store, _ func() (int, bool)) {
		var took histogram.Histogram
		for at := time.Now(); at.Sub(begun) < t.lasts && !t.b.Failed(); {
			t.ask(s, c, rand.IntN(l.keys))
			answered := time.Now()
			took.Add(answered.Sub(at), 1)
			at = answered
		}
		mu.Lock()
		r.took.Merge(&took)
		mu.Unlock()
	})
	n := r.took.Total()
	r.rate = n / time.Since(begun).Seconds()
	r.client = time.Duration(float64(t.spent()-client) / n)
	r.server = time.Duration(float64(t.of.cpu()-server) / n)
	return r
}

// spent is the time of this process on processors.
func (t *table) spent() time.Duration {
	d, err := testproc.CPU(os.Getpid())
	if err != nil {
		t.b.Fatal(err)
	}
	return d
}

// rounded writes a rate with three digits.
func rounded(rate float64) string {
	n, scale := int(rate), 1
	for ; n >= 1000; n /= 10 {
		scale *= 10
	}
	text := strconv.Itoa(n * scale)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// brief writes a time with two digits or three.
func brief(d time.Duration) string {
	unit, n := "µs", float64(d)/1e3
	if d >= time.Millisecond {
		unit, n = "ms", float64(d)/1e6
	}
	switch {
	case d == 0:
		return "0"
	case n < 10:
		return fmt.Sprintf("%.1f %s", n, unit)
	}
	return fmt.Sprintf("%.0f %s", n, unit)
}

// charged is how many units are charged before the servers are killed.
const charged = 2000

// lost charges units, kills the servers when the last one is acknowledged, and returns how many are
// not there when they are back.
func (t *table) lost() int64 {
	c, l := t.counter(plenty), &tableLoad{nodes: 1, callers: 16, keys: charged}
	t.callers(l, func(s store.Store, next func() (int, bool)) {
		for _, ok := next(); ok; _, ok = next() {
			t.ask(s, c, 0)
		}
	})
	t.of.kill()
	left, err := ask(t.node(), c, 0, 0)
	if err != nil {
		t.b.Fatal(err)
	}
	return left.Remaining - (plenty - charged)
}
