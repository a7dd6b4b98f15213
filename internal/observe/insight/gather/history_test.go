package gather

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/observe/insight"
)

const historyRules = "domain: shop\nlimits: [{name: a, per: [user], allow: 3/min, algorithm: fixed_window}, {name: b, per: [user], allow: 1000/min}]"

// restart returns a bench on the history that another one left, at its time.
func restart(t *testing.T, at time.Time, path, rules string, log *bytes.Buffer) *bench {
	t.Helper()
	return startBench(t, Options{Logger: slog.New(slog.NewTextHandler(log, nil))}, at, path, rules)
}

// A restart forgets no count of a whole minute, whether the program was closed, or killed with its
// last record torn. A rule that was changed meanwhile starts afresh.
func TestHistory(t *testing.T) {
	for _, end := range []string{"closed", "killed", "torn", "rewritten"} {
		t.Run(end, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "history")
			var log bytes.Buffer
			b := startBench(t, Options{}, begun, path, historyRules)
			minute := func() {
				for range 5 {
					b.ask("ada")
				}
				b.pass(time.Minute)
				b.remember()
			}
			for range 90 { // past a rewriting
				minute()
			}
			switch end {
			case "closed":
				if err := b.Close(); err != nil {
					t.Fatal(err)
				}
			case "torn":
				data, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				minute()
				if err := os.WriteFile(path, append(data, 40, 0, 0, 0, 1, 2, 3, 4, 5), 0o600); err != nil {
					t.Fatal(err)
				}
			case "rewritten":
				for range 60 { // past another rewriting
					b.pass(time.Minute)
					b.remember()
				}
			}
			next := restart(t, b.time(), path, strings.Replace(historyRules, "1000/min", "2000/min", 1), &log)
			o, err := next.Overview(t.Context(), "shop", 3*time.Hour)
			if err != nil || o.Requests != 450 || o.Refused != 180 {
				t.Errorf("%d requests, %d refused, %v", o.Requests, o.Refused, err)
			}
			r, _, err := next.Rule(t.Context(), "shop", "a", 3*time.Hour)
			if err != nil || r.Met != 450 || r.Refused != 180 || r.Since.After(begun.Add(time.Hour)) {
				t.Errorf("%d met, %d refused, since %v: %v", r.Met, r.Refused, r.Since, err)
			}
			if week, _, err := next.Rule(t.Context(), "shop", "a", 7*24*time.Hour); err != nil || week.Met != 450 {
				t.Errorf("over a week %d met: %v", week.Met, err)
			}
			if r, _, err := next.Rule(t.Context(), "shop", "b", 3*time.Hour); err != nil || r.Met != 0 {
				t.Errorf("the changed rule: %d met: %v", r.Met, err)
			}
			if (end == "torn") != strings.Contains(log.String(), "cut off") {
				t.Errorf("the log says %q", log.String())
			}
			if err := next.Close(); err != nil {
				t.Error(err)
			}
			log.Reset()
			restart(t, b.time(), path, historyRules, &log)
			if log.Len() > 0 {
				t.Errorf("the file is not good to its end: %s", log.String())
			}
		})
	}
}

// What is no history is set aside, and does not keep the program from starting; one of another
// version is called so.
func TestHistoryIsNone(t *testing.T) {
	for text, says := range map[string]string{"something else": "is none; it was set aside",
		"weir-insight\x02x": "another version"} {
		path := filepath.Join(t.TempDir(), "history")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		b := restart(t, begun, path, historyRules, &log)
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if data, err := os.ReadFile(path + ".damaged"); err != nil || string(data) != text ||
			!strings.Contains(log.String(), says) {
			t.Errorf("%q, %v; the log says %q", data, err, log.String())
		}
	}
}

// Verdicts cover one time. The samples of keys start again with the program. So do the counts of a
// verdict, whatever earlier counts the history file has.
func TestVerdictsAfterARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history")
	b := startBench(t, Options{}, begun, path, historyRules)
	for range 90 {
		for range 20 {
			b.ask("ada")
		}
		b.pass(time.Minute)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	next := restart(t, b.time(), path, historyRules, new(bytes.Buffer))
	for range 5 {
		next.ask("eve")
	}
	next.pass(2 * time.Minute)
	r, _, err := next.Rule(t.Context(), "shop", "a", 3*time.Hour)
	if err != nil || r.Met != 1805 || len(r.Verdicts) != 1 {
		t.Fatalf("%d met: %+v, %v", r.Met, r.Verdicts, err)
	}
	v := r.Verdicts[0]
	if v.Verdict != insight.TooEarly || v.Evidence["met"] != 5 || v.Evidence["refused"] != 2 ||
		v.Evidence["seconds"] != 120 ||
		!strings.Contains(v.Sentence, "5 requests in 2 min so far") {
		t.Errorf("%+v", v)
	}
}
