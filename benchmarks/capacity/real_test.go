//go:build soak

package capacity

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/lease"
	"github.com/weir-rl/weir/store/redis"
)

// The tests below hold the simulation against a fleet of processes that share one real Redis: this
// test binary, started again. The network between them is slow, so that what the processes take of
// a busy machine is little beside a round trip; the simulation gets the round trip that the
// processes measured.

// workerVariable in the environment makes the test binary a worker; it holds its orders.
const workerVariable = "WEIR_TEST_CAPACITY_WORKER"

func TestMain(m *testing.M) {
	if orders := os.Getenv(workerVariable); orders != "" {
		if err := work(orders); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// orders is what a worker does.
type orders struct {
	URL          string
	Seed         uint64
	Config       algo.Config
	Strata       []Stratum // what this worker gets
	Warm, Length time.Duration
}

// report is what a worker did while it was measured.
type report struct {
	Decisions, Admitted, Local float64
	Operations, Calls          float64
	RoundTrip                  time.Duration // the mean of small questions
	Late                       time.Duration // by how much requests were sent too late, in the mean
}

// counted counts the charges of calls that lend beyond the first of each, since Redis' statistics
// count such a call as one decision.
type counted struct {
	*redis.Store
	more atomic.Int64
}

func (c *counted) TakeAhead(
	ctx context.Context, minWait, maxWait time.Duration, charges []store.Charge, ahead []algo.Ahead,
	results []algo.Result,
) (now, asked int64, err error) {
	c.more.Add(int64(len(charges) - 1))
	return c.Store.TakeAhead(ctx, minWait, maxWait, charges, ahead, results)
}

// work runs a worker: it begins when a line comes on standard input, and writes its report.
func work(text string) error {
	var o orders
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	limit, err := algo.New(o.Config)
	if err != nil {
		return err
	}
	s, err := redis.Open(redis.Options{URL: o.URL, RememberRefusals: time.Second, Timeout: 10 * time.Second})
	if err != nil {
		return err
	}
	lender := &counted{Store: s}
	leased, err := lease.New(lender, lease.Options{})
	if err != nil {
		return err
	}
	defer func() { _ = leased.Close() }()
	counter := &rule.Counter{ID: 0x5EED, Group: 1, Domain: "test", Limit: limit}
	if l := limit.Lease(); l != nil {
		counter.Lease = &rule.Counter{ID: 0x5EED1EA5E, Group: 1, Domain: "test", Limit: l}
	}
	operations := func() float64 {
		stats := s.Stats()
		return float64(stats.Decisions-stats.Merged) + float64(lender.more.Load())
	}
	ctx := context.Background()
	if _, err := s.Time(ctx); err != nil {
		return err
	}
	fmt.Println("ready")
	if _, err := io.ReadFull(os.Stdin, make([]byte, 1)); err != nil {
		return err
	}

	var mu sync.Mutex
	var r report
	var failed error
	var pending sync.WaitGroup
	begin := time.Now()
	decide := func(key string, at time.Duration) {
		charges, results := []store.Charge{{Counter: counter, Limit: limit, Key: []byte(key),
			Ask: algo.Ask{Cost: 1, MaxDelay: -1}}}, make([]algo.Result, 1)
		late := time.Since(begin) - at
		_, local, err := leased.TakeWithin(ctx, 0, 0, charges, results)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err != nil:
			failed = err
		case at >= o.Warm:
			r.Decisions++
			r.Late += late
			if results[0].Allowed {
				r.Admitted++
			}
			if local {
				r.Local++
			}
		}
	}
	done := make(chan struct{})
	var trips int
	pending.Go(func() { // the round trip
		for tick := time.NewTicker(50 * time.Millisecond); ; {
			select {
			case <-done:
				tick.Stop()
				return
			case <-tick.C:
			}
			sent := time.Now()
			_, err := s.Time(ctx)
			mu.Lock()
			if err != nil {
				failed = err
			}
			r.RoundTrip += time.Since(sent)
			trips++
			mu.Unlock()
		}
	})
	source := newSource(rand.New(rand.NewPCG(o.Seed, 1)), o.Strata)
	var before, calls float64
	warm := false
	for next := time.Duration(0); ; {
		after, stratum, number := source.next()
		if next += time.Duration(after); next >= o.Warm+o.Length {
			break
		}
		time.Sleep(time.Until(begin.Add(next)))
		if next >= o.Warm && !warm {
			warm = true
			before, calls = operations(), float64(s.Stats().Calls)
		}
		at := next
		pending.Go(func() { decide(fmt.Sprintf("%d-%d", stratum, number), at) })
	}
	r.Operations, r.Calls = operations()-before, float64(s.Stats().Calls)-calls
	close(done)
	pending.Wait()
	if failed != nil {
		return failed
	}
	r.RoundTrip /= time.Duration(max(trips, 1))
	r.Late /= time.Duration(max(r.Decisions, 1))
	return json.NewEncoder(os.Stdout).Encode(r)
}

// fleet runs workers against a Redis that is delay away, each way, and adds up their reports.
func fleet(t *testing.T, workers int, delay time.Duration, o orders) report {
	server := redistest.Start(t)
	proxy := redistest.Proxy(t, server.Addr())
	proxy.Delay(delay)
	o.URL = "redis://" + proxy.Addr()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	type worker struct {
		cmd *exec.Cmd
		in  io.WriteCloser
		out io.ReadCloser
	}
	all := make([]*worker, workers)
	for i := range all {
		o.Seed = uint64(i + 1)
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		w := &worker{cmd: exec.CommandContext(t.Context(), self)}
		all[i] = w
		w.cmd.Env = append(os.Environ(), workerVariable+"="+string(text))
		w.cmd.Stderr = os.Stderr
		if w.in, err = w.cmd.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		if w.out, err = w.cmd.StdoutPipe(); err != nil {
			t.Fatal(err)
		}
		if err := w.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(w.out, make([]byte, len("ready\n"))); err != nil {
			t.Fatalf("worker %d does not begin: %v", i, err)
		}
	}
	for _, w := range all {
		if _, err := w.in.Write([]byte("\n")); err != nil {
			t.Fatal(err)
		}
	}
	var sum report
	for i, w := range all {
		var r report
		if err := json.NewDecoder(w.out).Decode(&r); err != nil {
			t.Fatalf("worker %d: %v", i, err)
		}
		if err := w.cmd.Wait(); err != nil {
			t.Fatalf("worker %d: %v", i, err)
		}
		sum.Decisions += r.Decisions
		sum.Admitted += r.Admitted
		sum.Local += r.Local
		sum.Operations += r.Operations
		sum.Calls += r.Calls
		sum.RoundTrip += r.RoundTrip / time.Duration(workers)
		sum.Late += r.Late / time.Duration(workers)
	}
	return sum
}

// TestReal compares eight processes with the simulation of them.
func TestReal(t *testing.T) {
	const workers = 8
	fmt.Println(
		"| | real: operations a decision | simulated | calls | simulated | decided by nodes | simulated | admitted | simulated | round trip |")
	fmt.Println("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
	for _, c := range []struct {
		name   string
		config algo.Config
		strata []Stratum
		delay  time.Duration
	}{
		{"one key, half its limit", algo.Config{Algorithm: algo.TokenBucket, N: 100_000, Window: time.Minute}, []Stratum{{Keys: 1, Rate: 833}}, 20 * time.Millisecond},
		{"one key, three times its limit", algo.Config{Algorithm: algo.TokenBucket, N: 20_000, Window: time.Minute, Burst: 100}, []Stratum{{Keys: 1, Rate: 1000}}, 20 * time.Millisecond},
		{"three windows of 2 s, three times their limit", algo.Config{Algorithm: algo.FixedWindow, N: 300, Window: 2 * time.Second}, []Stratum{{Keys: 3, Rate: 450}}, 20 * time.Millisecond},
		{"one key, half its limit, leased", algo.Config{Algorithm: algo.TokenBucket, N: 100_000, Window: time.Minute, Lease: 5}, []Stratum{{Keys: 1, Rate: 833}}, 20 * time.Millisecond},
		{"one key, three times its limit, leased", algo.Config{Algorithm: algo.TokenBucket, N: 20_000, Window: time.Minute, Burst: 2000, Lease: 5}, []Stratum{{Keys: 1, Rate: 1000}}, 20 * time.Millisecond},
		{"a log, 1.2 times its limit, leased", algo.Config{Algorithm: algo.SlidingLog, N: 5000, Window: 5 * time.Second, Lease: 20}, []Stratum{{Keys: 1, Rate: 1200}}, 20 * time.Millisecond},
		{"Zipf 1.1 over 10,000 keys, leased", algo.Config{Algorithm: algo.TokenBucket, N: 100_000, Window: time.Minute, Lease: 5}, Zipf(10_000, 1.1, 1500, 20, 2, 1), 20 * time.Millisecond},
		{"Zipf 1.1 over 10,000 keys", algo.Config{Algorithm: algo.TokenBucket, N: 2000, Window: time.Minute, Burst: 200}, Zipf(10_000, 1.1, 1500, 20, 2, 1), 20 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := orders{Config: c.config, Warm: 5 * time.Second, Length: 15 * time.Second}
			for _, s := range c.strata {
				s.Rate /= workers
				o.Strata = append(o.Strata, s)
			}
			real := fleet(t, workers, c.delay, o)
			r := run(t, Scenario{
				Seed: 1, Nodes: workers, Limit: limitOf(t, c.config), Strata: c.strata, RoundTrip: real.RoundTrip,
				RememberRefusals: time.Second, Warm: o.Warm, Length: o.Length,
			})
			per := func(n float64) float64 { return n / real.Decisions }
			fmt.Printf("| %s | %.3f | %.3f | %.3f | %.3f | %.1f %% | %.1f %% | %.1f %% | %.1f %% | %.2f ms |\n", c.name,
				per(real.Operations), r.PerDecision(r.Operations), per(real.Calls), r.PerDecision(r.Calls),
				100*per(real.Local), 100*r.Local(), 100*per(real.Admitted), 100*r.PerDecision(r.Admitted),
				real.RoundTrip.Seconds()*1e3)
			if real.Late > real.RoundTrip/4 {
				t.Logf("requests were sent %v too late in the mean: the machine is too busy for this", real.Late)
			}
			near(t, "decisions", r.Decisions, real.Decisions, 0.05)
			near(t, "operations a decision", r.PerDecision(r.Operations), per(real.Operations), 0.1)
			near(t, "calls a decision", r.PerDecision(r.Calls), per(real.Calls), 0.1)
			near(t, "admitted", r.PerDecision(r.Admitted), per(real.Admitted), 0.1)
			if math.Abs(r.Local()-per(real.Local)) > 0.005 { // a few among thousands are chance
				near(t, "decided by nodes", r.Local(), per(real.Local), 0.1)
			}
		})
	}
}
