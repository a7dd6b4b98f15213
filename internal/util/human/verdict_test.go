package human_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/util/human"
)

// Each verdict has one name, in the terminal and on the page.
func TestVerdict(t *testing.T) {
	script, err := os.ReadFile("../../admin/page/assets/parts/text.js")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(script), "const verdicts = {")
	page := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^  (\w+): \['([^']+)',`).FindAllStringSubmatch(table, -1) {
		page[m[1]] = strings.ToLower(m[2])
	}
	if len(page) != len(insight.Verdicts) {
		t.Errorf("the page knows %v", page)
	}
	const most = 14 // the column of weir top at 80 columns
	for _, name := range insight.Verdicts {
		if text := human.Verdict(name); text != page[name] || strings.Contains(text, "_") || len(text) > most {
			t.Errorf("%s is %q in the terminal and %q on the page", name, text, page[name])
		}
	}
	if got := human.Verdict("newer_\x1b[31m"); got != `newer \x1b[31m` {
		t.Errorf("an unknown one: %q", got)
	}
}
