package file

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/testproc"
	"github.com/weir-rl/weir/rule"
)

// costlyExpressions take longer than a request may.
var costlyExpressions = []struct{ name, text string }{
	{"each parameter with each other", `query.all(a, query.all(b, a + b != "x"))`},
	{"a regular expression on a long text", `!header.long.matches("(a|b|ab)*c(a|b|ab)*d(a|b|ab)*e")`},
	{"one with many loops", `!header.some.matches("[ab]*[ab]*[ab]*[ab]*[ab]*[ab]*[ab]*z")`},
	{"one with many classes", `!header.few.matches("(\\pL?\\pL?){400}z")`},
	{"one with a large program", `!header.long.matches("(a?b?){1000}c")`},
	{"one with classes", `!header.long.matches("(\\pL|[a-z]+|.)*\\d(.*)-(.*)-(.*)=")`},
	{"one that any parameter is tried on", `query.exists(a, (a + path).matches("(x+x+)+y"))`},
	{"one that each parameter names", `query.exists(a, path.matches("(" + a + "|x{100})+y"))`},
	{"one that the client names", `query.exists(a, path.matches(header.regexp))`},
	{"broken ones", `query.exists(a, path.matches(header.long + "("))`},
	{"looking for a text", `query.exists(a, header.long.contains("abababababac"))`},
	{"comparing long texts", `query.exists(a, header.long + a == header.long)`},
	{"the length of a text", `query.exists(a, size(header.long) == 7)`},
	{"bytes of a text", `query.exists(a, bytes(header.long) == b"7")`},
	{"whole maps", `query.exists(a, query != query || header == query)`},
}

// costlyRequest has 4,000 parameters, and as much of a header as doors take.
func costlyRequest() rule.Map {
	m := rule.Map{"path": "/" + strings.Repeat("x", 2000), "user": "ada", "header.long": strings.Repeat("ab", 30_000),
		"header.some": strings.Repeat("ab", 2500), "header.few": strings.Repeat("ab",
			35), "header.regexp": "((x{30}){10}y?){3}z"}
	for i := range 4000 {
		m[fmt.Sprintf("query.p%04d", i)] = fmt.Sprint(i)
	}
	return m
}

// ifRules loads limits with an `if`, several of each.
func ifRules(t testing.TB, times int, texts ...string) *rule.Set {
	t.Helper()
	var b strings.Builder
	b.WriteString("limits:\n")
	for i, text := range texts {
		for k := range times {
			fmt.Fprintf(&b, "  - { name: r%d-%d, per: [user], allow: %d/min, if: '%s' }\n", i, k, 1000, text)
		}
	}
	set, _, err := Load([]Source{{Name: "rules.yaml", Data: []byte(b.String())}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// Whatever an expression does that takes long, the request is refused.
func TestCostlyExpressions(t *testing.T) {
	request := costlyRequest()
	for _, e := range costlyExpressions {
		t.Run(e.name, func(t *testing.T) {
			var m rule.Matches
			ifRules(t, 20, e.text).Match(&rule.Query{Domain: rule.DefaultDomain, Attributes: request}, &m)
			if m.TooCostly == nil {
				t.Errorf("it may go on: %d failed %v", m.CELErrors, m.Failures())
			}
		})
	}
}

// What expressions usually do is evaluated, on long requests as well.
func TestUsualExpressions(t *testing.T) {
	agent := strings.Repeat("Mozilla/5.0 (X11; Linux x86_64) ", 8)
	request := rule.Map{"path": "/api/v1/users/" + strings.Repeat("1", 200), "user": "ada", "header.user-agent": agent,
		"header.cookie": strings.Repeat("name=value; ", 400)}
	var m rule.Matches
	set := ifRules(t, 50, `path.matches("^/api/v[0-9]+/users/[0-9]+$")`,
		`header["user-agent"].matches("(?i)bot|crawler|spider|curl") || path.startsWith("/api")`,
		`header.cookie.contains("name=") && size(header.cookie) > 1000`)
	set.Match(&rule.Query{Domain: rule.DefaultDomain, Attributes: request}, &m)
	if m.TooCostly != nil || m.CELErrors > 0 || len(m.Hits) != 150 {
		t.Errorf("%d rules met, %d failed, too costly: %v", len(m.Hits), m.CELErrors, m.TooCostly)
	}
	whole := costlyRequest()
	ifRules(t, 1, `query.exists(a, a == "p3999" && query[a] == "3999")`).Match(
		&rule.Query{Domain: rule.DefaultDomain, Attributes: whole}, &m)
	if m.TooCostly != nil || len(m.Hits) != 1 {
		t.Errorf("4,000 parameters: %d rules met, too costly: %v", len(m.Hits), m.TooCostly)
	}
}

// BenchmarkCostlyExpressions measures what the most that expressions may do takes, which
// docs/reference/expressions.md states: a request that each of them stops, with twenty rules alike.
//
//	go test ./rule/file -run xxx -bench CostlyExpressions
func BenchmarkCostlyExpressions(b *testing.B) {
	request := costlyRequest()
	for _, e := range costlyExpressions {
		set := ifRules(b, 20, e.text)
		b.Run(strings.ReplaceAll(e.name, " ", "-"), func(b *testing.B) {
			var m rule.Matches
			begin, err := testproc.CPU(os.Getpid())
			for b.Loop() {
				set.Match(&rule.Query{Domain: rule.DefaultDomain, Attributes: request}, &m)
			}
			if end, _ := testproc.CPU(os.Getpid()); err == nil {
				b.ReportMetric(float64((end-begin).Milliseconds())/float64(b.N), "cpu-ms/op")
			}
		})
	}
}
