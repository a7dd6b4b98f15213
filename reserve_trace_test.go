package weir_test

import (
	"cmp"
	"compress/gzip"
	"container/heap"
	"encoding/csv"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/testkit/traffic"
	"github.com/weir-rl/weir/store/memory"
)

// inference is one request of a trace of an LLM service.
type inference struct {
	at        int64 // µs
	context   int64 // tokens that came with the request: known before
	generated int64 // tokens of the answer: known afterwards
}

// real is what a request costs.
func (i *inference) real() int64 { return i.context + i.generated }

// ends is when its answer is complete: after 200 ms and 20 ms for each token, as a large model
// takes.
func (i *inference) ends() int64 { return i.at + 200_000 + 20_000*i.generated }

// azureTrace reads both traces of Azure's LLM inference service of 2023, in order of time.
func azureTrace(t testing.TB) []inference {
	t.Helper()
	var list []inference
	for _, name := range []string{"azure_llm/code.csv.gz", "azure_llm/conv.csv.gz"} {
		f, err := os.Open(traffic.File(t, name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		z, err := gzip.NewReader(f)
		if err != nil {
			t.Fatal(err)
		}
		rows, err := csv.NewReader(z).ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range rows[1:] {
			at, err := time.Parse("2006-01-02 15:04:05", row[0])
			if err != nil {
				t.Fatal(err)
			}
			context, err1 := strconv.ParseInt(row[1], 10, 64)
			generated, err2 := strconv.ParseInt(row[2], 10, 64)
			if err1 != nil || err2 != nil {
				t.Fatal(row)
			}
			list = append(list, inference{at.UnixMicro(), context, generated})
		}
	}
	slices.SortStableFunc(list, func(a, b inference) int { return cmp.Compare(a.at, b.at) })
	want := 6_170 // a quarter of an hour
	if traffic.Full() {
		want = 28_185
	}
	if len(list) != want {
		t.Fatalf("%d requests in the traces", len(list))
	}
	return list
}

// generatedAt returns how many tokens the given share of the answers do not exceed.
func generatedAt(trace []inference, share float64) int64 {
	var all []int64
	for i := range trace {
		all = append(all, trace[i].generated)
	}
	slices.Sort(all)
	return all[min(int(share*float64(len(all))), len(all)-1)]
}

// spent is one admitted request in the ledger, which knows nothing of limits: what it really cost,
// by the instant of its admission.
type spent struct {
	at, reserved, tokens int64
	user                 int
}

// run is the result of a replay.
type run struct {
	ledger   []spent
	refused  int
	died     int
	leftover int64 // units that are counted when all is over and nothing may be
	span     int64 // µs
}

// tokens is the sum of the tokens spent.
func (r *run) tokens() (n int64) {
	for i := range r.ledger {
		n += r.ledger[i].tokens
	}
	return n
}

// excess is by how much the real costs were above the estimates, all in all.
func (r *run) excess() (n int64) {
	for i := range r.ledger {
		n += max(0, r.ledger[i].tokens-r.ledger[i].reserved)
	}
	return n
}

// ending is a request in progress, ordered by its end.
type ending struct {
	at   int64
	id   string
	cost int64
}

type endings []ending

func (h endings) Len() int           { return len(h) }
func (h endings) Less(i, j int) bool { return h[i].at < h[j].at }
func (h endings) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *endings) Push(x any)        { *h = append(*h, x.(ending)) }
func (h *endings) Pop() any          { e := (*h)[len(*h)-1]; *h = (*h)[:len(*h)-1]; return e }

// holders says how the askers of a replay behave.
type holders struct {
	users   int   // who ask in turn, each with a budget of its own
	bound   int64 // tokens of an answer that are reserved
	commit  bool  // else the estimate stays charged
	dies    int   // one in so many never commits; 0: none
	timeout time.Duration
}

// replayReservations sends a trace through a limiter in virtual time. Of those that die nothing is
// spent in the ledger.
func replayReservations(t *testing.T, limit string, trace []inference, how holders) run {
	t.Helper()
	c := clockAt(trace[0].at)
	store, err := memory.New(memory.Options{Clock: c.read})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	l, err := weir.New(store,
		weir.WithRules(load(t, "limits: [{name: tokens, per: [user], cost_timeout: 1h, "+limit+"}]")))
	if err != nil {
		t.Fatal(err)
	}
	var (
		out       = run{span: trace[len(trace)-1].at - trace[0].at}
		pending   endings
		d         weir.Decision
		nextSweep = c.read()
	)
	advance := func(to int64) {
		for len(pending) > 0 && pending[0].at <= to {
			e := heap.Pop(&pending).(ending)
			for ; nextSweep <= e.at; nextSweep += 1e6 {
				c.set(nextSweep)
				if _, err := l.Reservations().Sweep(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			c.set(e.at)
			if !commit(t, l, e.id, e.cost) {
				t.Fatal("a reservation was gone before its time")
			}
		}
		for ; nextSweep <= to; nextSweep += 1e6 {
			c.set(nextSweep)
			if _, err := l.Reservations().Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		c.set(to)
	}
	for i := range trace {
		q := &trace[i]
		advance(q.at)
		estimate := q.context + how.bound
		user := i % how.users
		id, err := l.Reserve(t.Context(), &weir.Request{Attributes: weir.Map{"user": strconv.Itoa(user)},
			Hits: estimate, Peek: estimate == 0}, &d, how.timeout)
		if err != nil {
			t.Fatal(err)
		}
		if !d.Allowed {
			out.refused++
			continue
		}
		s := spent{d.Time, estimate, q.real(), user}
		switch {
		case how.dies > 0 && len(out.ledger)%how.dies == how.dies-1:
			out.died++
			s.tokens = 0
		case how.commit:
			heap.Push(&pending, ending{q.ends(), id, q.real()})
		}
		out.ledger = append(out.ledger, s)
	}
	advance(c.read() + how.timeout.Microseconds() + 2e6)
	if len(pending) > 0 {
		t.Fatalf("%d requests never ended", len(pending))
	}
	for user := range how.users {
		if err := l.Decide(t.Context(), &weir.Request{Attributes: weir.Map{"user": strconv.Itoa(user)}, Peek: true}, &d); err != nil {
			t.Fatal(err)
		}
		out.leftover += d.Limits[0].Limit - d.Limits[0].Remaining
	}
	return out
}

// byUser splits a run into its users' runs.
func (r *run) byUser(users int) []run {
	parts := make([]run, users)
	for _, s := range r.ledger {
		parts[s.user].ledger = append(parts[s.user].ledger, s)
	}
	return parts
}

// mostIn returns the most tokens spent in any half-open window (t − w, t], with the tokens spent
// above the estimates in it.
func (r *run) mostIn(w int64) (tokens, excess int64) {
	var sum, over int64
	for first, i := 0, 0; i < len(r.ledger); i++ {
		s := &r.ledger[i]
		sum += s.tokens
		over += max(0, s.tokens-s.reserved)
		for ; r.ledger[first].at <= s.at-w; first++ {
			sum -= r.ledger[first].tokens
			over -= max(0, r.ledger[first].tokens-r.ledger[first].reserved)
		}
		if sum-over > tokens-excess {
			tokens, excess = sum, over
		}
	}
	return tokens, excess
}

// mostAligned returns the most that was spent in k aligned windows of length w in a row.
func (r *run) mostAligned(w int64, k int) (most int64) {
	sums := map[int64]int64{}
	for i := range r.ledger {
		sums[r.ledger[i].at/w] += max(0, min(r.ledger[i].tokens, r.ledger[i].reserved))
	}
	for at := range sums {
		sum := int64(0)
		for j := range int64(k) {
			sum += sums[at+j]
		}
		most = max(most, sum)
	}
	return most
}

// mostAbove returns the most that was spent in any interval above what flows in meanwhile at rate
// per w.
func (r *run) mostAbove(rate, w int64) (most float64) {
	level, last := 0.0, int64(0)
	for i := range r.ledger {
		s := &r.ledger[i]
		level = max(0, level-float64(s.at-last)*float64(rate)/float64(w)) + float64(min(s.tokens, s.reserved))
		last, most = s.at, max(most, level)
	}
	return most
}

const minute = int64(60e6)

// The token budget of a minute is never overspent, by a ledger that does not know the limiter; what
// was reserved too much is used by others; and what dead holders had reserved comes back.
func TestReserveOnAzureTraces(t *testing.T) {
	trace := azureTrace(t)
	p99, most := generatedAt(trace, 0.99), generatedAt(trace, 1)
	t.Logf("%d requests, answers of at most %d tokens, 99 %% of them of at most %d", len(trace), most, p99)
	const budget = 500_000
	for _, tt := range []struct {
		name, limit string
		users       int
		n           int64 // tokens a minute for each
		trace       []inference
		check       func(t *testing.T, r *run)
	}{
		{"sliding_log", "algorithm: sliding_log, allow: 50000/min", 1, 50_000, trace[:len(trace)/6],
			func(t *testing.T, r *run) {
				if spent, excess := r.mostIn(minute); spent-excess > 50_000 {
					t.Errorf("%d tokens in a minute, of which %d above the estimates", spent, excess)
				}
			}},
		{"sliding_window", "algorithm: sliding_window, buckets: 60, allow: 500000/min", 1, budget, trace,
			func(t *testing.T, r *run) {
				if spent := r.mostAligned(minute/60, 60); spent > budget {
					t.Errorf("%d tokens in sixty seconds by the clock", spent)
				}
				// At any other time a part of the oldest second comes on top.
				if spent, excess := r.mostIn(minute); spent-excess > budget+r.mostAligned(minute/60, 1) {
					t.Errorf("%d tokens in a minute, of which %d above the estimates", spent, excess)
				}
			}},
		{"fixed_window", "algorithm: fixed_window, allow: 500000/min", 1, budget, trace, func(t *testing.T, r *run) {
			if spent := r.mostAligned(minute, 1); spent > budget {
				t.Errorf("%d tokens in a minute by the clock", spent)
			}
		}},
		{"token_bucket", "algorithm: token_bucket, allow: {rate: 1000/min, burst: 12000}", 500, 1000, trace,
			func(t *testing.T, r *run) {
				if spent := r.mostAbove(1000, minute); spent > 12_000 {
					t.Errorf("a burst of %.0f tokens", spent)
				}
			}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			use := func(r *run) float64 {
				return float64(r.tokens()) / (float64(tt.n) * float64(tt.users) * float64(r.span) / float64(minute))
			}
			check := func(r *run) {
				t.Helper()
				for _, one := range r.byUser(tt.users) {
					tt.check(t, &one)
				}
			}
			// Estimates that are upper bounds: never a token more than the budget.
			how := holders{users: tt.users, bound: most, commit: true, dies: 50, timeout: 40 * time.Second}
			safe := replayReservations(t, tt.limit, tt.trace, how)
			if safe.excess() != 0 || safe.died == 0 || safe.refused == 0 {
				t.Fatalf("excess %d, %d died, %d refused", safe.excess(), safe.died, safe.refused)
			}
			check(&safe)
			// Estimates that one request in a hundred exceeds: the budget and that excess.
			how.bound = p99
			near := replayReservations(t, tt.limit, tt.trace, how)
			if near.excess() == 0 {
				t.Fatal("no request exceeded its estimate")
			}
			check(&near)
			// Without commits the estimates stay.
			blind := replayReservations(t, tt.limit, tt.trace, holders{users: tt.users, bound: p99, timeout: time.Hour})
			t.Logf(
				"used of the budget: %.1f %% with commits (where the largest answer is reserved: %.1f %%), %.1f %% without; refused %d (%d), %d; excess %d tokens of %d",
				100*use(&near), 100*use(&safe), 100*use(&blind), near.refused, safe.refused, blind.refused,
				near.excess(), near.tokens())
			least := 1.1
			if !traffic.Full() {
				least = 1.04 // the first burst of a bucket is most of a short run
			}
			if use(&near) < least*use(&blind) {
				t.Errorf("commits bring little: %.3f of the budget with them, %.3f without", use(&near), use(&blind))
			}
		})
	}
}

// After the time-out nothing is left of dead holders' reservations, and the budget is whole again.
func TestDeadHoldersOnAzureTrace(t *testing.T) {
	trace := azureTrace(t)[:2000]
	most := generatedAt(trace, 1)
	for limit, slack := range map[string]int64{
		"algorithm: fixed_window, allow: 900000000/year":   0,
		"algorithm: sliding_window, allow: 900000000/year": 0,
		// tokens that it refills in ten minutes, which have lapsed of each
		"algorithm: token_bucket, allow: {rate: 1000/day, burst: 900000000}": 8,
	} {
		dead := replayReservations(t, limit, trace, holders{users: 1, bound: most, dies: 1, timeout: time.Minute})
		if dead.died != len(trace) || dead.leftover > slack*int64(dead.died) {
			t.Errorf("%s: %d of %d died, %d tokens are still counted", limit, dead.died, len(trace), dead.leftover)
		}
		some := replayReservations(t, limit, trace,
			holders{users: 1, bound: most, commit: true, dies: 10, timeout: 10 * time.Minute})
		want := some.tokens()
		if some.died < 190 || some.leftover < want-slack || some.leftover > want+slack*int64(len(trace)) {
			t.Errorf("%s: %d died, %d tokens are counted, want the %d that were committed", limit, some.died,
				some.leftover, want)
		}
	}
}
