package rule

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
)

// Pattern is one compiled pattern of a Condition. The zero value matches nothing.
type Pattern struct {
	Source  string
	Negated bool
	Pos     Position

	kind  patternKind
	text  string // patternExact
	glob  *glob
	re    *regexp.Regexp
	block netip.Prefix // patternCIDR: an address or a block of them, IPv4-mapped ones unmapped
}

type patternKind uint8

const (
	patternNone patternKind = iota
	patternExact
	patternGlob
	patternRegexp
	patternCIDR
)

// Match reports whether the value, in the normal form of its attribute, matches the pattern; for a negated pattern,
// whether it does not match what is negated.
func (p *Pattern) Match(value string) bool {
	var addr netip.Addr
	if p.kind == patternCIDR {
		addr = parseIP(value)
	}
	return p.positive(value, addr) != p.Negated
}

// positive matches without the negation. addr is the value of an ip, if it is one.
func (p *Pattern) positive(value string, addr netip.Addr) bool {
	switch p.kind {
	case patternExact:
		return value == p.text
	case patternGlob:
		return p.glob.match(value)
	case patternRegexp:
		return p.re.MatchString(value)
	case patternCIDR:
		return p.block.Contains(addr)
	default:
		return false
	}
}

// parseIP parses an address as rules see it: unmapped and without zone. It returns the zero Addr for what is none, and
// knows most of that without making an error.
func parseIP(s string) netip.Addr {
	if len(s) == 0 || len(s) > 128 {
		return netip.Addr{}
	}
	if strings.IndexByte(s, ':') < 0 {
		return parseIPv4(s)
	}
	if i := strings.IndexByte(s, '%'); i >= 0 {
		s = s[:i]
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Addr{}
	}
	return a.Unmap()
}

// parseIPv4 parses as netip does, but makes no error.
func parseIPv4(s string) netip.Addr {
	if len(s) < len("0.0.0.0") || len(s) > len("255.255.255.255") {
		return netip.Addr{}
	}
	var a [4]byte
	field, digits, n := 0, 0, 0
	for i := range len(s) {
		if c := s[i] - '0'; c <= 9 {
			if digits > 0 && n == 0 { // a leading zero
				return netip.Addr{}
			}
			n = n*10 + int(c)
			digits++
			continue
		}
		if s[i] != '.' || digits == 0 || n > 255 || field == 3 {
			return netip.Addr{}
		}
		a[field] = byte(n)
		field, digits, n = field+1, 0, 0
	}
	if field != 3 || digits == 0 || n > 255 {
		return netip.Addr{}
	}
	a[3] = byte(n)
	return netip.AddrFrom4(a)
}

// maxPattern bounds a pattern's length: what is longer cannot be meant.
const maxPattern = 64 << 10

// compilePattern compiles one pattern of when (or exempt) for the attribute.
func compilePattern(attribute, source string) (Pattern, error) {
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
		return p, errors.New(`an empty pattern never matches, since an empty value counts as absent: write "!**" for an attribute that must be absent`)
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
		p.kind, p.re = patternRegexp, re
		return p, nil
	case '\\':
		if len(s) < 2 || !strings.ContainsRune(`!~\`, rune(s[1])) {
			return p, errors.New(`a leading \ must stand before !, ~ or \ (a \ itself is written \\ there)`)
		}
		s = s[1:]
	}
	return p, p.compileText(attribute, s)
}

// compileText compiles an exact value, an address block or a glob, folded as the values of the attribute are.
func (p *Pattern) compileText(attribute, s string) error {
	switch attribute {
	case "method":
		s = folded(kindMethod, s)
	case "host":
		if h := withoutPort(s); h != s {
			return fmt.Errorf("host is matched without its port: write %q", h)
		}
		s = folded(kindHost, s)
	case "path":
		if i := strings.IndexAny(s, "?#"); i >= 0 {
			return fmt.Errorf("path is matched without its query and fragment: write %q, and query.NAME for a parameter", s[:i])
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
		if strings.Count(s, "*") != wildcards { // such as /a/**/../b, of which /a/b would be left
			return errors.New("a .. in a pattern takes away the segment before it, which may not hold a wildcard")
		}
	case "ip":
		if !strings.Contains(s, "*") {
			return p.compileIP(s)
		}
	}
	if strings.Contains(s, "*") {
		p.kind, p.glob = patternGlob, newGlob(s, false)
	} else {
		p.kind, p.text = patternExact, s
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
			p.kind, p.block = patternCIDR, netip.PrefixFrom(a, a.BitLen())
			return nil
		}
		p.kind, p.text = patternExact, s // a value of ip that is no address is matched as text
		return nil
	}
	block, err := netip.ParsePrefix(s)
	if err != nil {
		return fmt.Errorf("%q is no address block in CIDR notation, such as 10.0.0.0/8 or 2001:db8::/32", s)
	}
	if a := block.Addr(); a.Is4In6() {
		if block.Bits() < 96 {
			return fmt.Errorf("%q holds more than the IPv4-mapped addresses, which are matched as IPv4: write 0.0.0.0/0", s)
		}
		block = netip.PrefixFrom(a.Unmap(), block.Bits()-96)
	}
	p.kind, p.block = patternCIDR, block.Masked()
	return nil
}

// regexpError says what is wrong with a regular expression, and what RE2 lacks.
func regexpError(err error) error {
	text := strings.TrimPrefix(err.Error(), "error parsing regexp: ")
	if strings.Contains(text, "(?=") || strings.Contains(text, "(?!") || strings.Contains(text, "(?<") {
		text += " (regular expressions are RE2, which has no look-around)"
	}
	return fmt.Errorf("bad regular expression: %s", text)
}

// withoutPort cuts the port off a host. A host in brackets (IPv6) keeps them.
func withoutPort(host string) string {
	i := strings.LastIndexByte(host, ':')
	if i < 0 {
		return host
	}
	if host[0] == '[' {
		if j := strings.IndexByte(host, ']'); j != i-1 {
			return host
		}
	} else if strings.IndexByte(host, ':') != i {
		return host // an IPv6 address without brackets
	}
	for _, c := range []byte(host[i+1:]) {
		if c < '0' || c > '9' {
			return host
		}
	}
	return host[:i]
}
