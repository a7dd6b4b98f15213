package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/server"
	"github.com/weir-rl/weir/rule"
)

type explainOptions struct {
	rules, domain string
	id            string // of a decision
	ipv6Prefix    int
	admin         adminClient
}

func newExplainCommand() *cobra.Command {
	var o explainOptions
	cmd := &cobra.Command{
		Use:   "explain --rules DIR [--domain D] KEY=VALUE…",
		Short: "Tell which limits a request would meet, and why the others do not apply",
		Long: `Tells which limits a request with these attributes would meet, under which keys, and why the other rules do not apply.
With --server it shows the live counters of a running server too.

With --id it tells instead what became of a request, and why: a refusal carries the id of its decision, which the server that
made it remembers for a while.`,
		Example: "  weir explain --rules rules/ method=POST path=/login ip=192.0.2.1\n  weir explain --rules rules/ --server http://127.0.0.1:9090 user=ada path=/api/x\n  weir explain --server http://127.0.0.1:9090 --id 4vq8r2mxw0c7e",
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.id != "" {
				return explainDecision(cmd.Context(), o, args, cmd.OutOrStdout())
			}
			return explain(cmd.Context(), o, args, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.rules, "rules", "./rules", "folder or file of rules")
	f.StringVar(&o.domain, "domain", "", "domain of the request (default: the only one that the rules hold)")
	f.StringVar(&o.id, "id", "", "id of a decision, such as that in X-RateLimit-Decision, to be looked up at --server (default "+defaultAdmin+")")
	f.IntVar(&o.ipv6Prefix, "client-ip-ipv6-prefix", 64, "how many bits of an IPv6 address make a key")
	o.admin.flags(cmd, "")
	return cmd
}

// parseAttributes reads KEY=VALUE arguments.
func parseAttributes(args []string) (rule.Pairs, error) {
	var list rule.Pairs
	for _, arg := range args {
		name, value, ok := strings.Cut(arg, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("%q: expected KEY=VALUE, such as path=/login", arg)
		}
		if _, twice := list.Attribute(name); twice {
			return nil, fmt.Errorf("%s is given twice", name)
		}
		list = append(list, rule.Pair{Name: name, Value: value})
	}
	return list, nil
}

func explain(ctx context.Context, o explainOptions, args []string, out, stderr io.Writer) error {
	attributes, err := parseAttributes(args)
	if err != nil {
		return usageError(err)
	}
	if err := checkIPv6Prefix(o.ipv6Prefix); err != nil {
		return err
	}
	set, err := readRules(o.rules, rule.Options{IPv6Prefix: o.ipv6Prefix}, stderr)
	if err != nil {
		return err
	}
	domain, err := chooseDomain(set, o.domain, o.rules, "--domain")
	if err != nil {
		return err
	}
	var live *adminClient
	if o.admin.address != "" {
		live = &o.admin
		if err := live.open(); err != nil {
			return err
		}
	}
	query := rule.Query{Domain: domain, Attributes: attributes}
	var m rule.Matches
	set.Match(&query, &m)
	reasons := set.Explain(&query)
	fmt.Fprintf(out, "domain %s\n", domain)
	if m.Exempt {
		fmt.Fprintln(out, "\nThe request is exempt: it meets no limit.")
	}
	var text strings.Builder
	met := 0
	for _, r := range reasons {
		if !r.Applies {
			continue
		}
		if r.Rule.Unlimited {
			fmt.Fprintf(&text, "  %s\tunlimited%s\n", r.Rule.Name, replaced(r.Rule))
			continue
		}
		for _, h := range r.Hits {
			met++
			fmt.Fprintf(&text, "  %s\t%s%s\n", h.Window.Name, describeHit(&h, time.Now()), replaced(r.Rule))
			if live != nil {
				state, err := liveState(ctx, live, domain, &h)
				if err != nil {
					return usageError(err)
				}
				fmt.Fprintf(&text, "  \tnow: %s\n", state)
			}
		}
		for _, line := range describeRule(r.Rule) {
			fmt.Fprintf(&text, "  \t%s\n", line)
		}
	}
	if text.Len() > 0 {
		fmt.Fprintf(out, "\nmeets:\n%s", align(text.String()))
	} else if !m.Exempt {
		fmt.Fprintln(out, "\nIt meets no limit, and is allowed.")
	}
	text.Reset()
	for _, r := range reasons {
		if !r.Applies {
			fmt.Fprintf(&text, "  %s\t%s\n", r.Rule.Name, r.Why)
		}
	}
	if text.Len() > 0 {
		fmt.Fprintf(out, "\ndoes not apply:\n%s", align(text.String()))
	}
	if m.CELErrors > 0 {
		fmt.Fprintf(out, "\n%s failed on this request: it counts as false (as cost: 1).\n", count(m.CELErrors, "expression"))
	}
	return nil
}

// align pads what stands before the tab of each line.
func align(text string) string {
	width := 0
	lines := strings.SplitAfter(text, "\n")
	for _, line := range lines {
		if name, _, ok := strings.Cut(line, "\t"); ok {
			width = max(width, len([]rune(name)))
		}
	}
	var b strings.Builder
	for _, line := range lines {
		name, rest, ok := strings.Cut(line, "\t")
		if !ok {
			b.WriteString(line)
			continue
		}
		fmt.Fprintf(&b, "%s%s  %s", name, strings.Repeat(" ", width-len([]rune(name))), rest)
	}
	return b.String()
}

func replaced(r *rule.Rule) string {
	if len(r.Replaces) == 0 {
		return ""
	}
	return "; lifts " + strings.Join(r.Replaces, ", ")
}

// describeHit says in words what a limit allows at an instant, to whom.
func describeHit(h *rule.Hit, now time.Time) string {
	var b strings.Builder
	limit, _ := h.Limit.At(now.UnixMicro())
	if limit == nil {
		return "not limited at this time of its schedule"
	}
	b.WriteString(describeLimit(limit))
	if h.Limit.Scheduled() {
		b.WriteString(" at this time of its schedule")
	}
	if parts := h.Window.KeyParts(h.Key); len(parts) > 0 {
		fmt.Fprintf(&b, " for %s", strings.Join(parts, ", "))
	} else {
		b.WriteString(" for all together")
	}
	if h.Cost != 1 {
		fmt.Fprintf(&b, "; costs %d", h.Cost)
	}
	if h.Mode == rule.Shadow {
		b.WriteString("; in shadow: counted, never refused")
	}
	return b.String()
}

// describeLimit says in words what a limit allows.
func describeLimit(limit *algo.Limit) string {
	c := limit.Config()
	var b strings.Builder
	switch c.Algorithm {
	case algo.Concurrency:
		fmt.Fprintf(&b, "%d in flight", c.N)
	default:
		fmt.Fprintf(&b, "%d per %s", c.N, c.Period())
		if c.Algorithm == algo.TokenBucket || c.Algorithm == algo.LeakyBucket {
			fmt.Fprintf(&b, ", burst %d", max(c.Burst, 0))
		}
	}
	if c.Soft > 0 {
		fmt.Fprintf(&b, ", soft margin %d %%", c.Soft)
		if c.SoftFor > 0 {
			fmt.Fprintf(&b, " for %s", c.SoftFor)
		}
	}
	fmt.Fprintf(&b, " (%s)", c.Algorithm)
	return b.String()
}

// describeRule says in words, a line each, what a rule says beyond its numbers.
func describeRule(r *rule.Rule) []string {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for _, p := range r.Schedule {
		add("schedule: %s", p)
	}
	if e := r.Elastic; e != nil {
		var points []string
		for _, p := range e.Curve {
			points = append(points, fmt.Sprintf("%d %% at %d %%", p.Share, p.At))
		}
		add("elastic: follows the signal %s: %s of the limit", e.Signal, strings.Join(points, ", "))
	}
	switch {
	case r.Wait > 0 && r.WaitQueue > 0:
		add("refused requests wait for up to %s, up to %d of a key", r.Wait, r.WaitQueue)
	case r.Wait > 0:
		add("requests wait for up to %s", r.Wait)
	case r.Defer != "":
		add("refused requests are deferred to the queue %s", r.Defer)
	}
	if b := r.Ban; b != nil {
		where := "wherever this limit applies"
		if b.Domain {
			where = "everywhere in the domain"
		}
		if b.NFTables {
			where += ", and by nftables"
		}
		add("ban: %d denials within %s refuse the key for %s %s", b.After, b.Within, b.For, where)
	}
	switch r.Priority {
	case rule.Critical:
		add("priority: critical")
	case rule.Sheddable:
		add("priority: sheddable")
	}
	if r.CostAfter != "" {
		add("the real cost is known afterwards: %s", r.CostAfter)
	}
	return lines
}

// liveState asks the admin port of a running server what a key has used.
func liveState(ctx context.Context, c *adminClient, domain string, h *rule.Hit) (string, error) {
	answer, body, err := c.send(ctx, http.MethodGet, server.KeyPath(domain, h.Window.Name, h.Window.KeyParts(h.Key)), nil, 1<<20)
	if err != nil {
		return "", err
	}
	var state struct {
		Used       *int64   `json:"used"`
		Capacity   int64    `json:"capacity"`
		Remaining  int64    `json:"remaining"`
		ResetAfter *float64 `json:"reset_after"`
		Detail     string   `json:"detail"`
	}
	if err := json.Unmarshal(body, &state); err != nil && answer.StatusCode < 500 {
		return "", fmt.Errorf("%s is no admin port of weir: it answered %s", c.name(), answer.Status)
	}
	switch {
	case answer.StatusCode == http.StatusNotFound && strings.HasPrefix(state.Detail, "key:"):
		return "nothing counted", nil
	case answer.StatusCode == http.StatusNotFound && strings.HasPrefix(state.Detail, "no rule in force"):
		return "the server does not have this limit", nil
	case answer.StatusCode == http.StatusServiceUnavailable && state.Detail != "":
		return "", fmt.Errorf("%s answered %s: %s", c.name(), answer.Status, state.Detail)
	case answer.StatusCode == http.StatusUnauthorized || answer.StatusCode == http.StatusForbidden:
		return "", fmt.Errorf("%s answered %s: name a file with a token by --token-file", c.name(), answer.Status)
	case answer.StatusCode != http.StatusOK || state.Used == nil:
		return "", fmt.Errorf("%s answered %s to the question for a key: is it the admin port of a weir server?", c.name(), answer.Status)
	}
	s := fmt.Sprintf("used %d of %d, %d remaining", *state.Used, state.Capacity, state.Remaining)
	if state.ResetAfter != nil {
		s += fmt.Sprintf(", as fresh in %s", time.Duration(*state.ResetAfter*float64(time.Second)).Round(time.Millisecond))
	}
	return s, nil
}
