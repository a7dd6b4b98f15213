package metrics

import (
	"fmt"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
)

// openMetrics returns what is served to a client that asks for OpenMetrics.
func openMetrics(t testing.TB, m *Metrics) string {
	t.Helper()
	r := httptest.NewRequest("GET", "/metrics", nil)
	r.Header.Set("Accept", "application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, r)
	if kind := w.Header().Get("Content-Type"); w.Code != 200 ||
		!strings.HasPrefix(kind, "application/openmetrics-text; version=1.0.0") {
		t.Fatalf("%d %s", w.Code, kind)
	}
	if !strings.HasSuffix(w.Body.String(), "# EOF\n") {
		t.Error("OpenMetrics ends with # EOF")
	}
	return w.Body.String()
}

// TestExemplars: refusals and the times of decisions carry the id of one of them, and the trace
// that it is part of, where OpenMetrics is asked for.
func TestExemplars(t *testing.T) {
	m := New(Options{})
	l := limiter(t, m, rulesText)
	var d weir.Decision
	r := weir.Request{Domain: "shop", Attributes: rule.Map{"kind": "hard"},
		Trace: &weir.Trace{TraceID: [16]byte{0xab, 15: 1}}}
	for range 6 { // the last one is denied
		if err := l.Decide(t.Context(), &r, &d); err != nil {
			t.Fatal(err)
		}
	}
	first := d.ID
	m.End(clock()-1000, &r, &d)
	if first == 0 {
		t.Fatal("the refusal has no id")
	}
	// A map's labels, in any order.
	id, trace := fmt.Sprintf(`decision="%s"`, first), `trace_id="ab000000000000000000000000000001"`
	exemplar := `# \{(` + id + `,` + trace + `|` + trace + `,` + id + `)\} [0-9.e-]+ 1.7672256e\+09\n`
	text := openMetrics(t, m)
	for _, series := range []string{
		`weir_requests_total\{domain="shop",door="",outcome="denied"\} 1.0 `,
		`weir_decisions_total\{domain="shop",limit="hard",outcome="denied",rule="hard"\} 1.0 `,
		`weir_decision_seconds_bucket\{le="[0-9.e-]+"\} 1 `,
	} {
		if !regexp.MustCompile(series + exemplar).MatchString(text) {
			t.Errorf("no %s%s in\n%s", series, exemplar, text)
		}
	}
	if strings.Count(text, "trace_id") != 3 {
		t.Errorf("admissions have exemplars:\n%s", text)
	}
	if plain := scrape(t, m); plain[`weir_requests_total{domain="shop",door="",outcome="denied"}`] != "1" {
		t.Errorf("the text format has %q", plain[`weir_requests_total{domain="shop",door="",outcome="denied"}`])
	}

	// One in a sample takes its place, so that it is always one of the latest.
	seen := map[weir.DecisionID]int{}
	for i := range refusedSample {
		if err := l.Decide(t.Context(), &r, &d); err != nil {
			t.Fatal(err)
		}
		seen[d.ID] = i
	}
	found := regexp.MustCompile(
		`weir_requests_total\{domain="shop",door="",outcome="denied"\} 257\.0 # \{[^}]*decision="([^"]+)"`).FindStringSubmatch(openMetrics(t, m))
	if found == nil {
		t.Fatal("no exemplar")
	}
	if id, err := weir.ParseDecisionID(found[1]); err != nil || seen[id] != refusedSample-1 {
		t.Errorf("the exemplar is %s (%v), decision %d of %d", found[1], err, seen[id], refusedSample)
	}
}

// TestExemplarRace: exemplars are read while decisions are made, and each is whole.
func TestExemplarRace(t *testing.T) {
	m := New(Options{})
	l := limiter(t, m, rulesText)
	var all sync.WaitGroup
	for client := range 4 {
		all.Go(func() {
			r := weir.Request{Domain: "shop", Attributes: rule.Map{"kind": "hard"}, Trace: &weir.Trace{}}
			for i := range 16 {
				r.Trace.TraceID[i] = byte(client + 1)
			}
			var d weir.Decision
			for range 2000 {
				if err := l.Decide(t.Context(), &r, &d); err != nil {
					t.Error(err)
				}
				m.End(clock(), &r, &d)
			}
		})
	}
	whole := regexp.MustCompile(`^(01|02|03|04)+$`)
	for range 20 {
		for _, id := range regexp.MustCompile(`trace_id="([0-9a-f]+)"`).FindAllStringSubmatch(openMetrics(t, m), -1) {
			if !whole.MatchString(id[1]) || strings.Count(id[1], id[1][:2]) != 16 {
				t.Errorf("torn: %s", id[1])
			}
		}
	}
	all.Wait()
}

// TestFamilies: in OpenMetrics the counter x_total is of the family x, so that no other metric may
// have this name.
func TestFamilies(t *testing.T) {
	m := New(Options{})
	m.Registry().MustRegister(NewLoad(LoadOptions{}), NewQueues(QueueOptions{}), NewDoors(DoorOptions{}), NewRESP(nil))
	all := make(chan *prometheus.Desc, 200)
	m.Registry().Describe(all)
	close(all)
	names := map[string]bool{}
	for d := range all {
		names[regexp.MustCompile(`fqName: "([^"]+)"`).FindStringSubmatch(d.String())[1]] = true
	}
	if len(names) < 50 {
		t.Fatalf("only %d metrics", len(names))
	}
	for name := range names {
		if family, counter := strings.CutSuffix(name, "_total"); counter && names[family] &&
			strings.HasPrefix(name, "weir_") {
			t.Errorf("%s and %s are of one family", name, family)
		}
	}
}

// exemplarOf returns the exemplar of a counter.
func exemplarOf(t *testing.T, c prometheus.Metric) *dto.Exemplar {
	t.Helper()
	var out dto.Metric
	if err := c.Write(&out); err != nil {
		t.Fatal(err)
	}
	return out.GetCounter().GetExemplar()
}

// TestExemplarOutcome: a counter shows no exemplar of another outcome.
func TestExemplarOutcome(t *testing.T) {
	var s slot
	s.keep(denied, 1, &weir.Request{}, &weir.Decision{ID: 7, Time: 1_700_000_000_000_000})
	for o, want := range map[outcome]bool{denied: true, banned: false} {
		ch := make(chan prometheus.Metric, 1)
		s.counter(ch, descBanned, 1, o, "shop")
		if e := exemplarOf(t, <-ch); (e != nil) != want {
			t.Errorf("%s: %v", outcomeNames[o], e)
		}
	}
}
