package servertest

import (
	"fmt"
	"strings"
	"testing"
)

// RuleWords is what a command wrote.
type RuleWords struct {
	T    *testing.T
	Args []string // of weir
	Text string
}

func (s *RuleWords) With(parts ...string) *RuleWords {
	s.T.Helper()
	for _, p := range parts {
		if !strings.Contains(s.Text, p) {
			s.T.Errorf("weir rules %q: no %q in\n%s", s.Args, p, s.Text)
		}
	}
	return s
}

// LimitRules is a file with one limit of n a day.
func LimitRules(n int) string {
	return fmt.Sprintf(
		"domain: shop\nlimits:\n  - name: daily\n    per: [key]\n    allow: %d/day\n    algorithm: sliding_log\n", n)
}

// LimitTest passes with LimitRules(n).
func LimitTest(n int) string {
	return fmt.Sprintf(
		"domain: shop\ntests:\n  - name: so many\n    steps:\n      - { send: { key: a, times: %d }, expect: allowed }\n      - { send: { key: a }, expect: { denied_by: daily } }\n", n)
}
