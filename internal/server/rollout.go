package server

import (
	"errors"
	"path"
	"slices"
	"strings"

	"github.com/weir-rl/weir/internal/admin"
	"github.com/weir-rl/weir/internal/observe/changes"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/rulesource"
	"github.com/weir-rl/weir/internal/rulesource/ruledb"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

// rollout returns how the files in force change if a rule is enforced on a percentage of its keys.
func (p *program) rollout(domain, limit string, percent int) (*admin.Rollout, error) {
	version := p.rules.Status().Version // first: files that are newer then meet a conflict when pushed
	before := slices.DeleteFunc(slices.Clone(p.rules.Sources()),
		func(s file.Source) bool { return rulesource.IsTestFile(path.Base(s.Name)) })
	after, name, err := ruledb.Enforce(before, domain, limit, percent)
	if _, unknown := errors.AsType[*ruledb.UnknownRuleError](err); unknown {
		return nil, insight.ErrUnknown
	}
	if err != nil {
		return nil, &admin.CheckError{Message: err.Error()}
	}
	out := &admin.Rollout{Version: version, File: name, Files: map[string]string{},
		Diff: ruledb.Diff(ruledb.Side{Name: "in force", Files: before}, ruledb.Side{Name: "then", Files: after})}
	if out.RuleChanges, err = CompareRules(before, after); err != nil {
		return nil, &admin.CheckError{Message: err.Error()}
	}
	if c := out.Changes; len(c) != 1 || c[0].Domain != domain || c[0].Rule != limit || out.More > 0 {
		if len(c) == 0 {
			return nil, &admin.CheckError{Message: domain + "/" + limit + " is enforced so already"}
		}
		return nil, &admin.CheckError{Message: "more than this rule would change: " + strings.Join(out.Lines(), "; ")}
	}
	for i, s := range after {
		out.Files[s.Name] = string(s.Data)
		if s.Name == name {
			out.Line, out.Before, out.After = firstChange(string(before[i].Data), string(s.Data))
		}
	}
	return out, nil
}

// CompareRules says what differs between the rules of two lists of files; none of them are no
// rules.
func CompareRules(before, after []file.Source) (c insight.RuleChanges, err error) {
	var sets [2]*rule.Set
	for i, files := range [][]file.Source{before, after} {
		if len(files) == 0 {
			continue
		}
		if sets[i], _, err = rulesource.LoadBelow(files, "."); err != nil {
			return c, err
		}
	}
	return changes.Between(sets[0], sets[1]), nil
}

// firstChange returns the first line that differs in two texts, from 1, and what it is.
func firstChange(before, after string) (line int, was, is string) {
	a, b := strings.Split(before, "\n"), strings.Split(after, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i + 1, strings.TrimRight(a[i], "\r"), strings.TrimRight(b[i], "\r")
		}
	}
	return 0, "", ""
}
