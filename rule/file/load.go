// Package file reads rule files (YAML, in the native or the Lyft form) and makes a rule.Set of
// them. docs/reference/rules.md describes their contents.
//
// Begin with Load. It makes a tree of each file (internal/yaml), and rules of the tree: root, and
// from there limit (native.go) and descriptors (lyft.go). settings.go has a row for each option,
// windows.go makes limits of rates, together.go refuses what does not go together, and internal/cel
// compiles expressions. Then rule.Compile makes the Set. Lint (internal/lint) warns of rules that
// load and are useless or dangerous.
package file

import (
	"fmt"
	"regexp"
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
		return nil, nil, rule.Problems{{Message: fmt.Sprintf("an IPv6 prefix is 1 to 128 bits long, or 0 for 64; got %d", o.IPv6Prefix)}}
	}
	if len(files) == 0 {
		return nil, nil, rule.Problems{{Message: "no rule files: at least one is needed", Hint: "rule files end in .yaml or .yml"}}
	}
	files = slices.Clone(files)
	slices.SortStableFunc(files, func(a, b Source) int { return strings.Compare(a.Name, b.Name) })
	l := &loader{lend: o.Lend}
	total := 0
	for _, f := range files {
		total += len(f.Data)
	}
	if total > maxTotal {
		return nil, nil, rule.Problems{{Message: fmt.Sprintf("the rule files have %d bytes together; at most %d are read", total, maxTotal)}}
	}
	for _, f := range files {
		l.file(f)
	}
	set := l.finish(o)
	l.silence()
	message.SortProblems(l.warnings)
	if len(l.errors) > 0 {
		message.SortProblems(l.errors)
		return nil, l.warnings, rule.Problems(l.errors)
	}
	return set, l.warnings, nil
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

	lend    []string // Options.Lend
	lending bool     // the domain of the file at hand is one of them
	// paths: exact stands in the file at hand
	exactPaths bool

	src  *message.Origin // the file at hand
	rule string          // the rule at hand
	seen map[seenProblem]bool
}

// seenProblem keeps a problem in an aliased node from being reported twice.
type seenProblem struct {
	line, column int
	message      string
}

func (l *loader) report(list *[]rule.Problem, name string, line, column int, hint, text string) {
	key := seenProblem{line, column, text}
	if l.seen[key] || len(*list) > message.MaxProblems {
		return
	}
	if l.seen == nil {
		l.seen = map[seenProblem]bool{}
	}
	l.seen[key] = true
	p := rule.Problem{Rule: l.rule, Name: name, Message: text, Hint: hint}
	if l.src != nil {
		p.Pos = rule.Position{File: l.src.Name, Line: line, Column: column}
		p.Quote = l.src.Quote(line, column)
	}
	if len(*list) == message.MaxProblems {
		p = rule.Problem{Pos: rule.Position{File: p.Pos.File}, Message: fmt.Sprintf("more than %d problems; the rest are not shown", message.MaxProblems)}
	}
	*list = append(*list, p)
}

// err reports an error at v, unless v is one that could not even be read.
func (l *loader) err(v *yaml.Node, hint, format string, args ...any) {
	if v.Kind == yaml.Bad {
		return // reported when it was read
	}
	l.report(&l.errors, "", v.Line, v.Column, hint, fmt.Sprintf(format, args...))
}

// warn reports a warning of that name at v.
func (l *loader) warn(name string, v *yaml.Node, hint, format string, args ...any) {
	l.report(&l.warnings, name, v.Line, v.Column, hint, fmt.Sprintf(format, args...))
}

func (l *loader) pos(v *yaml.Node) rule.Position {
	p := rule.Position{Line: v.Line, Column: v.Column}
	if l.src != nil {
		p.File = l.src.Name
	}
	return p
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
	"limits", "listen", "log", "max_connections", "memory", "metrics", "nodes", "otel", "overload", "prometheus", "proxy", "proxy_protocol",
	"redis", "region", "regions", "resp", "rlqs", "rls", "rules", "rules_db", "signals", "snapshot", "spoe", "store", "tls", "trusted_peers", "unknown_domain",
}

// configurationKeys are the first keys of a mapping that is a server's configuration, for a
// message; "" if it is none.
func configurationKeys(root *yaml.Node) string {
	var found []string
	for i := range root.Pairs {
		key, value := root.Pairs[i].Key, root.Pairs[i].Value
		switch {
		case key.Kind != yaml.Scalar || slices.Contains(rootKeys, key.Text) && key.Text != "limits":
			return ""
		case key.Text == "limits" && value.Kind != yaml.Mapping, key.Text == "rules" && value.Kind == yaml.List:
			return "" // limits, or what somebody thinks is their name
		case key.Text != "limits" && slices.Contains(configKeys, key.Text):
			found = append(found, key.Text)
		}
	}
	if len(found) > 3 {
		found = append(found[:3], "…")
	}
	return strings.Join(found, ", ")
}

// file reads one rule file, and appends it to l.files unless it cannot be read at all.
func (l *loader) file(s Source) {
	l.src = &message.Origin{Name: s.Name, Text: string(s.Data)}
	l.rule, l.seen = "", nil
	l.origins = append(l.origins, l.src)
	documents, comments, misread, failure := yaml.Parse(l.src.Text)
	for _, m := range misread {
		l.report(&l.errors, "", m.Line, m.Column, m.Hint, "error loading config file: "+m.Message)
	}
	if failure != nil {
		l.unread = true
		if failure.Hint == "" {
			failure.Hint = l.syntaxHint(failure)
		}
		l.report(&l.errors, "", failure.Line, failure.Column, failure.Hint, "error loading config file: "+failure.Message)
		return
	}
	if len(documents) == 0 {
		l.unread = true
		l.report(&l.errors, "", 1, 0, "a native file needs limits, a file of the Lyft form domain and descriptors", "the file is empty: config file cannot have empty domain")
		return
	}
	root := documents[0]
	if root.Kind != yaml.Mapping {
		l.unread = true
		l.err(root, "as in: limits: [{name: api, per: [ip], allow: 10/min}]", "error loading config file: expected a mapping with domain and limits or descriptors, got %s", describe(root))
		return
	}
	if keys := configurationKeys(root); keys != "" {
		l.unread = true
		l.err(root, "keep it outside the folder of the rules; weir serve --config names it, and ./weir.yaml is read without being named",
			"this is the configuration of a server, not a file of rules: it holds %s", keys)
		return
	}
	if manifest, hint := kubernetes(root); manifest != "" {
		l.unread = true
		l.err(root, hint, "this is %s of Kubernetes, not a file of rules", manifest)
		return
	}
	native := root.Get("limits") != nil || root.Get("exempt") != nil || root.Get("groups") != nil || root.Get("paths") != nil
	if len(documents) > 1 {
		if native {
			l.err(documents[1], "put it into a file of its own", "a rule file holds one document; this is a second one")
		} else {
			l.warn(lint.SecondDocument, documents[1], "put it into a file of its own", "only the first document of a file is read; this one is ignored")
		}
	}
	l.findIgnores(comments, root)
	f := l.root(root, native)
	l.files = append(l.files, f)
}

// unquoted finds values that YAML reads as tags, aliases and the like, and that were meant as
// patterns.
var unquoted = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[:\[,-]\s*[!*&%@\x60]`) })

// syntaxHint guesses the cause of a syntax error.
func (l *loader) syntaxHint(failure *yaml.Error) string {
	for line := failure.Line; line >= failure.Line-1; line-- {
		if quote, _, _ := strings.Cut(l.src.Quote(line, 0), "\n"); unquoted().MatchString(quote) {
			return `a value that begins with ! * & % @ or a backquote must be quoted, as in "!free"`
		}
		if strings.Contains(l.src.Quote(line, 0), "\t") {
			return "YAML is indented by spaces, never by tabs"
		}
		if strings.Contains(l.src.Quote(line, 0), "{{") {
			return "this looks like a template, such as Helm has: render it first"
		}
	}
	return ""
}

func (l *loader) root(root *yaml.Node, native bool) *rule.File {
	f := &rule.File{Name: l.src.Name, Domain: rule.DefaultDomain, Origin: l.src}
	lyft := root.Get("descriptors")
	keys := l.keys(root, keyRules{known: rootKeys, misplaced: lyftKeys, elsewhere: rootMistakes(), lenient: !native, lyft: lyft != nil})
	if d := keys.val("domain"); d != nil {
		f.Domain = strings.Clone(l.domain(d, native)) // as the names of limits
	} else if lyft != nil || !native {
		l.err(root, "name it: domain: …", "config file cannot have empty domain: only a file with limits can do without one")
	}
	l.lending = slices.Contains(l.lend, f.Domain)
	if g := keys.val("groups"); g != nil {
		if l.oneOf(g, "groups", "first") == "first" {
			f.First = true
		}
	}
	if p := keys.val("paths"); p != nil {
		f.ExactPaths = l.oneOf(p, "paths", pathSpellings...) == "exact"
		if root.Get("limits") == nil && root.Get("exempt") == nil {
			l.warn(lint.NoEffect, p, "remove it", "paths is about limits and exempt, and the file has neither: descriptors match paths to the letter in any case")
		}
	}
	l.exactPaths = f.ExactPaths
	if e := keys.val("exempt"); e != nil {
		f.Exempt = l.conditions(e, "exempt")
	}
	if v := keys.val("limits"); v != nil {
		switch v.Kind {
		case yaml.List:
			for _, item := range v.Items {
				if r := l.limit(item, f.Domain); r != nil {
					f.Rules = append(f.Rules, r)
				}
				l.rule = ""
			}
		case yaml.Null:
			l.warn(lint.EmptyValue, v, "remove the key, or list limits under it", "limits is empty: the file holds no limit")
		default:
			l.err(v, "as in: limits: [{name: api, allow: 10/min}]", "limits: expected a list of limits, got %s", describe(v))
		}
	}
	if lyft != nil {
		f.Descriptors = l.descriptors(lyft, f.Domain, nil)
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
		l.err(d, "call it otherwise", "domain: %s stands for commands that bring their limit along, such as CL.THROTTLE", name)
	}
	return name
}

// count notes one more rule, and reports whether that is still within bounds.
func (l *loader) count(v *yaml.Node) bool {
	l.rules++
	if l.rules == maxRules+1 {
		l.err(v, "", "more than %d rules", maxRules)
	}
	return l.rules <= maxRules
}

// finish compiles the files that were read, and reports what shows only across them.
func (l *loader) finish(o Options) *rule.Set {
	l.src, l.rule, l.seen = nil, "", nil
	if l.unread || l.rules > maxRules {
		return nil
	}
	if l.rules == 0 && len(l.errors) == 0 {
		l.errors = append(l.errors, rule.Problem{
			Pos:     rule.Position{File: l.files[0].Name},
			Message: "no rule is left: the files hold neither limits nor descriptors",
		})
		return nil
	}
	set, problems := rule.Compile(l.files, rule.Options{IPv6Prefix: o.IPv6Prefix})
	l.compiled.cel.DropAsks()
	for _, p := range problems {
		if p.Quote == "" {
			p.Quote = l.quoteOf(p.Pos)
		}
		l.errors = append(l.errors, p)
	}
	return set
}

// quoteOf quotes the line of pos from any of the files read.
func (l *loader) quoteOf(pos rule.Position) string {
	for _, o := range l.origins {
		if o.Name == pos.File {
			return o.Quote(pos.Line, pos.Column)
		}
	}
	return ""
}
