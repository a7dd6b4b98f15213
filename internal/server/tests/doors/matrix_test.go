package doors

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
	"github.com/weir-rl/weir/store/redis"
)

// levels are signals that stand still.
type levels map[string]int

// Signal implements weir.Signals.
func (l levels) Signal(name string) (int, bool) { v, ok := l[name]; return v, ok }

// kinds are the throttling kinds with the number that a limit of 100 admits under them, some of it
// in the soft margin. The signal stands at 65 %, on a curve from 200 % at 50 to 100 % at 80: 150 %.
var kinds = []struct {
	name, throttle, schedule string
	n, marked                int64 // admitted in all, and marked
	forConcurrency           bool
}{
	{"hard", "hard", "", 100, 0, true},
	{"soft", "{soft: 10%}", "", 110, 10, true},
	{"soft for", "{soft: {over: 10%, for: 1h}}", "", 110, 10, false},
	{"elastic", "{elastic: {signal: load, curve: {50%: 200%, 80%: 100%}}}", "", 150, 0, true},
	{"elastic, stale", "{elastic: {signal: nobody, curve: {50%: 200%, 80%: 100%}}}", "", 100, 0, true},
	{"elastic and soft", "{soft: 10%, elastic: {signal: load, curve: {50%: 200%, 80%: 100%}}}", "", 165, 15, true},
	{"elastic and soft for", "{soft: {over: 10%, for: 1h}, elastic: {signal: load, curve: {50%: 200%, 80%: 100%}}}", "", 165, 15, false},
	{"schedule", "hard", "[{between: \"00:00-24:00\", allow: %s}]", 40, 0, true},
	{"schedule and soft", "{soft: 10%}", "[{between: \"00:00-24:00\", allow: %s}]", 44, 4, true},
	{"schedule and elastic", "{elastic: {signal: load, curve: {50%: 200%, 80%: 100%}}}", "[{between: \"00:00-24:00\", allow: %s}]", 60, 0, true},
}

// allow writes a limit of n for an algorithm.
func allow(algorithm string, n int) string {
	switch algorithm {
	case "token_bucket", "leaky_bucket":
		return fmt.Sprintf("{rate: %d/year, burst: %d}", n, n)
	case "concurrency":
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d/year", n)
}

// standingNow is a clock that stands still at the present, so that no window turns.
func standingNow() func() int64 {
	clock := new(servertest.Standing)
	clock.Store(time.Now().UnixMicro())
	return clock.Now
}

// TestMatrix: each throttling kind × algorithm × store admits and marks as many as it should, to
// the unit.
func TestMatrix(t *testing.T) {
	t.Parallel()
	algorithms := []string{"sliding_window", "sliding_log", "fixed_window", "token_bucket", "leaky_bucket",
		"concurrency"}
	var text strings.Builder
	text.WriteString("limits:\n")
	each := func(f func(name string, kind int, algorithm string)) {
		for k := range kinds {
			for _, a := range algorithms {
				if a != "concurrency" || kinds[k].forConcurrency {
					f(strings.NewReplacer(" ", "-", ",", "").Replace(kinds[k].name)+"."+a, k, a)
				}
			}
		}
	}
	each(func(name string, k int, a string) {
		fmt.Fprintf(&text,
			"  - name: %s\n    when: {test: %s}\n    per: [key]\n    allow: %s\n    algorithm: %s\n    throttle: %s\n", name, name, allow(a, 100), a, kinds[k].throttle)
		if s := kinds[k].schedule; s != "" {
			fmt.Fprintf(&text, "    schedule: "+s+"\n", allow(a, 40))
		}
	})
	set := func(t *testing.T) *rule.Set {
		t.Helper()
		s, _, err := file.Load([]file.Source{{Name: "matrix.yaml", Data: []byte(text.String())}}, file.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	stores := map[string]func(t *testing.T) store.Store{
		"memory": func(t *testing.T) store.Store {
			s, err := memory.New(memory.Options{Clock: standingNow()})
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		"redis": func(t *testing.T) store.Store {
			s, err := redis.Open(redis.Options{URL: redistest.Start(t).URL(), RememberRefusals: time.Second,
				Timeout: time.Minute, Clock: standingNow()})
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
	}
	for store, open := range stores {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			defer s.Close()
			l, err := weir.New(s, weir.WithRules(set(t)), weir.WithSignals(levels{"load": 65}))
			if err != nil {
				t.Fatal(err)
			}
			each(func(name string, k int, a string) {
				want := kinds[k]
				if a == "leaky_bucket" { // one leaves at once
					want.n++
				}
				r := weir.Request{Attributes: weir.Map{"test": name, "key": "ada"}, Hits: 1, MaxDelay: weir.AnyDelay}
				var admitted, marked int64
				var d weir.Decision
				for range want.n + 20 {
					if err := l.Decide(context.Background(), &r, &d); err != nil {
						t.Fatal(name, err)
					}
					if len(d.Limits) != 1 {
						t.Fatalf("%s: met %d limits", name, len(d.Limits))
					}
					if d.Allowed {
						admitted++
						if d.Limits[0].Soft {
							marked++
						}
					}
				}
				if admitted != want.n || marked != want.marked {
					t.Errorf("%s: %d admitted, %d of them marked; want %d and %d", name, admitted, marked, want.n,
						want.marked)
				}
				if d.Limits[0].Limit+want.marked != want.n {
					t.Errorf("%s: the limit is told to be %d, want %d", name, d.Limits[0].Limit, want.n-want.marked)
				}
			})
		})
	}
}

// TestOffQuota: a quota that its schedule puts out of force is no quota that is left, so that
// nothing is charged for a request that the other quotas refuse.
func TestOffQuota(t *testing.T) {
	t.Parallel()
	const text = `
domain: d
descriptors:
  - {key: a, rate_limit: {unit: year, requests_per_unit: 1, quota_mode: true, count_denied: false}}
  - {key: b, rate_limit: {unit: year, requests_per_unit: 5, quota_mode: true, count_denied: false, schedule: [{between: "00:00-24:00", allow: unlimited}]}}
  - {key: e, rate_limit: {unit: year, requests_per_unit: 10, count_denied: false}}
`
	stores := map[string]store.Store{}
	var err error
	if stores["memory"], err = memory.New(memory.Options{Clock: standingNow()}); err != nil {
		t.Fatal(err)
	}
	if stores["redis"], err = redis.Open(redis.Options{URL: redistest.Start(t).URL(), Timeout: time.Minute, Clock: standingNow()}); err != nil {
		t.Fatal(err)
	}
	for name, store := range stores {
		defer store.Close()
		set, _, err := file.Load([]file.Source{{Name: "quota.yaml", Data: []byte(text)}}, file.Options{})
		if err != nil {
			t.Fatal(err)
		}
		l, err := weir.New(store, weir.WithRules(set))
		if err != nil {
			t.Fatal(err)
		}
		entry := func(key string) rule.Descriptor {
			return rule.Descriptor{Entries: []rule.Entry{{Key: key, Value: "x"}}}
		}
		for i := range 3 {
			var d weir.Decision
			r := weir.Request{Domain: "d", Descriptors: []rule.Descriptor{entry("a"), entry("b"), entry("e")}, Hits: 1}
			if err := l.Decide(t.Context(), &r, &d); err != nil {
				t.Fatal(err)
			}
			if len(d.Limits) != 2 || d.Allowed != (i == 0) || d.Limits[1].Remaining != 9 {
				t.Errorf("%s, request %d: allowed %v, limits %+v", name, i, d.Allowed, d.Limits)
			}
		}
	}
}
