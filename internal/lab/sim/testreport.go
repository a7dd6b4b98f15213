package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/weir-rl/weir/internal/util/human"
	"github.com/weir-rl/weir/internal/util/suggest"
	"github.com/weir-rl/weir/rule"
)

// ChooseDomain returns the domain that was asked for, else the only one that the rules hold. The
// error names where the rules come from, and what to choose a domain with.
func ChooseDomain(set *rule.Set, asked, rules, flag string) (string, error) {
	domains := set.Domains()
	switch {
	case asked != "" && !set.HasDomain(asked):
		meant := ""
		if near := suggest.Nearest(asked, domains); near != "" {
			meant = fmt.Sprintf(" (did you mean %q?)", near)
		}
		return "", fmt.Errorf("the rules of %s hold no domain %q%s: they hold %s", rules, asked, meant,
			strings.Join(domains, ", "))
	case asked != "":
		return asked, nil
	case len(domains) == 1:
		return domains[0], nil
	case len(domains) == 0:
		return "", fmt.Errorf("%s holds no rules", rules)
	}
	return "", fmt.Errorf("the rules of %s hold several domains: choose one of %s with %s", rules,
		strings.Join(domains, ", "), flag)
}

// RunTests runs the tests in the text of a file against the rules of dir, which rules returns.
// After an error there are the results of the tests before it.
func RunTests(ctx context.Context, path string, data []byte, dir string,
	rules func() (*rule.Set, error)) (results []*TestResult, err error) {
	tests, err := ParseTests(path, data)
	if err != nil {
		return nil, err
	}
	set, err := rules()
	if err != nil {
		return nil, err
	}
	domain, err := ChooseDomain(set, tests.Domain, dir, "domain: in the test file")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := tests.CheckAttributes(set, domain); err != nil {
		return nil, err
	}
	if len(tests.Tests) == 0 {
		return nil, fmt.Errorf("%s: it holds no tests", path)
	}
	for _, t := range tests.Tests {
		r, err := RunTest(set, domain, t, func() error { return stopped(ctx) })
		if err != nil {
			return results, fmt.Errorf("%s: %s: %w", path, t.Name, err)
		}
		results = append(results, r)
	}
	return results, nil
}

// Failed counts the tests that failed.
func Failed(results []*TestResult) (n int) {
	for _, r := range results {
		if r.Failed {
			n++
		}
	}
	return n
}

// WriteTests reports on the tests of a file: on all steps of those that failed, or, if it is to be
// verbose, of all.
func WriteTests(out io.Writer, path string, results []*TestResult, verbose bool) error {
	mark := "ok   "
	if Failed(results) > 0 {
		mark = "FAIL "
	}
	var report strings.Builder
	for _, r := range results {
		if r.Failed || verbose {
			writeTest(&report, path, r)
		}
	}
	_, err := fmt.Fprintf(out, "%s %s  %s\n%s", mark, path, human.Count(len(results), "test"), report.String())
	return err
}

// stopped returns why tests must not go on; nil if they may.
func stopped(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return errors.New("interrupted")
	}
	return context.Cause(ctx)
}

// writeTest shows a test step by step.
func writeTest(b *strings.Builder, path string, r *TestResult) {
	mark := "ok  "
	if r.Failed {
		mark = "FAIL"
	}
	fmt.Fprintf(b, "  %s %s\n", mark, r.Test.Name)
	for _, s := range r.Steps {
		if s.Failed == 0 {
			fmt.Fprintf(b, "    ok   line %d: %s", s.Step.Line, s.What)
			if s.Got != "" {
				fmt.Fprintf(b, " → %s", s.Got)
			}
			b.WriteByte('\n')
			continue
		}
		fmt.Fprintf(b, "    FAIL %s:%d: %s", path, s.Step.Line, s.What)
		if s.Step.Send != nil && s.Step.Send.Times > 1 {
			fmt.Fprintf(b, ", request %d of %d", s.Failed, s.Step.Send.Times)
		}
		fmt.Fprintf(b, "\n           expected %s\n           got      %s\n", s.Expected, s.Got)
	}
}
