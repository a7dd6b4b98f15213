package metrics

import (
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/host/load"
	"github.com/weir-rl/weir/overload"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store/memory"
)

type fixedSignals map[string]int

func (f fixedSignals) Signal(name string) (int, bool) {
	v, ok := f[name]
	return v, ok
}

func TestLoadMetrics(t *testing.T) {
	set, _, err := file.Load([]file.Source{{Name: "test.yaml", Data: []byte(`
domain: shop
limits:
  - {name: all, allow: [100/s, 1000/min], throttle: {elastic: {signal: cpu, curve: {50%: 200%, 80%: 100%, 95%: 25%}}}}
  - {name: slow, allow: 100/s, throttle: {elastic: {signal: gone, curve: {50%: 200%, 80%: 100%}}}}
  - {name: plain, allow: 100/s}
`)}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	store, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	l, err := weir.New(store, weir.WithRules(set))
	if err != nil {
		t.Fatal(err)
	}
	c := NewLoad(LoadOptions{
		Limiter: l, Signals: fixedSignals{"cpu": 65},
		List: func() []load.Info {
			return []load.Info{
				{Name: "cpu", Kind: load.Measured, Used: true, Value: 65},
				{Name: "gone", Kind: load.Pushed, Value: 0, Stale: true, Errors: 7},
				{Name: "memory", Kind: load.Measured, Value: 12}, // no rule follows it
			}
		},
		Overload: func() overload.Stats { return overload.Stats{Limit: 20, InFlight: 3, Refused: [3]uint64{5, 4, 1}} },
	})
	m := New(Options{})
	m.Registry().MustRegister(c)
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	var got []string
	for line := range strings.Lines(w.Body.String()) {
		if strings.HasPrefix(line, "weir_signal") || strings.HasPrefix(line, "weir_elastic") ||
			strings.HasPrefix(line, "weir_overload") {
			got = append(got, strings.TrimSpace(line))
		}
	}
	want := []string{
		`weir_elastic_share{domain="shop",limit="all",rule="all"} 1.5`,
		`weir_elastic_share{domain="shop",limit="slow",rule="slow"} 1`,
		`weir_overload_in_flight 3`,
		`weir_overload_limit 20`,
		`weir_overload_shed_total{priority="critical"} 1`,
		`weir_overload_shed_total{priority="default"} 4`,
		`weir_overload_shed_total{priority="sheddable"} 5`,
		`weir_signal_errors_total{signal="cpu"} 0`,
		`weir_signal_errors_total{signal="gone"} 7`,
		`weir_signal_percent{signal="cpu"} 65`,
		`weir_signal_stale{signal="cpu"} 0`,
		`weir_signal_stale{signal="gone"} 1`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	linted(t, m)
	nothing := prometheus.NewRegistry()
	nothing.MustRegister(NewLoad(LoadOptions{}))
	if families, err := nothing.Gather(); err != nil || len(families) != 0 {
		t.Errorf("a collector of nothing gives %v, %v", families, err)
	}
}
