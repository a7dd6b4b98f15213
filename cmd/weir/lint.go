package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/weir-rl/weir/internal/lab/findings"
	"github.com/weir-rl/weir/internal/rulesource"
	"github.com/weir-rl/weir/internal/server"
	"github.com/weir-rl/weir/internal/server/settings"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

func newLintCommand(env []string) *cobra.Command {
	var strict, list, asJSON, asSARIF bool
	var schema string
	cmd := &cobra.Command{
		Use:   "lint PATH…",
		Short: "Check rule files",
		Long: `Checks rule files, and warns of what is legal and useless or dangerous. A folder is checked as the server would load
it; files of one folder are checked together. The URL of a database stands for the rules in force there. Exit status 1 on an error (with --strict on a warning too).

The name of each warning stands in brackets behind it. A comment silences it, for the limit in which or above which it
stands, or, outside all limits, for the file; what follows the colon is the reason:
  # lint: ignore forgeable-key: the gateway removes what clients send

With a configuration (--config, WEIR_CONFIG or ./weir.yaml) it also warns of counters by what its identity takes from
clients unverified, of leases and regions (consistency) that are too small for its nodes or regions, or have no effect
with its store, and of limits in its rlqs.domains that quotas for Envoys cannot be taken from.

--schema prints the JSON Schema of rule files, or of weir.yaml (config), from which editors know the keys, complete
them and say what they mean. A file names it in its first line:
  # yaml-language-server: $schema=rules.schema.json`,
		Example: "  weir lint rules/\n  weir lint --strict rules/*.yaml\n  weir lint --config weir.yaml rules/\n  weir lint --sarif rules/ > weir.sarif\n  weir lint --warnings\n  weir lint --schema rules > rules.schema.json",
		RunE: func(cmd *cobra.Command, args []string) error {
			if list {
				return listWarnings(cmd.OutOrStdout())
			}
			if schema != "" {
				return printSchema(cmd.OutOrStdout(), schema)
			}
			if asJSON && asSARIF {
				return usageError(errors.New("--json and --sarif: give one of them"))
			}
			if len(args) == 0 {
				return usageError(errors.New("lint: name rule files or folders"))
			}
			c, err := server.Load(cmd.Flags(), env)
			if err != nil {
				return usageError(err)
			}
			c.TellStrays(cmd.ErrOrStderr())
			found, err := lint(cmd.Context(), args, c.LintOptions())
			if err != nil {
				return err
			}
			switch {
			case asSARIF:
				err = found.WriteSARIF(cmd.OutOrStdout(), versionText())
			case asJSON:
				err = printJSON(cmd.OutOrStdout(), found)
			default:
				err = found.WriteText(cmd.OutOrStdout())
			}
			return errors.Join(err, lintVerdict(found, strict))
		},
	}
	cmd.Flags().BoolVar(&strict, "strict", false, "fail on warnings too")
	jsonFlag(cmd, &asJSON)
	cmd.Flags().BoolVar(&asSARIF, "sarif", false, "print a SARIF log, as code scanning reads it")
	cmd.Flags().BoolVar(&list, "warnings", false, "list the names of all warnings, and exit")
	cmd.Flags().StringVar(&schema, "schema", "", "print the JSON Schema of rules or config, and exit")
	settings.AddConfigFlag(cmd.Flags())
	return cmd
}

// schemas are the JSON Schemas of rule files and of weir.yaml. They are written by tests of the
// packages that read these (rule/file and internal/server), from their tables.
//
//go:embed schemas/*.json
var schemas embed.FS

// printSchema prints the schema of rules or config.
func printSchema(out io.Writer, of string) error {
	name, ok := map[string]string{"rules": "rules", "config": "weir"}[of]
	if !ok {
		return usageError(fmt.Errorf("lint: --schema %s: there is one of rules and one of config", of))
	}
	data, err := schemas.ReadFile("schemas/" + name + ".schema.json")
	if err != nil {
		return err
	}
	_, err = out.Write(data)
	return err
}

func listWarnings(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, k := range file.Warnings() {
		fmt.Fprintf(w, "%s\t%s\n", k.Name, k.About)
	}
	return w.Flush()
}

// ruleGroup is rule files that are loaded together.
type ruleGroup struct {
	dir   string // before the names in messages; "" in a database
	files []file.Source
}

// ruleGroups reads the rule files that paths name: a folder, or a database, by itself, single files
// by the folder they lie in.
func ruleGroups(ctx context.Context, paths []string) ([]*ruleGroup, error) {
	var groups []*ruleGroup
	byDir := make(map[string]*ruleGroup)
	for _, path := range paths {
		if isRulesURL(path) {
			p, err := openPlace(ctx, path)
			if err != nil {
				return nil, err
			}
			groups = append(groups, &ruleGroup{files: p.files})
			continue
		}
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		if !info.IsDir() && !rulesource.IsRuleFile(filepath.Base(path)) && len(paths) > 1 {
			continue // rules/*.yaml names the tests too
		}
		files, err := rulesource.ReadDir(path)
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

// lint checks rule files. What it finds is the outcome; the error is that it could not look.
func lint(ctx context.Context, paths []string, o file.LintOptions) (*findings.Lint, error) {
	groups, err := ruleGroups(ctx, paths)
	if err != nil {
		return nil, usageError(err)
	}
	found := &findings.Lint{Problems: []findings.Problem{}}
	for _, g := range groups {
		add := func(severity string, p rule.Problem) {
			if p.Pos.File != "" {
				p.Pos.File = filepath.Join(g.dir, filepath.FromSlash(p.Pos.File))
			}
			found.Add(severity, p)
		}
		found.Files += len(g.files)
		set, warnings, err := file.Load(g.files, file.Options{})
		if err != nil {
			var problems rule.Problems
			if !errors.As(err, &problems) {
				return nil, usageError(err)
			}
			for _, p := range problems {
				add(findings.Error, p)
			}
		} else {
			found.Rules += len(set.Rules())
			warnings = append(warnings, file.Lint(set, o)...)
		}
		for _, p := range warnings {
			if p.Name == "" { // a comment for lint that says nothing
				add(findings.Error, p)
				continue
			}
			add(findings.Warning, p)
		}
		for _, p := range file.Notes(set) {
			add(findings.Note, p)
		}
	}
	return found, nil
}

// lintVerdict is the error of exit status 1 if lint found something that counts.
func lintVerdict(found *findings.Lint, strict bool) error {
	if found.Errors > 0 || strict && found.Warnings > 0 {
		return &exitError{code: exitFailure}
	}
	return nil
}
