package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-rl/weir/internal/admin/words"
	"github.com/weir-rl/weir/internal/rulesource"
	"github.com/weir-rl/weir/internal/rulesource/ruledb"
	"github.com/weir-rl/weir/internal/server"
	"github.com/weir-rl/weir/internal/util/human"
	"github.com/weir-rl/weir/rule/file"
)

// pusher is the command weir rules push, or import.
type pusher struct {
	env           []string
	origin        string
	base          string
	force, shadow bool
	wait          time.Duration
	by            changeFlags
	json          bool
	pushed        rulesPush

	out, stderr io.Writer
}

// rulesPush is the output of weir rules push and import as JSON. Lint, tests and what came
// meanwhile go to the standard error then.
type rulesPush struct {
	Version  int64    `json:"version"`            // that is to be in force; 0 if nothing was pushed
	Replaces int64    `json:"replaces"`           // 0 for none
	Changed  bool     `json:"changed"`            // false if the folder is what is in force
	Shadow   []string `json:"shadow,omitempty"`   // limits that were put in shadow
	Forced   string   `json:"forced,omitempty"`   // what failed and was pushed by force
	InForce  bool     `json:"in_force,omitempty"` // with --wait: on all live nodes
	Error    string   `json:"error,omitempty"`
}

func newRulesImportCommand(env []string) *cobra.Command {
	p := pusher{env: env, origin: ruledb.Import}
	cmd := &cobra.Command{
		Use:   "import DIR",
		Short: "Take a folder of rules over into a database that has none",
		Long: `Makes a folder of rules, with their tests, the first version in a database that holds none yet. It is checked as push does it.
Then change rules of the servers from the folder to the database.`,
		Example: "  weir rules import rules/",
		Args:    cobra.ExactArgs(1),
		RunE:    p.run,
	}
	p.flags(cmd)
	return cmd
}

func newRulesPushCommand(env []string) *cobra.Command {
	p := pusher{env: env, origin: ruledb.Push}
	cmd := &cobra.Command{
		Use:   "push DIR",
		Short: "Put a folder of rules in force, as a new version in a database",
		Long: `Makes a folder of rules, with their tests, a new version, and puts it in force on all nodes. lint and the tests must pass.

A change begins with a version: the one of which the folder was pulled, or --base. If another one is in force by now, nothing is
pushed, and what came meanwhile is shown: take it over into the folder, and push with that version as the base.`,
		Example: "  weir rules push --note \"more room for search\" --wait 30s rules/\n  weir rules push --shadow rules/\n  weir rules push --base 43 rules/",
		Args:    cobra.ExactArgs(1),
		RunE:    p.run,
	}
	p.flags(cmd)
	cmd.Flags().StringVar(&p.base, "base", "",
		"number of the version that the change began with, or head for the one in force (default: the one that was pulled)")
	cmd.Flags().BoolVar(&p.shadow, "shadow", false,
		"put limits that are new in shadow; those in the folder stay as they are")
	return cmd
}

func (p *pusher) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&p.force, "force", false, "push although lint or the tests fail; the history says so")
	cmd.Flags().DurationVar(&p.wait, "wait", 0,
		"wait so long at most until all live nodes have it in force; exit status 1 if one does not")
	p.by.add(cmd)
	jsonFlag(cmd, &p.json)
}

func (p *pusher) run(cmd *cobra.Command, args []string) error {
	p.out, p.stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
	if !p.json {
		return p.push(cmd, args)
	}
	p.out = p.stderr
	err := p.push(cmd, args)
	if p.pushed.InForce = err == nil && p.wait > 0; err != nil {
		p.pushed.Error = err.Error()
	}
	return cmp.Or(printJSON(cmd.OutOrStdout(), p.pushed), err)
}

func (p *pusher) push(cmd *cobra.Command, args []string) error {
	who, err := author(p.by.author)
	if err != nil {
		return err
	}
	d, c, err := openRuleDatabase(cmd, p.env)
	if err != nil {
		return err
	}
	defer d.Close()
	dir, ctx := args[0], cmd.Context()
	files, err := readRulesFolder(dir)
	if err != nil {
		return err
	}
	remark, err := p.check(ctx, dir, files, c)
	if err != nil {
		return err
	}
	head, err := headOf(ctx, d)
	if err != nil {
		return err
	}
	base, err := p.baseOf(dir, c.Database.Space, head.Number)
	if err != nil {
		return err
	}
	if head.Number > 0 && head.Digest == rulesource.Digest(files) {
		fmt.Fprintf(p.out, "%s is version %d, which is in force\n", dir, head.Number)
		p.pushed.Version, p.pushed.Replaces = head.Number, head.Number
		return errors.Join(ruledb.WriteMarker(dir, c.Database.Space, head.Number, files), p.await(ctx, d, head.Number))
	}
	if p.shadow {
		if files, err = p.inShadow(ctx, d, files, base); err != nil {
			return err
		}
	}
	version, err := d.Push(ctx, ruledb.Change{Base: base, Files: files, Author: who, Note: p.by.note, Origin: p.origin,
		Remark: remark})
	if conflict, ok := errors.AsType[*ruledb.ConflictError](err); ok {
		return p.conflict(ctx, d, conflict, dir)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(p.out, "version %d is to be in force, in place of %s\n", version, versionName(base))
	p.pushed = rulesPush{Version: version, Replaces: base, Changed: true, Shadow: p.pushed.Shadow, Forced: remark}
	return errors.Join(ruledb.WriteMarker(dir, c.Database.Space, version, files), p.await(ctx, d, version))
}

func versionName(n int64) string {
	if n == 0 {
		return "none"
	}
	return fmt.Sprintf("version %d", n)
}

// check lints the folder and runs its tests. With --force it returns what failed, for the history.
func (p *pusher) check(ctx context.Context, dir string, files []file.Source, c *server.Config) (remark string,
	err error) {
	var failed []string
	checks := []struct {
		name string
		run  func() error
	}{
		{"lint", func() error {
			found, err := lint(ctx, []string{dir}, c.LintOptions())
			if err != nil {
				return err
			}
			return errors.Join(found.WriteText(p.out), lintVerdict(found, false))
		}},
		{"tests", func() error {
			_, err := ruleTests(ctx, []string{dir}, false, p.out, p.stderr)
			return err
		}},
	}
	if !slices.ContainsFunc(files, func(s file.Source) bool { return rulesource.IsTestFile(path.Base(s.Name)) }) {
		checks = checks[:1]
	}
	for _, check := range checks {
		if err := check.run(); err != nil {
			if e, ok := errors.AsType[*exitError](err); !ok || e.err != nil {
				fmt.Fprintln(p.stderr, "weir:", err)
			}
			failed = append(failed, check.name)
		}
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
	}
	// The checks have read the folder anew. The push has to be the files they saw.
	if now, err := readRulesFolder(dir); err != nil || !rulesource.Equal(now, files) {
		return "", errors.Join(fmt.Errorf("nothing was pushed: %s changed while it was checked; push it again", dir),
			err)
	}
	switch {
	case len(failed) == 0:
		return "", nil
	case p.force:
		return "by force, since these failed: " + strings.Join(failed, ", "), nil
	}
	return "", errors.New("nothing was pushed, since these failed: " + strings.Join(failed, ", ") +
		"; --force pushes all the same, and the history says so")
}

// baseOf returns the version that the change in a folder began with.
func (p *pusher) baseOf(dir, space string, head int64) (int64, error) {
	switch {
	case p.origin == ruledb.Import:
		return 0, nil
	case p.base == "head":
		return head, nil
	case p.base != "":
		n, err := strconv.ParseInt(p.base, 10, 64)
		if err != nil || n < 0 {
			return 0, usageError(fmt.Errorf("--base %q: expected the number of a version, or head", p.base))
		}
		return n, nil
	}
	from, err := ruledb.ReadMarker(dir)
	switch {
	case err != nil:
		return 0, usageError(err)
	case from != nil && from.Space == space:
		return from.Version, nil
	case head == 0:
		return 0, nil
	}
	return 0, usageError(
		fmt.Errorf(
			"%s does not say which version its change began with: version %d is in force. See what would change with weir rules diff %s, "+
				"and name it with --base %d; or pull, change and push", dir, head, dir, head))
}

// inShadow returns files with every limit that the base lacks, or has with other numbers, in
// shadow.
func (p *pusher) inShadow(ctx context.Context, d *ruledb.DB, files []file.Source, base int64) ([]file.Source, error) {
	var before []file.Source
	if base > 0 {
		v, err := d.Version(ctx, base)
		if err != nil {
			return nil, err
		}
		before = v.Rules()
	}
	files, names, err := ruledb.Shadow(files, before)
	if err != nil {
		return nil, fmt.Errorf("--shadow: %w", err)
	}
	if p.pushed.Shadow = names; len(names) == 0 {
		fmt.Fprintln(p.out, "no limit is new or changed, so none is put in shadow")
	} else {
		fmt.Fprintf(p.out,
			"in shadow, beside what is in force: %s; push again without --shadow to enforce what the folder says\n", strings.Join(names, ", "))
	}
	return files, nil
}

// conflict shows the changes between the base of a change and the version in force.
func (p *pusher) conflict(ctx context.Context, d *ruledb.DB, c *ruledb.ConflictError, dir string) error {
	if p.origin == ruledb.Import {
		return fmt.Errorf("nothing was imported: %w; change it with weir rules pull and push", c)
	}
	if c.Head == 0 {
		return fmt.Errorf("nothing was pushed: %w", c)
	}
	head, err := d.Version(ctx, c.Head)
	if err != nil {
		return err
	}
	base, text := ruledb.Side{Name: "nothing"}, ""
	if c.Base > 0 {
		base, err = readSide(ctx, d, strconv.FormatInt(c.Base, 10))
	}
	now := ruledb.Side{Name: fmt.Sprintf("version %d", head.Number), Files: head.Files}
	if err != nil { // it was pruned, or never there
		text = fmt.Sprintf("what it changed cannot be shown: %v\n", err)
	} else if text = ruledb.Diff(base, now); text == "" {
		text = "the same files\n"
	}
	fmt.Fprintf(p.out, "%s came meanwhile, by %s at %s%s:\n%s", versionName(head.Number), human.Printable(head.Author),
		words.Instant(head.Made), noteText(head.Note), text)
	return fmt.Errorf("nothing was pushed: %w. Take the change above over into %s, and push with --base %d", c, dir,
		c.Head)
}

func noteText(note string) string {
	if note == "" {
		return ""
	}
	return " (" + human.Printable(note) + ")"
}

// await waits until all live nodes have a version in force.
func (p *pusher) await(ctx context.Context, d *ruledb.DB, version int64) error {
	if p.wait <= 0 {
		return nil
	}
	return awaitNodes(ctx, d, version, p.wait, p.out)
}

// awaitNodes waits until all live nodes have a version in force, or have refused it.
func awaitNodes(ctx context.Context, d *ruledb.DB, version int64, patience time.Duration, out io.Writer) error {
	for end := time.Now().Add(patience); ; {
		nodes, err := d.Nodes(ctx)
		if err != nil {
			return err
		}
		nodes = slices.DeleteFunc(nodes, func(n ruledb.Node) bool { return !n.Live })
		var waits, refused []string
		for _, n := range nodes {
			switch {
			case n.Version == version:
			case n.Refused == version:
				refused = append(refused, fmt.Sprintf("%s: %s", human.Printable(n.Name), human.PrintableLines(n.Error)))
			default:
				waits = append(waits, human.Printable(n.Name))
			}
		}
		late := time.Now().After(end)
		switch {
		case len(nodes) == 0:
			fmt.Fprintln(out, "no node follows these rules now")
			return nil
		case len(waits) == 0 && len(refused) == 0:
			fmt.Fprintf(out, "in force on %s\n", human.Plural(len(nodes), "node"))
			return nil
		case len(waits) == 0 || late:
			if head, err := headOf(ctx, d); err == nil && head.Number != version {
				return fmt.Errorf("version %d came meanwhile, by %s", head.Number, human.Printable(head.Author))
			}
			for _, r := range refused {
				fmt.Fprintf(out, "refused by %s\n", r)
			}
			if len(waits) > 0 {
				return fmt.Errorf("after %v not in force on %s", patience, strings.Join(waits, ", "))
			}
			return fmt.Errorf("version %d is refused by %s, which keep what they had", version,
				human.Plural(len(refused), "node"))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func newRulesRollbackCommand(env []string) *cobra.Command {
	var by changeFlags
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "rollback [VERSION]",
		Short: "Put an earlier version of the rules in force again",
		Long: `Makes a new version with the files of an earlier one, which is the one before that in force unless a number is given, and puts it
in force on all nodes. Nothing is lost: what was in force stays in the history.`,
		Example: "  weir rules rollback --note \"refused good clients\" --wait 30s\n  weir rules rollback 41",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			who, err := author(by.author)
			if err != nil {
				return err
			}
			d, _, err := openRuleDatabase(cmd, env)
			if err != nil {
				return err
			}
			defer d.Close()
			ctx := cmd.Context()
			head, err := d.Head(ctx)
			if err != nil {
				return err
			}
			to := head.Parent
			if len(args) > 0 {
				if to, err = strconv.ParseInt(args[0], 10, 64); err != nil || to < 1 {
					return usageError(fmt.Errorf("%q: expected the number of a version; weir rules history lists them",
						args[0]))
				}
			}
			if to == 0 {
				return fmt.Errorf("there is no version before %d", head.Number)
			}
			c, err := d.BackTo(ctx, head, to)
			if err != nil {
				return err
			}
			c.Author, c.Note = who, by.note
			version, err := d.Push(ctx, c)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(),
				"version %d, which is version %d again, is to be in force, in place of version %d\n", version, to, head.Number)
			if wait <= 0 {
				return nil
			}
			return awaitNodes(ctx, d, version, wait, cmd.OutOrStdout())
		},
	}
	cmd.Flags().DurationVar(&wait, "wait", 0,
		"wait so long at most until all live nodes have it in force; exit status 1 if one does not")
	by.add(cmd)
	return cmd
}
