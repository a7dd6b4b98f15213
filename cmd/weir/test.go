package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	pathpkg "path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-rl/weir/internal/lab/findings"
	"github.com/weir-rl/weir/internal/lab/sim"
	"github.com/weir-rl/weir/internal/rulesource"
	"github.com/weir-rl/weir/internal/util/human"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

func newTestCommand() *cobra.Command {
	var verbose, asJSON, asJUnit bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "test PATH…",
		Short: "Run rule tests",
		Long: `Runs the tests in files called *_test.yaml, and in all such files of a folder and the folders in it, against the rules
beside them; the URL of a database stands for the version in force there. Time is virtual: a test of a monthly limit takes no time. A limit over several regions is that of one, which has
all of it. Exit status 1 if a test fails.`,
		Example: "  weir test rules/\n  weir test -v rules/shop_test.yaml",
		RunE: func(cmd *cobra.Command, args []string) error {
			if asJSON && asJUnit {
				return usageError(errors.New("--json and --junit: give one of them"))
			}
			if len(args) == 0 {
				return usageError(errors.New("test: name test files (*_test.yaml) or folders"))
			}
			if timeout < 0 {
				return usageError(fmt.Errorf("test: --timeout must not be negative: %v", timeout))
			}
			ctx := cmd.Context()
			if timeout > 0 {
				late := fmt.Errorf(
					"the tests were not done within %v: send fewer requests (times), or give them longer with --timeout", timeout)
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeoutCause(ctx, timeout, late)
				defer cancel()
			}
			out := cmd.OutOrStdout()
			if asJSON || asJUnit {
				out = io.Discard
			}
			tests, err := ruleTests(ctx, args, verbose, out, cmd.ErrOrStderr())
			if tests == nil {
				return err
			}
			var printed error
			switch {
			case asJSON:
				printed = printJSON(cmd.OutOrStdout(), tests)
			case asJUnit:
				printed = tests.WriteJUnit(cmd.OutOrStdout())
			}
			return cmp.Or(printed, err)
		},
	}
	jsonFlag(cmd, &asJSON)
	cmd.Flags().BoolVar(&asJUnit, "junit", false, "print a report in the form of JUnit, as CI systems read it")
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "show every step of every test")
	cmd.Flags().DurationVar(&timeout, "timeout", 10*time.Minute,
		"how long all tests may take together; 0 is without end")
	return cmd
}

// testFiles finds the test files that paths name, in order.
func testFiles(paths []string) ([]string, error) {
	var files []string
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			files = append(files, path)
			continue
		}
		found := len(files)
		root := path + string(filepath.Separator) // follows path itself if it is a link
		err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			name := d.Name()
			switch {
			case d.IsDir() && p != root && strings.HasPrefix(name, "."):
				return filepath.SkipDir
			case d.IsDir() || strings.HasPrefix(name, "."):
			case strings.HasSuffix(name, "_test.yaml") || strings.HasSuffix(name, "_test.yml"):
				files = append(files, p)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		if len(files) == found {
			return nil, fmt.Errorf("%s holds no rule tests (*_test.yaml)", path)
		}
	}
	return files, nil
}

// ruleTests runs the tests that paths name, and reports on them. The error says the exit status;
// the result is nil if nothing was run.
func ruleTests(ctx context.Context, paths []string, verbose bool, out, stderr io.Writer) (*findings.Tests, error) {
	var places []*place // in databases
	for _, url := range paths {
		if !isRulesURL(url) {
			continue
		}
		p, err := openPlace(ctx, url)
		if err != nil {
			return nil, err
		}
		if len(p.tests) == 0 {
			return nil, usageError(fmt.Errorf("%s holds no rule tests (*_test.yaml)", p.name))
		}
		places = append(places, p)
	}
	files, err := testFiles(slices.DeleteFunc(slices.Clone(paths), isRulesURL))
	if err != nil {
		return nil, usageError(err)
	}
	sets := make(map[string]*rule.Set)
	tests := &findings.Tests{Files: []findings.TestsFile{}}
	var broken []error
	add := func(path string, results []*sim.TestResult, err error) (goOn bool) {
		tests.Add(path, results, err)
		switch {
		case err != nil && ctx.Err() == nil:
			fmt.Fprintf(out, "ERROR %s\n", path)
			broken = append(broken, err)
			return true
		case err != nil:
			return false
		}
		_ = sim.WriteTests(out, path, results, verbose) // who reads no more misses it
		return true
	}
	for _, place := range places {
		for _, f := range place.tests {
			dir := pathpkg.Dir(f.Name)
			results, err := sim.RunTests(ctx, f.Name, f.Data, dir, func() (*rule.Set, error) {
				set, _, err := rulesource.LoadBelow(place.files, dir)
				return set, err
			})
			if !add(f.Name, results, err) {
				return tests, err
			}
		}
	}
	for _, path := range files {
		results, err := runTestFile(ctx, path, sets, stderr)
		if !add(path, results, err) {
			return tests, err
		}
	}
	fmt.Fprintf(out, "%s passed, %d failed\n", human.Plural(tests.Passed, "test"), tests.Failed)
	if len(broken) > 0 {
		return tests, usageError(errors.Join(broken...))
	}
	if tests.Failed > 0 {
		return tests, &exitError{code: exitFailure}
	}
	return tests, nil
}

func runTestFile(ctx context.Context, path string, sets map[string]*rule.Set, stderr io.Writer) ([]*sim.TestResult,
	error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	dir := filepath.Dir(path)
	return sim.RunTests(ctx, path, data, dir, func() (set *rule.Set, err error) {
		if set = sets[dir]; set == nil {
			set, err = readRules(ctx, dir, file.Options{}, stderr)
			sets[dir] = set
		}
		return set, err
	})
}
