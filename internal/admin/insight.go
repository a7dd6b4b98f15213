package admin

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/door/auth"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/recent"
	"github.com/weir-rl/weir/rule"
)

const (
	insightPath = "/api/v1/insight"
	// defaultOver is the time that figures cover by default.
	defaultOver = 24 * time.Hour
	// mostOver is how long figures are kept.
	mostOver = 7 * 24 * time.Hour
	// insightPatience bounds how long other nodes are asked.
	insightPatience = 5 * time.Second
)

// parseOver reads a time such as 6h; empty is the default.
func parseOver(text string, fallback time.Duration) (time.Duration, error) {
	if text == "" {
		return fallback, nil
	}
	d, err := rule.ParseDuration(text)
	if err != nil || d < time.Second || d > mostOver {
		return 0, &answer.FieldError{Field: "over", Message: "must be a time from 1s to 7d, such as 6h"}
	}
	return d, nil
}

// over reads ?over=. If ok is false, it has answered already.
func over(w http.ResponseWriter, r *http.Request, fallback time.Duration) (d time.Duration, ok bool) {
	d, err := parseOver(r.URL.Query().Get("over"), fallback)
	if err != nil {
		answer.BadRequest(w, err)
		return 0, false
	}
	return d, true
}

// hasDomain reports whether the rules in force declare a domain, or whether it is the domain of
// commands that bring their limit; "" is all of them.
func (a *Handler) hasDomain(domain string) bool {
	if domain == insight.CommandDomain && a.o.Insight != nil {
		return true
	}
	set, _ := a.limiter.Rules()
	return domain == "" || set != nil && set.HasDomain(domain)
}

// hasLimit reports whether a name stands for a limit in force: a rule, a window of it, either
// behind its domain, or commands that bring their limit; "" is any.
func (a *Handler) hasLimit(domain, limit string) bool {
	if (domain == "" || domain == insight.CommandDomain) && insight.IsCommand(limit) && a.o.Insight != nil {
		return true
	}
	set, _ := a.limiter.Rules()
	if limit == "" || set == nil {
		return limit == ""
	}
	meant := rulesMeant(set, domain, limit)
	for _, r := range set.Rules() {
		if meant(r.Domain, r.Name) {
			return true
		}
	}
	return false
}

// known answers 404 if a domain or a limit is not in force. ok is false then.
func (a *Handler) known(w http.ResponseWriter, domain, limit string) (ok bool) {
	if problem, field := a.unknown(domain, limit); problem != "" {
		answer.Problem(w, http.StatusNotFound, problem, field)
		return false
	}
	return true
}

// unknown says whether the domain or the limit is not in force; "" if both are.
func (a *Handler) unknown(domain, limit string) (problem, field string) {
	if !a.hasDomain(domain) {
		set, _ := a.limiter.Rules()
		if set == nil {
			return "domain: no rules are in force", "domain"
		}
		return "domain: no rule file declares " + answer.Printable(domain) + "; there are " +
			strings.Join(set.Domains(), ", "), "domain"
	}
	if !a.hasLimit(domain, limit) {
		return "limit: no rule in force has a limit " + answer.Printable(limit) + "; /api/v1/rules lists them", "limit"
	}
	return "", ""
}

// insightProblem answers for an error of a Reader.
func insightProblem(w http.ResponseWriter, err error) {
	if errors.Is(err, insight.ErrUnknown) {
		answer.Problem(w, http.StatusNotFound, err.Error()+"; /api/v1/rules lists them", "")
		return
	}
	answer.Problem(w, http.StatusServiceUnavailable, "the figures cannot be had: "+err.Error(), "")
}

// overview answers GET /api/v1/insight.
func (a *Handler) overview(w http.ResponseWriter, r *http.Request) {
	domain := r.URL.Query().Get("domain")
	d, ok := over(w, r, defaultOver)
	if !ok || !a.known(w, domain, "") {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), insightPatience)
	defer cancel()
	o, err := a.o.Insight.Overview(ctx, domain, d)
	if err != nil {
		insightProblem(w, err)
		return
	}
	writeJSON(w, a.maskFor(sender(r).Role).overview(o))
}

// RuleReports is the answer of GET /api/v1/insight/rules.
type RuleReports struct {
	Nodes insight.Nodes        `json:"nodes"`
	Total int                  `json:"total"` // Rules may have fewer: those that refuse most
	Rules []insight.RuleReport `json:"rules"`
}

// mostReports bounds n of GET /api/v1/insight/rules.
const mostReports = 10_000

// listReports returns reports of all rules, or of the n that refuse, or would refuse, most. Among
// rules that refuse equally often, those that are met most come first.
func (a *Handler) listReports(ctx context.Context, domain string, over time.Duration, n int,
	role auth.Role) (*RuleReports, error) {
	list, nodes, err := a.o.Insight.Rules(ctx, domain, over)
	if err != nil {
		return nil, err
	}
	var commands []insight.RuleReport // not counted as rules
	if last := len(list) - 1; last >= 0 && list[last].Command {
		list, commands = list[:last], list[last:]
	}
	out := &RuleReports{Nodes: nodes, Total: len(list), Rules: []insight.RuleReport{}}
	if n > 0 && n < len(list) {
		slices.SortStableFunc(list, func(x, y insight.RuleReport) int {
			return cmp.Or(cmp.Compare(y.Refused+y.WouldRefuse, x.Refused+x.WouldRefuse), cmp.Compare(y.Met, x.Met))
		})
		list = list[:n]
	}
	list = append(list[:len(list):len(list)], commands...)
	m := a.maskFor(role)
	for i := range list {
		m.report(&list[i])
	}
	out.Rules = append(out.Rules, list...)
	return out, nil
}

// ruleReports answers GET /api/v1/insight/rules.
func (a *Handler) ruleReports(w http.ResponseWriter, r *http.Request) {
	domain := r.URL.Query().Get("domain")
	n, ok := number(w, r.URL.Query(), "n", mostReports)
	if !ok {
		return
	}
	d, ok := over(w, r, defaultOver)
	if !ok || !a.known(w, domain, "") {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), insightPatience)
	defer cancel()
	list, err := a.listReports(ctx, domain, d, n, sender(r).Role)
	if err != nil {
		insightProblem(w, err)
		return
	}
	writeJSON(w, list)
}

// twoSegments reads the two escaped segments behind a prefix of r's path.
func twoSegments(r *http.Request, prefix string) (first, second string, ok bool) {
	x, y, ok := strings.Cut(strings.TrimPrefix(r.URL.EscapedPath(), prefix), "/")
	first, err1 := url.PathUnescape(x)
	second, err2 := url.PathUnescape(y)
	return first, second, ok && err1 == nil && err2 == nil && first != "" && second != "" && !strings.Contains(y, "/")
}

// ruleReport answers GET /api/v1/insight/rules/{domain}/{rule}.
func (a *Handler) ruleReport(w http.ResponseWriter, r *http.Request) {
	domain, name, ok := twoSegments(r, insightPath+"/rules/")
	if !ok {
		answer.Problem(w, http.StatusNotFound,
			"the path is "+insightPath+"/rules/{domain}/{rule}, each of them URL-escaped", "")
		return
	}
	d, ok := over(w, r, defaultOver)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), insightPatience)
	defer cancel()
	report, nodes, err := a.o.Insight.Rule(ctx, domain, name, d)
	if err != nil {
		insightProblem(w, err)
		return
	}
	a.orders(report.Top)
	a.orders(report.NearNow)
	a.byPath(report)
	a.maskFor(sender(r).Role).report(report)
	report.Nodes = &nodes
	writeJSON(w, report)
}

// TopKeys is the answer of GET /api/v1/insight/keys, and the data of the event keys.
type TopKeys struct {
	Nodes insight.Nodes      `json:"nodes"`
	Keys  []insight.KeyCount `json:"keys"`
}

// mostTopKeys bounds ?n= of the top keys.
const mostTopKeys = 1000

// keysQuery reads a request for top keys.
func (a *Handler) keysQuery(r *http.Request, n int) (q insight.KeysQuery, err error) {
	v := r.URL.Query()
	q = insight.KeysQuery{Domain: v.Get("domain"), Limit: v.Get("limit"), By: v.Get("by"), N: n}
	switch q.By {
	case "":
		q.By = insight.ByRefused
	case insight.ByRefused, insight.ByAsked, insight.ByNear:
	default:
		return q, &answer.FieldError{Field: "by", Message: "must be refused, asked or near"}
	}
	q.Over, err = parseOver(v.Get("over"), time.Minute)
	return q, err
}

func (a *Handler) listTopKeys(ctx context.Context, q insight.KeysQuery, role auth.Role) (*TopKeys, error) {
	list, nodes, err := a.o.Insight.Keys(ctx, q)
	if err != nil {
		return nil, err
	}
	a.orders(list)
	return &TopKeys{nodes, append([]insight.KeyCount{}, a.maskFor(role).keyCounts(list)...)}, nil
}

// orders adds to each key until when it is banned, or granted another limit. It skips keys whose
// text was cut or hidden, because these cannot be identified.
func (a *Handler) orders(list []insight.KeyCount) {
	names := a.keyNames().names
	gone := map[[2]string]bool{} // rules that are none, so that they are looked for once
	for i := range list {
		k := &list[i]
		name := [2]string{k.Domain, k.Rule}
		if gone[name] {
			continue
		}
		parts := partsOf(k.Key, names)
		ban, err := a.limiter.Bans().On(k.Domain, k.Rule, parts)
		if errors.Is(err, weir.ErrNoSuchLimit) {
			gone[name] = true
			continue
		}
		if err == nil {
			k.BannedUntil, k.BannedBy = &ban.Until, &insight.KeyBan{Limit: ban.Rule, Key: ban.Key, Wide: ban.DomainWide}
		}
		if grant, err := a.limiter.Grants().Of(k.Domain, k.Rule, parts); err == nil {
			k.GrantedUntil = &grant.Until
		}
	}
}

// Banned returns a function that reports whether a key, as partsOf splits it, is banned now under
// the rules of a limiter, which need not be there yet. It is safe for concurrent use.
func Banned(limiter func() *weir.Limiter) func(domain, rule, key string) bool {
	var names atomic.Pointer[keyNames]
	return func(domain, rule, key string) bool {
		l := limiter()
		if l == nil {
			return false
		}
		set, _ := l.Rules()
		k := names.Load()
		if k == nil || k.set != set {
			k = namesOf(set)
			names.Store(k)
		}
		_, err := l.Bans().On(domain, rule, partsOf(key, k.names))
		return err == nil
	}
}

// partsOf splits the text of a key, such as user=ada, ip=192.0.2.1, into its parts. A value may
// contain ", " itself, so a part begins with one of the names of which keys are made, and "=".
func partsOf(text string, names map[string]bool) (parts []string) {
	if text == "" {
		return nil
	}
	for piece := range strings.SplitSeq(text, ", ") {
		name, _, ok := strings.Cut(piece, "=")
		if len(parts) > 0 && !(ok && names[name]) {
			parts[len(parts)-1] += ", " + piece
			continue
		}
		parts = append(parts, piece)
	}
	return parts
}

// shownPaths bounds the paths in a report.
const shownPaths = 20

// byPath adds the paths of a rule's refusals, as far as this node remembers them and its rules look
// at a path. For a rule in shadow it adds the paths of requests that the rule would have refused.
func (a *Handler) byPath(r *insight.RuleReport) {
	if a.o.Decisions == nil {
		return
	}
	paths := map[string]uint64{}
	for _, e := range a.o.Decisions.List(recent.Query{Domain: r.Domain, Limit: r.Name}) {
		path, ok := e.Attributes["path"]
		if ok && !e.Banned && slices.ContainsFunc(e.Limits, func(l recent.Limit) bool {
			return l.Rule == r.Name && (l.Refuses || l.Mode == r.Mode && r.Mode == "shadow" && !l.Allowed)
		}) {
			paths[path]++
		}
	}
	if len(paths) == 0 {
		return
	}
	list := make([]insight.Count, 0, len(paths))
	for path, n := range paths {
		list = append(list, insight.Count{Value: path, Count: n})
	}
	slices.SortFunc(list, func(x, y insight.Count) int {
		return cmp.Or(cmp.Compare(y.Count, x.Count), strings.Compare(x.Value, y.Value))
	})
	// r may be shared: it must not be changed.
	by := maps.Clone(r.By)
	if by == nil {
		by = map[string][]insight.Count{}
	}
	by["path"] = list[:min(len(list), shownPaths)]
	r.By = by
}

// topKeys answers GET /api/v1/insight/keys.
func (a *Handler) topKeys(w http.ResponseWriter, r *http.Request) {
	n, ok := number(w, r.URL.Query(), "n", mostTopKeys)
	if !ok {
		return
	}
	q, err := a.keysQuery(r, n)
	if err != nil {
		answer.BadRequest(w, err)
		return
	}
	if !a.known(w, q.Domain, q.Limit) {
		return
	}
	if f := r.URL.Query().Get("format"); f != "" && f != "json" && f != "csv" {
		answer.BadRequest(w, &answer.FieldError{Field: "format", Message: "must be json or csv"})
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), insightPatience)
	defer cancel()
	list, err := a.listTopKeys(ctx, q, sender(r).Role)
	if err != nil {
		insightProblem(w, err)
		return
	}
	if r.URL.Query().Get("format") == "csv" {
		writeKeys(w, list.Keys)
		return
	}
	writeJSON(w, list)
}

// keyReport answers GET /api/v1/insight/keys/{domain}/{key}.
func (a *Handler) keyReport(w http.ResponseWriter, r *http.Request) {
	domain, key, ok := twoSegments(r, insightPath+"/keys/")
	if !ok {
		answer.Problem(w, http.StatusNotFound,
			"the path is "+insightPath+"/keys/{domain}/{key}, such as shop/user=ada, each of them URL-escaped", "")
		return
	}
	if !a.known(w, domain, "") {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), insightPatience)
	defer cancel()
	report, nodes, err := a.o.Insight.Key(ctx, domain, key)
	if err != nil {
		insightProblem(w, err)
		return
	}
	report.Nodes = nodes
	writeJSON(w, report)
}
