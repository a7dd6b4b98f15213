package main

import (
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

	"github.com/weir-rl/weir/internal/lab/sim"
	"github.com/weir-rl/weir/internal/rulesource"
	"github.com/weir-rl/weir/internal/rulesource/ruledb"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

func newTestCommand() *cobra.Command {
	var verbose bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "test PATH…",
		Short: "Run rule tests",
		Long: `Runs the tests in files called *_test.yaml, and in all such files of a folder and the folders in it, against the rules
beside them; the URL of a database stands for the version in force there. Time is virtual: a test of a monthly limit takes no time. A limit over several regions is that of one, which has
all of it. Exit status 1 if a test fails.`,
		Example: "  weir test rules/\n  weir test -v rules/shop_test.yaml",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError(errors.New("test: name test files (*_test.yaml) or folders"))
			}
			if timeout < 0 {
				return usageError(fmt.Errorf("test: --timeout must not be negative: %v", timeout))
			}
			ctx := cmd.Context()
			if timeout > 0 {
				late := fmt.Errorf("the tests were not done within %v: send fewer requests (times), or give them longer with --timeout", timeout)
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeoutCause(ctx, timeout, late)
				defer cancel()
			}
			return ruleTests(ctx, args, verbose, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "show every step of every test")
	cmd.Flags().DurationVar(&timeout, "timeout", 10*time.Minute, "how long all tests may take together; 0 is without end")
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

func ruleTests(ctx context.Context, paths []string, verbose bool, out, stderr io.Writer) error {
	var places []*place // in databases
	for _, url := range paths {
		if !ruledb.IsURL(url) {
			continue
		}
		p, err := openPlace(ctx, url)
		if err != nil {
			return err
		}
		if len(p.tests) == 0 {
			return usageError(fmt.Errorf("%s holds no rule tests (*_test.yaml)", p.name))
		}
		places = append(places, p)
	}
	files, err := testFiles(slices.DeleteFunc(slices.Clone(paths), ruledb.IsURL))
	if err != nil {
		return usageError(err)
	}
	sets := make(map[string]*rule.Set)
	passed, failed := 0, 0
	var broken []error
	add := func(path string, p, f int, err error) (goOn bool) {
		passed, failed = passed+p, failed+f
		if err != nil && ctx.Err() == nil {
			fmt.Fprintf(out, "ERROR %s\n", path)
			broken = append(broken, err)
			return true
		}
		return err == nil
	}
	for _, place := range places {
		for _, f := range place.tests {
			dir := pathpkg.Dir(f.Name)
			p, n, err := sim.RunTests(ctx, f.Name, f.Data, dir, func() (*rule.Set, error) {
				set, _, err := rulesource.LoadBelow(place.files, dir)
				return set, err
			}, verbose, out)
			if !add(f.Name, p, n, err) {
				return err
			}
		}
	}
	for _, path := range files {
		p, f, err := runTestFile(ctx, path, sets, verbose, out, stderr)
		if !add(path, p, f, err) {
			return err
		}
	}
	fmt.Fprintf(out, "%s passed, %d failed\n", count(passed, "test"), failed)
	if len(broken) > 0 {
		return usageError(errors.Join(broken...))
	}
	if failed > 0 {
		return &exitError{code: exitFailure}
	}
	return nil
}

func runTestFile(ctx context.Context, path string, sets map[string]*rule.Set, verbose bool, out, stderr io.Writer) (passed, failed int, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, 0, err
	}
	dir := filepath.Dir(path)
	return sim.RunTests(ctx, path, data, dir, func() (set *rule.Set, err error) {
		if set = sets[dir]; set == nil {
			set, err = readRules(ctx, dir, file.Options{}, stderr)
			sets[dir] = set
		}
		return set, err
	}, verbose, out)
}
