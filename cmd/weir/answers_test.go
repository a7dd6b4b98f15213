package main

import (
	"bytes"
	"context"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/admin"
	"github.com/weir-rl/weir/internal/admin/words"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/gather"
	"github.com/weir-rl/weir/internal/observe/recent"
	"github.com/weir-rl/weir/internal/testkit/golden"
	"github.com/weir-rl/weir/internal/testkit/servertest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store/memory"
)

// What the docs show as an answer or an output is what tests have seen.
func TestOutputsInDocs(t *testing.T) {
	docs := filepath.Join(servertest.RepositoryRoot(t), "docs")
	seen := 0
	for _, page := range []string{"guides/responses.md", "start/rollout.md"} {
		for _, b := range servertest.Blocks(t, filepath.Join(docs, page)) {
			for _, name := range b.Directive("golden") {
				seen++
				want, err := os.ReadFile(filepath.Join(docs, filepath.Dir(page), filepath.FromSlash(name)))
				if err != nil {
					t.Fatal(err)
				}
				if b.Text != string(want) {
					t.Errorf("%s:%d does not show %s:\n%s", page, b.Line, name, want)
				}
			}
		}
	}
	if seen < 4 {
		t.Fatalf("only %d blocks found: does the search still fit the docs?", seen)
	}
}

// newAnswering is an admin port over a limiter whose clock stands still at now, with the memory of
// its decisions.
func newAnswering(t *testing.T, now *int64, yaml string) (l *weir.Limiter, url string) {
	t.Helper()
	store, err := memory.New(memory.Options{Clock: func() int64 { return *now }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	set, _, err := file.Load([]file.Source{{Name: "shop.yaml", Data: []byte(yaml)}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	decisions, err := recent.New(recent.Options{Sample: -1})
	if err != nil {
		t.Fatal(err)
	}
	c := gather.New(gather.Options{Now: func() time.Time { return time.UnixMicro(*now) }})
	l, err = weir.New(store, weir.WithRules(set), weir.WithHooks(weir.JoinHooks(c.Hooks(), decisions.Hooks())))
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(admin.New(l, admin.Options{Decisions: decisions, Insight: c}))
	t.Cleanup(s.Close)
	return l, s.URL
}

func runWeir(args ...string) (status int, out, errs string) {
	var o, e bytes.Buffer
	status = Run(context.Background(), args, nil, strings.NewReader(""), &o, &e)
	return status, o.String(), e.String()
}

// An id that a refused client got leads to what happened, in words, through the real admin port.
func TestExplainID(t *testing.T) {
	now := int64(1_767_225_600_000_000)
	l, url := newAnswering(t, &now, `domain: shop
limits:
  # one comment, so that the lines are not 1, 2, 3
  - name: api-per-user
    when: { path: /api/** }
    per: [user]
    allow: { rate: 2/min, burst: 2 }
  - { name: everybody, allow: 1000/min, algorithm: sliding_log }
  - { name: trial, per: [user], allow: 1/min, algorithm: sliding_log, on_limit: shadow }
`)
	var d weir.Decision
	for range 3 {
		now += 1e6
		r := weir.Request{Attributes: rule.Map{"user": "ada", "path": "/api/x"}, Hits: 1, Door: "http"}
		if err := l.Decide(t.Context(), &r, &d); err != nil {
			t.Fatal(err)
		}
	}
	id := d.ID.String()
	for _, spelled := range []string{id, strings.ToUpper(id)} {
		status, out, errs := runWeir("explain", "--server", url, "--id", spelled)
		if status != 0 {
			t.Fatalf("status %d: %s", status, errs)
		}
		golden.Check(t, "explain-id.txt", strings.ReplaceAll(out, id, "4vq8r2mxw0c7e"))
	}
	for _, c := range []struct {
		args   []string
		status int
		errs   string
	}{
		{[]string{"--id", "0000000000001"}, 1, "no such decision is kept here"},
		{[]string{"--id", "nonsense"}, 2, "is no id of a decision"},
		{[]string{"--id", id, "user=ada"}, 2, "leave the attributes out"},
		{[]string{"--id", id, "--server", "nowhere"}, 2, "expected the URL of an admin port"},
	} {
		status, _, errs := runWeir(append([]string{"explain", "--server", url}, c.args...)...)
		if status != c.status || !strings.Contains(errs, c.errs) {
			t.Errorf("%v: status %d, %s", c.args, status, errs)
		}
	}
}

// The real admin port reports what rules in shadow would do.
func TestCandidatesCommand(t *testing.T) {
	now := int64(1_767_225_600_000_000)
	l, url := newAnswering(t, &now, `domain: shop
limits:
  - { name: trial, per: [user], allow: 1/min, algorithm: sliding_log, on_limit: shadow }
  - { name: share, per: [user], allow: 1000/min, enforce: 10% }
  - { name: plain, allow: 1000/min }
`)
	for range 4 {
		if _, err := l.Allow(t.Context(), weir.Request{Attributes: rule.Map{"user": "ada"}}); err != nil {
			t.Fatal(err)
		}
	}
	status, out, errs := runWeir("candidates", "--server", url)
	if status != 0 {
		t.Fatalf("status %d: %s", status, errs)
	}
	squeezed := strings.Join(strings.Fields(out), " ")
	for _, want := range []string{"shop/trial shadow", " 4 3 0 0 75.00 % of requests, 1 key refused",
		"shop/share enforce 10 %", "shop/trial would have refused most often: 3 user=ada"} {
		if !strings.Contains(squeezed, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if strings.Contains(out, "plain") {
		t.Errorf("a rule that is enforced is among them:\n%s", out)
	}
	if status, out, errs := runWeir("candidates", "--server", url, "--domain", "other"); status != 1 ||
		!strings.Contains(errs, `domain`) {
		t.Errorf("a domain that no rule knows: status %d: %s%s", status, out, errs)
	}
}

func TestCandidatesTable(t *testing.T) {
	now := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	list := []insight.Candidate{
		{
			Domain: "shop", Limit: "api-per-user-tighter", Since: now.Add(-24 * time.Hour), WouldRefuse: 3072, BothRefuse: 640, BothAdmit: 508_288, Share: 0.006, KeysRefused: 41,
			Top: []insight.CandidateKey{{Key: "user=batch-17", Count: 1210}, {Key: "user=ada", Count: 300, Over: 20}},
		},
		{Domain: "shop", Limit: "search", Enforce: 10, Since: now.Add(-2 * time.Hour), WouldRefuse: 1800, BothAdmit: 88_200, Share: 0.02, KeysRefused: 230, EnforcedAdmitted: 9846, EnforcedRefused: 204, EnforcedKeysRefused: 27},
	}
	var out bytes.Buffer
	if err := words.Candidates(&out, list, now); err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "candidates.txt", out.String())
}

// A rule of the Lyft form is called as Envoy's headers call it, and by its path.
func TestExplainIDNamesAsEnvoy(t *testing.T) {
	now := int64(1_767_225_600_000_000)
	l, url := newAnswering(t, &now, `domain: shop
descriptors:
  - {key: remote_address, rate_limit: {name: per-client, unit: hour, requests_per_unit: 0}}
`)
	r := weir.Request{Hits: 1,
		Descriptors: []rule.Descriptor{{Entries: []rule.Entry{{Key: "remote_address", Value: "192.0.2.1"}}}}}
	var d weir.Decision
	if err := l.Decide(t.Context(), &r, &d); err != nil {
		t.Fatal(err)
	}
	_, out, errs := runWeir("explain", "--server", url, "--id", d.ID.String())
	for _, want := range []string{"It was REFUSED by per-client (remote_address)",
		"\n  per-client (remote_address)  refused it"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s%s", want, out, errs)
		}
	}
}
