package doors

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/lease"
	"github.com/weir-rl/weir/store/memory"
	"github.com/weir-rl/weir/store/redis"
)

// leasable are the algorithms that can be leased.
var leasable = []string{"sliding_window", "sliding_log", "fixed_window", "token_bucket"}

// lenders opens stores that lend, by name, each with a store before it that takes what they lend.
var lenders = map[string]func(t *testing.T) *lease.Store{
	"memory": func(t *testing.T) *lease.Store {
		s, err := memory.New(memory.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return leasing(t, s)
	},
	"redis": func(t *testing.T) *lease.Store {
		s, err := redis.Open(redis.Options{URL: redistest.Start(t).URL(), RememberRefusals: time.Second,
			Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		return leasing(t, s)
	},
}

func leasing(t *testing.T, s store.Lender) *lease.Store {
	t.Helper()
	l, err := lease.New(s, lease.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// checkLeases checks that something was decided without the store, and nothing too late.
func checkLeases(t *testing.T, s *lease.Store) {
	t.Helper()
	st, local := s.Stats(), uint64(0)
	for _, l := range st.Limits {
		local += l.Local
	}
	if local == 0 || st.Late != 0 {
		t.Errorf("%d decisions without the store, %d units too late", local, st.Late)
	}
}

// TestLeaseMatrix: each throttling kind × algorithm with a lease is refused when the rules are
// loaded, or admits as many as it should on each store, to the unit, and marks as many. Leases last
// as long as in TestSamenessLeased.
func TestLeaseMatrix(t *testing.T) {
	const units = 20 // that may be out
	var good strings.Builder
	good.WriteString("limits:\n")
	type combination struct {
		name, algorithm string
		kind            int
	}
	var loaded []combination
	for k := range kinds {
		for _, a := range []string{"sliding_window", "sliding_log", "fixed_window", "token_bucket", "leaky_bucket",
			"concurrency"} {
			if a == "concurrency" && !kinds[k].forConcurrency {
				continue
			}
			name := strings.NewReplacer(" ", "-", ",", "").Replace(kinds[k].name) + "." + a
			text := fmt.Sprintf(
				"  - name: %s\n    when: {test: %s}\n    per: [key]\n    allow: %s\n    algorithm: %s\n    throttle: %s\n    consistency: {lease: %d%%, for: 10s}\n",
				name, name, allow(a, 100), a, kinds[k].throttle, units)
			if s := kinds[k].schedule; s != "" {
				text += fmt.Sprintf("    schedule: "+s+"\n", allow(a, 40))
			}
			_, _, err := file.Load([]file.Source{{Name: "matrix.yaml", Data: []byte("limits:\n" + text)}},
				file.Options{})
			if slices.Contains(leasable, a) && !strings.HasSuffix(kinds[k].name, "soft for") {
				if err != nil {
					t.Error(err)
					continue
				}
				good.WriteString(text)
				loaded = append(loaded, combination{name, a, k})
			} else if err == nil || !strings.Contains(err.Error(), "consistency.lease: ") ||
				!strings.Contains(err.Error(), "(leave consistency out, or ") {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if len(loaded) != 8*len(leasable) {
		t.Errorf("%d combinations load", len(loaded))
	}
	for name, open := range lenders {
		t.Run(name, func(t *testing.T) {
			set, _, err := file.Load([]file.Source{{Name: "matrix.yaml", Data: []byte(good.String())}}, file.Options{})
			if err != nil {
				t.Fatal(err)
			}
			s := open(t)
			l, err := weir.New(s, weir.WithRules(set), weir.WithSignals(levels{"load": 65}))
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range loaded {
				want := kinds[c.kind]
				r := weir.Request{Attributes: weir.Map{"test": c.name, "key": "ada"}, Hits: 1, MaxDelay: weir.AnyDelay}
				var admitted, marked int64
				var d weir.Decision
				ask := func() bool {
					if err := l.Decide(t.Context(), &r, &d); err != nil || len(d.Limits) != 1 {
						t.Fatal(c.name, err, d.Limits)
					}
					if d.Allowed {
						if admitted++; d.Limits[0].Soft {
							marked++
						}
					}
					return d.Allowed
				}
				// A refusal may be repeated for a moment, although there is room again.
				servertest.Eventually(t, c.name+" admits all", func() bool {
					for ask() {
					}
					return admitted >= want.n
				})
				for range 20 {
					ask()
				}
				// A request may be marked while units are out that come back unused.
				if admitted != want.n || marked < want.marked || marked > want.marked+min(want.marked, units) {
					t.Errorf("%s: %d admitted, %d of them marked; want %d and %d", c.name, admitted, marked, want.n,
						want.marked)
				}
				if d.Limits[0].Limit+want.marked != want.n {
					t.Errorf("%s: the limit is told to be %d, want %d", c.name, d.Limits[0].Limit, want.n-want.marked)
				}
			}
			checkLeases(t, s)
		})
	}
}

// TestSamenessLeased: through every door, a leased limit admits its number and no more, and answers
// show how much of it remains and when to come back. They never show more than remains, and less by
// the units on their way to the node, or back to the store. A lease lasts longer than a busy
// machine may keep the node from its work, since units that are out when it ends count as used:
// with leases of 100 ms and ten processes on two processors a third of the runs lacked some, as
// many as were out unused.
func TestSamenessLeased(t *testing.T) {
	const limit = 150
	const units = limit / 5 // that may be out
	text := "domain: same\nlimits:\n"
	var paths []string
	for _, a := range leasable {
		paths = append(paths, "/"+a)
		text += fmt.Sprintf(
			"  - {name: %s, when: {path: /%s}, per: [door], allow: %s, algorithm: %s, consistency: {lease: 20%%, for: 10s}}\n", a, a, allow(a, limit), a)
	}
	paths = append(paths, "/lyft")
	text += fmt.Sprintf(`descriptors:
  - key: path
    value: /lyft
    descriptors:
      - {key: door, rate_limit: {unit: year, requests_per_unit: %d, consistency: {lease: 20%%, for: 10s}}}
`, limit)
	set, _, err := file.Load([]file.Source{{Name: "rules.yaml", Data: []byte(text)}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := lenders["memory"](t)
	limiter, err := weir.New(s, weir.WithRules(set))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range append(tellers(t, limiter, s),
		teller{name: "reference", unit: 1,
			ask: func(t *testing.T, path string) said { return decided(t, limiter, path, "reference") }}) {
		for _, path := range paths {
			admitted, exact := int64(0), 0
			var last said
			ask := func() bool {
				if last = d.ask(t, path); last.allowed {
					admitted++
				}
				// The first one is decided by the store, while nothing is out.
				left := limit - admitted
				known := last.remaining == left || admitted > 1 && last.remaining < left &&
					last.remaining >= max(0, left-units)
				if last.allowed && !d.unsaid && !known {
					t.Errorf("%s through %s: %d remain after %d of %d", path, d.name, last.remaining, admitted, limit)
				}
				if last.allowed && last.remaining == left {
					exact++
				}
				return last.allowed
			}
			servertest.Eventually(t, path+" through "+d.name+" admits all", func() bool {
				for ask() {
				}
				return admitted >= limit
			})
			for range 20 {
				ask()
			}
			if !d.unsaid && exact < 2 {
				t.Errorf("%s through %s: what remains was told exactly %d times", path, d.name, exact)
			}
			if admitted != limit || last.retryAfter == 0 || last.retryAfter == algo.Never {
				t.Errorf("%s through %s: %d admitted of %d, then %+v", path, d.name, admitted, limit, last)
			}
		}
	}
	checkLeases(t, s)
}
