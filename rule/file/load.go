// Package file reads rule files (YAML, in the native or the Lyft form) and makes a rule.Set of
// them. docs/reference/rules.md describes their contents.
//
// Begin with Load. It makes a tree of each file (internal/yaml), whose nodes carry their position
// and say in messages what they are. form.go refuses what is no rule file. root makes rules of the
// tree, and from there limit (native.go) and descriptors (lyft.go); for both, keys (decode.go)
// reports unknown keys and values that are no mappings. settings.go has a row for each option,
// windows.go makes limits of rates, together.go refuses what does not go together, and internal/cel
// compiles expressions. Then rule.Compile makes the Set. In the end problems are sorted, and quote
// their lines. Lint (internal/lint) warns of rules that load and are useless or dangerous.
package file

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/lint"
	"github.com/weir-rl/weir/rule/file/internal/message"
	"github.com/weir-rl/weir/rule/file/internal/yaml"
)

// Source is one rule file.
type Source struct {
	Name string // file name, relative to the folder; orders the rules
	Data []byte
}

// Options tune Load. The zero value is right for most.
type Options struct {
	// IPv6Prefix groups IPv6 addresses in per; 0 means 64.
	IPv6Prefix int
	// Lend names domains whose limits lend a tenth of themselves to holders that ask for it, where
	// they say nothing of leases and their kind can (rule.Rule.Lent).
	Lend []string
	// None says that no rules at all are no error, as where a server says that there are none.
	None bool
	// Kept are the files that earlier loads have read; nil reads all anew.
	Kept *Kept
}

// Bounds on one load.
const (
	maxRules = 100_000
	maxTotal = 64 << 20 // bytes of all files
)

// Load parses, checks and compiles files into a Set. Rules are ordered by file name, then by place.
// If anything is wrong it returns a nil Set and a Problems with all errors. The warnings are about
// rules that load but look like a mistake in the form (a tolerated Lyft quirk); Lint finds more.
//
// Load is safe on hostile input: file size, nesting, the expansion of aliases and the number of
// rules are bounded.
func Load(files []Source, o Options) (*rule.Set, []rule.Problem, error) {
	if o.IPv6Prefix < 0 || o.IPv6Prefix > 128 {
		return nil, nil, rule.Problems{{Message: fmt.Sprintf(
			"an IPv6 prefix is 1 to 128 bits long, or 0 for 64; got %d", o.IPv6Prefix)}}
	}
	if len(files) == 0 && !o.None {
		return nil, nil, rule.Problems{{Message: "no rule files: at least one is needed",
			Hint: "rule files end in .yaml or .yml"}}
	}
	files = slices.Clone(files)
	slices.SortStableFunc(files, func(a, b Source) int { return strings.Compare(a.Name, b.Name) })
	l := &loader{lend: o.Lend, kept: o.Kept}
	total := 0
	for _, f := range files {
		total += len(f.Data)
	}
	if total > maxTotal {
		return nil, nil, rule.Problems{{Message: fmt.Sprintf(
			"the rule files have %d bytes together; at most %d are read", total, maxTotal)}}
	}
	for _, f := range files {
		l.file(f)
	}
	set := l.finish(o)
	o.Kept.done()
	warnings := message.Finish(message.Silence(l.warnings, l.origins), l.origins)
	if len(l.errors) > 0 {
		return nil, warnings, rule.Problems(message.Finish(l.errors, l.origins))
	}
	return set, warnings, nil
}

// Sources returns the files that Load made s of, as they were: with the same Options, Load makes
// the same Set of them. It reports false of a Set that was made in another way.
func Sources(s *rule.Set) ([]Source, bool) {
	list := make([]Source, 0, len(s.Files()))
	for _, o := range message.All(s) {
		list = append(list, Source{Name: o.Name, Data: []byte(o.Text)})
	}
	return list, len(list) > 0 && len(list) == len(s.Files())
}

// loader gathers the files and problems of one Load.
type loader struct {
	files    []*rule.File
	origins  []*message.Origin
	errors   []rule.Problem
	warnings []rule.Problem
	rules    int
	compiled compiled
	// a file could not be read as YAML: what shows across files only would be guesswork
	unread bool

	lend []string // Options.Lend
	kept *Kept    // Options.Kept

	rule string               // the rule at hand
	seen map[seenProblem]bool // in the file at hand
}

// seenProblem keeps a problem in an aliased node from being reported twice.
type seenProblem struct {
	line, column int
	message      string
}

// report notes a problem. Its line is quoted in the end (message.Finish).
func (l *loader) report(list *[]rule.Problem, name string, at rule.Position, hint, text string) {
	key := seenProblem{at.Line, at.Column, text}
	if l.seen[key] || len(*list) > message.MaxProblems {
		return
	}
	if l.seen == nil {
		l.seen = map[seenProblem]bool{}
	}
	l.seen[key] = true
	p := rule.Problem{Pos: at, Rule: l.rule, Name: name, Message: text, Hint: hint}
	if len(*list) == message.MaxProblems {
		p = rule.Problem{Pos: rule.Position{File: at.File},
			Message: fmt.Sprintf("more than %d problems; the rest are not shown", message.MaxProblems)}
	}
	*list = append(*list, p)
}

// err reports an error at v, unless v is one that could not even be read.
func (l *loader) err(v *yaml.Node, hint, format string, args ...any) {
	if v.Kind == yaml.Bad {
		return // reported when it was read
	}
	l.report(&l.errors, "", v.Position, hint, fmt.Sprintf(format, args...))
}

// warn reports a warning of that name at v.
func (l *loader) warn(name string, v *yaml.Node, hint, format string, args ...any) {
	l.report(&l.warnings, name, v.Position, hint, fmt.Sprintf(format, args...))
}

var rootKeys = []string{"domain", "exempt", "groups", "paths", "limits", "descriptors"}

var rootMistakes = sync.OnceValue(func() map[string]string {
	return map[string]string{
		"rules":       "limits are listed under limits",
		"rate_limits": "limits are listed under limits",
		"rate_limit":  "limits are listed under limits",
		"tests":       "rule tests stand in files whose names end in _test.yaml",
		"whitelist":   "it is called exempt",
		"allowlist":   "it is called exempt",
	}
})

// configKeys are the keys at the root of a server's configuration. A rule file has none of them but
// limits, which is a list there.
var configKeys = []string{
	"admin", "audit", "auth", "client_ip", "cors", "decisions", "default_domain", "defer", "drain", "fields", "forward_auth", "headers", "identity",
	"insight", "jwt",
	"limits", "listen", "log", "max_connections", "memory", "metrics", "node", "nodes", "otel", "overload", "prometheus", "proxy", "proxy_protocol",
	"redis", "region", "regions", "resp", "rlqs", "rls", "rules", "rules_db", "signals", "snapshot", "spoe", "store", "tls", "trusted_peers", "unknown_domain",
}

// file takes one rule file from an earlier load, or reads it.
func (l *loader) file(s Source) {
	if l.recall(s) {
		return
	}
	if l.kept != nil {
		l.kept.reads++
	}
	problems, rules, names := len(l.errors)+len(l.warnings), l.rules, l.compiled.names
	if l.read(s) && len(l.errors)+len(l.warnings) == problems {
		l.keep(s, l.rules-rules, l.compiled.names-names)
	}
}

// read reads one rule file, and appends it to l.files unless it cannot be read at all. It reports
// whether the file was read, and is without comments that silence warnings.
func (l *loader) read(s Source) (plain bool) {
	origin := &message.Origin{Name: s.Name, Text: string(s.Data)}
	l.origins = append(l.origins, origin)
	l.rule, l.seen = "", nil
	documents, comments, misread, failure := yaml.Parse(s.Name, origin.Text)
	for _, m := range misread {
		l.fault(origin, m, "error loading config file: ")
	}
	if failure != nil {
		l.unread = true
		l.fault(origin, failure, "error loading config file: ")
		return false
	}
	form, fault := formOf(documents)
	if fault != nil {
		l.unread = true
		l.fault(origin, fault, "")
		return false
	}
	root := documents[0]
	if root.Kind == yaml.Bad {
		l.unread = true
		return false // reported when it was read
	}
	if len(documents) > 1 {
		if form.native {
			l.err(documents[1], "put it into a file of its own", "a rule file holds one document; this is a second one")
		} else {
			l.warn(lint.SecondDocument, documents[1], "put it into a file of its own",
				"only the first document of a file is read; this one is ignored")
		}
	}
	findIgnores(origin, comments, root)
	l.files = append(l.files, l.root(root, form, origin))
	return len(comments) == 0
}

// fault reports an error about the YAML of a file.
func (l *loader) fault(o *message.Origin, e *yaml.Error, prefix string) {
	l.report(&l.errors, "", rule.Position{File: o.Name, Line: e.Line, Column: e.Column}, e.Hint, prefix+e.Message)
}

// root reads the rules of a file.
func (l *loader) root(root *yaml.Node, form form, origin *message.Origin) *rule.File {
	f := &rule.File{Name: origin.Name, Domain: rule.DefaultDomain, Origin: origin}
	keys, _ := l.keys(root, keyRules{known: rootKeys, misplaced: lyftKeys, elsewhere: rootMistakes(),
		lenient: !form.native, lyft: form.descriptors != nil})
	if d := keys.val("domain"); d != nil {
		f.Domain = strings.Clone(l.domain(d, form.native)) // as the names of limits
	} else if form.descriptors != nil || !form.native {
		l.err(root, "name it: domain: …",
			"config file cannot have empty domain: only a file with limits can do without one")
	}
	if g := keys.val("groups"); g != nil {
		if l.oneOf(g, "groups", "first") == "first" {
			f.First = true
		}
	}
	if p := keys.val("paths"); p != nil {
		f.ExactPaths = l.oneOf(p, "paths", pathSpellings...) == "exact"
		if keys.val("limits") == nil && keys.val("exempt") == nil {
			l.warn(lint.NoEffect, p, "remove it",
				"paths is about limits and exempt, and the file has neither: descriptors match paths to the letter in any case")
		}
	}
	if e := keys.val("exempt"); e != nil {
		f.Exempt = l.conditions(e, "exempt")
	}
	if v := keys.val("limits"); v != nil {
		switch v.Kind {
		case yaml.List:
			for _, item := range v.Items {
				if r := l.limit(item, f); r != nil {
					f.Rules = append(f.Rules, r)
				}
				l.rule = ""
			}
		case yaml.Null:
			l.warn(lint.EmptyValue, v, "remove the key, or list limits under it",
				"limits is empty: the file holds no limit")
		default:
			l.err(v, "as in: limits: [{name: api, allow: 10/min}]", "limits: expected a list of limits, got %s", v)
		}
	}
	if form.descriptors != nil {
		f.Descriptors = l.descriptors(form.descriptors, f, nil)
		l.rule = ""
	}
	return f
}

func (l *loader) domain(d *yaml.Node, native bool) string {
	var name string
	if native {
		name, _ = l.text(d, "domain")
	} else {
		name, _ = l.lyftText(d, "domain")
	}
	if name == "" {
		if native && d.Kind != yaml.Scalar {
			return rule.DefaultDomain // reported by text
		}
		l.err(d, "", "config file cannot have empty domain")
		return rule.DefaultDomain
	}
	if i := strings.IndexFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }); i >= 0 && native {
		l.err(d, "", "domain: a control character in the name")
	}
	if name == rule.CommandDomain {
		l.err(d, "call it otherwise",
			"domain: %s stands for commands that bring their limit along, such as CL.THROTTLE", name)
	}
	return name
}

// finish compiles the files that were read, and reports what shows only across them.
func (l *loader) finish(o Options) *rule.Set {
	if l.unread || l.rules > maxRules {
		return nil
	}
	if l.rules == 0 && len(l.errors) == 0 && !o.None {
		l.errors = append(l.errors, rule.Problem{
			Pos:     rule.Position{File: l.files[0].Name},
			Message: "no rule is left: the files hold neither limits nor descriptors",
		})
		return nil
	}
	set, problems := rule.Compile(l.files, rule.Options{IPv6Prefix: o.IPv6Prefix})
	l.compiled.cel.DropAsks()
	l.errors = append(l.errors, problems...)
	return set
}
