//go:build soak && linux

package stores

import (
	"cmp"
	"context"
	"encoding/csv"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/histogram"
	"github.com/weir-rl/weir/internal/testkit/openload"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// What TestSoak asks, and what it does meanwhile.
const (
	soakedKeys    = 20_000
	soakedCallers = 16              // of each door
	soakedLoad    = 0.6             // of what the servers can do, together with those who ask
	soakedRound   = 5 * time.Minute // a load of package openload lasts an hour at most
	soakedFaults  = 120             // events in the whole time, as evenly as may be
)

// soakedRules are the rules of a version: their numbers change, and one is not always there.
func soakedRules(version int) string {
	text := fmt.Sprintf(`domain: shop
limits:
  - { name: api, per: [key], allow: [%d/s, 5000/hour], algorithm: token_bucket }
  - { name: log, per: [key], allow: %d/min, algorithm: sliding_log, ban: { after: 500, within: 1m, for: 5s } }
  - { name: window, per: [key], allow: 3000/10s, throttle: { soft: 10%% } }
`, 20+version%5, 300+10*(version%3))
	if version%2 == 0 {
		text += "  - { name: often, per: [key], allow: 100000/day, algorithm: fixed_window }\n"
	}
	return text
}

// soakedServer is a server under the load.
type soakedServer struct {
	name    string
	dir     string
	p       *servertest.Process
	node    *servertest.Node
	loads   []*soakedDoor
	mu      sync.Mutex
	answers histogram.Histogram // since the last sample
}

// soakedDoor is a door of it, and those who ask there.
type soakedDoor struct {
	server *soakedServer
	name   string
	askers []openload.Asker
}

// soakedSample is a row of the CSV: one of each server at a time.
type soakedSample struct {
	at          int64 // s
	server      int
	decisions   int64 // of all servers, as the others since the beginning
	failed      int64 // beside faults
	failedAmid  int64 // within one, or up to 2 s after it
	p99         time.Duration
	rss         int64
	heap        int64
	goroutines  int64
	files       int64
	connections int64
	faults      int64
}

var soakedColumns = []string{
	"at_s", "server", "decisions", "failed", "failed_in_faults", "p99_us", "rss_bytes", "heap_bytes", "goroutines", "files", "connections", "faults",
}

func (s soakedSample) row() (row []string) {
	for _, n := range []int64{s.at, int64(s.server), s.decisions, s.failed, s.failedAmid, s.p99.Microseconds(), s.rss,
		s.heap, s.goroutines, s.files, s.connections, s.faults} {
		row = append(row, strconv.FormatInt(n, 10))
	}
	return row
}

// soaked is the whole of it.
type soaked struct {
	t       *testing.T
	redis   *redistest.Server
	servers []*soakedServer
	ended   context.CancelFunc

	decisions, failed, failedAmid, faults atomic.Int64
	amid                                  atomic.Int64 // when the last fault has ended, and 2 s; far ahead within one
	first                                 atomic.Pointer[error]
	kinds                                 map[string]int
}

// TestSoak: two servers, one over Redis and one with its own store, at some 60 % load through three
// doors each for WEIR_SOAK (4h), while rules change, operators ban and grant, and Redis restarts.
// In the end memory, goroutines, files and connections must be as they were, and nothing may have
// failed beside the faults. WEIR_SOAK_CSV names a file for the samples, which docs/figures draws.
func TestSoak(t *testing.T) {
	lasts := 4 * time.Hour
	if text := os.Getenv("WEIR_SOAK"); text != "" {
		var err error
		if lasts, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	program := servertest.BuildProgram(t)
	s := &soaked{t: t, redis: redistest.Start(t, "appendonly yes", "maxmemory-policy noeviction"),
		kinds: map[string]int{}}
	for _, name := range []string{"redis", "embedded"} {
		of := &soakedServer{name: name, dir: t.TempDir()}
		servertest.WriteRules(t, filepath.Join(of.dir, "rules.yaml"), soakedRules(0))
		args := []string{"serve", "--rules=rules.yaml"}
		if name == "redis" {
			args = append(args, "--store="+s.redis.URL())
		}
		of.p = servertest.Launch(t, program, of.dir, args...)
		of.node = servertest.NodeOf(t, of.p.Stderr, of.p.Addr)
		of.node.AwaitBack()
		for _, door := range []struct{ name, url string }{
			{"http", "http://" + of.p.Addr("http")}, {"rls", "grpc://" + of.p.Addr("grpc")}, {"resp", "redis://" + of.p.Addr("resp")},
		} {
			target := openload.Target{URL: door.url, Domain: "shop", Key: "key", Connections: 4}
			askers, closed, err := target.Open(soakedCallers)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(closed)
			of.loads = append(of.loads, &soakedDoor{of, door.name, askers})
		}
		s.servers = append(s.servers, of)
	}
	rate := s.most() * soakedLoad
	t.Logf("%.0f requests a second, for %v", rate, lasts)
	ctx, ended := context.WithCancel(t.Context())
	defer ended()
	s.ended = ended
	var running sync.WaitGroup
	for _, of := range s.servers {
		for _, d := range of.loads {
			running.Go(func() { s.load(ctx, d, rate/6, lasts) })
		}
	}
	happens := make(chan struct{})
	go func() { defer close(happens); s.happen(ctx, lasts) }()
	samples := s.watch(&running, max(time.Second, lasts/400))
	ended()
	<-happens
	s.judge(samples, lasts)
}

// most finds how many requests a second all doors answer together.
func (s *soaked) most() float64 {
	const trial = 5 * time.Second
	s.amid.Store(0)
	var running sync.WaitGroup
	for _, of := range s.servers {
		for _, d := range of.loads {
			running.Go(func() { s.round(s.t.Context(), d, 0, trial) })
		}
	}
	running.Wait()
	n := s.decisions.Swap(0)
	if s.failed.Load() > 0 {
		s.t.Fatalf("%d requests failed before anything happened: %v", s.failed.Load(), *s.first.Load())
	}
	return float64(n) / trial.Seconds()
}

func (s *soaked) load(ctx context.Context, d *soakedDoor, rate float64, lasts time.Duration) {
	for until := time.Now().Add(lasts); ctx.Err() == nil; {
		left := time.Until(until)
		if left < time.Second {
			return
		}
		s.round(ctx, d, rate, min(left, soakedRound))
	}
}

// round makes one load.
func (s *soaked) round(ctx context.Context, d *soakedDoor, rate float64, lasts time.Duration) {
	askers := make([]openload.Asker, len(d.askers))
	for i := range askers {
		askers[i] = soakAskerOf(func(ctx context.Context, key int) (bool, error) {
			asked := time.Now()
			allowed, err := d.askers[i].Ask(ctx, key)
			if openload.Over(ctx) == nil {
				s.answered(d, time.Since(asked), err)
			}
			return allowed, err
		})
	}
	o := openload.Options{Rate: rate, For: lasts, Callers: soakedCallers, Keys: soakedKeys, Draw: openload.Zipf,
		Seed: rand.Uint64()}
	if _, err := openload.Run(ctx, &o, askers, nil); err != nil && ctx.Err() == nil {
		s.t.Errorf("%s of %s: %v", d.name, d.server.name, err)
	}
}

type soakAskerOf func(ctx context.Context, key int) (bool, error)

func (f soakAskerOf) Ask(ctx context.Context, key int) (bool, error) { return f(ctx, key) }

func (s *soaked) answered(d *soakedDoor, took time.Duration, err error) {
	s.decisions.Add(1)
	of := d.server
	of.mu.Lock()
	of.answers.Add(took, 1)
	of.mu.Unlock()
	switch {
	case err == nil:
	case time.Now().UnixNano() < s.amid.Load():
		s.failedAmid.Add(1)
	default:
		s.failed.Add(1)
		err = fmt.Errorf("%s of %s: %w", d.name, of.name, err)
		s.first.CompareAndSwap(nil, &err)
	}
}

// happen makes what happens meanwhile.
func (s *soaked) happen(ctx context.Context, lasts time.Duration) {
	pause := time.NewTicker(max(2*time.Second, lasts/soakedFaults))
	defer pause.Stop()
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
		s.faults.Add(1)
		switch n % 4 {
		case 0:
			s.kinds["restarts of Redis"]++
			s.amid.Store(1 << 62)
			s.redis.Kill()
			select {
			case <-ctx.Done():
			case <-time.After(time.Duration(n%3) * time.Second):
			}
			s.redis.Restart()
			s.amid.Store(time.Now().Add(2 * time.Second).UnixNano())
		case 1:
			s.kinds["reloads"]++
			for _, of := range s.servers {
				servertest.WriteRules(s.t, filepath.Join(of.dir, "rules.yaml"), soakedRules(n/4+1))
			}
		case 2:
			s.kinds["bans"]++
			s.order(http.MethodPost, "bans",
				fmt.Sprintf(`{"domain": "shop", "limit": "api", "key": ["key-%d"], "for": "10s", "reason": "soak"}`,
					n%50))
		default:
			s.kinds["grants"]++
			s.order(http.MethodPost, "grants",
				fmt.Sprintf(
					`{"domain": "shop", "limit": "log", "key": ["key-%d"], "for": "20s", "allow": "%d/min", "reason": "soak"}`, n%50, 1000+n))
		}
	}
}

func (s *soaked) order(method, what, body string) {
	for _, of := range s.servers {
		r, err := http.NewRequest(method, of.node.Admin+"/api/v1/"+what, strings.NewReader(body))
		if err != nil {
			s.t.Error(err)
			return
		}
		r.Header.Set("Content-Type", "application/json")
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			s.t.Errorf("%s: %v", what, err)
			continue
		}
		answer.Body.Close()
		if answer.StatusCode >= 300 {
			s.t.Errorf("%s %s: %s", what, body, answer.Status)
		}
	}
}

// watch samples until all loads have ended.
func (s *soaked) watch(running *sync.WaitGroup, every time.Duration) (samples []soakedSample) {
	over := make(chan struct{})
	go func() { running.Wait(); close(over) }()
	began, tick := time.Now(), time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-over:
			return samples
		case <-tick.C:
		}
		for i, of := range s.servers {
			sample := soakedSample{
				at: int64(time.Since(began).Round(time.Second).Seconds()), server: i, decisions: s.decisions.Load(),
				failed: s.failed.Load(), failedAmid: s.failedAmid.Load(), faults: s.faults.Load(),
			}
			of.read(s.t, &sample)
			samples = append(samples, sample)
		}
		writeCSV(s.t, soakedColumns, samples)
	}
}

var soakedMetrics = regexp.MustCompile(
	`(?m)^(process_resident_memory_bytes|go_memstats_heap_inuse_bytes|go_goroutines|process_open_fds|weir_connections\{[^}]*\}) (\S+)$`)

// read reads what a server says of itself.
func (of *soakedServer) read(t *testing.T, s *soakedSample) {
	of.mu.Lock()
	s.p99 = of.answers.Quantile(0.99)
	of.answers = histogram.Histogram{}
	of.mu.Unlock()
	_, _, body := servertest.Get(t, of.node.Admin+"/metrics")
	for _, found := range soakedMetrics.FindAllStringSubmatch(body, -1) {
		n, err := strconv.ParseFloat(found[2], 64)
		if err != nil {
			t.Fatalf("%q: %v", found[0], err)
		}
		switch name := found[1]; {
		case strings.HasPrefix(name, "process_resident"):
			s.rss = int64(n)
		case strings.HasPrefix(name, "go_memstats"):
			s.heap = int64(n)
		case name == "go_goroutines":
			s.goroutines = int64(n)
		case name == "process_open_fds":
			s.files = int64(n)
		default:
			s.connections += int64(n)
		}
	}
}

// writeCSV writes samples under their columns to the file that WEIR_SOAK_CSV names, if it does.
func writeCSV[S interface{ row() []string }](t *testing.T, columns []string, samples []S) {
	t.Helper()
	name := os.Getenv("WEIR_SOAK_CSV")
	if name == "" {
		return
	}
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	w := csv.NewWriter(f)
	_ = w.Write(columns) // an error stays until Error
	for i := range samples {
		_ = w.Write(samples[i].row())
	}
	w.Flush()
	if err := cmp.Or(w.Error(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

// judge holds the last quarter against the second one: the first fills tables and pools.
func (s *soaked) judge(samples []soakedSample, lasts time.Duration) {
	t := s.t
	if failed := s.failed.Load(); failed > 0 {
		t.Errorf("%d requests failed beside the faults; the first: %v", failed, *s.first.Load())
	}
	t.Logf("%d decisions; %d failed in faults; %v", s.decisions.Load(), s.failedAmid.Load(), s.kinds)
	for i, of := range s.servers {
		middle := func(from, to float64, value func(*soakedSample) int64) int64 {
			var list []int64
			for j := range samples {
				if share := float64(samples[j].at) / lasts.Seconds(); samples[j].server == i && share >= from &&
					share < to {
					list = append(list, value(&samples[j]))
				}
			}
			if len(list) < 5 {
				t.Fatalf("%d samples of %s between %v and %v of the time", len(list), of.name, from, to)
			}
			slices.Sort(list)
			return list[len(list)/2]
		}
		for _, m := range []struct {
			name   string
			value  func(*soakedSample) int64
			factor float64
			more   int64
		}{
			{"bytes of memory", func(s *soakedSample) int64 { return s.rss }, 1.1, 8 << 20},
			{"goroutines", func(s *soakedSample) int64 { return s.goroutines }, 1.1, 5},
			{"open files", func(s *soakedSample) int64 { return s.files }, 1, 5},
			{"connections", func(s *soakedSample) int64 { return s.connections }, 1, 0},
			{"p99, µs", func(s *soakedSample) int64 { return s.p99.Microseconds() }, 0, 0},
		} {
			was, is := middle(0.25, 0.5, m.value), middle(0.75, 1.01, m.value)
			t.Logf("%s: %s: %d, then %d", of.name, m.name, was, is)
			if m.factor > 0 && float64(is) > m.factor*float64(was)+float64(m.more) {
				t.Errorf("%s: %s have grown from %d to %d", of.name, m.name, was, is)
			}
		}
	}
}
