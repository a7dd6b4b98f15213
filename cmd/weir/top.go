package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/weir-rl/weir/internal/admin/client"
	"github.com/weir-rl/weir/internal/admin/top"
	"github.com/weir-rl/weir/internal/admin/words"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/recent"
	"github.com/weir-rl/weir/rule"
)

func newTopCommand(env []string) *cobra.Command {
	var port adminClient
	var batch, asJSON bool
	var rounds int
	var sorted, over string
	var every time.Duration
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show in the terminal what goes on at a running server: rules, keys, decisions",
		Long: `Shows in the terminal what goes on at a running server and the nodes that share its Redis: the rules with what is thought of
them, the keys that are refused most, and the newest decisions. Press ? for the keys.

With --batch it prints instead, as often as -n says, and ends: all numbers as the admin API has them.`,
		Example: "  weir top\n  weir top --server http://127.0.0.1:6070 --sort refused\n  weir top --batch -n 1",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := rule.ParseDuration(over)
			switch {
			case err != nil || d <= 0:
				return usageError(fmt.Errorf("--over %q: expected a time, such as 1h", over))
			case sorted != "" && !slices.Contains(top.Sorts, sorted):
				return usageError(fmt.Errorf("--sort %q: expected one of %s", sorted, strings.Join(top.Sorts, ", ")))
			case rounds < 1:
				return usageError(errors.New("--rounds: expected 1 or more"))
			case every < 100*time.Millisecond:
				return usageError(errors.New("--every: expected 100ms or more"))
			case asJSON && !batch:
				return usageError(errors.New("--json is for --batch"))
			}
			if err := port.open(); err != nil {
				return err
			}
			o := top.Options{
				Server: topServer{port.Client}, Name: port.Name(), Over: d, Sort: sorted, Every: every,
				In: cmd.InOrStdin(), Out: cmd.OutOrStdout(), Env: env,
			}
			if batch {
				return topBatch(cmd.Context(), o, rounds, asJSON)
			}
			if out, ok := cmd.OutOrStdout().(*os.File); !ok || !term.IsTerminal(int(out.Fd())) {
				return usageError(errors.New("the output is no terminal; --batch prints to a file or a pipe"))
			}
			return top.Run(cmd.Context(), o)
		},
	}
	port.flags(cmd, defaultAdmin)
	f := cmd.Flags()
	f.BoolVar(&batch, "batch", false, "print, and end")
	f.IntVarP(&rounds, "rounds", "n", 1, "how often --batch prints")
	f.BoolVar(&asJSON, "json", false, "with --batch: print the answers of the server, one object a round")
	f.StringVar(&sorted, "sort", "", "order of the rules: "+strings.Join(top.Sorts, ", ")+` (default "`+top.Sorts[0]+
		`")`)
	f.StringVar(&over, "over", "1h", "which time the counts of rules are of: the last so long")
	f.DurationVar(&every, "every", 2*time.Second,
		"time between two looks, at least: it takes more if they cost more than 1 % of a core")
	completeFlag(cmd, "sort", top.Sorts)
	return cmd
}

// topBatch prints rounds as text, or as JSON.
func topBatch(ctx context.Context, o top.Options, rounds int, asJSON bool) error {
	wait := func(d time.Duration) error {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
			return nil
		}
	}
	if !asJSON {
		return top.Batch(ctx, o, rounds, wait)
	}
	for i := range rounds {
		if i > 0 {
			if err := wait(o.Every); err != nil {
				return err
			}
		}
		d, err := top.Ask(ctx, o.Server, o.Over)
		if err != nil {
			return err
		}
		raw, err := json.Marshal(map[string]any{"overview": d.Overview, "rules": d.Rules, "keys": d.Keys,
			"decisions": d.Decisions})
		if err != nil {
			return err
		}
		if _, err := o.Out.Write(append(raw, '\n')); err != nil {
			return err
		}
	}
	return nil
}

// topServer is a server's admin port as weir top asks it.
type topServer struct{ *client.Client }

// Rules implements top.Server.
func (s topServer) Rules(ctx context.Context, over time.Duration) ([]insight.RuleReport, error) {
	return s.Client.Rules(ctx, "", over)
}

// Change implements top.Server.
func (s topServer) Change(ctx context.Context, c top.Change) (string, error) {
	path, verb := "/api/v1/bans", "banned"
	if c.Grant {
		path, verb = "/api/v1/grants", "granted"
	}
	var answer changed
	change := keyChange{Domain: c.Domain, Limit: c.Rule, Key: c.Key, For: c.For, Allow: c.Allow, Reason: "weir top"}
	if err := s.Do(ctx, http.MethodPost, path, &change, &answer); err != nil {
		return "", err
	}
	until := answer.Ban.Until
	if c.Grant {
		verb, until = verb+" "+answer.Grant.Allow, answer.Grant.Until
	}
	text := fmt.Sprintf("%s: %s %s until %s", verb, words.LimitName(c.Domain, c.Rule), words.Key(c.Key),
		words.Instant(until))
	if c.Grant {
		text = strings.Join(append([]string{text + ", " + answer.replacedText()}, answer.withoutEffect()...), "; ")
	}
	if answer.Warning != "" {
		text += " (" + answer.Warning + ")"
	}
	return text, nil
}

// Explain implements top.Server.
func (s topServer) Explain(e *recent.Entry) string {
	var b strings.Builder
	words.Decision(&b, e)
	return b.String()
}
