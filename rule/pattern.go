package rule

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"

	"github.com/weir-rl/weir/internal/util/clientip"
	"github.com/weir-rl/weir/internal/util/httpfield"
)

// Pattern is one compiled pattern of a Condition. The zero value matches nothing.
type Pattern struct {
	Source  string
	Negated bool
	kind    PatternKind // here, where it takes no room
	folded  bool
	Pos     Position

	text string // ExactPattern
	glob *glob
	re   *regexp.Regexp
	// twin is the pattern as it is compared with folded values, or if folded is set, as it is
	// written; nil if that is the same.
	twin  *Pattern
	block *netip.Prefix // BlockPattern: an address or a block of them, IPv4-mapped ones unmapped
}

// PatternKind says how a Pattern compares.
type PatternKind uint8

// The kinds of patterns.
const (
	NoPattern PatternKind = iota // the zero value, which matches nothing
	ExactPattern
	GlobPattern
	RegexpPattern
	BlockPattern // a block of addresses, or a single one
)

// Kind returns how the pattern compares.
func (p *Pattern) Kind() PatternKind { return p.kind }

// Text returns the exact text, the glob or the regular expression that values are compared with, in
// the normal form of the attribute; "" for a block of addresses.
func (p *Pattern) Text() string {
	switch p.kind {
	case GlobPattern:
		return p.glob.source
	case RegexpPattern:
		return p.re.String()
	}
	return p.text
}

// Block returns the addresses of a BlockPattern, IPv4-mapped ones as IPv4.
func (p *Pattern) Block() netip.Prefix {
	if p.block == nil {
		return netip.Prefix{}
	}
	return *p.block
}

// Match reports whether the value, in the normal form of its attribute, matches the pattern; for a
// negated pattern, whether it does not match the part behind the negation.
func (p *Pattern) Match(value string) bool {
	var addr netip.Addr
	if p.kind == BlockPattern {
		addr = parseIP(value)
	}
	return p.positive(value, addr) != p.Negated
}

// positive matches without the negation. addr is the value of an ip, if it is one.
func (p *Pattern) positive(value string, addr netip.Addr) bool {
	switch p.kind {
	case ExactPattern:
		return value == p.text
	case GlobPattern:
		return p.glob.match(value)
	case RegexpPattern:
		return p.re.MatchString(value)
	case BlockPattern:
		return p.block.Contains(addr)
	default:
		return false
	}
}

// maxPattern bounds a pattern's length: a longer one cannot be meant.
const maxPattern = 64 << 10

// ParsePattern compiles one pattern of when (or exempt) for the attribute.
func ParsePattern(attribute, source string) (Pattern, error) {
	p := Pattern{Source: source}
	if len(source) > maxPattern {
		return p, fmt.Errorf("the pattern has %d bytes, at most %d are allowed", len(source), maxPattern)
	}
	s := source
	if rest, ok := strings.CutPrefix(s, "!"); ok {
		p.Negated, s = true, rest
		if strings.HasPrefix(s, "!") {
			return p, errors.New(`a pattern is negated once: write "!\\!x" for anything but "!x"`)
		}
	}
	if s == "" {
		if p.Negated {
			return p, errors.New(`"!" negates nothing: write "!**" for an attribute that must be absent`)
		}
		return p, errors.New(
			`an empty pattern never matches, since an empty value counts as absent: write "!**" for an attribute that must be absent`)
	}
	switch s[0] {
	case '~':
		if s == "~" {
			return p, errors.New(`"~" needs a regular expression behind it`)
		}
		re, err := regexp.Compile(s[1:])
		if err != nil {
			return p, regexpError(err)
		}
		p.kind, p.re = RegexpPattern, re
		if attribute == "path" {
			p.makeTwin()
		}
		return p, nil
	case '\\':
		if len(s) < 2 || !strings.ContainsRune(`!~\`, rune(s[1])) {
			return p, errors.New(`a leading \ must stand before !, ~ or \ (a \ itself is written \\ there)`)
		}
		s = s[1:]
	}
	return p, p.compileText(attribute, s)
}

// compileText compiles an exact value, an address block or a glob, folded as the values of the
// attribute are.
func (p *Pattern) compileText(attribute, s string) error {
	switch attribute {
	case "method":
		s = folded(kindMethod, s)
	case "host":
		if _, rest, ok := strings.Cut(s, "://"); ok {
			name := rest
			if i := strings.IndexAny(rest, "/?#"); i >= 0 {
				name = rest[:i]
			}
			if name = bareHost(name); name == "" {
				return errors.New("host is matched by its name alone, without a scheme")
			}
			return fmt.Errorf("host is matched by its name alone, without scheme, port and path: write %q", name)
		}
		if h := bareHost(s); h != s {
			what := "port"
			if strings.HasSuffix(s, ".") {
				what = "final dot"
			}
			return fmt.Errorf("host is matched without its %s: write %q", what, h)
		}
		s = folded(kindHost, s)
	case "path":
		if i := strings.IndexAny(s, "?#"); i >= 0 {
			return fmt.Errorf(
				"path is matched without its query and fragment: write %q, and query.NAME for a parameter", s[:i])
		}
		wildcards := strings.Count(s, "*")
		switch s[0] {
		case '/':
			s = NormalPath(s)
		case '*':
			s = NormalPath("/" + s)[1:]
		default:
			return fmt.Errorf("a path begins with a slash: write %q", "/"+s)
		}
		if strings.Count(s, "*") != wildcards { // such as /a/**/../b, which would become /a/b
			return errors.New("a .. in a pattern takes away the segment before it, which may not hold a wildcard")
		}
	case "ip":
		if !strings.Contains(s, "*") {
			return p.compileIP(s)
		}
	default:
		switch kindOf(attribute) {
		case kindCredentials:
			s = foldCredentials(s)
		case kindField:
			s, _ = httpfield.CutSigned(s)
		}
	}
	if strings.Contains(s, "*") {
		p.kind, p.glob = GlobPattern, newGlob(s, false)
	} else {
		p.kind, p.text = ExactPattern, s
	}
	if attribute == "path" {
		p.makeTwin()
	}
	return nil
}

// folded folds a pattern as values of the kind are.
func folded(kind attributeKind, s string) string {
	var scratch []byte
	s, _ = normalText(kind, s, &scratch)
	return s
}

func (p *Pattern) compileIP(s string) error {
	if !strings.Contains(s, "/") {
		if a := parseIP(s); a.IsValid() {
			p.setBlock(netip.PrefixFrom(a, a.BitLen()))
			return nil
		}
		p.kind, p.text = ExactPattern, s // a value of ip that is no address is matched as text
		return nil
	}
	block, err := netip.ParsePrefix(s)
	if err != nil {
		return fmt.Errorf("%q is no address block in CIDR notation, such as 10.0.0.0/8 or 2001:db8::/32", s)
	}
	if block, err = clientip.Prefix(block); err != nil {
		return err
	}
	p.setBlock(block)
	return nil
}

func (p *Pattern) setBlock(block netip.Prefix) { p.kind, p.block = BlockPattern, &block }

// regexpError describes a fault of a regular expression, and a feature that RE2 lacks.
func regexpError(err error) error {
	text := strings.TrimPrefix(err.Error(), "error parsing regexp: ")
	if strings.Contains(text, "(?=") || strings.Contains(text, "(?!") || strings.Contains(text, "(?<") {
		text += " (regular expressions are RE2, which has no look-around)"
	}
	return fmt.Errorf("bad regular expression: %s", text)
}

// foldCredentials returns a pattern for the value of a field of credentials in the form of such
// values. A pattern with wildcards is reduced to the scheme, if a blank follows it.
func foldCredentials(pattern string) string {
	if strings.IndexByte(pattern, '*') < 0 {
		return folded(kindCredentials, pattern)
	}
	return httpfield.FoldScheme(pattern)
}
