package metrics

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe"
	"github.com/weir-rl/weir/internal/rulesource"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/fallback"
	"github.com/weir-rl/weir/store/lease"
	"github.com/weir-rl/weir/store/memory"
	"github.com/weir-rl/weir/store/redis"
)

const rulesText = `
domain: shop
exempt: { user: [monitoring] }
limits:
  - name: hard
    when: { kind: hard }
    allow: 5/min
    algorithm: sliding_log
  - name: soft
    when: { kind: soft }
    allow: 2/min
    algorithm: sliding_log
    warn: 100%
    throttle: { soft: 50% }
  - name: trial
    when: { kind: trial }
    allow: 1/min
    algorithm: sliding_log
    warn: 100%
    on_limit: shadow
  - name: broken
    if: attr.absent == "x"
    allow: 1/min
`

func setOf(t testing.TB, files ...string) *rule.Set {
	t.Helper()
	var sources []file.Source
	for i, f := range files {
		sources = append(sources, file.Source{Name: fmt.Sprintf("%d.yaml", i), Data: []byte(f)})
	}
	set, _, err := file.Load(sources, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func limiter(t testing.TB, m *Metrics, files ...string) *weir.Limiter {
	t.Helper()
	now := int64(1_767_225_600_000_000)
	store, err := memory.New(memory.Options{Clock: func() int64 { return now }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	l, err := weir.New(m.Store(store), weir.WithRules(setOf(t, files...)), weir.WithHooks(m.Hooks()))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func decide(t testing.TB, l *weir.Limiter, domain string, hits int64, attributes rule.Map) {
	t.Helper()
	var d weir.Decision
	if err := l.Decide(context.Background(), &weir.Request{Domain: domain, Attributes: attributes, Hits: hits, Peek: hits == 0, MaxDelay: weir.AnyDelay}, &d); err != nil {
		t.Fatal(err)
	}
}

// scrape returns the samples of the metrics that are served, by name with labels.
func scrape(t testing.TB, m *Metrics) map[string]string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	samples := map[string]string{}
	for line := range strings.Lines(w.Body.String()) {
		if line[0] == '#' {
			continue
		}
		i := strings.LastIndexByte(line, ' ')
		samples[line[:i]] = strings.TrimSpace(line[i:])
	}
	return samples
}

// counts returns the samples above 0 of the metrics with prefix.
func counts(t testing.TB, m *Metrics, prefix string) []string {
	t.Helper()
	var out []string
	samples := scrape(t, m)
	for _, name := range slices.Sorted(maps.Keys(samples)) {
		if rest, ok := strings.CutPrefix(name, prefix); ok && samples[name] != "0" {
			out = append(out, rest+" "+samples[name])
		}
	}
	return out
}

func same(t *testing.T, got []string, want ...string) {
	t.Helper()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestDecisions(t *testing.T) {
	var unknown []string
	m := New(Options{UnknownDomain: func(d string) { unknown = append(unknown, d) }})
	l := limiter(t, m, rulesText)
	for range 7 {
		decide(t, l, "shop", 1, rule.Map{"kind": "hard"}) // 3 allowed, 2 near the limit, 2 denied
	}
	for range 4 {
		// 1 allowed, 1 at the limit, 1 above it, 1 denied
		decide(t, l, "shop", 1, rule.Map{"kind": "soft"})
	}
	for range 3 {
		decide(t, l, "shop", 1, rule.Map{"kind": "trial"}) // 1 at the limit, 2 would be denied
	}
	decide(t, l, "shop", 1, rule.Map{"user": "monitoring", "kind": "hard"})
	decide(t, l, "shop", 0, rule.Map{"kind": "hard"})
	decide(t, l, "shop", -1, rule.Map{"kind": "hard"})
	decide(t, l, "other", 1, nil)
	decide(t, l, "other", 1, nil)
	decide(t, l, "third", 1, nil)
	same(t, counts(t, m, "weir_requests_total"),
		`{domain="shop",door="",outcome="allowed"} 11`, `{domain="shop",door="",outcome="denied"} 3`, `{domain="shop",door="",outcome="exempt"} 1`,
		`{domain="shop",door="",outcome="peek"} 1`, `{domain="shop",door="",outcome="refund"} 1`, `{domain="_unknown",door="",outcome="allowed"} 3`)
	same(t, counts(t, m, "weir_decisions_total"),
		`{domain="shop",limit="hard",outcome="allowed",rule="hard"} 3`, `{domain="shop",limit="hard",outcome="near_limit",rule="hard"} 2`, `{domain="shop",limit="hard",outcome="denied",rule="hard"} 2`,
		`{domain="shop",limit="soft",outcome="allowed",rule="soft"} 1`, `{domain="shop",limit="soft",outcome="near_limit",rule="soft"} 1`,
		`{domain="shop",limit="soft",outcome="soft",rule="soft"} 1`, `{domain="shop",limit="soft",outcome="denied",rule="soft"} 1`,
		`{domain="shop",limit="trial",outcome="near_limit",rule="trial"} 1`, `{domain="shop",limit="trial",outcome="shadow_denied",rule="trial"} 2`,
		`{domain="shop",limit="",outcome="exempt",rule=""} 1`, `{domain="_unknown",limit="",outcome="allowed",rule=""} 3`)
	if fmt.Sprint(unknown) != "[other third]" {
		t.Errorf("unknown domains were told as %q", unknown)
	}
	samples := scrape(t, m)
	if samples[`weir_decisions_total{domain="shop",limit="broken",outcome="denied",rule="broken"}`] != "0" {
		t.Error("the series of a limit that nobody met yet is not there")
	}
	if n := samples["weir_cel_errors_total"]; n == "0" || n == "" {
		t.Errorf("%q failures of expressions", n)
	}
	for name := range samples {
		if strings.Contains(name, "request_override") {
			t.Errorf("%s: a series that no rule has", name)
		}
	}
}

// TestReload: the counts of a limit go on over a reload, and a limit that is gone loses its counts.
// Decisions by rule sets older than the last two still count.
func TestReload(t *testing.T) {
	m := New(Options{})
	l := limiter(t, m, rulesText)
	decide(t, l, "shop", 1, rule.Map{"kind": "trial"})
	decide(t, l, "shop", 1, rule.Map{"kind": "hard"})
	var old weir.Decision
	r := weir.Request{Domain: "shop", Attributes: rule.Map{"kind": "hard"}, Hits: 1}
	if err := l.Decide(context.Background(), &r, &old); err != nil {
		t.Fatal(err)
	}
	const renamed = "domain: shop\nlimits:\n- { name: first, allow: 100/min, when: { kind: first } }\n- { name: hard, allow: 50/min, when: { kind: hard } }\n"
	for range 3 {
		l.SetRules(setOf(t, renamed))
	}
	m.decided(&r, &old)
	decide(t, l, "shop", 1, rule.Map{"kind": "hard"})
	same(t, counts(t, m, "weir_decisions_total"), `{domain="shop",limit="hard",outcome="allowed",rule="hard"} 4`)
	same(t, counts(t, m, "weir_requests_total"), `{domain="shop",door="",outcome="allowed"} 5`)
	same(t, counts(t, m, "weir_rules_generation"), " 4")
	if n := scrape(t, m)["weir_rules"]; n != "2" {
		t.Errorf("%s rules in force", n)
	}
}

// TestHookRace: rules change while others decide, and every decision is counted once. A decision
// can be quicker than the hook for its rules.
func TestHookRace(t *testing.T) {
	m := New(Options{})
	hooks := m.Hooks()
	l := limiter(t, m, rulesText)
	const clients, each = 4, 500
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for range each {
				decide(t, l, "shop", 1, rule.Map{"kind": "trial"})
			}
		})
	}
	for range 20 {
		l.SetRules(setOf(t, rulesText))
	}
	all.Wait()
	same(t, counts(t, m, "weir_requests_total"),
		fmt.Sprintf(`{domain="shop",door="",outcome="allowed"} %d`, clients*each))

	// The same in an order that the scheduler seldom takes.
	set := setOf(t, rulesText)
	d := weir.Decision{Allowed: true, Known: true, Domain: "shop", Rules: set, Generation: 100}
	hooks.Decided(&weir.Request{Hits: 1}, &d)
	hooks.RulesChanged(set, 100)
	same(t, counts(t, m, "weir_requests_total"),
		fmt.Sprintf(`{domain="shop",door="",outcome="allowed"} %d`, clients*each+1))
}

// fixedFallback is a store that is away.
type fixedFallback struct{}

func (fixedFallback) Stats() fallback.Stats {
	return fallback.Stats{
		Trips: 34, LocalAllowed: 35, LocalDenied: 36, Uncounted: 37, Refused: 38, DeadlineMisses: 39, Unanswered: 50, UnansweredUnits: 59,
		Settled: 40, Excess: 41, Lost: 42, Lapsed: 44, Returned: 45, Open: 46,
	}
}

func (fixedFallback) State() (fallback.State, time.Time, error) {
	return fallback.Open, time.Time{}, errors.New("away")
}
func (fixedFallback) Entered() [fallback.States]uint64 { return [fallback.States]uint64{31, 32, 33} }
func (fixedFallback) Share() int                       { return 43 }
func (fixedFallback) Away() (away, parts int)          { return 47, 48 }
func (fixedFallback) Excess() []fallback.Excess {
	return []fallback.Excess{{Domain: "shop", Rule: "logins", Units: 49}}
}

func TestReadings(t *testing.T) {
	m := New(Options{
		Memory: func() memory.Stats { return memory.Stats{Keys: 3, Bytes: 400, Evictions: 5, Overflows: 6} },
		Rules: func() rulesource.Status {
			return rulesource.Status{Loaded: time.UnixMilli(1_700_000_000_500), Loads: 7, Failures: 8,
				Digest: "sha256:1f", Err: errors.New("broken"), Behind: true}
		},
		Redis: func() redis.Stats {
			s := redis.Stats{
				Calls: 21, Decisions: 22, Merged: 23, Remembered: 24, Swaps: 25, Loads: 26, Failures: 27, GivenBack: 28, Disagreements: 29,
				Again: 60, Redials: 61,
				Nodes: 4,
			}
			copy(s.Batches[:], []uint64{5, 3, 0, 2, 0, 0, 0, 0, 1})
			return s
		},
		Fallback: fixedFallback{},
		Leases: func() lease.Stats {
			limit := func(window string, n uint64) lease.LimitStats {
				return lease.LimitStats{
					Counter: &rule.Counter{Domain: "shop", Rule: "api", Window: window}, Local: n, Store: n + 1, Mixed: n + 2,
					Granted: n + 3, Used: n + 4, Returned: n + 5, Lapsed: n + 6, RefusedWhileOut: n + 7,
				}
			}
			return lease.Stats{
				Limits: []lease.LimitStats{limit("api:1s", 100), limit("api:60s", 1000), limit("api:1s", 200)},
				Keys:   51, Left: 52, Untold: 53, DroppedByClock: 54, DroppedByPause: 55, DroppedByStore: 56, DroppedByRules: 57, Late: 58,
			}
		},
	})
	m.Hooks().StoreError(context.Canceled)
	l := limiter(t, m, rulesText)
	for range 64 * sample {
		decide(t, l, "shop", 1, rule.Map{"kind": "trial"})
		if start := m.Begin(); start != 0 {
			m.End(start, nil, nil)
		}
	}
	samples := scrape(t, m)
	for name, want := range map[string]string{
		"weir_store_keys": "3", "weir_store_bytes": "400", "weir_store_evictions_total": "5", "weir_store_overflows_total": "6",
		"weir_rules_loaded_timestamp_seconds": "1.7000000005e+09", "weir_rules_loads_total": "7", "weir_rules_load_errors_total": "8",
		"weir_rules_broken": "1", "weir_rules_behind": "1", `weir_rules_info{digest="sha256:1f",version=""}`: "1",
		"weir_store_errors_total": "1", "weir_rules": "4", "weir_rules_generation": "1",
		"weir_redis_calls_total": "21", "weir_redis_decisions_total": "22", "weir_redis_merged_decisions_total": "23", "weir_redis_remembered_refusals_total": "24",
		"weir_redis_swaps_total": "25", "weir_redis_loads_total": "26", "weir_redis_failures_total": "27", "weir_redis_given_back_total": "28",
		"weir_redis_disagreements_total": "29", "weir_redis_nodes": "4",
		"weir_redis_batch_decisions_sum": "22", "weir_redis_batch_decisions_count": "11", `weir_redis_batch_decisions_bucket{le="1"}`: "5",
		`weir_redis_batch_decisions_bucket{le="2"}`: "8", `weir_redis_batch_decisions_bucket{le="4"}`: "8", `weir_redis_batch_decisions_bucket{le="8"}`: "10",
		`weir_redis_batch_decisions_bucket{le="128"}`: "10", `weir_redis_batch_decisions_bucket{le="256"}`: "11",
		`weir_store_breaker_state{state="there"}`: "0", `weir_store_breaker_state{state="away"}`: "1", `weir_store_breaker_state{state="returning"}`: "0",
		`weir_store_breaker_transitions_total{state="there"}`: "31", `weir_store_breaker_transitions_total{state="away"}`: "32",
		`weir_store_breaker_transitions_total{state="returning"}`: "33", "weir_store_breaker_trips_total": "34",
		`weir_store_fallback_decisions_total{outcome="local_allowed"}`: "35", `weir_store_fallback_decisions_total{outcome="local_denied"}`: "36",
		`weir_store_fallback_decisions_total{outcome="uncounted"}`: "37", `weir_store_fallback_decisions_total{outcome="refused"}`: "38",
		"weir_store_deadline_misses_total": "39", "weir_store_unanswered_decisions_total": "50", "weir_store_unanswered_units_total": "59",
		"weir_redis_again_total": "60", "weir_redis_redials_total": "61",
		`weir_store_fallback_units_total{outcome="settled"}`: "40",
		`weir_store_fallback_units_total{outcome="excess"}`:  "41", `weir_store_fallback_units_total{outcome="lost"}`: "42", "weir_store_share_nodes": "43",
		`weir_store_fallback_units_total{outcome="lapsed"}`: "44", `weir_store_fallback_units_total{outcome="returned"}`: "45",
		"weir_store_fallback_open_units": "46", "weir_store_parts_away": "47", "weir_store_parts": "48",
		`weir_store_excess_units_total{domain="shop",rule="logins"}`: "49",
		"weir_lease_keys": "51", "weir_lease_held_units": "52", "weir_lease_untold_units": "53", "weir_lease_late_total": "58",
		`weir_lease_dropped_total{cause="clock"}`: "54", `weir_lease_dropped_total{cause="pause"}`: "55",
		`weir_lease_dropped_total{cause="store"}`: "56", `weir_lease_dropped_total{cause="rules"}`: "57",
		`weir_lease_decisions_total{by="local",domain="shop",limit="api:60s",rule="api"}`:  "1000",
		`weir_lease_decisions_total{by="store",domain="shop",limit="api:60s",rule="api"}`:  "1001",
		`weir_lease_decisions_total{by="mixed",domain="shop",limit="api:60s",rule="api"}`:  "1002",
		`weir_lease_units_total{domain="shop",limit="api:60s",rule="api",what="granted"}`:  "1003",
		`weir_lease_units_total{domain="shop",limit="api:60s",rule="api",what="used"}`:     "1004",
		`weir_lease_units_total{domain="shop",limit="api:60s",rule="api",what="returned"}`: "1005",
		`weir_lease_units_total{domain="shop",limit="api:60s",rule="api",what="lapsed"}`:   "1006",
		`weir_lease_refused_while_out_total{domain="shop",limit="api:60s",rule="api"}`:     "1007",
		`weir_lease_decisions_total{by="local",domain="shop",limit="api:1s",rule="api"}`:   "300",
		`weir_lease_units_total{domain="shop",limit="api:1s",rule="api",what="lapsed"}`:    "312",
		`weir_lease_refused_while_out_total{domain="shop",limit="api:1s",rule="api"}`:      "314",
	} {
		if samples[name] != want {
			t.Errorf("%s: got %q, want %q", name, samples[name], want)
		}
	}
	for _, name := range []string{"weir_decision_seconds_count", "weir_store_seconds_count"} {
		var n int
		// 64 are expected; 1 in 10^10 samples has fewer than 20 or more than 160.
		if _, err := fmt.Sscan(samples[name], &n); err != nil || n < 20 || n > 160 {
			t.Errorf("%s: %q of %d", name, samples[name], 64*sample)
		}
	}
	if samples["go_goroutines"] == "" || samples["process_open_fds"] == "" {
		t.Error("the metrics of Go and the process are not there")
	}
	linted(t, m)
}

// linted checks the metrics as promtool check metrics does.
func linted(t *testing.T, m *Metrics) {
	t.Helper()
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "weir_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

// TestDocumented: docs/reference/metrics.md describes every metric, and no other.
func TestDocumented(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "reference", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]bool{}
	for _, found := range regexp.MustCompile("`(weir_[a-z_]+)[`{]").FindAllSubmatch(page, -1) {
		told[string(found[1])] = true
	}
	m := New(Options{})
	all := make(chan *prometheus.Desc, 1000)
	for _, c := range []prometheus.Collector{m.collector(), NewLoad(LoadOptions{}), NewQueues(QueueOptions{}),
		NewDoors(DoorOptions{}), NewRESP(nil), NewRLQS(nil), NewXDS(nil), NewInsight(InsightOptions{}), NewExports(
			ExportOptions{}), NewNodes(NodesOptions{}), NewFields(FieldOptions{}), &m.decisions, m.takes, m.storeErrors,
		m.celErrors, m.celRefused} {
		c.Describe(all)
	}
	close(all)
	for d := range all {
		name := regexp.MustCompile(`fqName: "([^"]+)"`).FindStringSubmatch(d.String())[1]
		if !told[name] {
			t.Errorf("%s is not told of", name)
		}
		delete(told, name)
	}
	for name := range told {
		t.Errorf("there is no %s", name)
	}
}

func TestDetailed(t *testing.T) {
	const lyft = `
domain: messaging
descriptors:
  - key: to
    detailed_metric: true
    rate_limit: { unit: day, requests_per_unit: 2 }
  - key: plain
    rate_limit: { unit: day, requests_per_unit: 2 }
`
	ask := func(l *weir.Limiter, key, value string) {
		var d weir.Decision
		r := weir.Request{Domain: "messaging", Hits: 1,
			Descriptors: []rule.Descriptor{{Entries: []rule.Entry{{Key: key, Value: value}}}}}
		if err := l.Decide(context.Background(), &r, &d); err != nil {
			t.Fatal(err)
		}
	}
	off := New(Options{})
	l := limiter(t, off, lyft)
	ask(l, "to", "+49")
	same(t, counts(t, off, "weir_descriptor"))

	m := New(Options{Detailed: true})
	l = limiter(t, m, lyft)
	for range 3 {
		ask(l, "to", "+49")
	}
	ask(l, "plain", "x")
	got := counts(t, m, "weir_descriptor_decisions_total")
	if len(got) == 0 || !strings.Contains(strings.Join(got, "\n"), "+49") ||
		strings.Contains(strings.Join(got, "\n"), "plain") {
		t.Errorf("got %q", got)
	}
	for i := range 2 * maxSeries {
		ask(l, "to", fmt.Sprint("+", i))
	}
	if n := len(counts(t, m, "weir_descriptor_decisions_total")); n > maxSeries || n < maxSeries/10 {
		t.Errorf("%d series, at most %d are promised", n, maxSeries)
	}
	if lost := counts(t, m, "weir_descriptor_decisions_unnamed_total"); len(lost) != 1 {
		t.Errorf("what was left out is told as %q", lost)
	}
	ask(l, "to", strings.Repeat("x", 2*maxDetailKey))
	for _, name := range counts(t, m, "weir_descriptor_decisions_total") {
		if len(name) > 2*maxDetailKey {
			t.Errorf("a label of %d bytes", len(name))
		}
	}
}

// TestNoAllocation: counting costs the deciding path no allocation.
func TestNoAllocation(t *testing.T) {
	m := New(Options{})
	l := limiter(t, m, rulesText)
	var d weir.Decision
	r := weir.Request{Domain: "shop", Attributes: rule.Map{"kind": "hard", "absent": "y"}, Hits: 1}
	if err := l.Decide(context.Background(), &r, &d); err != nil {
		t.Fatal(err)
	}
	unknown := weir.Decision{Allowed: true, Domain: "none", Rules: d.Rules}
	m.decided(&r, &unknown)
	if n := testing.AllocsPerRun(100, func() {
		start := m.Begin()
		m.decided(&r, &d)
		m.decided(&r, &unknown)
		if start != 0 {
			m.End(start, &r, &d)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkDecided(b *testing.B) {
	m := New(Options{})
	l := limiter(b, m, rulesText)
	var d weir.Decision
	r := weir.Request{Domain: "shop", Attributes: rule.Map{"kind": "hard"}, Hits: 1}
	if err := l.Decide(context.Background(), &r, &d); err != nil {
		b.Fatal(err)
	}
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			m.decided(&r, &d)
		}
	})
}

// TestDoors: requests are counted by their door. Open doors have counts from the beginning. Unknown
// doors count without a name.
func TestDoors(t *testing.T) {
	m := New(Options{Doors: []string{"http", "proxy"}})
	l := limiter(t, m, "domain: shop\nexempt: { ip: [192.0.2.9] }\nlimits: [{ name: a, per: [ip], allow: 1/hour }]\n")
	if got := scrape(t, m)[`weir_requests_total{domain="shop",door="proxy",outcome="denied"}`]; got != "0" {
		t.Errorf("an open door shows %q", got)
	}
	for _, door := range append(observe.DoorNames[:], "a name of their own") {
		for i, ip := range []string{"a" + door, "a" + door, "192.0.2.9"} {
			r := weir.Request{Domain: "shop", Attributes: rule.Map{"ip": ip}, Door: door}
			if _, err := l.Allow(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			if r.Domain = "other"; i == 0 {
				if _, err := l.Allow(t.Context(), r); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	want := []string{}
	for _, door := range observe.DoorNames {
		n := 1
		if door == "" {
			n = 2
		}
		want = append(want, fmt.Sprintf(`{domain="shop",door=%q,outcome="allowed"} %d`, door, n),
			fmt.Sprintf(`{domain="shop",door=%q,outcome="denied"} %d`, door, n),
			fmt.Sprintf(`{domain="shop",door=%q,outcome="exempt"} %d`, door, n),
			fmt.Sprintf(`{domain="_unknown",door=%q,outcome="allowed"} %d`, door, n))
	}
	same(t, counts(t, m, "weir_requests_total"), want...)
}

// TestDoorsAreKnown: each door of the program has its label.
func TestDoorsAreKnown(t *testing.T) {
	named := regexp.MustCompile(`\bDoor:\s*"([^"]*)"`)
	found := map[string]bool{}
	err := filepath.WalkDir(filepath.Join("..", ".."), func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, match := range named.FindAllSubmatch(text, -1) {
			door := string(match[1])
			if found[door] = true; observe.DoorNames[observe.DoorOf(door)] != door {
				t.Errorf("%s: the door %q has no label", path, door)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, door := range observe.DoorNames[1:] {
		if !found[door] {
			t.Errorf("nothing names the door %q", door)
		}
	}
}

// promptless hides what a store is beside a store.Store.
type promptless struct{ store.Store }

// TestStoreNow: what a store decides at once is timed as what it has to wait for is.
func TestStoreNow(t *testing.T) {
	inner, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer inner.Close()
	m := New(Options{})
	s := m.Store(inner).(store.Prompt)
	const n = 100 * sample
	for range n {
		if now, ok := s.TakeNow(nil, nil); !ok || now == 0 {
			t.Fatalf("%d, %v", now, ok)
		}
	}
	if got := counts(t, m, "weir_store_seconds_count"); len(got) != 1 {
		t.Errorf("%d calls were made, and counted %v", n, got)
	}
	m = New(Options{})
	if _, ok := m.Store(promptless{inner}).(store.Prompt).TakeNow(nil, nil); ok ||
		len(counts(t, m, "weir_store_seconds_count")) != 0 {
		t.Error("a store that is none decides at once")
	}
}
