package check

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/template"

	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"
)

// metrics are the metrics in docs/reference/metrics.md, which a test of
// internal/admin/metrics compares with the server's: labels by name.
func metrics(t *testing.T) map[string][]string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "docs", "reference", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]string{"up": nil, "process_cpu_seconds_total": nil, "process_resident_memory_bytes": nil,
		"process_open_fds": nil}
	metric := regexp.MustCompile("`(weir_[a-z0-9_]+)(?:\\{([a-z_,]+)\\})?`")
	for line := range strings.Lines(string(page)) {
		if !strings.HasPrefix(line, "| `weir_") {
			continue
		}
		name, _, _ := strings.Cut(line, " |")
		for _, m := range metric.FindAllStringSubmatch(name, -1) {
			found[m[1]] = nil
			if m[2] != "" {
				found[m[1]] = strings.Split(m[2], ",")
			}
		}
	}
	if len(found) < 50 {
		t.Fatalf("only %d metrics found in docs/reference/metrics.md", len(found))
	}
	return found
}

// histograms are the metrics that have buckets.
var histograms = []string{"weir_decision_seconds", "weir_store_seconds", "weir_redis_batch_decisions",
	"weir_nodes_question_seconds"}

// checkQuery: the query can be read, and all metrics and labels in it are there.
func checkQuery(t *testing.T, where, query string, known map[string][]string) {
	t.Helper()
	expression, err := parser.NewParser(parser.Options{}).ParseExpr(query)
	if err != nil {
		t.Errorf("%s: %v\n%s", where, err, query)
		return
	}
	// Labels of the query's selectors. Those of a fleet come from the configuration of the scrape.
	seen := []string{"job", "instance", "cluster", "region", "namespace", "app_kubernetes_io_instance"}
	parser.Inspect(expression, func(node parser.Node, _ []parser.Node) error {
		selector, ok := node.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		name, own := selector.Name, []string{"job", "instance"}
		for _, h := range histograms {
			for _, part := range []string{"_bucket", "_sum", "_count"} {
				if selector.Name == h+part {
					name = h
				}
			}
			if selector.Name == h {
				t.Errorf("%s: %s is a histogram", where, h)
			}
		}
		if strings.HasSuffix(selector.Name, "_bucket") {
			own = append(own, "le")
		}
		has, ok := known[name]
		if !ok {
			t.Errorf("%s: there is no metric %s", where, selector.Name)
			return nil
		}
		own = append(own, has...)
		seen = append(seen, own...)
		for _, m := range selector.LabelMatchers {
			if m.Name != "__name__" && !slices.Contains(own, m.Name) {
				t.Errorf("%s: %s has no label %s, but %q", where, selector.Name, m.Name, own)
			}
		}
		return nil
	})
	parser.Inspect(expression, func(node parser.Node, _ []parser.Node) error {
		if aggregate, ok := node.(*parser.AggregateExpr); ok {
			for _, label := range aggregate.Grouping {
				if !slices.Contains(seen, label) {
					t.Errorf("%s: nothing in it has the label %s\n%s", where, label, query)
				}
			}
		}
		return nil
	})
}

func TestDashboard(t *testing.T) {
	data, err := os.ReadFile("../grafana/weir.json")
	if err != nil {
		t.Fatal(err)
	}
	type box struct{ X, Y, W, H int }
	var board struct {
		UID, Title string
		Panels     []struct {
			ID         int
			Type       string
			Title      string
			GridPos    box
			Datasource struct{ UID string }
			Targets    []struct {
				Expr         string
				LegendFormat string
			}
		}
		Templating struct {
			List []struct{ Name, Definition string }
		}
		Annotations struct{ List []struct{ Expr string } }
	}
	if err := json.Unmarshal(data, &board); err != nil {
		t.Fatal(err)
	}
	known := metrics(t)
	variables := map[string]bool{"__rate_interval": true}
	values := regexp.MustCompile(`^label_values\((.+), ([a-z]+)\)$`)
	for _, v := range board.Templating.List {
		variables[v.Name] = true
		if v.Definition == "" {
			continue
		}
		asked := values.FindStringSubmatch(v.Definition)
		if asked == nil {
			t.Errorf("variable %s: %s", v.Name, v.Definition)
			continue
		}
		checkQuery(t, "variable "+v.Name, fmt.Sprintf("count by (%s) (%s)", asked[2], asked[1]), known)
	}
	variable := regexp.MustCompile(`\$(\w+)`)
	check := func(where, query string) {
		t.Helper()
		for _, m := range variable.FindAllStringSubmatch(query, -1) {
			if !variables[m[1]] {
				t.Errorf("%s: there is no variable %s", where, m[1])
			}
		}
		checkQuery(t, where, strings.ReplaceAll(query, "$__rate_interval", "5m"), known)
	}
	queries, ids, boxes := 0, map[int]bool{}, []box{}
	legend := regexp.MustCompile(`\{\{(\w+)\}\}`)
	for _, p := range board.Panels {
		if ids[p.ID] {
			t.Errorf("panel %d is there twice", p.ID)
		}
		ids[p.ID] = true
		g := p.GridPos
		for _, other := range boxes {
			if g.X < other.X+other.W && other.X < g.X+g.W && g.Y < other.Y+other.H && other.Y < g.Y+g.H {
				t.Errorf("panel %q lies on another", p.Title)
			}
		}
		boxes = append(boxes, g)
		if g.X+g.W > 24 || p.Title == "" || p.Type != "row" &&
			(len(p.Targets) == 0 || p.Datasource.UID != "${datasource}") {
			t.Errorf("panel %d %q: %+v", p.ID, p.Title, p)
		}
		for _, target := range p.Targets {
			queries++
			check(fmt.Sprintf("panel %q", p.Title), target.Expr)
			for _, m := range legend.FindAllStringSubmatch(target.LegendFormat, -1) {
				// A label of the legend is one that the query keeps.
				if strings.Contains(target.Expr, " by (") &&
					!regexp.MustCompile(`by \([^)]*\b`+m[1]+`\b`).MatchString(target.Expr) {
					t.Errorf("panel %q: its query drops the label %s", p.Title, m[1])
				}
			}
		}
	}
	for _, a := range board.Annotations.List {
		check("annotation", a.Expr)
	}
	if queries < 30 || board.UID == "" {
		t.Errorf("%d queries, uid %q", queries, board.UID)
	}
}

// runbooks is where alerts lead to.
const runbooks = "https://github.com/weir-rl/weir/blob/HEAD/docs/operating/runbooks.md#"

// TestRunbooks: the page has a section for each alert, with all that it is to say, and no other.
func TestRunbooks(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "operating", "runbooks.md"))
	if err != nil {
		t.Fatal(err)
	}
	sections := strings.Split(string(page), "\n## ")[1:]
	var have []string
	for _, section := range sections {
		name, text, _ := strings.Cut(section, "\n")
		have = append(have, name)
		for _, part := range []string{"**Means**: ", "- **Look at** ", "- **Do**"} {
			if strings.Count(text, part) != 1 {
				t.Errorf("%s: it has %q %d times", name, part, strings.Count(text, part))
			}
		}
	}
	slices.Sort(have)
	if want := alertNames(t); !slices.Equal(have, want) {
		t.Errorf("the page has the sections\n%q, and the alerts are\n%q", have, want)
	}
}

func TestAlerts(t *testing.T) {
	data, err := os.ReadFile("../prometheus/weir.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Name  string `json:"name"`
			Rules []struct {
				Alert       string            `json:"alert"`
				Expr        string            `json:"expr"`
				For         string            `json:"for"`
				Labels      map[string]string `json:"labels"`
				Annotations map[string]string `json:"annotations"`
			} `json:"rules"`
		} `json:"groups"`
	}
	if err := yaml.UnmarshalStrict(data, &file); err != nil {
		t.Fatal(err)
	}
	known := metrics(t)
	names := map[string]bool{}
	functions := template.FuncMap{"humanize": fmt.Sprint, "humanizePercentage": fmt.Sprint,
		"humanizeDuration": fmt.Sprint}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			if names[r.Alert] || r.Alert == "" {
				t.Errorf("alert %q is there twice, or has no name", r.Alert)
			}
			names[r.Alert] = true
			checkQuery(t, r.Alert, r.Expr, known)
			// Sums over servers are over the servers of one fleet.
			for _, by := range regexp.MustCompile(`by \(([^)]*)\)`).FindAllStringSubmatch(r.Expr, -1) {
				if !strings.HasPrefix(by[1], "job, instance") &&
					!strings.HasPrefix(by[1], "job, cluster, region, namespace, app_kubernetes_io_instance") {
					t.Errorf("%s mixes fleets: by (%s)", r.Alert, by[1])
				}
			}
			if s := r.Labels["severity"]; s != "info" && s != "warning" && s != "critical" {
				t.Errorf("%s: severity %q", r.Alert, s)
			}
			if r.Annotations["summary"] == "" {
				t.Errorf("%s: no summary", r.Alert)
			}
			if want := runbooks + strings.ToLower(r.Alert); r.Annotations["runbook_url"] != want {
				t.Errorf("%s: runbook_url is %q, want %q", r.Alert, r.Annotations["runbook_url"], want)
			}
			for name, text := range r.Annotations {
				if _, err := template.New(name).Funcs(functions).Parse("{{$labels := .}}{{$value := .}}" + text); err != nil {
					t.Errorf("%s: %s: %v", r.Alert, name, err)
				}
			}
		}
	}
	if len(names) < 28 {
		t.Errorf("only %d alerts", len(names))
	}
}
