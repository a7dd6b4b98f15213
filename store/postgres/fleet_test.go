package postgres_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/jackc/pgx/v5"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/pgtest"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/postgres"
)

// nodeVariable holds, in the process of a node, what it is to do.
const nodeVariable = "WEIR_POSTGRES_TEST_NODE"

func TestMain(m *testing.M) {
	if todo := os.Getenv(nodeVariable); todo != "" {
		if err := runNode(todo); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	// Each step of a property is a call of a server. -rapid.checks sets another number.
	if err := flag.Set("rapid.checks", effort.Of("8", "30")); err != nil {
		panic(err)
	}
	os.Exit(pgtest.Main(m))
}

// work is what a node does: clients that each make some calls, each on one of the keys.
type work struct {
	URL           string
	Limit         algo.Config
	Keys          int
	Clients, Each int
	Tally         bool // only the numbers are told
	// Pause is about how long a client waits before each call. A call that has charged nothing is
	// then made again.
	Pause time.Duration
}

// op is a call that was made, with the times by a clock that all processes share.
type op struct {
	Key          int
	Begin, End   int64
	Now          int64
	Result       algo.Result
	Err          string
	NotCharged   bool
	CalledAround int64 // by the wall clock, µs
}

// made is what a node tells.
type made struct {
	Ops      []op
	Admitted int
	Refused  int
	Errors   []string
}

func counterOf(c algo.Config) (*rule.Counter, error) {
	l, err := algo.New(c)
	if err != nil {
		return nil, err
	}
	return &rule.Counter{ID: 7, Limit: l}, nil
}

// runNode is the process of a node.
func runNode(todo string) error {
	var w work
	if err := json.Unmarshal([]byte(todo), &w); err != nil {
		return err
	}
	counter, err := counterOf(w.Limit)
	if err != nil {
		return err
	}
	s, err := postgres.Open(postgres.Options{URL: w.URL, Timeout: 20 * time.Second})
	if err != nil {
		return err
	}
	defer s.Close()
	var out made
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range w.Clients {
		wg.Go(func() {
			for made := 0; made < w.Each; {
				if w.Pause > 0 {
					time.Sleep(rand.N(2 * w.Pause))
				}
				key := rand.IntN(w.Keys)
				charges := []store.Charge{{Counter: counter, Limit: counter.Limit, Key: fmt.Append(nil, "key ", key),
					Ask: algo.Ask{Cost: 1, MaxDelay: -1}}}
				results := make([]algo.Result, 1)
				o := op{Key: key, Begin: int64(redistest.Clock()), CalledAround: time.Now().UnixMicro()}
				now, err := s.Take(context.Background(), charges, results)
				o.Now = now
				o.End, o.Result = int64(redistest.Clock()), results[0]
				if err != nil {
					o.Err, o.NotCharged = err.Error(), errors.Is(err, store.ErrNotCharged)
				}
				if !o.NotCharged || w.Pause == 0 {
					made++
				}
				mu.Lock()
				switch {
				case !w.Tally:
					out.Ops = append(out.Ops, o)
				case err != nil:
					out.Errors = append(out.Errors, o.Err)
				case o.Result.Allowed:
					out.Admitted++
				default:
					out.Refused++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return json.NewEncoder(os.Stdout).Encode(out)
}

// runNodes runs n nodes, and returns what they have made together. meanwhile, unless nil, is called
// while they do; working tells it whether one of them still does.
func runNodes(t *testing.T, n int, w work, meanwhile func(working func() bool)) (all made) {
	t.Helper()
	todo, err := json.Marshal(w)
	if err != nil {
		t.Fatal(err)
	}
	type told struct {
		out []byte
		err error
	}
	ended := make(chan told, n)
	var working atomic.Int64
	working.Store(int64(n))
	for range n {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), nodeVariable+"="+string(todo))
		cmd.Stderr = os.Stderr
		go func() {
			out, err := cmd.Output()
			working.Add(-1)
			ended <- told{out, err}
		}()
	}
	if meanwhile != nil {
		meanwhile(func() bool { return working.Load() > 0 })
	}
	for range n {
		of := <-ended
		var m made
		if err := errors.Join(of.err, json.Unmarshal(of.out, &m)); err != nil {
			t.Fatal(err)
		}
		all.Ops = append(all.Ops, m.Ops...)
		all.Errors = append(all.Errors, m.Errors...)
		all.Admitted, all.Refused = all.Admitted+m.Admitted, all.Refused+m.Refused
	}
	return all
}

// TestExactAcrossNodes: 4 nodes make 100,000 attempts on one limit of 10,000, and exactly so many
// are admitted.
func TestExactAcrossNodes(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	for _, test := range []struct {
		name     string
		limit    algo.Config
		attempts int
	}{
		{"fixed_window", algo.Config{Algorithm: algo.FixedWindow, N: 10_000, Window: 366 * 24 * time.Hour}, 100_000},
		{"concurrency", algo.Config{Algorithm: algo.Concurrency, N: 500, Timeout: time.Hour}, 10_000},
	} {
		t.Run(test.name, func(t *testing.T) {
			const nodes, clients = 4, 50
			attempts := test.attempts
			if !effort.All() {
				attempts /= 10
			}
			began := redistest.Clock()
			all := runNodes(t, nodes, work{
				URL: inSchema(s.URL()), Limit: test.limit, Keys: 1, Clients: clients, Each: attempts / nodes / clients, Tally: true,
			}, nil)
			if len(all.Errors) > 0 {
				t.Fatal(all.Errors[0])
			}
			if want := min(int64(attempts), test.limit.N); int64(all.Admitted) != want ||
				all.Admitted+all.Refused != attempts {
				t.Errorf("%d were admitted and %d refused of %d, want %d", all.Admitted, all.Refused, attempts, want)
			}
			t.Logf("%d attempts in %v", attempts, redistest.Clock()-began)
		})
	}
}

// TestLinearizable: 3 nodes of 8 clients decide while the server is killed and started again. There
// is an order of all their calls, each at some moment between its call and its return, in which the
// algorithm gives the same answers. A call whose outcome is not known may have been made or not.
func TestLinearizable(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	c := algo.Config{Algorithm: algo.FixedWindow, N: 300, Window: 366 * 24 * time.Hour}
	w := work{URL: s.URL() + "&weir_tables=synced", Limit: c, Keys: 3, Clients: 8, Each: effort.Of(30, 60),
		Pause: 4 * time.Millisecond}
	newTaker(t, open(t, postgres.Options{URL: w.URL})).well() // there are tables
	holder, err := pgx.Connect(t.Context(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = holder.Close(context.Background()) }()
	if _, err := holder.Exec(t.Context(), "begin; lock table weir.states in access exclusive mode"); err != nil {
		t.Fatal(err)
	}
	kills := 0
	all := runNodes(t, 3, w, func(working func() bool) {
		patience.Until(t, "calls wait for the table", func() bool {
			return s.Number("select count(*) from pg_stat_activity where wait_event_type = 'Lock'") > 0
		})
		s.Kill()
		s.Restart()
		kills++
		// Under each further kill there are calls, too: something is written after the server was
		// started. Where nodes are quick, all may be made before the last one.
		for kills < effort.Of(1, 3) {
			written := ""
			patience.Until(t, "decisions are made", func() bool {
				if !working() {
					return true
				}
				now := s.Text("select md5(coalesce(string_agg(version::text, '' order by key), '')) from weir.states")
				written, now = now, written
				return now != "" && now != written
			})
			if !working() {
				break
			}
			s.Kill()
			s.Restart()
			kills++
		}
	})
	counter, err := counterOf(c)
	if err != nil {
		t.Fatal(err)
	}
	unknown, decided := 0, 0
	var history []porcupine.Operation
	for i, o := range all.Ops {
		if o.NotCharged {
			continue
		}
		end := o.End
		if o.Err != "" {
			unknown++
			end = math.MaxInt64
		}
		decided++
		history = append(history, porcupine.Operation{ClientId: i, Input: o, Output: o, Call: o.Begin, Return: end})
	}
	model := (&porcupine.NondeterministicModel{
		Partition: func(all []porcupine.Operation) [][]porcupine.Operation {
			parts := make([][]porcupine.Operation, w.Keys)
			for _, each := range all {
				key := each.Input.(op).Key
				parts[key] = append(parts[key], each)
			}
			return parts
		},
		Init: func() []any { return []any{algo.State{}} },
		Step: func(state, input, _ any) []any {
			o, before := input.(op), state.(algo.State)
			after := before
			after.Ext = slices.Clone(before.Ext)
			if o.Err != "" {
				counter.Limit.Take(&after, o.CalledAround, algo.Ask{Cost: 1, MaxDelay: -1})
				return []any{before, after}
			}
			if counter.Limit.Take(&after, o.Now, algo.Ask{Cost: 1, MaxDelay: -1}) != o.Result {
				return nil
			}
			return []any{after}
		},
		Equal: func(a, b any) bool { return fmt.Sprint(a) == fmt.Sprint(b) },
	}).ToModel()
	if got := porcupine.CheckOperationsTimeout(model, history, patience.Left(t)); got != porcupine.Ok {
		t.Errorf("the history of %d calls, %d of them with an unknown outcome, is %v", len(history), unknown, got)
	}
	if decided-unknown < 3*w.Clients*w.Each/2 {
		t.Errorf("only %d calls were answered", decided-unknown)
	}
	t.Logf("%d kills, %d calls; the outcome of %d is unknown; %d failed and charged nothing", kills, len(history),
		unknown, len(all.Ops)-len(history))
}
