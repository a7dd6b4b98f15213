package human

import "strings"

// verdicts are what verdicts are called: on the page, in the terminal, and in reports. They follow
// the name of a rule: "search is ignored". The page has them from assets/parts/text.js; a test
// compares both.
var verdicts = map[string]string{
	"broken":        "broken",
	"loose_crowd":   "lets a rush in",
	"loose_few":     "lets a few in",
	"strict":        "too strict",
	"maybe_strict":  "maybe strict",
	"ignored":       "is ignored",
	"adds_nothing":  "adds nothing",
	"never_met":     "never met",
	"never_binding": "never binds",
	"too_early":     "too early",
	"reserve":       "in reserve",
	"works":         "works",
}

// Verdict is the title of a verdict. One that this program does not know, from a newer server, has
// its name for a title.
func Verdict(name string) string {
	if text, ok := verdicts[name]; ok {
		return text
	}
	return Visible(strings.ReplaceAll(name, "_", " "))
}
