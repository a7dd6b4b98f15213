package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-rl/weir/internal/admin/client"
	"github.com/weir-rl/weir/internal/admin/words"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/util/human"
	"github.com/weir-rl/weir/rule"
)

func newVerdictsCommand() *cobra.Command {
	var port adminClient
	var over, domain string
	var failOn []string
	var asJSON, all bool
	cmd := &cobra.Command{
		Use:   "verdicts",
		Short: "Tell of each rule of a running server whether it does its job",
		Long: `Tells of each rule of a running server, and the nodes that share its Redis, whether it does its job, with the evidence and what
could be done. With --fail-on it is a check for cron and CI.

Exit status: 0 if none of the verdicts of --fail-on holds, 1 if one does, 2 if that could not be found out.

The verdicts, with what they are called in the table: ` + namedVerdicts() + `.`,
		Example: "  weir verdicts\n  weir verdicts --over 24h --fail-on strict,loose_crowd,broken",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := rule.ParseDuration(over)
			if err != nil || d < time.Second {
				return usageError(fmt.Errorf("--over %q: expected a time, such as 24h", over))
			}
			for _, v := range failOn {
				if !slices.Contains(insight.Verdicts, v) {
					return usageError(fmt.Errorf("--fail-on %q: expected some of %s", v,
						strings.Join(insight.Verdicts, ",")))
				}
			}
			if err := port.open(); err != nil {
				return err
			}
			q := url.Values{"over": {client.Over(d)}}
			if domain != "" {
				q.Set("domain", domain)
			}
			raw, answer, err := judgedRules(cmd.Context(), &port, "/api/v1/insight/rules?"+q.Encode())
			if err != nil {
				return blind(err)
			}
			if asJSON {
				_, err = cmd.OutOrStdout().Write(raw)
			} else {
				err = words.Verdicts(cmd.OutOrStdout(), answer.Rules, all, time.Now())
			}
			if err != nil {
				return blind(err)
			}
			n := answer.Nodes
			if n.Answered < n.Asked {
				fmt.Fprintf(cmd.ErrOrStderr(), "weir: warning: only %d of %d nodes answered\n", n.Answered, n.Asked)
			}
			for _, b := range n.BrokenRules() {
				fmt.Fprintf(cmd.ErrOrStderr(), "weir: warning: the rules in the source of %s are not in force: %s\n",
					human.Visible(b.Node), human.Visible(b.Error))
			}
			return verdictsHold(&answer, failOn)
		},
	}
	port.flags(cmd, defaultAdmin)
	f := cmd.Flags()
	f.StringVar(&over, "over", "24h",
		"the time of REQUESTS and REFUSED: the last so long, up to 7d; verdicts are of the last 24 to 36 hours")
	f.StringVar(&domain, "domain", "", "only rules of this domain")
	f.StringSliceVar(&failOn, "fail-on", nil,
		"exit with 1 if one of these verdicts holds for a rule, such as strict,loose_crowd,broken")
	f.BoolVar(&all, "all", false, "list the rules for which it is too early, too")
	f.BoolVar(&asJSON, "json", false, "print the server's answer as it is")
	completeFlag(cmd, "fail-on", insight.Verdicts)
	return cmd
}

// ruleReports is the answer of GET /api/v1/insight/rules.
type ruleReports struct {
	Nodes insight.Nodes
	Rules []insight.RuleReport
}

// unjudged is the name of a rule that limits something and was not judged yet; "" if there is none.
func (a *ruleReports) unjudged() string {
	for i := range a.Rules {
		if r := &a.Rules[i]; len(r.Verdicts) == 0 && len(r.Limits) > 0 {
			return human.Printable(r.Domain + "/" + r.Name)
		}
	}
	return ""
}

// judgePatience is how long to wait for a server to judge rules that have just come into force,
// which takes it a second or two.
const judgePatience = 30 * time.Second

// judgedRules asks for the reports of rules until all were judged, or patience ends.
func judgedRules(ctx context.Context, c *adminClient, path string) (raw json.RawMessage, answer ruleReports,
	err error) {
	for end := time.Now().Add(judgePatience); ; {
		raw, answer = nil, ruleReports{}
		if err := c.Do(ctx, http.MethodGet, path, nil, &raw); err != nil {
			return nil, answer, err
		}
		if err := json.Unmarshal(raw, &answer); err != nil {
			return nil, answer, fmt.Errorf("%s answered with something else than reports of rules: %w", c.Name(), err)
		}
		answer.Rules = slices.DeleteFunc(answer.Rules, func(r insight.RuleReport) bool { return r.Command })
		if answer.unjudged() == "" || time.Now().After(end) {
			return raw, answer, nil
		}
		select {
		case <-ctx.Done():
			return nil, answer, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// verdictsHold is the error of exit status 1 if one of the verdicts holds, be it the first or not.
// If none does, and a rule was not judged yet, that is the error of exit status 2.
func verdictsHold(answer *ruleReports, failOn []string) error {
	var found []string
	if list := answer.Nodes.BrokenRules(); len(list) > 0 && slices.Contains(failOn, insight.Broken) {
		found = append(found, "the source of rules of "+human.Visible(list[0].Node)+" "+insight.Broken)
	}
	rules := answer.Rules
	for i := range rules {
		for _, v := range rules[i].Verdicts {
			if slices.Contains(failOn, v.Verdict) {
				found = append(found, human.Printable(rules[i].Domain+"/"+rules[i].Name)+" "+v.Verdict)
			}
		}
	}
	if len(found) == 0 {
		if name := answer.unjudged(); len(failOn) > 0 && name != "" {
			return blind(fmt.Errorf("%s is not judged yet", name))
		}
		return nil
	}
	return &exitError{code: exitFound, err: fmt.Errorf("of --fail-on holds: %s", strings.Join(found, ", "))}
}

// namedVerdicts lists the verdicts as --fail-on takes them, with their words where these differ.
func namedVerdicts() string {
	var list []string
	for _, name := range insight.Verdicts {
		if text := human.Verdict(name); text != name {
			name += " (" + text + ")"
		}
		list = append(list, name)
	}
	return strings.Join(list, ", ")
}
