package file

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/message"
)

// Rule files in which few words ask for much work: each comes back at once, with an error that says
// what is wrong.
func TestHostileRules(t *testing.T) {
	kinds := []string{"path", "method", "host", "ip", "user"}
	var per []string
	for i := range 16 { // 16 parts of 5 kinds each, every one in another order
		parts := append(append([]string{}, kinds[i%5:]...), kinds[:i%5]...)
		per = append(per, strings.Join(append(parts, fmt.Sprint("x", i)), "|"))
	}
	var windows, missing strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&windows, "1/%ds, ", i+1)
	}
	missing.WriteString("limits:\n")
	for i := range 10_000 {
		fmt.Fprintf(&missing, "- {name: limit-of-%d, allow: 1/s, replaces: [limits-of-%d, no-limit-of-%d]}\n", i, i, i)
	}
	phases := strings.TrimSuffix(strings.Repeat("{days: mon, allow: 1/s}, ", 65), ", ")
	var shapes, templates strings.Builder
	for i := range 60 { // 2 new windows each
		fmt.Fprintf(&shapes, "{days: mon, allow: [1/%ds, 2/%ds]}, ", 2*i+1, 2*i+2)
	}
	templates.WriteString("limits:\n")
	for i := range 100 {
		fmt.Fprintf(&templates, "- {name: t%d, allow: 1/s, response: {body: \"{{.ID}}%d%s\"}}\n", i, i,
			strings.Repeat("x", 60_000))
	}
	for name, c := range map[string]struct{ text, want string }{
		"entries of a schedule":   {"limits: [{name: a, allow: 1/s, schedule: [" + phases + "]}]", "at most 64 entries, got 65"},
		"windows of a schedule":   {"limits: [{name: a, allow: 1/s, schedule: [" + shapes.String() + "]}]", "at most 64 windows in one limit, got 120"},
		"a long template":         {"limits: [{name: a, allow: 1/s, response: {body: \"{{.ID}}" + strings.Repeat("x", 70_000) + "\"}}]", "the template is longer than 64 KiB"},
		"many templates":          {templates.String(), "the templates of all rules together are too large"},
		"a template that repeats": {"limits: [{name: a, allow: 1/s, response: {body: \"" + strings.Repeat(`{{printf \"%9999d\" 1}}`, 100) + "\"}}]", "it gives more than 65536 bytes"},
		"a deep template":         {"limits: [{name: a, allow: 1/s, response: {body: '{{" + strings.Repeat("(", 30_000) + ".ID" + strings.Repeat(")", 30_000) + "}}'}}]", "response.body"},
		"forms of an override": {
			fmt.Sprintf("limits: [{name: a, allow: 1/s, per: [%s], override: {\"%s\": 2/s}}]", strings.Join(per, ", "),
				strings.TrimSuffix(strings.Repeat("aB:1,", 16), ",")),
			"its values have more than 256 forms",
		},
		"entries of allow":         {"limits: [{name: a, allow: [" + windows.String() + "]}]", "at most 64 entries, got 1000"},
		"names that are not there": {missing.String(), `replaces names "limits-of-7", which does not exist (did you mean "limit-of-7"?)`},
	} {
		_, _, err := load(t, "x.yaml", c.text)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, message.Clip(fmt.Sprint(err)), c.want)
		} else if n := len(err.(rule.Problems)); n > message.MaxProblems+1 {
			t.Errorf("%s: %d problems", name, n)
		}
	}
}
