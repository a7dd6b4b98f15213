package file

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weir-rl/weir/rule"
)

// TestOneIsAFile: a limit that a program names has the counters, the keys and the errors of the
// same limit in a file.
func TestOneIsAFile(t *testing.T) {
	names := []string{"api", "", "a b", strings.Repeat("x", 201), "A-z_0.9"}
	rates := []string{"10/min", "5", "0", "5 concurrent", "5concurrent", "5/min concurrent", "concurrent", "0/s", "7/day", "1/month", "100/15m", "unlimited", "10/mn", "ten", "", "1/0s", "9999999999999/s", " 3/h "}
	pers := [][]string{nil, {"ip"}, {"user|ip", "path"}, {"user", "user"}, {"a b"}, {""}, {"a|a"}, {"a,b"}, {"x y", "x y"},
		{"1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16", "17"}}
	for _, name := range names {
		for _, rate := range rates {
			for _, per := range pers {
				one, errOne := rule.One(name, rate, per...)
				text := fmt.Sprintf("limits: [{name: %q", name)
				if per != nil {
					text += fmt.Sprintf(", per: [\"%s\"]", strings.Join(per, `", "`))
				}
				text += fmt.Sprintf(", allow: %q", rate)
				set, _, errFile := Load([]Source{{Name: "f.yaml", Data: []byte(text + "}]")}}, Options{})
				if (errOne == nil) != (errFile == nil) {
					t.Fatalf("%s: %v by name, %v in a file", text, errOne, errFile)
				}
				if errOne != nil {
					if a, b := messages(errOne), messages(errFile); a != b {
						t.Errorf("%s: by name\n%s\nin a file\n%s", text, a, b)
					}
					continue
				}
				if a, b := only1(one), only1(set); a != b {
					t.Errorf("%s: by name %s, in a file %s", text, a, b)
				}
			}
		}
	}
}

// only1 spells the one limit of a set.
func only1(s *rule.Set) string {
	r := s.Rules()[0]
	text := fmt.Sprint(len(s.Rules()), s.Domains(), r.Name, r.Per, r.Unlimited, r.Cost, r.CostTimeout, r.WarnPercent, r.EnforcePercent, r.WaitQueue)
	for _, w := range r.Windows {
		text += fmt.Sprint(" ", w.Name, w.Seconds, w.Limit, w.Limit.Config(), w.Counter.ID, w.Counter.Group, w.Counter.Keys)
	}
	return text
}

// messages are what problems say, without their places.
func messages(err error) string {
	var problems rule.Problems
	if list, ok := err.(interface{ Unwrap() error }); ok {
		problems, _ = list.Unwrap().(rule.Problems)
	} else {
		problems, _ = err.(rule.Problems)
	}
	var lines []string
	for _, p := range problems {
		line := p.Message + " (" + p.Hint + ") " + p.Rule
		if !slices.Contains(lines, line) { // a file has a place for each
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}
