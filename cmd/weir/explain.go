package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/admin"
	"github.com/weir-rl/weir/internal/admin/words"
	"github.com/weir-rl/weir/internal/lab/sim"
	"github.com/weir-rl/weir/internal/util/human"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

type explainOptions struct {
	rules, domain string
	id            string // of a decision
	descriptors   []string
	ipv6Prefix    int
	admin         adminClient
	// rulesGiven and prefixGiven: the flags are there; else the server's values go before.
	rulesGiven, prefixGiven bool
	json                    bool
}

func newExplainCommand() *cobra.Command {
	var o explainOptions
	cmd := &cobra.Command{
		Use:   "explain --rules DIR [--domain D] KEY=VALUE…",
		Short: "Tell which limits a request would meet, and why the others do not apply",
		Long: `Tells which limits a request with these attributes would meet, under which keys, and why the other rules do not apply.
With --server it explains by the rules that are in force on a running server (unless --rules names others), and tells what the
server has counted, and of bans, grants, soft margins and elastic shares.

With --id it tells instead what became of a request, and why: a refusal carries the id of its decision, which the server that
made it remembers for a while. The server that is asked asks all nodes that share its Redis.`,
		Example: "  weir explain --rules rules/ method=POST path=/login ip=192.0.2.1\n  weir explain --server http://127.0.0.1:6070 user=ada path=/api/x\n  weir explain --server http://127.0.0.1:6070 --id 4vq8r2mxw0c7e",
		RunE: func(cmd *cobra.Command, args []string) error {
			o.rulesGiven, o.prefixGiven = cmd.Flags().Changed("rules"), cmd.Flags().Changed("client-ip-ipv6-prefix")
			if o.id != "" {
				return explainDecision(cmd.Context(), o, args, cmd.OutOrStdout())
			}
			return explain(cmd.Context(), o, args, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.rules, "rules", "./rules",
		"folder or file of rules, or URL of a database that holds some, in place of the rules of --server if it is given")
	f.StringVar(&o.domain, "domain", "", "domain of the request (default: the only one that the rules hold)")
	f.StringVar(&o.id, "id", "",
		"id of a decision, such as that in X-RateLimit-Decision, to be looked up at --server (default "+defaultAdmin+
			")")
	f.StringArrayVar(&o.descriptors, "descriptor", nil,
		"KEY=VALUE,KEY=VALUE…: a descriptor as Envoy sends it, in place of attributes; may be given several times")
	f.IntVar(&o.ipv6Prefix, "client-ip-ipv6-prefix", 64,
		"how many bits of an IPv6 address make a key, where the rules do not come from --server")
	jsonFlag(cmd, &o.json)
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

// parseDescriptors reads descriptors, each KEY=VALUE,KEY=VALUE….
func parseDescriptors(args []string) ([]rule.Descriptor, error) {
	var list []rule.Descriptor
	for _, arg := range args {
		var d rule.Descriptor
		for _, entry := range strings.Split(arg, ",") {
			key, value, ok := strings.Cut(entry, "=")
			if !ok || key == "" {
				return nil, fmt.Errorf(
					"--descriptor %q: expected KEY=VALUE,KEY=VALUE…, such as message_type=marketing,to_number=555", arg)
			}
			d.Entries = append(d.Entries, rule.Entry{Key: key, Value: value})
		}
		list = append(list, d)
	}
	return list, nil
}

func explain(ctx context.Context, o explainOptions, args []string, out, stderr io.Writer) error {
	e, err := o.read(ctx, args, stderr)
	if err != nil {
		return err
	}
	e.out = out
	if e.live != nil {
		if e.query.BanRules, err = wideRules(ctx, e.live, e.set, e.query.Domain); err != nil {
			return usageError(err)
		}
	}
	e.set.Match(&e.query, &e.matches)
	reasons := e.set.Explain(&e.query)
	if o.json {
		return e.writeJSON(ctx, reasons)
	}
	fmt.Fprintf(out, "domain %s%s\n", e.query.Domain, e.origin)
	// The counters do not matter to a banned request, so the ban comes first.
	met, err := e.met(ctx, reasons)
	if err != nil {
		return err
	}
	if err := e.writeBans(ctx); err != nil {
		return err
	}
	switch {
	case e.matches.Exempt:
		fmt.Fprintln(out, "\nThe request is exempt: it meets no limit.")
	case met == "" && len(e.bans) == 0:
		fmt.Fprintln(out, "\nIt meets no limit, and is allowed.")
	}
	if met != "" {
		fmt.Fprintf(out, "\nmeets:\n%s", words.Align(met))
	}
	e.writeUnmet(reasons)
	if r := e.matches.TooCostly; r != nil {
		fmt.Fprintf(out, "\nIt is refused by %s: expressions take too long on it.\n", r.Name)
	} else if n := e.matches.CELErrors; n > 0 {
		fmt.Fprintf(out, "\n%s failed on this request: it counts as false (as cost: 1).\n",
			human.Plural(n, "expression"))
	}
	return nil
}

// explanation is a request, and the rules that it meets.
type explanation struct {
	set     *rule.Set
	query   rule.Query
	matches rule.Matches
	live    *adminClient // nil without a server
	bans    []*admin.ListedBan
	signals []admin.SignalState
	origin  string // where the rules come from, to follow the domain; "" if the user named them
	out     io.Writer
}

// banned notes a ban that refuses the request, once; nil is none.
func (e *explanation) banned(b *admin.ListedBan) {
	if b == nil || slices.ContainsFunc(e.bans, func(have *admin.ListedBan) bool {
		return have.Domain == b.Domain && have.Rule == b.Rule && slices.Equal(have.Key, b.Key)
	}) {
		return
	}
	e.bans = append(e.bans, b)
}

// read takes the arguments of explain, and loads the rules.
func (o *explainOptions) read(ctx context.Context, args []string, stderr io.Writer) (*explanation, error) {
	attributes, err := parseAttributes(args)
	if err != nil {
		return nil, usageError(err)
	}
	descriptors, err := parseDescriptors(o.descriptors)
	if err == nil && len(descriptors) > 0 && len(attributes) > 0 {
		err = errors.New("--descriptor is a request of Envoy, which has no attributes beside it; give one or the other")
	}
	if err != nil {
		return nil, usageError(err)
	}
	if err := checkIPv6Prefix(o.ipv6Prefix); err != nil {
		return nil, err
	}
	e := new(explanation)
	if o.admin.Address != "" {
		e.live = &o.admin
		if err := e.live.open(); err != nil {
			return nil, err
		}
	}
	origin := o.rules
	if e.live != nil && !o.rulesGiven {
		origin = e.live.Name()
		e.origin = ", by the rules in force on " + origin
		e.set, err = rulesOf(ctx, e.live, o.ipv6Prefix, o.prefixGiven)
	} else {
		var p *place
		if p, err = openPlace(ctx, o.rules); err == nil {
			origin = p.name
			e.set, err = p.load(file.Options{IPv6Prefix: o.ipv6Prefix}, stderr)
		}
	}
	if err != nil {
		return nil, err
	}
	if e.live != nil {
		if e.signals, err = signalsAt(ctx, e.live); err != nil {
			return nil, err
		}
	}
	domain, err := chooseDomain(e.set, o.domain, origin, "--domain")
	if err != nil {
		return nil, err
	}
	for _, a := range attributes {
		if hint, unread := sim.UnreadAttribute(e.set, domain, a.Name); unread {
			fmt.Fprintf(stderr, "weir: warning: no rule of domain %s reads the attribute %q (%s)\n", domain, a.Name,
				hint)
		}
	}
	e.query = rule.Query{Domain: domain, Attributes: attributes}
	if len(descriptors) > 0 {
		e.query = rule.Query{Domain: domain, Descriptors: descriptors}
	}
	return e, nil
}

// rulesOf makes the rules that are in force on a server. Warnings on them are left to the server.
func rulesOf(ctx context.Context, c *adminClient, prefix int, prefixGiven bool) (*rule.Set, error) {
	var answer admin.RuleFiles
	answered, raw, err := c.Send(ctx, http.MethodGet, "/api/v1/rules/source", nil, 256<<20)
	switch {
	case answered == nil && err != nil:
		return nil, fmt.Errorf("%s cannot be reached: %w", c.Name(), err)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", c.Name(), err)
	case answered.StatusCode == http.StatusNotFound && isProblem(raw):
		return nil, fmt.Errorf("%s is of a version that does not tell its rules; name the folder of them by --rules",
			c.Name())
	case answered.StatusCode == http.StatusUnauthorized || answered.StatusCode == http.StatusForbidden:
		return nil, fmt.Errorf("%s answered %s: its rules are told to a token with the role operator (--token-file); "+
			"or name the folder of them by --rules", c.Name(), answered.Status)
	case answered.StatusCode != http.StatusOK || json.Unmarshal(raw, &answer) != nil || len(answer.Files) == 0:
		return nil, c.Stranger(answered, raw)
	}
	var files []file.Source
	for _, name := range slices.Sorted(maps.Keys(answer.Files)) {
		files = append(files, file.Source{Name: name, Data: []byte(answer.Files[name])})
	}
	if !prefixGiven {
		prefix = answer.IPv6Prefix
	}
	set, _, err := file.Load(files, file.Options{IPv6Prefix: prefix})
	if err != nil {
		return nil, usageError(fmt.Errorf("this weir (%s) cannot read the rules of %s:\n%w", versionText(), c.Name(),
			err))
	}
	return set, nil
}

// isProblem reports whether a body is an error in the words of an admin API.
func isProblem(body []byte) bool {
	var problem struct{ Detail string }
	return json.Unmarshal(body, &problem) == nil && problem.Detail != ""
}

// signalsAt returns the signals of elastic limits on a server; none if it has none.
func signalsAt(ctx context.Context, c *adminClient) ([]admin.SignalState, error) {
	answered, raw, err := c.Send(ctx, http.MethodGet, "/api/v1/signals", nil, 1<<20)
	if err != nil {
		return nil, fmt.Errorf("%s cannot be reached: %w", c.Name(), err)
	}
	var answer struct{ Signals []admin.SignalState }
	if answered.StatusCode != http.StatusOK {
		return nil, nil // the counters are asked for next, and report the fault
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		return nil, c.Stranger(answered, raw)
	}
	return answer.Signals, nil
}

// met describes the rules that apply, and notes the bans on their keys.
func (e *explanation) met(ctx context.Context, reasons []rule.Reason) (string, error) {
	var text strings.Builder
	for _, r := range reasons {
		if !r.Applies {
			continue
		}
		if r.Rule.Unlimited {
			fmt.Fprintf(&text, "  %s\tunlimited%s\n", r.Rule.Name, words.Lifts(r.Rule))
			continue
		}
		for _, h := range r.Hits {
			fmt.Fprintf(&text, "  %s\t%s%s\n", h.Window.Name, words.Hit(&h, time.Now()), words.Lifts(r.Rule))
			if e.live != nil {
				state, _, err := e.look(ctx, &h)
				if err != nil {
					return "", err
				}
				fmt.Fprintf(&text, "  \tnow: %s\n", state)
			}
		}
		for _, line := range words.Rule(r.Rule) {
			fmt.Fprintf(&text, "  \t%s\n", line)
		}
		if line := words.ElasticShare(r.Rule, e.signals); line != "" {
			fmt.Fprintf(&text, "  \tnow: %s\n", line)
		}
	}
	return text.String(), nil
}

// look asks the server for the state of a key, and notes the ban on it.
func (e *explanation) look(ctx context.Context, h *rule.Hit) (state string, key *admin.KeyInfo, err error) {
	state, key, err = liveState(ctx, e.live, e.query.Domain, h.Window.Name, h.Window.KeyParts(h.Key))
	if err != nil {
		return "", nil, usageError(err)
	}
	if key != nil && key.Ban != nil && (h.Mode == rule.Enforce || key.Ban.DomainWide) {
		e.banned(key.Ban)
	}
	return state, key, nil
}

// writeBans prints the bans on the server that refuse the request: until when, by which rule, and
// since which denials.
func (e *explanation) writeBans(ctx context.Context) error {
	if e.live == nil || e.matches.Exempt {
		return nil
	}
	if err := e.bansElsewhere(ctx); err != nil {
		return usageError(err)
	}
	for _, b := range e.bans {
		where := "wherever " + human.Printable(b.Rule) + " applies"
		if b.DomainWide {
			where = "everywhere in the domain"
		}
		fmt.Fprintf(e.out, "\nnow: %s is %s since %s: it is refused %s\n", words.Key(b.Key), words.Ban(b),
			words.Instant(b.Since), where)
	}
	return nil
}

// writeUnmet prints why the other rules do not apply.
func (e *explanation) writeUnmet(reasons []rule.Reason) {
	var text strings.Builder
	for _, r := range reasons {
		if !r.Applies {
			fmt.Fprintf(&text, "  %s\t%s\n", r.Rule.Name, r.Why)
		}
	}
	if text.Len() > 0 {
		fmt.Fprintf(e.out, "\ndoes not apply:\n%s", words.Align(text.String()))
	}
}

// liveState asks the admin port of a running server for the state of a key under a limit, which may
// be named by its rule: in words, and as it answered; nil if nothing is counted.
func liveState(ctx context.Context, c *adminClient, domain, limit string, parts []string) (state string,
	key *admin.KeyInfo, err error) {
	answer, body, err := c.Send(ctx, http.MethodGet, admin.KeyPath(domain, limit, parts), nil, 1<<20)
	if err != nil {
		return "", nil, err
	}
	var k struct {
		admin.KeyInfo
		Keys   []admin.KeyInfo `json:"keys"` // under a rule with several windows
		Detail string          `json:"detail"`
	}
	if err := json.Unmarshal(body, &k); err != nil && answer.StatusCode < 500 {
		return "", nil, c.Stranger(answer, body)
	}
	if len(k.Keys) > 0 {
		k.KeyInfo = k.Keys[0]
	}
	switch {
	case answer.StatusCode == http.StatusNotFound && strings.HasPrefix(k.Detail, "key:"):
		return "nothing counted", nil, nil
	case answer.StatusCode == http.StatusNotFound && strings.HasPrefix(k.Detail, "no rule in force"):
		return "the server does not have this limit", nil, nil
	case answer.StatusCode == http.StatusServiceUnavailable && k.Detail != "":
		return "", nil, fmt.Errorf("%s answered %s: %s", c.Name(), answer.Status, k.Detail)
	case answer.StatusCode == http.StatusUnauthorized || answer.StatusCode == http.StatusForbidden:
		return "", nil, fmt.Errorf("%s answered %s: name a file with a token by --token-file", c.Name(), answer.Status)
	case answer.StatusCode != http.StatusOK || k.Limit == "":
		return "", nil, c.Stranger(answer, body)
	}
	return words.KeyState(&k.KeyInfo), &k.KeyInfo, nil
}

// wideRules returns the rules of a domain under which a server has bans that hold everywhere in the
// domain.
func wideRules(ctx context.Context, c *adminClient, set *rule.Set, domain string) (list []*rule.Rule, err error) {
	answered, raw, err := c.Send(ctx, http.MethodGet, "/api/v1/bans?n=100000&domain="+url.QueryEscape(domain), nil, 64<<20)
	if err != nil {
		return nil, fmt.Errorf("%s cannot be reached: %w", c.Name(), err)
	}
	if answered.StatusCode != http.StatusOK {
		return nil, nil // the counters are asked for next, and report the fault
	}
	var answer struct{ Bans []weir.Ban }
	if err := json.Unmarshal(raw, &answer); err != nil {
		return nil, c.Stranger(answered, raw)
	}
	wide := map[string]bool{}
	for i := range answer.Bans {
		wide[answer.Bans[i].Rule] = wide[answer.Bans[i].Rule] || answer.Bans[i].DomainWide
	}
	for _, r := range set.Rules() {
		if r.Domain == domain && wide[r.Name] {
			list = append(list, r)
		}
	}
	return list, nil
}

// bansElsewhere asks for bans that refuse the request everywhere in the domain, by rules that the
// request itself may not meet.
func (e *explanation) bansElsewhere(ctx context.Context) (err error) {
	e.set.BanKeys(&e.matches, func(r *rule.Rule, key []byte) bool {
		if slices.ContainsFunc(e.matches.Hits, func(h rule.Hit) bool { return h.Window.Rule == r }) ||
			len(r.Windows) == 0 {
			return true // asked with the limit itself
		}
		var k *admin.KeyInfo
		if _, k, err = liveState(ctx, e.live, e.query.Domain, r.Name, r.Windows[0].KeyParts(key)); k != nil &&
			k.Ban != nil && k.Ban.Rule == r.Name {
			e.banned(k.Ban)
		}
		return err == nil
	})
	return err
}
