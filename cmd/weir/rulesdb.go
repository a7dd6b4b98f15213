package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/rulesource"
	"github.com/weir-rl/weir/internal/rulesource/ruledb"
	"github.com/weir-rl/weir/internal/server"
	"github.com/weir-rl/weir/internal/util/human"
	"github.com/weir-rl/weir/rule/file"
)

// ruleDatabase returns the database that the flags, the environment or the configuration name, and
// what lint is to know of the latter.
func ruleDatabase(cmd *cobra.Command, env []string) (*ruledb.Address, *server.Config, error) {
	c, err := server.Load(cmd.Flags(), env)
	if err != nil {
		return nil, nil, usageError(err)
	}
	c.TellStrays(cmd.ErrOrStderr())
	if c.Database == nil {
		return nil, nil, usageError(
			errors.New(
				"no database of rules is named; write --rules postgres://USER@HOST/DATABASE, or set it as WEIR_RULES, or as rules in the configuration"))
	}
	return c.Database, c, nil
}

// openRuleDatabase opens what ruleDatabase returns.
func openRuleDatabase(cmd *cobra.Command, env []string) (*ruledb.DB, *server.Config, error) {
	address, c, err := ruleDatabase(cmd, env)
	if err != nil {
		return nil, nil, err
	}
	d, err := ruledb.Open(cmd.Context(), address)
	return d, c, err
}

// headOf returns the version in force; one with number 0 for none.
func headOf(ctx context.Context, d *ruledb.DB) (*ruledb.Version, error) {
	v, err := d.Head(ctx)
	if errors.Is(err, ruledb.ErrNoRules) {
		return new(ruledb.Version), nil
	}
	return v, err
}

// author is who changes rules: the user of this machine, unless a flag says otherwise.
func author(flag string) (string, error) {
	if flag != "" {
		return flag, nil
	}
	if u, err := user.Current(); err == nil && u.Username != "" {
		return u.Username, nil
	}
	return "", usageError(errors.New("who changes the rules? This machine does not know; write --author NAME"))
}

// changeFlags are the flags of all commands that change the rules.
type changeFlags struct{ author, note string }

func (f *changeFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.author, "author", "",
		"who changes the rules, for the history (default: the user of this machine)")
	cmd.Flags().StringVar(&f.note, "note", "", "why, for the history")
}

// noDatabase is the error of the URL of a database where a folder is to be named.
func noDatabase(dir string) error {
	if !ruledb.IsURL(dir) {
		return nil
	}
	return usageError(
		errors.New(
			"a folder of rules is to be named here, not a database: --rules names that, and weir rules pull writes what it holds into a folder"))
}

// readRulesFolder reads a folder of rules with their tests.
func readRulesFolder(dir string) ([]file.Source, error) {
	if err := noDatabase(dir); err != nil {
		return nil, err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return nil, usageError(err)
	}
	if !info.IsDir() {
		return nil, usageError(fmt.Errorf("%s is no folder; a version is a whole folder of rules", dir))
	}
	files, err := rulesource.ReadFolder(dir)
	if err != nil {
		return nil, usageError(err)
	}
	return files, nil
}

func newRulesInitCommand(env []string) *cobra.Command {
	return &cobra.Command{
		Use:   "init",
		Short: "Prepare a PostgreSQL for rules",
		Long: `Prepares a PostgreSQL, 15 or newer, for rules: the tables, in a schema weir_rules, and the roles weir_node, for nodes, and
weir_editor, for who pushes. Doing so twice is harmless. It needs the right to create a schema in the database; to make the
roles, which may be there already, that to create roles.`,
		Example: "  weir rules init --rules postgres://owner@db/weir",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			address, _, err := ruleDatabase(cmd, env)
			if err != nil {
				return err
			}
			withoutRoles, err := ruledb.Init(cmd.Context(), address)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is ready for rules\n", address)
			if withoutRoles {
				fmt.Fprintln(cmd.ErrOrStderr(),
					"weir: warning: the roles weir_node and weir_editor are not there, and this user may not make them: "+
						"only the owner can read and push. Let an administrator run: CREATE ROLE weir_node; CREATE ROLE weir_editor; then run this once more.")
			}
			return nil
		},
	}
}

func newRulesPullCommand(env []string) *cobra.Command {
	var version int64
	var force bool
	cmd := &cobra.Command{
		Use:   "pull DIR",
		Short: "Write the rules of a database into a folder",
		Long: `Writes the version in force, or another one, into a folder, with its tests, and notes there which one it is (` + ruledb.Marker + `), so that
push knows what a change began with. Files of rules and tests that the version does not have are removed. A folder with changes
that were not pushed is left alone, unless --force says otherwise.`,
		Example: "  weir rules pull rules/\n  weir rules pull --version 41 before/",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			d, c, err := openRuleDatabase(cmd, env)
			if err != nil {
				return err
			}
			defer d.Close()
			if version == 0 {
				head, err := d.Head(cmd.Context())
				if err != nil {
					return err
				}
				version = head.Number
			}
			v, err := d.Version(cmd.Context(), version)
			if err != nil {
				return err
			}
			if err := noDatabase(args[0]); err != nil {
				return err
			}
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			had, err := readRulesFolder(args[0])
			if err != nil {
				return err
			}
			if err := v.WriteFolder(args[0], c.Database.Space, had, force); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s holds version %d: %s\n", args[0], v.Number,
				human.Plural(len(v.Files), "file"))
			return nil
		},
	}
	cmd.Flags().Int64Var(&version, "version", 0, "which version (default: the one in force)")
	cmd.Flags().BoolVar(&force, "force", false, "drop changes in the folder that were not pushed")
	return cmd
}

// rulesDiff is the output of weir rules diff as JSON.
type rulesDiff struct {
	From                string `json:"from"` // version 41, or a folder
	To                  string `json:"to"`
	Differs             bool   `json:"differs"`
	insight.RuleChanges        // rule by rule; none where a side cannot be loaded
	Diff                string `json:"diff"` // unified
}

func newRulesDiffCommand(env []string) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "diff FROM [TO]",
		Short: "Show what differs between versions of rules, or a folder and what is in force",
		Long: `Shows what differs between two versions, each a number, or a folder: rule by rule, and as a diff of the files. With one of them
alone: what would change if it were put in force. Exit status: 0 if they are the same, 1 if they differ, 2 if that could not be found out.`,
		Example: "  weir rules diff rules/\n  weir rules diff 41 42\n  weir rules diff 41 rules/",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			d, _, err := openRuleDatabase(cmd, env)
			if err != nil {
				return blind(err)
			}
			defer d.Close()
			var sides [2]ruledb.Side
			if len(args) == 1 {
				head, err := headOf(cmd.Context(), d)
				if err != nil {
					return blind(err)
				}
				if head.Number > 0 {
					args = []string{strconv.FormatInt(head.Number, 10), args[0]}
				} else {
					args = []string{"", args[0]}
				}
			}
			for i, name := range args {
				if sides[i], err = readSide(cmd.Context(), d, name); err != nil {
					return blind(err)
				}
			}
			text := ruledb.Diff(sides[0], sides[1])
			// Where a side cannot be loaded the diff of the files is all there is.
			changed, _ := server.CompareRules(sides[0].Files, sides[1].Files)
			if asJSON {
				err = printJSON(cmd.OutOrStdout(), rulesDiff{sides[0].Name, sides[1].Name, text != "", changed, text})
			} else {
				for _, line := range changed.Lines() {
					fmt.Fprintln(cmd.OutOrStdout(), line)
				}
				_, err = io.WriteString(cmd.OutOrStdout(), text)
			}
			if err != nil {
				return blind(err)
			}
			if text != "" {
				return &exitError{code: exitFound}
			}
			return nil
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

// readSide reads a version by its number, or a folder; "" is nothing.
func readSide(ctx context.Context, d *ruledb.DB, name string) (ruledb.Side, error) {
	if name == "" {
		return ruledb.Side{Name: "nothing"}, nil
	}
	if n, err := strconv.ParseInt(name, 10, 64); err == nil {
		v, err := d.Version(ctx, n)
		if err != nil {
			return ruledb.Side{}, err
		}
		return ruledb.Side{Name: fmt.Sprintf("version %d", n), Files: v.Files}, nil
	}
	files, err := readRulesFolder(name)
	return ruledb.Side{Name: name, Files: files}, err
}

func newRulesHistoryCommand(env []string) *cobra.Command {
	var n int
	var noted string
	var check, asJSON bool
	cmd := &cobra.Command{
		Use:   "history",
		Short: "Show who changed the rules of a database, when and why; check that history",
		Long: `Lists the changes of the rules, newest first.

With --check it reads the whole history instead, and computes it anew: that each record has the hash of its text and follows the one
before it, and that each version has the files with which it was made. A history that was cut at its end, or computed anew as a
whole, passes too. --noted is the hash of a record as it was noted elsewhere: if a record has it, those up to it are as they were
then. Exit status: 0 if all holds, 1 if it does not, 2 if that could not be found out.`,
		Example: "  weir rules history\n  weir rules history -n 100 --json\n  weir rules history --check",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if noted != "" && !check {
				return usageError(errors.New("--noted is for --check"))
			}
			d, _, err := openRuleDatabase(cmd, env)
			if err != nil {
				return blind(err)
			}
			defer d.Close()
			out := cmd.OutOrStdout()
			if check {
				return checkHistory(cmd.Context(), d, out, noted)
			}
			records, err := d.History(cmd.Context(), n, 0)
			if err != nil {
				return blind(err)
			}
			if asJSON {
				return json.NewEncoder(out).Encode(append([]ruledb.Record{}, records...))
			}
			return writeHistory(out, records)
		},
	}
	cmd.Flags().IntVarP(&n, "number", "n", 20, "how many changes at most")
	cmd.Flags().BoolVar(&check, "check", false, "check the whole history")
	cmd.Flags().StringVar(&noted, "noted", "",
		"with --check: the hash of a record that was noted elsewhere (default: not checked)")
	jsonFlag(cmd, &asJSON)
	return cmd
}

func checkHistory(ctx context.Context, d *ruledb.DB, out io.Writer, noted string) error {
	c, err := d.Check(ctx, noted)
	if _, broken := errors.AsType[*ruledb.BrokenError](err); broken {
		fmt.Fprintf(out, "BROKEN: %v\n", err)
		return &exitError{code: exitFound}
	}
	if err != nil {
		return blind(err)
	}
	if noted != "" && c.Upto == 0 {
		fmt.Fprintf(out, "BROKEN: no record has the hash %s\n", noted)
		return &exitError{code: exitFound}
	}
	if c.Records == 0 {
		_, err = fmt.Fprintln(out, "no records")
		return err
	}
	fmt.Fprintf(out,
		"%s and %s, %d of these without their files, which were pruned: each record follows the one before it\n",
		human.Plural(int(c.Records), "record"), human.Plural(int(c.Versions), "version"), c.Pruned)
	if c.Upto > 0 {
		fmt.Fprintf(out, "up to record %d nothing was altered, left out, put in or moved since that hash was noted\n",
			c.Upto)
	}
	_, err = fmt.Fprintf(out, "last hash %s\n", c.Hash)
	return err
}

func newRulesPruneCommand(env []string) *cobra.Command {
	var keep int
	var by changeFlags
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Drop the files of old versions of rules",
		Long: `Drops the files of old versions, all but the last ones and the one in force. Who made them, when and why stays known, and what is
dropped is a record of the history itself.`,
		Example: "  weir rules prune --keep 1000",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if keep < 1 {
				return usageError(errors.New("--keep: must be at least 1"))
			}
			who, err := author(by.author)
			if err != nil {
				return err
			}
			d, _, err := openRuleDatabase(cmd, env)
			if err != nil {
				return err
			}
			defer d.Close()
			dropped, err := d.Prune(cmd.Context(), keep, who, by.note)
			if err == nil {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "the files of %s were dropped\n",
					human.Plural(int(dropped), "version"))
			}
			return err
		},
	}
	cmd.Flags().IntVar(&keep, "keep", 1000, "how many versions keep their files")
	by.add(cmd)
	return cmd
}
