//go:build !race

package capacity

import (
	"fmt"
	"math"
	"os"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
)

// The tests below make the tables of docs/operating/capacity.md. They run in a small form: shorter,
// and with fewer nodes where their number is all one. scripts/measure capacity runs the whole form,
// and prints it.

// wholeVariable in the environment runs the whole form.
const wholeVariable = "WEIR_CAPACITY"

var whole = os.Getenv(wholeVariable) != ""

// seeds returns the seeds for each row. The whole form runs all.
func seeds() []uint64 {
	if whole {
		return []uint64{1, 2, 3}
	}
	return []uint64{1}
}

// printf writes to the table, if it is asked for.
func printf(format string, a ...any) {
	if whole {
		fmt.Printf(format, a...)
	}
}

func minutely(n int64, lease int) algo.Config {
	return algo.Config{Algorithm: algo.TokenBucket, N: n, Window: time.Minute, Lease: lease}
}

func secondly(n int64, lease int) algo.Config {
	return algo.Config{Algorithm: algo.TokenBucket, N: n, Window: time.Second, Lease: lease}
}

func logged(lease int) algo.Config {
	return algo.Config{Algorithm: algo.SlidingLog, N: 10_000, Window: 10 * time.Second, Lease: lease}
}

// oneKey is the table of one key.
var oneKey = []struct {
	name       string
	config     algo.Config
	nodes      int
	load       float64 // beside the limit
	balance    Balance
	operations float64 // a decision, as docs/operating/capacity.md says
	admitted   float64 // beside the ideal: at least
}{
	{"100,000/min", minutely(100_000, 5), 20, 0.5, Balance{}, 0.019, 1},
	{"100,000/min", minutely(100_000, 5), 20, 1, Balance{}, 0.0094, 1},
	{"100,000/min", minutely(100_000, 5), 20, 3, Balance{}, 0.049, 0.995},
	{"100,000/min, 90 % on one node", minutely(100_000, 5), 20, 0.9, Balance{Skew: 0.9, Move: 10 * time.Second}, 0.013, 1},
	{"100,000/min, 90 % on one node", minutely(100_000, 5), 20, 3, Balance{Skew: 0.9, Move: 10 * time.Second}, 0.0057, 0.98},
	{"20,000/s", secondly(20_000, 5), 20, 0.9, Balance{}, 0.038, 0.999},
	{"20,000/s", secondly(20_000, 5), 20, 3, Balance{}, 0.076, 0.995},
	{"20,000/s", secondly(20_000, 20), 20, 0.9, Balance{}, 0.018, 0.999},
	{"20,000/s", secondly(20_000, 20), 20, 3, Balance{}, 0.048, 0.999},
	{"1,000,000/min", minutely(1_000_000, 5), 1000, 1, Balance{}, 0.053, 1},
	{"1,000,000/min", minutely(1_000_000, 20), 1000, 1, Balance{}, 0.011, 1},
	{"600/min", minutely(600, 5), 3, 0.9, Balance{}, 0.38, 0.999},
	{"600/min", minutely(600, 5), 20, 0.9, Balance{}, 1.016, 0.999},
	{"sliding_log 10,000/10 s", logged(5), 20, 1.2, Balance{}, 0.123, 0.95},
	{"sliding_log 10,000/10 s", logged(5), 20, 3, Balance{}, 0.067, 0.99},
	{"sliding_log 10,000/10 s", logged(20), 20, 1.2, Balance{}, 0.034, 0.84},
	{"sliding_log 10,000/10 s", logged(20), 20, 3, Balance{}, 0.024, 0.92},
}

// TestSimulatedOneKey says what leases save where all requests are of one key, 1 ms from the store.
// Clocks are off by up to 0.05 %.
func TestSimulatedOneKey(t *testing.T) {
	effort.Long(t, "simulates fleets")
	printf(
		"| one key | lease | nodes | load | exact: operations a decision | leased | decided by nodes | admitted ÷ ideal | over | Jain's index |\n")
	printf("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, row := range oneKey {
		name := fmt.Sprintf("%s/lease=%d%%/nodes=%d/load=%v", row.name, row.config.Lease, row.nodes, row.load)
		t.Run(name, func(t *testing.T) {
			if row.nodes > 20 && !whole {
				effort.Long(t, "simulates a thousand nodes")
			}
			w := row.config.Window
			rate := row.load * float64(row.config.N) / w.Seconds()
			s := Scenario{
				Nodes: row.nodes, Strata: []Stratum{{Keys: 1, Rate: rate}}, Balance: row.balance,
				RememberRefusals: time.Second, ClockError: 0.0005, Serve: Measured.Store,
			}
			// Until the first generations are over, and at three times its rate until a bucket is
			// empty and a log is full, figures are of a beginning. They swing with the
			// generations, so some of these are counted.
			s.Warm, s.Length = w*time.Duration(row.config.Lease)/30,
				max(10*time.Second, w*time.Duration(row.config.Lease)/50)
			switch {
			case row.config.Algorithm == algo.SlidingLog:
				s.Warm, s.Length = 2*w, 4*w
			case rate < 100:
				s.Length = 5 * time.Minute
			case row.load > 1:
				s.Warm, s.Length = w/2+time.Second, min(w, 10*time.Second)
			}
			if w == time.Minute && row.load > 1 || row.balance.Skew > 0 {
				s.Length = w
			}
			if whole {
				s.Warm *= 2
				s.Length *= 4
			}
			var sum, exact Result
			for _, seed := range seeds() {
				s.Seed = seed
				s.Limit = limitOf(t, row.config)
				r := run(t, s)
				sum.add(&r.Tally, 1)
				sum.Jain += r.Jain / float64(len(seeds()))
				c := row.config
				c.Lease = 0
				s.Limit = limitOf(t, c)
				r = run(t, s)
				exact.add(&r.Tally, 1)
			}
			printf("| %s | %d %% | %d | %v | %.3f | **%.3f** | %.1f %% | %.4f | 0 | %.4f |\n", row.name,
				row.config.Lease, row.nodes, row.load,
				exact.PerDecision(exact.Operations), sum.PerDecision(sum.Operations), 100*sum.Local(),
				sum.Admitted/sum.Ideal, sum.Jain)
			near(t, "operations a decision", sum.PerDecision(sum.Operations), row.operations, 0.2)
			if share := sum.Admitted / sum.Ideal; share < row.admitted-1e-4 {
				t.Errorf("%.4f of what one place would admit; it must be %v", share, row.admitted)
			}
			if fair := sum.Jain; row.load > 1 && row.balance.Skew == 0 && fair < 0.9 {
				t.Errorf("Jain's index of what nodes admit is %.4f", fair)
			}
		})
	}
}

// leasable is the share of the requests that are for keys which are asked for often enough to lease
// units: two and a half times a generation and node.
func leasable(strata []Stratum, nodes float64, e time.Duration) float64 {
	var all, busy float64
	for _, s := range strata {
		rate := s.Rate * float64(s.Keys)
		all += rate
		if s.Rate/nodes*e.Seconds() >= 2.5 {
			busy += rate
		}
	}
	return busy / all
}

// distinct is how many keys are asked for in a time, in the mean.
func distinct(strata []Stratum, d time.Duration) (n float64) {
	for _, s := range strata {
		n -= float64(s.Keys) * math.Expm1(-s.Rate*d.Seconds())
	}
	return n
}

// TestSimulatedLongTail says what leases save if requests are for 10^9 keys, few of which are asked
// for often: 10^7 a second on 1,000 nodes. The limit of each key is never reached, and E is 1.5 s.
// What counts is how often a key comes to a node; so the small form has fewer of both.
func TestSimulatedLongTail(t *testing.T) {
	if !whole {
		effort.Long(t, "simulates millions of requests")
	}
	printf(
		"| keys | a key's requests reach | decided by nodes | operations a decision | calls a decision | µs a decision: node | Redis | busiest Redis | median | p99 |\n")
	printf("| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, s := range []float64{1, 1.1, 1.2} {
		defer printf("Zipf %v: %.0f million keys are asked for in a minute\n", s,
			distinct(Zipf(1e9, s, 1e7, 4, 1.25, 0), time.Minute)/1e6)
	}
	for _, home := range []bool{false, true} {
		for _, s := range []float64{1, 1.1, 1.2} {
			t.Run(fmt.Sprintf("zipf=%v/home=%v", s, home), func(t *testing.T) {
				nodes, total, share, length := 1000, 1e7, 0.0005, 3*time.Second
				if !whole {
					nodes, total, share, length = 20, 2e5, 0.005, 3*time.Second
				}
				strata := Zipf(1e9, s, total, 4, 1.25, share)
				for _, lease := range []int{0, 5} {
					c := minutely(100_000_000, lease)
					r := run(t, Scenario{
						Seed: 1, Nodes: nodes, Partitions: 256, Stores: 256, Limit: limitOf(t, c), Strata: strata, Balance: Balance{Home: home},
						RememberRefusals: time.Second, ClockError: 0.0005, Ramp: 2 * time.Second, Warm: 4500 * time.Millisecond, Length: length, Serve: Measured.Store,
					})
					reach := "any node"
					if home {
						reach = "one node"
					}
					what := "exact"
					if lease > 0 {
						what = "leased"
					}
					node, redis := Measured.NodeTime(&r.Tally).Seconds(), Measured.StoreTime(&r.Tally).Seconds()
					printf("| Zipf %v, %s | %s | %.1f %% | %.3f | %.3f | %.1f | %.1f | %.0f %% | %v | %v |\n", s, what,
						reach, 100*r.Local(),
						r.PerDecision(r.Operations), r.PerDecision(r.Calls), node*1e6, redis*1e6, 100*r.Busy,
						r.Median.Round(10*time.Microsecond), r.P99.Round(10*time.Microsecond))
					if lease == 0 {
						near(t, "local", r.Local(), 0, 0)
						continue
					}
					per := float64(nodes)
					if home {
						per = 1
					}
					near(t, "share of the decisions that nodes make", r.Local(),
						leasable(strata, per, 1500*time.Millisecond), 0.2)
					if ops := r.PerDecision(r.Operations); ops > 1.1*(1-r.Local())+0.1 {
						t.Errorf("%.3f operations a decision, where nodes decide %.3f", ops, r.Local())
					}
				}
			})
		}
	}
}

// TestSimulatedDeath has nodes die while they hold units: others are refused a little while these
// count as used, and nobody is admitted beyond the limit.
func TestSimulatedDeath(t *testing.T) {
	for _, c := range []algo.Config{minutely(60_000, 5), logged(5),
		{Algorithm: algo.FixedWindow, N: 5000, Window: 5 * time.Second, Lease: 10}} {
		t.Run(c.Algorithm.String(), func(t *testing.T) {
			s := Scenario{
				Seed: 7, Nodes: 20, Limit: limitOf(t, c), Strata: []Stratum{{Keys: 1, Rate: 2000}}, Jitter: 0.5, ClockError: 0.0005,
				Warm: 30 * time.Second, Length: 30 * time.Second, Churn: 2 * time.Second, Down: time.Second,
			}
			r := run(t, s)
			if r.Admitted < 0.9*r.Ideal || r.Admitted > 1.02*r.Ideal {
				t.Errorf("%v admitted of %v, with nodes that die", r.Admitted, r.Ideal)
			}
			if r.Local() < 0.5 {
				t.Errorf("nodes decided %v by themselves", r.Local())
			}
		})
	}
}

// TestSimulatedJudge has a judge that allows a little less than the limit: it finds what goes
// beyond, also where nodes decide.
func TestSimulatedJudge(t *testing.T) {
	for _, c := range []algo.Config{minutely(6000, 50), logged(20),
		{Algorithm: algo.FixedWindow, N: 5000, Window: 5 * time.Second, Lease: 20}} {
		w, err := newWorld(Scenario{
			Seed: 8, Nodes: 20, Limit: limitOf(t, c), Strata: []Stratum{{Keys: 1, Rate: 3000}}, Warm: 10 * time.Second, Length: 20 * time.Second,
		})
		if err != nil {
			t.Fatal(err)
		}
		w.guarantee.n, w.guarantee.b = w.guarantee.n*9/10, w.guarantee.b*9/10
		w.run()
		if r := w.result(0); r.Over == 0 || r.Here == 0 {
			t.Errorf("%v: %d admissions beyond nine tenths of it, %v by nodes", c, r.Over, r.Here)
		}
	}
}
