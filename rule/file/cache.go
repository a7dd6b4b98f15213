package file

import (
	"errors"
	"regexp/syntax"
	"strings"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/cel"
)

// Bounds on the compiled size of all patterns of one load, and on names.
const (
	maxRegexpWork = 4 << 20  // instructions of all regular expressions
	maxNames      = 64 << 20 // bytes of the names of all rules
	maxName       = 16 << 10 // bytes of the name of one Lyft rule
)

// compiled remembers compiled patterns and expressions of one load: the same pattern often stands
// in many rules, and an alias can repeat an expensive one at no cost to its author.
type compiled struct {
	patterns  map[[2]string]compiledPattern
	cel       cel.Compiler
	templates map[templateKey]compiledTemplate
	limits    map[algo.Config]*algo.Limit
	pers      map[string][]rule.Key // by their entries, with a zero byte behind each
	regexp    int
	names     int
	template  int // bytes
	elastic   int // windows
	scaled    int // limits that were tried
}

type compiledPattern struct {
	pattern rule.Pattern
	err     error
}

// pattern is rule.ParsePattern, remembered and bounded.
func (c *compiled) pattern(attribute, source string) (rule.Pattern, error) {
	key := [2]string{attribute, source}
	if p, ok := c.patterns[key]; ok {
		return p.pattern, p.err
	}
	if c.patterns == nil {
		c.patterns = map[[2]string]compiledPattern{}
	}
	var p compiledPattern
	if re, ok := strings.CutPrefix(strings.TrimPrefix(source, "!"), "~"); ok && c.regexp <= maxRegexpWork {
		c.regexp += regexpWork(re)
	}
	if c.regexp > maxRegexpWork && strings.HasPrefix(strings.TrimPrefix(source, "!"), "~") {
		p.err = errors.New("the regular expressions of all rules together are too large")
	} else {
		p.pattern, p.err = rule.ParsePattern(attribute, source)
	}
	c.patterns[key] = p
	return p.pattern, p.err
}

// limit is algo.New, remembered: rules with the same numbers share one limit.
func (c *compiled) limit(config algo.Config) (*algo.Limit, error) {
	if l := c.limits[config]; l != nil {
		return l, nil
	}
	l, err := algo.New(config)
	if err != nil {
		return nil, err
	}
	if c.limits == nil {
		c.limits = map[algo.Config]*algo.Limit{}
	}
	c.limits[config] = l
	return l, nil
}

// classWork is the work of a Unicode class such as \pL, of up to a few hundred ranges.
const classWork = 256

// regexpWork is about the number of instructions that the regular expression compiles to, with the
// ranges of Unicode classes, which each mention of one copies.
func regexpWork(source string) int {
	classes := classWork * (strings.Count(source, `\p`) + strings.Count(source, `\P`))
	if !strings.Contains(source, "{") {
		return 2*len(source) + classes
	}
	if classes > maxRegexpWork {
		return classes // parsing alone would take much memory
	}
	re, err := syntax.Parse(source, syntax.Perl)
	if err != nil {
		return 0
	}
	prog, err := syntax.Compile(re.Simplify())
	if err != nil {
		return 0
	}
	return len(prog.Inst) + classes
}
