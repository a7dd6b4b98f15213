package capacity

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
)

func limitOf(t testing.TB, c algo.Config) *algo.Limit {
	t.Helper()
	l, err := algo.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func perMinute(t testing.TB, n int64) *algo.Limit {
	return limitOf(t, algo.Config{Algorithm: algo.TokenBucket, N: n, Window: time.Minute})
}

func run(t testing.TB, s Scenario) *Result {
	t.Helper()
	r, err := Run(s)
	if err != nil {
		t.Fatal(err)
	}
	if r.Late != 0 {
		t.Errorf("seed %d: %d units were used after their end", s.Seed, r.Late)
	}
	if r.Over != 0 {
		t.Errorf("seed %d: %d admissions beyond the guarantee of the limit", s.Seed, r.Over)
	}
	return r
}

func near(t *testing.T, what string, got, want, within float64) {
	t.Helper()
	if math.Abs(got-want) > within*want {
		t.Errorf("%s: %.4f, want %.4f ±%.1f %%", what, got, want, 100*within)
	}
}

// TestGroupCommit holds the network against arithmetic. Requests for one of m equal keys come by
// chance, a = λT of them in a round trip T. A call begins either when one comes while none is
// under way, with that one, or when another ends, with the K that came meanwhile, if there are any.
// So it carries max(1, K) decisions, a + e^-a in the mean. One alone is one operation; K that fall
// on m keys by chance are m(1 − e^(−a/m)), which already has 0 for K = 0.
func TestGroupCommit(t *testing.T) {
	limit := limitOf(t, algo.Config{Algorithm: algo.FixedWindow, N: algo.MaxN, Window: time.Hour})
	const trip = 2 * time.Millisecond
	for _, m := range []float64{1, 7, 1000} {
		for _, a := range []float64{0.02, 0.3, 1, 4, 40} {
			for _, nodes := range []float64{1, 20} {
				t.Run(fmt.Sprintf("keys=%v/atrip=%v/nodes=%v", m, a, nodes), func(t *testing.T) {
					rate := a / trip.Seconds()
					r := run(t, Scenario{
						Seed: 1, Nodes: int(nodes), Limit: limit, Strata: []Stratum{{Keys: int64(m), Rate: rate * nodes / m}},
						RoundTrip: trip, Warm: 10 * trip, Length: time.Duration(40_000 / rate / nodes * float64(time.Second)),
					})
					idle := math.Exp(-a)
					decisions := a + idle
					near(t, "calls a decision", r.PerDecision(r.Calls), 1/decisions, 0.03)
					near(t, "operations a decision", r.PerDecision(r.Operations), (idle+m*(1-math.Exp(-a/m)))/decisions,
						0.03)
					near(t, "admitted", r.Admitted, r.Decisions, 0)
					// A decision that opens a call waits for one trip. A decision that comes during
					// a call waits for the rest of it, and for one trip.
					if r.Longest < trip || r.Longest > 2*trip*33/32 {
						t.Errorf("the longest decision took %v; it must be within one to two round trips of %v",
							r.Longest, trip)
					}
				})
			}
		}
	}
}

// TestStoreInLine holds the wait at a store against the formula of Pollaczek and Khinchin for calls
// that come by chance and take the same time each: ρ/2(1−ρ) of it.
func TestStoreInLine(t *testing.T) {
	limit := limitOf(t, algo.Config{Algorithm: algo.FixedWindow, N: algo.MaxN, Window: time.Hour})
	for _, busy := range []float64{0.3, 0.6, 0.8} {
		const serve = 100 * time.Microsecond
		r := run(t, Scenario{
			Seed: 2, Nodes: 2000, Limit: limit, Strata: []Stratum{{Keys: 1_000_000, Rate: busy / serve.Seconds() / 1e6}},
			RoundTrip: time.Nanosecond, Serve: Serve{Operation: serve}, Warm: time.Second, Length: 10 * time.Second,
		})
		near(t, "busy", r.Busy, busy, 0.02)
		near(t, "calls", r.PerDecision(r.Calls), 1, 0.01)
		mean := float64(r.Mean - serve)
		near(t, "wait", mean/float64(serve), busy/(2*(1-busy)), 0.05)
	}
}

// TestExactIsExact has more requests than a limit admits: it admits all that one place would, never
// more, also while nodes die.
func TestExactIsExact(t *testing.T) {
	for _, c := range []algo.Config{
		{Algorithm: algo.TokenBucket, N: 6000, Window: time.Minute, Burst: 50},
		{Algorithm: algo.FixedWindow, N: 600, Window: time.Second},
		{Algorithm: algo.SlidingLog, N: 300, Window: time.Second},
	} {
		for _, churn := range []time.Duration{0, 50 * time.Millisecond} {
			t.Run(fmt.Sprintf("%v/churn=%v", c.Algorithm, churn), func(t *testing.T) {
				r := run(t, Scenario{
					Seed: 3, Nodes: 20, Partitions: 4, Limit: limitOf(t, c), Strata: []Stratum{{Keys: 3, Rate: 2000}}, Jitter: 0.5,
					RememberRefusals: time.Second, Churn: churn, Down: 30 * time.Millisecond, Warm: 5 * time.Second, Length: 10 * time.Second,
				})
				if r.Admitted+r.Lost < 0.99*r.Ideal || r.Admitted > 1.01*r.Ideal {
					t.Errorf("%v admitted and %v lost of %v that one place would admit", r.Admitted, r.Lost, r.Ideal)
				}
				if (churn > 0) != (r.Lost > 0) {
					t.Errorf("%v lost, with a node that dies each %v", r.Lost, churn)
				}
				if r.Decisions < 55_000 || r.Decisions+r.Lost < 59_000 || r.Decisions+r.Lost > 61_000 {
					t.Errorf("%v decisions and %v lost of some 60000", r.Decisions, r.Lost)
				}
			})
		}
	}
}

// TestJudge has a store that admits one more than the judge allows, whatever the algorithm.
func TestJudge(t *testing.T) {
	for _, c := range []algo.Config{
		{Algorithm: algo.TokenBucket, N: 600, Window: time.Minute, Burst: 50},
		{Algorithm: algo.FixedWindow, N: 100, Window: time.Second},
		{Algorithm: algo.SlidingLog, N: 100, Window: time.Second},
	} {
		less := c
		less.N--
		if c.Burst > 0 {
			less.N, less.Burst = c.N, c.Burst-1
		}
		g, same := newGuarantee(limitOf(t, less)), newGuarantee(limitOf(t, c))
		limit, over, wrong := limitOf(t, c), 0, 0
		var s algo.State
		var strict, right judge
		for now := int64(begun); now < begun+5e6; now += 1000 {
			if limit.Take(&s, now, algo.Ask{Cost: 1, MaxDelay: -1}).Allowed {
				if !g.admit(&strict, now) {
					over++
				}
				if !same.admit(&right, now) {
					wrong++
				}
			}
		}
		if over == 0 || wrong > 0 {
			t.Errorf("%v: %d admissions found beyond a limit of one less, and %d beyond the limit itself", limit, over,
				wrong)
		}
	}
}

// TestSameSeed runs a scenario with all that is random twice: nothing differs but how long it took.
func TestSameSeed(t *testing.T) {
	s := Scenario{
		Seed: 4, Nodes: 9, Partitions: 3, Stores: 2, Limit: perMinute(t, 600), Strata: Zipf(1_000_000, 1.1, 5000, 5, 2, 0.01), Jitter: 0.3,
		Balance: Balance{Skew: 0.5, Move: time.Second}, RememberRefusals: time.Second, Churn: time.Second, Down: 300 * time.Millisecond, Length: 5 * time.Second,
		Serve: Serve{Call: 10 * time.Microsecond, Operation: 3 * time.Microsecond},
	}
	texts := map[string]bool{}
	for _, seed := range []uint64{4, 4, 5} {
		s.Seed = seed
		r := run(t, s)
		r.Took = 0
		texts[fmt.Sprintf("%+v", *r)] = true
	}
	if len(texts) != 2 {
		t.Errorf("three runs with two seeds came to %d results", len(texts))
	}
}

// TestSampled has the tail of a Zipf distribution simulated by a hundredth of its keys, and in
// full: what a decision takes is the same.
func TestSampled(t *testing.T) {
	s := Scenario{Seed: 5, Nodes: 10, Partitions: 8, Limit: perMinute(t, 600), Warm: time.Second,
		Length: 20 * time.Second, RememberRefusals: time.Second}
	var rows [2]*Result
	for i, share := range []float64{1, 0.02} {
		s.Strata = Zipf(100_000, 1, 20_000, 20, 1.5, share)
		rows[i] = run(t, s)
	}
	a, b := rows[0], rows[1]
	near(t, "decisions", b.Decisions, a.Decisions, 0.02)
	near(t, "admitted", b.PerDecision(b.Admitted), a.PerDecision(a.Admitted), 0.03)
	near(t, "operations a decision", b.PerDecision(b.Operations), a.PerDecision(a.Operations), 0.03)
	near(t, "local", b.Local(), a.Local(), 0.05)
	if b.Events > a.Events*2/3 {
		t.Errorf("%d events in place of %d", b.Events, a.Events)
	}
}

func TestZipfStrata(t *testing.T) {
	for _, s := range []float64{0.8, 1, 1.1} {
		var whole float64
		for k := 500_000; k > 0; k-- {
			whole += math.Pow(float64(k), -s)
		}
		near(t, "harmonic", harmonic(1, 500_000, s), whole, 1e-9)
		strata := Zipf(500_000, s, 1000, 10, 1.2, 0)
		var keys int64
		var rate float64
		for _, x := range strata {
			keys += x.Keys
			rate += float64(x.Keys) * x.Rate
		}
		if keys != 500_000 {
			t.Errorf("the strata have %d keys", keys)
		}
		near(t, "rate of all", rate, 1000, 1e-9)
		near(t, "rate of the first", strata[0].Rate, 1000/whole, 1e-9)
		near(t, "rate of the tenth", strata[9].Rate, 1000/whole*math.Pow(10, -s), 1e-9)
	}
}

// TestAgenda has events come out by their instants, and by turn within one.
func TestAgenda(t *testing.T) {
	var a agenda
	x := uint64(1)
	var last event
	for range 100_000 {
		x = mix(x, 7)
		if x%3 > 0 || len(a.heap) == 0 {
			a.add(event{at: max(last.at, 0) + int64(x>>8%50)})
			continue
		}
		if e := a.pop(); e.before(&last) {
			t.Fatalf("%+v came after %+v", e, last)
		} else {
			last = e
		}
	}
}

// TestBadScenarios has the error name what is wrong.
func TestBadScenarios(t *testing.T) {
	good := Scenario{Nodes: 2, Limit: perMinute(t, 60), Strata: []Stratum{{Keys: 1, Rate: 1}}, Length: time.Second}
	run(t, good)
	for want, spoil := range map[string]func(*Scenario){
		"capacity: a scenario needs a limit": func(s *Scenario) { s.Limit = nil },
		"capacity: leaky_bucket is not judged; use fixed_window, sliding_log or token_bucket": func(s *Scenario) {
			s.Limit = limitOf(t, algo.Config{Algorithm: algo.LeakyBucket, N: 1, Window: time.Second})
		},
		"capacity: the number of nodes is 0; it must be from 1 to 1048576":                                                             func(s *Scenario) { s.Nodes = 0 },
		"capacity: 1 partitions on 2 stores; there are at most 16384, and no more stores than partitions":                              func(s *Scenario) { s.Stores = 2 },
		"capacity: it is to run for 0s and 0s, 0s of it rising; Length must be above 0, the rise within Warm, and both within 24h0m0s": func(s *Scenario) { s.Length = 0 },
		"capacity: a round trip takes 1ms, give or take 1 of it; that must be from 0 to 1":                                             func(s *Scenario) { s.Jitter = 1 },
		"capacity: 0.5 of the requests go to one node, which changes each 0s; the share is from 0 to 1, and does not go with Home":     func(s *Scenario) { s.Balance.Skew = 0.5 },
		"capacity: a scenario needs strata of keys, up to 2047":                                                                        func(s *Scenario) { s.Strata = nil },
		"capacity: stratum 0 has 0 keys of 1 a second, 0 of them simulated; all must be above 0, and no more simulated than there are": func(s *Scenario) { s.Strata = []Stratum{{Rate: 1}} },
		"capacity: nodes that die need others that do not, and times that are not below 0":                                             func(s *Scenario) { s.Churn, s.Nodes = time.Second, 1 },
	} {
		s := good
		spoil(&s)
		if _, err := Run(s); err == nil || err.Error() != want {
			t.Errorf("the error is %v, want %s", err, want)
		}
	}
}

// BenchmarkEvents says how many events a second are simulated: many nodes, many keys.
func BenchmarkEvents(b *testing.B) {
	var events int64
	for b.Loop() {
		r := run(b, Scenario{
			Seed: 6, Nodes: 1000, Partitions: 32, Limit: perMinute(b, 100_000), Strata: Zipf(1_000_000_000, 1.1, 1_000_000, 100, 1.1, 0.001),
			RememberRefusals: time.Second, Length: time.Second, Serve: Serve{Call: time.Microsecond},
		})
		events += r.Events
	}
	b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
}
