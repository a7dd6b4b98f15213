//go:build unix

package stores

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/lab/sim"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/recent"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

// TestPreviewOfFleet: three servers of the built program on one Redis, over which each client
// spreads its requests. A preview gives the same figures at each of them: those of the decision
// logs of all three, replayed in this process in order of time.
func TestPreviewOfFleet(t *testing.T) {
	t.Parallel()
	const (
		rules   = "domain: shop\nlimits:\n  - { name: search, per: [user], allow: %d/hour, algorithm: sliding_log }\n  - { name: all, allow: 100000/hour }\n"
		clients = 20
		each    = 36 // requests of a client, a third of them at each server
	)
	program := servertest.BuiltProgram(t)
	dir := t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "rules.yaml"), fmt.Sprintf(rules, 6))
	redis := redistest.Start(t)
	var nodes []*servertest.Node
	var logs []string
	for i := range 3 {
		logs = append(logs, filepath.Join(dir, fmt.Sprintf("decisions-%d.jsonl", i)))
		p := servertest.Launch(t, program, dir, append([]string{"serve", "--rules=rules.yaml", "--store=" + redis.URL(),
			"--decisions-log=" + logs[i], "--decisions-outcomes=denied,soft,near_limit", "--decisions-allowed=100%", "--decisions-per-second=100000"}, servertest.Patient...)...)
		nodes = append(nodes, servertest.NodeOf(t, p.Stderr, p.Addr))
	}
	// They know each other, and sample by one seed, a moment after the start.
	asked := 0
	for _, n := range nodes {
		servertest.Eventually(t, "a preview is of all nodes", func() bool {
			for _, each := range nodes {
				asked++
				each.Ask(fmt.Sprintf("domain=shop&user=first-%d", asked))
			}
			res, ok := previewAt(t, n.Admin, fmt.Sprintf(rules, 6), "")
			return ok && res.Nodes == insight.Nodes{Asked: 3, Answered: 3}
		})
	}
	// One client after the other, so that any part of the time has some from beginning to end.
	for c := range clients {
		for k := range each {
			if status := nodes[(k+c)%3].Ask(fmt.Sprintf("domain=shop&user=client-%d", c)); status != 200 &&
				status != 429 {
				t.Fatalf("status %d", status)
			}
			asked++
		}
	}
	var logged []recent.Entry
	servertest.Eventually(t, "the logs hold all decisions", func() bool {
		logged = decisionsIn(t, logs)
		return len(logged) == asked
	})
	for i, n := range nodes {
		for _, over := range []string{"", "1s"}[:max(1, 2-i)] {
			var got insight.PreviewResult
			servertest.Eventually(t, "all nodes answer in time", func() (ok bool) {
				got, ok = previewAt(t, n.Admin, fmt.Sprintf(rules, 30), over)
				return ok && got.Nodes == insight.Nodes{Asked: 3, Answered: 3}
			})
			if got.Sampled != 1 {
				t.Errorf("node %d, over %q: one in %d: %q", i, over, got.Sampled, got.Warnings)
			}
			requests, now, then := replayed(t, logged, got.From, got.To, fmt.Sprintf(rules, 6), fmt.Sprintf(rules, 30))
			if got.Requests != requests || got.Now.Refused != now || got.Then.Refused != then || requests == 0 ||
				over == "" && then*3 > now {
				t.Errorf(
					"node %d, over %q: of %d requests %d are refused, then %d; by the logs of %d requests %d, then %d",
					i, over, got.Requests, got.Now.Refused, got.Then.Refused, requests, now, then)
			}
		}
	}
}

// decisionsIn reads what some decision logs hold, in order of time.
func decisionsIn(t *testing.T, logs []string) (list []recent.Entry) {
	t.Helper()
	for _, name := range logs {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			var e recent.Entry
			if json.Unmarshal(lines.Bytes(), &e) == nil { // the last line may be written now
				list = append(list, e)
			}
		}
	}
	slices.SortFunc(list, func(a, b recent.Entry) int { return a.Time.Compare(b.Time) })
	return list
}

// replayed counts the requests between two instants that each of two sets of rules refuses.
func replayed(t *testing.T, log []recent.Entry, from, to time.Time, now, then string) (requests, refusedNow,
	refusedThen uint64) {
	t.Helper()
	refused := []uint64{0, 0}
	for i, text := range []string{now, then} {
		set, _, err := file.Load([]file.Source{{Name: "rules.yaml", Data: []byte(text)}}, file.Options{})
		if err != nil {
			t.Fatal(err)
		}
		engine, err := sim.NewEngine(set)
		if err != nil {
			t.Fatal(err)
		}
		defer engine.Close()
		requests = 0
		for _, e := range log {
			engine.SetTime(e.Time.UnixMicro())
			var d weir.Decision
			if err := engine.Decide(&weir.Request{Domain: e.Domain, Attributes: rule.Map(e.Attributes)}, &d); err != nil {
				t.Fatal(err)
			}
			if e.Time.Before(from) || e.Time.After(to) {
				continue
			}
			if requests++; !d.Allowed {
				refused[i]++
			}
		}
	}
	return requests, refused[0], refused[1]
}

// previewAt has a server preview rules; ok is false if it has recorded nothing.
func previewAt(t *testing.T, admin, rules, over string) (res insight.PreviewResult, ok bool) {
	t.Helper()
	question := map[string]any{"files": map[string]string{"rules.yaml": rules}}
	if over != "" {
		question["over"] = over
	}
	body, err := json.Marshal(question)
	if err != nil {
		t.Fatal(err)
	}
	a, err := http.Post(admin+"/api/v1/preview", "application/json", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	var begun struct{ Preview string }
	if err := json.NewDecoder(a.Body).Decode(&begun); err != nil || a.StatusCode != 202 {
		t.Fatal(a.Status, err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, admin+begun.Preview, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "application/json")
	if a, err = http.DefaultClient.Do(r); err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	if a.StatusCode == http.StatusConflict {
		return res, false
	}
	text, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	servertest.SkipIfStarved(t, string(text))
	if err := json.Unmarshal(text, &res); err != nil || a.StatusCode != 200 || len(res.Problems) > 0 {
		t.Fatalf("%s: %v: %s", a.Status, err, text)
	}
	return res, true
}
