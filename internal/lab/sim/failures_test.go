package sim

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/observe/insight"
)

// Each of some rules that are alike except for a number has as many failures as when it is the only
// rule, in the list of failures and in its verdict.
func TestReplayAlikeFailures(t *testing.T) {
	var log strings.Builder
	for i, user := range []string{"-", "ada", "ada", "3", "-", "-", "11", "bob", "-", "3"} {
		log.WriteString(line(i, "192.0.2.1", user, "GET / HTTP/1.1"))
	}
	const head = "limits:\n"
	var all strings.Builder
	all.WriteString(head)
	var rules []string
	for i := range 12 {
		rules = append(rules, fmt.Sprintf("  - { name: r%d, if: 'int(attr.user) == %d', allow: 9/min }\n", i, i))
		all.WriteString(rules[i])
	}
	rep := replayText(t, log.String(), ReplayOptions{}, all.String())
	if len(rep.Failures) != len(rules) {
		t.Fatalf("%d rules failed: %+v", len(rep.Failures), rep.Failures)
	}
	for i, text := range rules {
		alone := replayText(t, log.String(), ReplayOptions{}, head+text)
		if len(alone.Failures) != 1 || alone.Failures[0].Count != 7 {
			t.Fatalf("rule %d alone: %+v", i, alone.Failures)
		}
		if rep.Failures[i] != alone.Failures[0] {
			t.Errorf("%+v; alone %+v", rep.Failures[i], alone.Failures[0])
		}
		if got, want := errorsOf(rep.ByRule[i]), errorsOf(alone.ByRule[0]); got != want || want != 7 {
			t.Errorf("rule %d: %v errors by its verdict, alone %v", i, got, want)
		}
	}
}

// errorsOf is how many expressions of a rule failed, as its verdict says.
func errorsOf(r insight.RuleReport) float64 {
	for _, v := range r.Verdicts {
		if v.Verdict == insight.Broken {
			return v.Evidence["errors"]
		}
	}
	return 0
}
