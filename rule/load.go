package rule

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
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
}

// Bounds on one load.
const (
	maxRules    = 100_000
	maxTotal    = 64 << 20 // bytes of all files
	maxProblems = 10_000
)

// DefaultDomain is the domain of a native rule file that names none.
const DefaultDomain = "default"

// Problem is an error or a warning at a place in a file.
type Problem struct {
	Pos     Position
	Rule    string // the rule's name, if known
	Message string // what is wrong, and what was expected
	Hint    string // how to mend it, such as `did you mean "algorithm"?`; may be empty
	Quote   string // the quoted line with a caret under the column; may be empty
}

// Error formats p as "file:line:column: message (hint)" followed by the quote.
func (p Problem) Error() string {
	var b strings.Builder
	if p.Pos.File != "" {
		b.WriteString(p.Pos.File)
		b.WriteByte(':')
	}
	if p.Pos.Line > 0 {
		fmt.Fprintf(&b, "%d:", p.Pos.Line)
		if p.Pos.Column > 0 {
			fmt.Fprintf(&b, "%d:", p.Pos.Column)
		}
	}
	if b.Len() > 0 {
		b.WriteByte(' ')
	}
	b.WriteString(p.Message)
	if p.Hint != "" {
		fmt.Fprintf(&b, " (%s)", p.Hint)
	}
	if p.Quote != "" {
		b.WriteByte('\n')
		b.WriteString(p.Quote)
	}
	return b.String()
}

// Problems is an error that holds all that is wrong with a set of files, in order.
type Problems []Problem

// Error implements error: one problem after the other.
func (p Problems) Error() string {
	var b strings.Builder
	for i := range p {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(p[i].Error())
	}
	return b.String()
}

// Unwrap gives the single problems to errors.As.
func (p Problems) Unwrap() []error {
	errs := make([]error, len(p))
	for i := range p {
		errs[i] = p[i]
	}
	return errs
}

// Load parses, checks and compiles files into a Set. Rules are ordered by file name, then by place. If anything is
// wrong it returns a nil Set and a Problems with all errors. The warnings are of what loads but looks like a mistake
// in the form (a tolerated Lyft quirk); Lint finds more.
//
// Load is safe on hostile input: file size, nesting, the expansion of aliases and the number of rules are bounded.
func Load(files []Source, o Options) (*Set, []Problem, error) {
	if o.IPv6Prefix < 0 || o.IPv6Prefix > 128 {
		return nil, nil, Problems{{Message: fmt.Sprintf("an IPv6 prefix is 1 to 128 bits long, or 0 for 64; got %d", o.IPv6Prefix)}}
	}
	if len(files) == 0 {
		return nil, nil, Problems{{Message: "no rule files: at least one is needed", Hint: "rule files end in .yaml or .yml"}}
	}
	files = slices.Clone(files)
	slices.SortStableFunc(files, func(a, b Source) int { return strings.Compare(a.Name, b.Name) })
	l := &loader{}
	total := 0
	for _, f := range files {
		total += len(f.Data)
	}
	if total > maxTotal {
		return nil, nil, Problems{{Message: fmt.Sprintf("the rule files have %d bytes together; at most %d are read", total, maxTotal)}}
	}
	for _, f := range files {
		l.file(f)
	}
	set := l.finish(o)
	sortProblems(l.warnings)
	if len(l.errors) > 0 {
		sortProblems(l.errors)
		return nil, l.warnings, Problems(l.errors)
	}
	return set, l.warnings, nil
}

func sortProblems(p []Problem) {
	slices.SortStableFunc(p, func(a, b Problem) int {
		if c := strings.Compare(a.Pos.File, b.Pos.File); c != 0 {
			return c
		}
		if c := a.Pos.Line - b.Pos.Line; c != 0 {
			return c
		}
		return a.Pos.Column - b.Pos.Column
	})
}

// origin is the file that a rule comes from, kept for messages and Lint.
type origin struct {
	name   string
	text   string
	split  sync.Once
	lines  []int // offset of each line, made when the first is asked for
	domain string
	first  bool
	exempt []Condition
}

// quote returns line with a caret under column, counted in characters; "" if there is no such line.
func (o *origin) quote(line, column int) string {
	if o == nil || line < 1 {
		return ""
	}
	o.split.Do(func() {
		o.lines = []int{0}
		for i := 0; i < len(o.text); i++ {
			if o.text[i] == '\n' {
				o.lines = append(o.lines, i+1)
			}
		}
	})
	if line > len(o.lines) {
		return ""
	}
	text, _, _ := strings.Cut(o.text[o.lines[line-1]:], "\n")
	text = strings.TrimSuffix(text, "\r")
	if line == 1 {
		text = strings.TrimPrefix(text, "\ufeff")
	}
	start := 0
	if column > maxTextQuoting/2 {
		start = column - maxTextQuoting/2
	}
	var shown, under strings.Builder
	if start > 0 {
		shown.WriteString("…")
		under.WriteByte(' ')
	}
	n := 0
	for _, r := range text {
		if n++; n <= start {
			continue
		}
		if n > start+maxTextQuoting {
			shown.WriteString("…")
			break
		}
		if r != '\t' && (r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0) {
			r = '\ufffd' // control characters must not reach a terminal
		}
		shown.WriteRune(r)
		if n < column {
			if r == '\t' {
				under.WriteByte('\t')
			} else {
				under.WriteByte(' ')
			}
		}
	}
	if strings.TrimSpace(shown.String()) == "" {
		return ""
	}
	if column < 1 {
		return "    " + shown.String()
	}
	return "    " + shown.String() + "\n    " + under.String() + "^"
}

// loader gathers the files and problems of one Load.
type loader struct {
	files    []*file
	origins  []*origin
	errors   []Problem
	warnings []Problem
	rules    int
	compiled compiled
	unread   bool // a file could not be read as YAML: what shows across files only would be guesswork

	src  *origin // the file at hand
	rule string  // the rule at hand
	seen map[seenProblem]bool
}

// seenProblem keeps what an alias brings up twice from being reported twice.
type seenProblem struct {
	line, column int
	message      string
}

func (l *loader) report(list *[]Problem, line, column int, hint, message string) {
	key := seenProblem{line, column, message}
	if l.seen[key] || len(*list) > maxProblems {
		return
	}
	if l.seen == nil {
		l.seen = map[seenProblem]bool{}
	}
	l.seen[key] = true
	p := Problem{Rule: l.rule, Message: message, Hint: hint}
	if l.src != nil {
		p.Pos = Position{File: l.src.name, Line: line, Column: column}
		p.Quote = l.src.quote(line, column)
	}
	if len(*list) == maxProblems {
		p = Problem{Pos: Position{File: p.Pos.File}, Message: fmt.Sprintf("more than %d problems; the rest are not shown", maxProblems)}
	}
	*list = append(*list, p)
}

// err reports an error at v, unless v is one that could not even be read.
func (l *loader) err(v *element, hint, format string, args ...any) {
	if v.kind == badKind {
		return // reported when it was read
	}
	l.report(&l.errors, v.line, v.column, hint, fmt.Sprintf(format, args...))
}

// warn reports a warning at v.
func (l *loader) warn(v *element, hint, format string, args ...any) {
	l.report(&l.warnings, v.line, v.column, hint, fmt.Sprintf(format, args...))
}

func (l *loader) pos(v *element) Position {
	p := Position{Line: v.line, Column: v.column}
	if l.src != nil {
		p.File = l.src.name
	}
	return p
}

var rootKeys = []string{"domain", "exempt", "groups", "limits", "descriptors"}

var rootMistakes = map[string]string{
	"rules":       "limits are listed under limits",
	"rate_limits": "limits are listed under limits",
	"rate_limit":  "limits are listed under limits",
	"tests":       "rule tests stand in files whose names end in _test.yaml",
	"whitelist":   "it is called exempt",
	"allowlist":   "it is called exempt",
}

// file reads one rule file, and appends it to l.files unless it cannot be read at all.
func (l *loader) file(s Source) {
	l.src = &origin{name: s.Name, text: string(s.Data)}
	l.rule, l.seen = "", nil
	l.origins = append(l.origins, l.src)
	documents, misread, failure := parseYAML(s.Data)
	for _, m := range misread {
		l.report(&l.errors, m.line, m.column, m.hint, "error loading config file: "+m.message)
	}
	if failure != nil {
		l.unread = true
		if failure.hint == "" {
			failure.hint = l.syntaxHint(failure)
		}
		l.report(&l.errors, failure.line, failure.column, failure.hint, "error loading config file: "+failure.message)
		return
	}
	if len(documents) == 0 {
		l.unread = true
		l.report(&l.errors, 1, 0, "a native file needs limits, a file of the Lyft form domain and descriptors", "the file is empty: config file cannot have empty domain")
		return
	}
	root := documents[0]
	if root.kind != mapKind {
		l.unread = true
		l.err(root, "as in: limits: [{name: api, per: [ip], allow: 10/min}]", "error loading config file: expected a mapping with domain and limits or descriptors, got %s", describe(root))
		return
	}
	native := root.get("limits") != nil || root.get("exempt") != nil || root.get("groups") != nil
	if len(documents) > 1 {
		if native {
			l.err(documents[1], "put it into a file of its own", "a rule file holds one document; this is a second one")
		} else {
			l.warn(documents[1], "put it into a file of its own", "only the first document of a file is read; this one is ignored")
		}
	}
	f := l.root(root, native)
	l.src.domain, l.src.first, l.src.exempt = f.domain, f.first, f.exempt
	l.files = append(l.files, f)
}

// unquoted finds values that YAML reads as tags, aliases and the like, and that were meant as patterns.
var unquoted = regexp.MustCompile(`[:\[,-]\s*[!*&%@\x60]`)

// syntaxHint guesses what is behind a syntax error.
func (l *loader) syntaxHint(failure *syntaxError) string {
	for line := failure.line; line >= failure.line-1; line-- {
		if quote, _, _ := strings.Cut(l.src.quote(line, 0), "\n"); unquoted.MatchString(quote) {
			return `a value that begins with ! * & % @ or a backquote must be quoted, as in "!free"`
		}
		if strings.Contains(l.src.quote(line, 0), "\t") {
			return "YAML is indented by spaces, never by tabs"
		}
	}
	return ""
}

func (l *loader) root(root *element, native bool) *file {
	f := &file{name: l.src.name, domain: DefaultDomain}
	lyft := root.get("descriptors")
	keys := l.keys(root, keyRules{known: rootKeys, misplaced: lyftKeys, elsewhere: rootMistakes, lenient: !native, lyft: lyft != nil})
	if d := keys.val("domain"); d != nil {
		f.domain = l.domain(d, native)
	} else if lyft != nil || !native {
		l.err(root, "name it: domain: …", "config file cannot have empty domain: only a file with limits can do without one")
	}
	if g := keys.val("groups"); g != nil {
		if l.oneOf(g, "groups", "first") == "first" {
			f.first = true
		}
	}
	if e := keys.val("exempt"); e != nil {
		f.exempt = l.conditions(e, "exempt")
	}
	if v := keys.val("limits"); v != nil {
		switch v.kind {
		case listKind:
			for _, item := range v.items {
				if r := l.limit(item, f.domain); r != nil {
					f.rules = append(f.rules, r)
				}
				l.rule = ""
			}
		case nullKind:
			l.warn(v, "remove the key, or list limits under it", "limits is empty: the file holds no limit")
		default:
			l.err(v, "as in: limits: [{name: api, allow: 10/min}]", "limits: expected a list of limits, got %s", describe(v))
		}
	}
	if lyft != nil {
		f.descriptors = l.descriptors(lyft, f.domain, nil)
		l.rule = ""
	}
	return f
}

func (l *loader) domain(d *element, native bool) string {
	var name string
	if native {
		name, _ = l.text(d, "domain")
	} else {
		name, _ = l.lyftText(d, "domain")
	}
	if name == "" {
		if native && d.kind != scalarKind {
			return DefaultDomain // reported by text
		}
		l.err(d, "", "config file cannot have empty domain")
		return DefaultDomain
	}
	if i := strings.IndexFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }); i >= 0 && native {
		l.err(d, "", "domain: a control character in the name")
	}
	return name
}

// count notes one more rule, and reports whether that is still within bounds.
func (l *loader) count(v *element) bool {
	l.rules++
	if l.rules == maxRules+1 {
		l.err(v, "", "more than %d rules", maxRules)
	}
	return l.rules <= maxRules
}

// finish compiles the files that were read, and reports what shows only across them.
func (l *loader) finish(o Options) *Set {
	l.src, l.rule, l.seen = nil, "", nil
	if l.unread || l.rules > maxRules {
		return nil
	}
	if l.rules == 0 && len(l.errors) == 0 {
		l.errors = append(l.errors, Problem{
			Pos:     Position{File: l.files[0].name},
			Message: "no rule is left: the files hold neither limits nor descriptors",
		})
		return nil
	}
	set, problems := build(l.files, o)
	for _, p := range problems {
		if p.Quote == "" {
			p.Quote = l.quoteOf(p.Pos)
		}
		l.errors = append(l.errors, p)
	}
	return set
}

// quoteOf quotes the line of pos from any of the files read.
func (l *loader) quoteOf(pos Position) string {
	for _, o := range l.origins {
		if o.name == pos.File {
			return o.quote(pos.Line, pos.Column)
		}
	}
	return ""
}
