package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/weir-rl/weir/internal/source"
	"github.com/weir-rl/weir/rule"
)

func newLintCommand() *cobra.Command {
	var strict bool
	cmd := &cobra.Command{
		Use:   "lint PATH…",
		Short: "Check rule files",
		Long: `Checks rule files, and warns of what is legal and useless or dangerous. A folder is checked as the server would load
it; files of one folder are checked together. Exit status 1 on an error (with --strict on a warning too).`,
		Example: "  weir lint rules/\n  weir lint --strict rules/*.yaml",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError(errors.New("lint: name rule files or folders"))
			}
			return lint(args, strict, cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&strict, "strict", false, "fail on warnings too")
	return cmd
}

// ruleGroup is rule files that are loaded together.
type ruleGroup struct {
	dir   string // before the names in messages
	files []rule.Source
}

// ruleGroups reads the rule files that paths name: a folder by itself, single files by the folder they lie in.
func ruleGroups(paths []string) ([]*ruleGroup, error) {
	var groups []*ruleGroup
	byDir := make(map[string]*ruleGroup)
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		if !info.IsDir() && !source.IsRuleFile(filepath.Base(path)) && len(paths) > 1 {
			continue // rules/*.yaml names the tests too
		}
		files, err := source.ReadDir(path)
		if err != nil {
			return nil, err
		}
		if info.IsDir() {
			if len(files) == 0 {
				return nil, fmt.Errorf("%s holds no rule files (*.yaml, *.yml)", path)
			}
			groups = append(groups, &ruleGroup{dir: path, files: files})
			continue
		}
		dir := filepath.Dir(path)
		g := byDir[dir]
		if g == nil {
			g = &ruleGroup{dir: dir}
			byDir[dir] = g
			groups = append(groups, g)
		}
		g.files = append(g.files, files...)
	}
	if len(groups) == 0 {
		return nil, errors.New("none of these is a rule file (*.yaml, *.yml, but no *_test.yaml)")
	}
	return groups, nil
}

func lint(paths []string, strict bool, out io.Writer) error {
	groups, err := ruleGroups(paths)
	if err != nil {
		return usageError(err)
	}
	files, rules, failures, warned := 0, 0, 0, 0
	for _, g := range groups {
		print := func(kind string, p rule.Problem) {
			if p.Pos.File != "" {
				p.Pos.File = filepath.Join(g.dir, filepath.FromSlash(p.Pos.File))
			}
			fmt.Fprintf(out, "%s: %s\n", kind, p.Error())
		}
		files += len(g.files)
		set, warnings, err := rule.Load(g.files, rule.Options{})
		if err != nil {
			var problems rule.Problems
			if !errors.As(err, &problems) {
				return usageError(err)
			}
			for _, p := range problems {
				print("error", p)
			}
			failures += len(problems)
		} else {
			rules += len(set.Rules())
			warnings = append(warnings, rule.Lint(set)...)
		}
		for _, p := range warnings {
			print("warning", p)
		}
		warned += len(warnings)
	}
	fmt.Fprintf(out, "%s in %s: %s, %s\n", count(rules, "rule"), count(files, "file"), count(failures, "error"), count(warned, "warning"))
	if failures > 0 || strict && warned > 0 {
		return &exitError{code: exitFailure}
	}
	return nil
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
