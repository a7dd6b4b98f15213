package check

import (
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
	"sigs.k8s.io/yaml"
)

// alertTests is a file of promtool's unit tests, as far as ours go.
type alertTests struct {
	RuleFiles []string       `json:"rule_files"`
	Every     model.Duration `json:"evaluation_interval"`
	Tests     []struct {
		Name     string         `json:"name"`
		Interval model.Duration `json:"interval"`
		Input    []struct {
			Series string `json:"series"`
			Values string `json:"values"`
		} `json:"input_series"`
		Alerts []struct {
			At     model.Duration `json:"eval_time"`
			Name   string         `json:"alertname"`
			Expect []struct {
				Labels      map[string]string `json:"exp_labels"`
				Annotations map[string]string `json:"exp_annotations"`
			} `json:"exp_alerts"`
		} `json:"alert_rule_test"`
	} `json:"tests"`
}

// longestWait is longer than an alert of ours waits (for), so that a rule need not be evaluated
// earlier: promtool evaluates all rules from the beginning, which takes long where that is a week
// ago.
const longestWait = 2 * time.Hour

// TestAlertsFire runs the tests of packaging/prometheus as promtool test rules does, each on the
// alert that it names: each alert fires when it should, with these labels and this text, and does
// not when something like it happens.
func TestAlertsFire(t *testing.T) {
	files, err := filepath.Glob("../prometheus/*.test.yml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	fires, quiet := map[string]bool{}, map[string]bool{}
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var file alertTests
		if err := yaml.UnmarshalStrict(data, &file); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for i := range file.Tests {
			test := &file.Tests[i]
			t.Run(test.Name, func(t *testing.T) {
				var load strings.Builder
				fmt.Fprintf(&load, "load %s\n", test.Interval)
				for _, s := range test.Input {
					fmt.Fprintf(&load, "  %s %s\n", s.Series, s.Values)
				}
				suite, err := promqltest.NewLazyLoader(load.String(), promqltest.LazyLoaderOpts{})
				if err != nil {
					t.Fatal(err)
				}
				defer suite.Close()
				for _, want := range test.Alerts {
					var expected []string
					for _, e := range want.Expect {
						e.Labels[labels.AlertName] = want.Name
						expected = append(expected, fmt.Sprint(labels.FromMap(e.Labels), labels.FromMap(e.Annotations)))
					}
					if fires[want.Name], quiet[want.Name] = fires[want.Name] || len(expected) > 0, quiet[want.Name] || len(expected) == 0; len(test.Input) == 0 {
						t.Error("nothing happens in it")
					}
					if got := firing(t, suite, filepath.Join("../prometheus", file.RuleFiles[0]), want.Name, time.Duration(want.At), time.Duration(file.Every)); !slices.Equal(got, expected) {
						t.Errorf("%s after %s: firing\n%s\nwant\n%s", want.Name, want.At, strings.Join(got, "\n"),
							strings.Join(expected, "\n"))
					}
				}
			})
		}
	}
	for _, name := range alertNames(t) {
		if !fires[name] || !quiet[name] {
			t.Errorf("%s: a test in which it fires: %v; one in which it does not: %v", name, fires[name], quiet[name])
		}
	}
}

// firing returns the alerts of a rule that fire at an instant, counted from the first sample.
func firing(t *testing.T, suite *promqltest.LazyLoader, path, name string, at, every time.Duration) (list []string) {
	t.Helper()
	query := rules.EngineQueryFunc(suite.QueryEngine(), suite.Storage())
	manager := rules.NewManager(&rules.ManagerOptions{
		QueryFunc: query, Appendable: suite.Storage(), Queryable: suite.Storage(), Context: t.Context(),
		Logger: slog.New(slog.DiscardHandler), Parser: parser.NewParser(parser.Options{}),
	})
	groups, errs := manager.LoadGroups(every, labels.EmptyLabels(), "", nil, false, path)
	if errs != nil {
		t.Fatal(errs)
	}
	for _, g := range groups {
		for _, r := range g.Rules() {
			alert, ok := r.(*rules.AlertingRule)
			if !ok || alert.Name() != name {
				continue
			}
			begin := time.Unix(0, 0).UTC()
			suite.WithSamplesTill(begin.Add(at), func(err error) {
				if err != nil {
					t.Fatal(err)
				}
			})
			for ts := max(0, at-longestWait).Truncate(every); ts <= at; ts += every {
				if _, err := alert.Eval(t.Context(), 0, begin.Add(ts), query, nil, 0); err != nil {
					t.Fatal(err)
				}
			}
			for _, a := range alert.ActiveAlerts() {
				if a.State == rules.StateFiring {
					list = append(list, fmt.Sprint(a.Labels, a.Annotations))
				}
			}
			slices.Sort(list)
			return list
		}
	}
	t.Fatalf("there is no alert %s", name)
	return nil
}

// alertNames are the alerts in the rule file.
func alertNames(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile("../prometheus/weir.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert string `json:"alert"`
			} `json:"rules"`
		} `json:"groups"`
	}
	if err := yaml.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			names[r.Alert] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}
