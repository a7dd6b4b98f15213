package main

import (
	"encoding/json"
	"encoding/xml"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/admin"
	"github.com/weir-rl/weir/internal/lab/findings"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// strictly reads JSON into a value that knows all of its members.
func strictly[T any](t *testing.T, text string) (v T) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil || d.More() {
		t.Fatalf("%v in\n%s", err, text)
	}
	return v
}

// TestJSON: what commands print with --json, by the built program on a real server, is what
// docs/reference/commands.md describes: nothing more, and one document. The server is found by
// WEIR_SERVER, as host:port, and by the token in WEIR_TOKEN_FILE. An address that stands alone
// where a rule has per: [user|ip] is no name of a user.
func TestJSON(t *testing.T) {
	t.Parallel()
	program, dir := servertest.BuiltProgram(t), t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "rules.yaml"), `domain: shop
limits:
  - { name: api, per: [user|ip], allow: 2/day, algorithm: sliding_log }
  - { name: trial, per: [ip], allow: 1/day, on_limit: shadow }
`)
	tokens := filepath.Join(dir, "tokens")
	if err := os.WriteFile(tokens, []byte("0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := servertest.Launch(t, program, dir, "serve", "--rules=rules.yaml", "--auth-tokens-file="+tokens)
	weir := func(want int, args ...string) string {
		t.Helper()
		cmd := exec.Command(program, append(args, "--json")...)
		cmd.Env = append(servertest.PlainEnvironment(), "WEIR_SERVER="+p.Addr("admin"), "WEIR_TOKEN_FILE="+tokens)
		var errs strings.Builder
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		if got := cmd.ProcessState.ExitCode(); got != want {
			t.Fatalf("weir %q: exit status %d, want %d\n%s%s", args, got, want, out, errs.String())
		}
		return string(out)
	}
	asks := func(query string, want int) {
		t.Helper()
		if status, _, body := servertest.Get(t, "http://"+p.Addr("http")+"/api/v1/limit?"+query); status != want {
			t.Errorf("%s: %d %s, want %d", query, status, body, want)
		}
	}

	type bans struct {
		Bans  []admin.ListedBan `json:"bans"`
		Total int               `json:"total"`
		Nodes insight.Nodes     `json:"nodes"`
	}
	type ban struct {
		Ban    admin.ListedBan `json:"ban"`
		Shared bool            `json:"shared"`
	}
	if got := strictly[bans](t, weir(0, "ban", "list")); got.Total != 0 || got.Bans == nil {
		t.Errorf("no bans: %+v", got)
	}
	asks("ip=192.0.2.9", 200)
	if got := strictly[ban](t, weir(0, "ban", "set", "api", "192.0.2.9", "--for", "1h", "--reason", "guesses")); !slices.Equal(got.Ban.Key, []string{"ip=192.0.2.9"}) || !got.Ban.Manual {
		t.Errorf("a ban: %+v", got)
	}
	asks("ip=192.0.2.9", 429)
	asks("user=192.0.2.9", 200)
	if got := strictly[bans](t, weir(0, "ban", "list")); got.Total != 1 || got.Bans[0].Reason != "guesses" {
		t.Errorf("a ban: %+v", got)
	}
	strictly[ban](t, weir(0, "ban", "lift", "api", "192.0.2.9"))
	asks("ip=192.0.2.9", 200)

	type grants struct {
		Grants []admin.ListedGrant `json:"grants"`
		Total  int                 `json:"total"`
	}
	asks("ip=192.0.2.9", 429)
	set := func(allow string) admin.GrantChange {
		t.Helper()
		return strictly[admin.GrantChange](t, weir(0, "grant", "set", "api", "192.0.2.9", "--for", "1h", "--allow", allow, "--reason", "import"))
	}
	if got := set("5/day"); !slices.Equal(got.Grant.Key, []string{"ip=192.0.2.9"}) || got.Grant.Allow != "5/day" ||
		got.Before != "2/day" || got.Without != "2/day" || got.Replaced != nil || !*got.Shared {
		t.Errorf("a grant: %+v", got)
	}
	asks("ip=192.0.2.9", 200)
	if got := set("6 per day"); got.Grant.Allow != "6/day" || got.Replaced == nil || got.Replaced.Allow != "5/day" ||
		got.Replaced.Reason != "import" || got.Before != "5/day" || got.Without != "2/day" {
		t.Errorf("a grant in place of another: %+v", got)
	}
	if got := strictly[grants](t, weir(0, "grant", "list")); got.Total != 1 {
		t.Errorf("a grant: %+v", got)
	}
	if got := strictly[admin.GrantChange](t, weir(0, "grant", "revoke", "api", "192.0.2.9")); got.Grant.Allow != "6/day" ||
		got.Before != "6/day" || got.Without != "2/day" {
		t.Errorf("the end of a grant: %+v", got)
	}

	if got := strictly[admin.CandidateList](t, weir(0, "candidates")); len(got.Candidates) != 1 ||
		got.Candidates[0].Limit != "trial" || got.Nodes.Asked != 1 {
		t.Errorf("candidates: %+v", got)
	}
	if got := strictly[versionInfo](t, weir(0, "version")); got.Version == "" || !strings.HasPrefix(got.Go, "go") ||
		got.OS == "" || got.Arch == "" {
		t.Errorf("version: %+v", got)
	}
	if got := strictly[healthInfo](t, weir(0, "health", "--timeout", "1h", "--server", p.Addr("admin"))); !got.Healthy ||
		got.Message == "" || got.Server != "http://"+p.Addr("admin") {
		t.Errorf("health: %+v", got)
	}
	if got := strictly[healthInfo](t, weir(1, "health", "--server", "127.0.0.1:"+servertest.FreePort(t))); got.Healthy || got.Message == "" {
		t.Errorf("health of nobody: %+v", got)
	}
}

// checkedRules are rules with an error, with a warning, and tests of which one fails.
func checkedRules(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"broken/a.yaml":     "domain: shop\nlimits: [{ name: a, alow: 1/day }]\n",
		"warned/a.yaml":     "domain: shop\nlimits: [{ name: a, per: [header.x-user], allow: 1/day }]\n",
		"good/a.yaml":       "domain: shop\nlimits: [{ name: a, per: [user], allow: 1/day, algorithm: sliding_log }]\n",
		"good/a_test.yaml":  "tests:\n  - { name: once, steps: [{ send: { user: ada }, expect: allowed }] }\n  - { name: <twice> & more, steps: [{ send: { user: ada, times: 2 }, expect: allowed }] }\n",
		"good/b_test.yaml":  "tests: [{ name: unread, steps: [{ send: { usr: ada }, expect: allowed }] }]\n",
		"good/c d_test.yml": "tests: [{ name: once, steps: [{ send: { user: ada }, expect: allowed }] }]\n",
	} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		servertest.WriteRules(t, filepath.Join(dir, name), text)
	}
	return dir
}

// TestFindings: lint and test print what they found as JSON, SARIF and JUnit, with the exit status
// that they have without.
func TestFindings(t *testing.T) {
	t.Parallel()
	dir := checkedRules(t)
	run := func(want int, args ...string) string {
		t.Helper()
		status, out, errs := servertest.RunBuilt(t, args...)
		if status != want {
			t.Fatalf("weir %q: exit status %d, want %d\n%s%s", args, status, want, out, errs)
		}
		return out
	}
	broken, warned, good := filepath.Join(dir, "broken"), filepath.Join(dir, "warned"), filepath.Join(dir, "good")

	lint := strictly[findings.Lint](t, run(1, "lint", "--json", broken))
	if lint.Errors != 2 || lint.Files != 1 || len(lint.Problems) != 2 || lint.Problems[1].Severity != findings.Error ||
		lint.Problems[1].File != filepath.Join(broken, "a.yaml") || lint.Problems[1].Line != 2 ||
		lint.Problems[1].Column != 21 || !strings.Contains(lint.Problems[1].Hint, "allow") {
		t.Errorf("an error: %+v", lint)
	}
	lint = strictly[findings.Lint](t, run(0, "lint", "--json", warned))
	if lint.Errors != 0 || lint.Rules != 1 || lint.Warnings != 1 || lint.Problems[0].Name != "forgeable-key" ||
		lint.Problems[0].Rule != "a" {
		t.Errorf("a warning: %+v", lint)
	}
	run(1, "lint", "--json", "--strict", warned)
	if lint = strictly[findings.Lint](t, run(0, "lint", "--json", good)); lint.Rules != 1 || lint.Problems == nil ||
		len(lint.Problems) != 0 {
		t.Errorf("nothing: %+v", lint)
	}

	tests := strictly[findings.Tests](t, run(2, "test", "--json", good))
	if tests.Passed != 2 || tests.Failed != 1 || len(tests.Files) != 3 || tests.Files[1].Error == "" ||
		len(tests.Files[0].Tests) != 2 {
		t.Fatalf("tests: %+v", tests)
	}
	if failed := tests.Files[0].Tests[1]; failed.Passed || len(failed.Failures) != 1 ||
		failed.Failures[0].Request != 2 || failed.Failures[0].Line != 3 {
		t.Errorf("a failure: %+v", failed)
	}
	run(2, "test", "--json", "--junit", good)
	run(2, "lint", "--json", "--sarif", good)

	var report struct {
		XMLName  xml.Name `xml:"testsuites"`
		Tests    int      `xml:"tests,attr"`
		Failures int      `xml:"failures,attr"`
		Errors   int      `xml:"errors,attr"`
		Suites   []struct {
			Name  string `xml:"name,attr"`
			Tests int    `xml:"tests,attr"`
			Cases []struct {
				Name    string `xml:"name,attr"`
				Failure *struct {
					Message string `xml:"message,attr"`
					Text    string `xml:",chardata"`
				} `xml:"failure"`
				Error *struct {
					Text string `xml:",chardata"`
				} `xml:"error"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal([]byte(run(2, "test", "--junit", good)), &report); err != nil {
		t.Fatal(err)
	}
	if report.Tests != 4 || report.Failures != 1 || report.Errors != 1 || len(report.Suites) != 3 ||
		report.Suites[0].Tests != 2 {
		t.Fatalf("JUnit: %+v", report)
	}
	if c := report.Suites[0].Cases[1]; c.Name != "<twice> & more" || c.Failure == nil ||
		!strings.Contains(c.Failure.Text, "expected allowed") || c.Failure.Message == "" {
		t.Errorf("JUnit: %+v", c)
	}
	if c := report.Suites[1].Cases[0]; c.Error == nil || !strings.Contains(c.Error.Text, "usr") {
		t.Errorf("JUnit: %+v", c)
	}

	type text struct {
		Text string `json:"text"`
	}
	type sarif struct {
		Schema  string `json:"$schema"`
		Version string `json:"version"`
		Runs    []struct {
			Tool struct {
				Driver struct {
					Name           string `json:"name"`
					Version        string `json:"version"`
					InformationURI string `json:"informationUri"`
					Rules          []struct {
						ID               string `json:"id"`
						ShortDescription text   `json:"shortDescription"`
					} `json:"rules"`
				} `json:"driver"`
			} `json:"tool"`
			Results []struct {
				RuleID    string `json:"ruleId"`
				RuleIndex int    `json:"ruleIndex"`
				Level     string `json:"level"`
				Message   text   `json:"message"`
				Locations []struct {
					PhysicalLocation struct {
						ArtifactLocation struct {
							URI string `json:"uri"`
						} `json:"artifactLocation"`
						Region struct {
							StartLine   int `json:"startLine"`
							StartColumn int `json:"startColumn"`
						} `json:"region"`
					} `json:"physicalLocation"`
				} `json:"locations"`
			} `json:"results"`
		} `json:"runs"`
	}
	for _, c := range []struct {
		path, rule, level string
		status            int
	}{{broken, "invalid", "error", 1}, {warned, "forgeable-key", "warning", 0}} {
		log := strictly[sarif](t, run(c.status, "lint", "--sarif", c.path))
		if log.Version != "2.1.0" || len(log.Runs) != 1 || len(log.Runs[0].Results) == 0 {
			t.Fatalf("SARIF: %+v", log)
		}
		driver, result := log.Runs[0].Tool.Driver, log.Runs[0].Results[0]
		if result.RuleID != c.rule || result.Level != c.level || driver.Rules[result.RuleIndex].ID != c.rule ||
			result.Message.Text == "" {
			t.Errorf("SARIF: %+v", result)
		}
		place := result.Locations[0].PhysicalLocation
		if place.ArtifactLocation.URI != "file://"+filepath.Join(c.path, "a.yaml") || place.Region.StartLine != 2 ||
			place.Region.StartColumn < 1 {
			t.Errorf("SARIF: %+v", place)
		}
		for i, r := range driver.Rules {
			if r.ID == "" || r.ShortDescription.Text == "" || slices.ContainsFunc(driver.Rules[:i], func(o struct {
				ID               string `json:"id"`
				ShortDescription text   `json:"shortDescription"`
			}) bool {
				return o.ID == r.ID
			}) {
				t.Errorf("SARIF: rule %d: %+v", i, r)
			}
		}
	}
}
