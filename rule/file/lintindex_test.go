package file

import (
	"fmt"
	"strings"
	"testing"
)

// Lint names the rules that requests are tried on one by one, where that is felt, and no others.
func TestLintUnindexed(t *testing.T) {
	warned := func(limits ...string) (names []string, all string) {
		t.Helper()
		var text strings.Builder
		text.WriteString("limits:\n")
		for i, l := range limits {
			fmt.Fprintf(&text, "- {name: r%d, per: [ip], allow: 1/s, %s}\n", i, l)
		}
		s, _, err := load(t, "x.yaml", text.String())
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range Lint(s, LintOptions{}) {
			if p.Name == "unindexed" {
				subjects, _, _ := strings.Cut(p.Message, ":")
				names = append(names, strings.Split(strings.ReplaceAll(subjects, " and ", ", "), ", ")...)
				all += p.Error() + "\n"
			}
		}
		return names, all
	}
	loose, told := `when: {path: "~[a-z]+[0-9]*$"}`, `when: {path: "~^/x[0-9]+$"}`
	if names, _ := warned(`if: 'path.size() > method.size()'`, loose, told); len(names) != 2 {
		t.Errorf("warned of %q, want r0 and r1", names)
	}
	if names, all := warned(`if: 'path.size() > method.size()'`); len(names) != 0 {
		t.Errorf("a single expression is warned of: %s", all)
	}
	names, all := warned(
		`if: 'path.size() > method.size()'`,
		`if: 'path.size() > method.size() && path.startsWith("/x")'`,
		`if: 'user != "x"'`,
		`if: 'user != "x"', when: {path: /a}`,
		loose, told,
		`when: {path: "~[a-z]+[0-9]*$", user: ada}`,
		`when: {path: "~(?i)^/x"}`,
		`when: {path: "/**/x/**"}`,
		`when: {path: "/**"}`,
		`when: {path: "!~^/x"}`,
		`when: {path: "!~^/x", user: ada}`,
	)
	if got := strings.Join(names, " "); got != "r0 r2 r4 r10" {
		t.Errorf("warned of %q, want r0 r2 r4 r10:\n%s", got, all)
	}
	for _, want := range []string{
		"r0 and r2: no text tells it apart, so that each request is tried on an expression, for about 2.5 µs; " +
			`the 4 such limits of domain "default" take about 5.6 µs of each request`,
		"r4 and r10: no text tells it apart, so that each request is tried on a pattern, for about 0.3 µs",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("no %q in\n%s", want, all)
		}
	}
}
