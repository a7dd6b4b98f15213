//go:build soak && linux

package stores

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/histogram"
	"github.com/weir-rl/weir/internal/testkit/openload"
	"github.com/weir-rl/weir/internal/testkit/pgtest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
	"github.com/weir-rl/weir/internal/testkit/soaktest"
)

// postgresSoakRules are limits whose states are over after one, two and five minutes, and of sizes
// that differ and change.
const postgresSoakRules = `
domain: shop
limits:
  - { name: minute, when: { plan: p0 }, per: [client], allow: 60/min, algorithm: token_bucket }
  - { name: two, when: { plan: p1 }, per: [client], allow: 100/2m, algorithm: fixed_window }
  - { name: five, when: { plan: p2 }, per: [client], allow: 12/5m, algorithm: sliding_log }
`

// What TestPostgresSoak asks: an open load on two nodes, of clients that come, ask a few times and
// never come again.
const (
	soakRate    = 600    // decisions a second
	soakNew     = 0.5    // share of them that are of a new client
	soakActive  = 15_000 // clients that may ask again
	soakCallers = 128
	soakEvery   = 10 * time.Second // a sample
)

// soakSample is a row of docs/figures/postgres.csv. Counts are since the beginning.
type soakSample struct {
	at, decisions, failed            int64 // at in seconds
	p50, p99                         time.Duration
	table, index                     int64 // bytes, with indexes and TOAST
	live, dead                       int64 // rows, as the server counts them
	inserted, updated, hot, deleted  int64
	vacuums, vacuumMS, vacuumCPU, on int64 // times are in ms; on: workers at this moment
	wal, cpu, weirCPU                int64 // bytes, ms, ms
}

var soakColumns = []string{
	"at_s", "decisions", "failed", "p50_us", "p99_us", "table_bytes", "index_bytes", "live", "dead",
	"inserted", "updated", "hot", "deleted", "vacuums", "vacuum_ms", "vacuum_cpu_ms", "workers", "wal_bytes", "server_cpu_ms", "nodes_cpu_ms",
}

func (s soakSample) row() (row []string) {
	for _, n := range []int64{
		s.at, s.decisions, s.failed, s.p50.Microseconds(), s.p99.Microseconds(), s.table, s.index, s.live, s.dead,
		s.inserted, s.updated, s.hot, s.deleted, s.vacuums, s.vacuumMS, s.vacuumCPU, s.on, s.wal, s.cpu, s.weirCPU,
	} {
		row = append(row, strconv.FormatInt(n, 10))
	}
	return row
}

// TestPostgresSoak: two nodes on one PostgreSQL with the autovacuum that it comes with decide for
// WEIR_SOAK (an hour), while states are made and expire all the time. WEIR_SOAK_CSV names a file
// for the samples, by which docs/figures judges and draws the state of the table.
func TestPostgresSoak(t *testing.T) {
	lasts := time.Hour
	if text := os.Getenv("WEIR_SOAK"); text != "" {
		var err error
		if lasts, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	server := pgtest.Start(t, "fsync = on", "shared_buffers = 128MB", "max_wal_size = 1GB",
		"log_autovacuum_min_duration = 0")
	dir := t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "rules.yaml"), postgresSoakRules)
	program := servertest.BuildProgram(t)
	var nodes []*servertest.Process
	for range 2 {
		p := servertest.Launch(t, program, dir, "serve", "--rules=rules.yaml", "--store="+server.URL())
		servertest.NodeOf(t, p.Stderr, p.Addr).AwaitBack()
		nodes = append(nodes, p)
	}
	load := newSoakLoad(t, nodes)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan *openload.Result, 1)
	began := time.Now()
	go func() {
		askers := make([]openload.Asker, soakCallers)
		for i := range askers {
			askers[i] = load.caller(i)
		}
		// What openload draws is not used: clients are drawn here.
		r, err := openload.Run(ctx, &openload.Options{Rate: soakRate, For: lasts, Callers: soakCallers, Keys: 1,
			Draw: openload.InTurn, Seed: 1}, askers, nil)
		if err != nil {
			t.Error(err)
		}
		ended <- r
	}()
	var samples []soakSample
	tick := time.NewTicker(soakEvery)
	defer tick.Stop()
	var r *openload.Result
	for r == nil {
		select {
		case r = <-ended:
		case <-tick.C:
			s := soakSample{at: int64(time.Since(began).Round(time.Second).Seconds())}
			load.read(&s)
			readServer(t, server, &s)
			for _, p := range nodes {
				s.weirCPU += soaktest.Busy(t, p.Cmd.Process.Pid).Milliseconds()
			}
			samples = append(samples, s)
			writeCSV(t, soakColumns, samples)
		}
	}
	t.Logf("%d decisions, %d refused, %d failed, %d not sent; p50 %v, p99 %v", r.Answered(), r.Refused, r.Failed,
		r.Unsent,
		r.Latency.Quantile(0.5), r.Latency.Quantile(0.99))
	if r.Failed > 0 {
		t.Logf("the first failure: %v", r.Failure)
	}
}

// soakLoad draws clients, and asks nodes for them.
type soakLoad struct {
	nodes int
	ask   [][]openload.Asker // by node and plan, for each caller

	mu      sync.Mutex
	active  []int // clients
	clients int   // so far
	answers histogram.Histogram
	done    int64
	failed  int64
}

const soakPlans = 3

func newSoakLoad(t *testing.T, nodes []*servertest.Process) *soakLoad {
	t.Helper()
	l := &soakLoad{nodes: len(nodes)}
	for _, p := range nodes {
		for plan := range soakPlans {
			target := openload.Target{
				URL: "redis://" + p.Addr("resp"), Domain: "shop", Key: "client", Connections: 4,
				Attributes: [][2]string{{"plan", fmt.Sprint("p", plan)}},
			}
			askers, closed, err := target.Open(soakCallers)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(closed)
			l.ask = append(l.ask, askers)
		}
	}
	return l
}

// draw returns a client, and its plan.
func (l *soakLoad) draw() (client, plan int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.active) < soakActive || rand.Float64() < soakNew {
		l.clients++
		if len(l.active) < soakActive {
			l.active = append(l.active, l.clients)
		} else {
			l.active[rand.IntN(soakActive)] = l.clients
		}
		client = l.clients
	} else {
		client = l.active[rand.IntN(len(l.active))]
	}
	// The names of real clients come in no order.
	return client * 1_640_531_527 % (1 << 31), client % soakPlans
}

// caller returns the Asker of a caller.
func (l *soakLoad) caller(i int) openload.Asker {
	return soakAsker(func(ctx context.Context) (bool, error) {
		client, plan := l.draw()
		asked := time.Now()
		allowed, err := l.ask[rand.IntN(l.nodes)*soakPlans+plan][i].Ask(ctx, client)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.answers.Add(time.Since(asked), 1)
		if l.done++; err != nil {
			l.failed++
		}
		return allowed, err
	})
}

type soakAsker func(ctx context.Context) (bool, error)

func (f soakAsker) Ask(ctx context.Context, _ int) (bool, error) { return f(ctx) }

// read reads the answers since the last call.
func (l *soakLoad) read(s *soakSample) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.decisions, s.failed = l.done, l.failed
	s.p50, s.p99 = l.answers.Quantile(0.5), l.answers.Quantile(0.99)
	l.answers = histogram.Histogram{}
}

// readServer reads what the server knows of itself.
func readServer(t *testing.T, server *pgtest.Server, s *soakSample) {
	t.Helper()
	stats := server.Text(`select format('%s %s %s %s %s %s %s %s %s %s %s',
		pg_table_size(relid), pg_indexes_size(relid), n_live_tup, n_dead_tup, n_tup_ins, n_tup_upd, n_tup_hot_upd, n_tup_del, autovacuum_count,
		(select count(*) from pg_stat_activity where backend_type = 'autovacuum worker'), pg_current_wal_lsn() - '0/0'::pg_lsn)
		from pg_stat_user_tables where schemaname = 'weir' and relname = 'states'`)
	_, err := fmt.Sscan(stats, &s.table, &s.index, &s.live, &s.dead, &s.inserted, &s.updated, &s.hot, &s.deleted,
		&s.vacuums, &s.on, &s.wal)
	if err != nil {
		t.Fatalf("%q: %v", stats, err)
	}
	s.cpu = server.CPU().Milliseconds()
	for _, found := range vacuumed.FindAllStringSubmatch(server.Log(), -1) {
		var times [3]float64
		for i := range times {
			if times[i], err = strconv.ParseFloat(found[1+i], 64); err != nil {
				t.Fatalf("%q: %v", found[0], err)
			}
		}
		s.vacuumCPU += int64(1000 * (times[0] + times[1]))
		s.vacuumMS += int64(1000 * times[2])
	}
}

// vacuumed finds how long autovacuum took for a table, with its statistics.
var vacuumed = regexp.MustCompile(
	`automatic (?:aggressive )?(?:vacuum|analyze) of table "(?:[^\n]*\n\t)*?[^\n]*system usage: CPU: user: (\S+) s, system: (\S+) s, elapsed: (\S+) s`)
