package lint

import (
	"net/netip"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode"

	"github.com/weir-rl/weir/internal/util/suggest"
	"github.com/weir-rl/weir/rule"
)

// values warns of values that no request can have, and of attributes that look misspelt.
func (l *linter) values(s *rule.Set) {
	for _, f := range s.Files() {
		exempt := &rule.Rule{File: f}
		for i := range f.Exempt {
			l.patterns(exempt, "exempt", &f.Exempt[i])
		}
	}
	prefix := s.IPv6Prefix()
	for _, r := range s.Rules() {
		for i := range r.When {
			l.patterns(r, r.Name, &r.When[i])
		}
		for _, k := range r.Per {
			for _, a := range k {
				l.attributeName(r, r.Name, a, r.Pos)
			}
		}
		l.read(r)
		for i, k := range r.Per {
			for _, o := range r.Overrides {
				if slices.Equal(k, rule.Key{"path"}) && i < len(o.Values) && withoutParameters(o.Values[i]) != "" {
					l.warn(warnPathParameter, r, o.Pos,
						"name each path; or write a limit of its own, with when: {path: "+
							withoutParameters(o.Values[i])+"}",
						"override: %s stands for itself, and not for other paths", o.Values[i])
				}
				if slices.Equal(k, rule.Key{"ip"}) && i < len(o.Values) && !addressKey(o.Values[i], prefix) {
					l.warn(NeverMatches, r, o.Pos, addressHint,
						"override: %s is no IP address, so that no request has this key", o.Values[i])
				}
			}
		}
	}
}

// addressKey reports whether a value of an override is an address, or a block of them that has one
// key.
func addressKey(value string, ipv6Prefix int) bool {
	address := strings.TrimSpace(value)
	if p, err := rule.ParsePattern("ip", address); err == nil && p.Kind() == rule.BlockPattern && !p.Negated &&
		!strings.Contains(address, "/") {
		return true
	}
	block, err := netip.ParsePrefix(value)
	return err == nil && block.Addr().Is6() && !block.Addr().Is4In6() && block.Bits() == ipv6Prefix
}

const addressHint = "as in 192.0.2.1 or 2001:db8::1"

// patterns warns of the patterns of one condition. subject is "exempt" or the rule's name.
func (l *linter) patterns(r *rule.Rule, subject string, c *rule.Condition) {
	what := "when." + c.Attribute
	if subject == "exempt" {
		what = c.Attribute
	}
	if !l.misplaced(r, subject, what, c) {
		l.attributeName(r, subject, c.Attribute, c.Pos)
	}
	for i := range c.Patterns {
		p := &c.Patterns[i]
		if c.Attribute == "path" && l.parameter(r, subject, what, p) {
			continue
		}
		if why, hint := impossible(c.Attribute, p); why != "" {
			effect := "never matches"
			if p.Negated {
				effect = "excludes nothing"
			}
			l.warnOf(NeverMatches, subject, r, p.Pos, hint, "%s: %s %s: %s", what, p.Source, effect, why)
			continue
		}
		switch {
		case p.Kind() == rule.BlockPattern:
			text := strings.TrimPrefix(p.Source, "!")
			if block, err := netip.ParsePrefix(text); err == nil && block != block.Masked() {
				l.warnOf(warnHostBits, subject, r, p.Pos, "write "+p.Block().String()+", or the address alone",
					"%s: %s stands for all of %s", what, text, p.Block())
			}
		case c.Attribute == "method" && p.Kind() == rule.ExactPattern && !slices.Contains(methods, p.Text()):
			if strings.Contains(p.Text(), "|") {
				l.warnOf(warnUnknownMethod, subject, r, p.Pos, "several are a list: [GET, POST]",
					"%s: %s is taken as one method", what, p.Text())
			} else if near := suggest.Nearest(p.Text(), methods); near != "" {
				l.warnOf(warnUnknownMethod, subject, r, p.Pos, "did you mean "+near+"?",
					"%s: %s is no method that is known", what, p.Text())
			}
		}
	}
}

// methods are the methods in the IANA registry of HTTP methods, and PURGE of caches.
var methods = []string{
	"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "QUERY", "PURGE", "PROPFIND", "PROPPATCH",
	"MKCOL", "COPY", "MOVE", "LOCK", "UNLOCK", "SEARCH", "REPORT", "MKCALENDAR", "MERGE", "BIND", "UNBIND", "REBIND", "ACL",
	"LINK", "UNLINK", "CHECKIN", "CHECKOUT", "LABEL", "UPDATE", "BASELINE-CONTROL", "MKACTIVITY", "MKWORKSPACE", "ORDERPATCH",
	"UNCHECKOUT", "VERSION-CONTROL", "MKREDIRECTREF", "UPDATEREDIRECTREF", "PRI",
}

// impossible says why no request can have a value that p matches; "" if one may. It goes by the
// normal forms of values, and by the values that doors which see the client's request supply.
func impossible(attribute string, p *rule.Pattern) (why, hint string) {
	if p.Kind() == rule.BlockPattern {
		return "", ""
	}
	texts := texts(p)
	allowed, held := anyByte, true
	switch attribute {
	case "ip":
		if p.Kind() == rule.ExactPattern {
			if p.Negated {
				return "", "" // where a client may say any address, it excludes that text
			}
			return "no door that sees the address itself supplies that", addressHint +
				", or a block such as 192.0.2.0/24"
		}
		allowed, why, hint = addressByte, "addresses are written as 192.0.2.1 and 2001:db8::1, in lower case",
			"write a block, such as 192.0.2.0/24 or 2001:db8::/32"
		held = !texts.has('.') || !texts.has(':')
	case "method":
		allowed, why = methodByte, "a method is one word in upper case"
		if p.Kind() != rule.RegexpPattern {
			hint = "several are a list: [GET, POST]"
		}
	case "host":
		allowed, why = hostByte, "hosts come in lower case, as names or addresses, without scheme, port and path"
		if strings.ContainsFunc(p.Source, func(r rune) bool { return r > unicode.MaxASCII }) {
			hint = "write the name in Punycode (xn--…)"
		}
		if n := len(texts); n > 1 && texts[n-1] == (textPart{byte: '.'}) {
			return "hosts come without a final dot", ""
		}
	case "path":
		if p.Kind() == rule.GlobPattern && p.Text() == "*" {
			return "a * does not stand for a slash, with which every path begins", "write /** for any path, or leave it out"
		}
		if p.Kind() == rule.ExactPattern && p.Text() == "*" {
			return "", "" // of OPTIONS *
		}
		if !texts.mayBeginWithSlash() {
			hint = "begin it with a slash"
			if texts.has('*') || p.Kind() == rule.GlobPattern {
				hint = "** stands for any run with slashes, as in **.php"
			}
			return "a path begins with a slash", hint
		}
		allowed, why = pathByte,
			"paths are matched without query, and with what is no letter, digit or sign of a URI percent-encoded"
		if fault := texts.unnormal(); fault != "" {
			return fault, ""
		}
	default:
		if strings.HasPrefix(attribute, "header.") && p.Kind() == rule.ExactPattern &&
			strings.TrimSpace(p.Text()) != p.Text() {
			return "the values of headers come without spaces around them", ""
		}
		return "", ""
	}
	switch {
	case !held:
	case p.Kind() == rule.RegexpPattern:
		re, err := syntax.Parse(p.Text(), syntax.Perl)
		held = err != nil || matchable(re, allowed)
	default:
		held = !slices.ContainsFunc(texts, func(p textPart) bool { return p.run == noRun && !allowed(p.byte) })
	}
	if held {
		return "", ""
	}
	return why, hint
}

func anyByte(byte) bool { return true }

func addressByte(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || c == '.' || c == ':'
}

// methodByte reports whether c may stand in a method in its normal form: a token (RFC 9110, 5.6.2)
// in upper case.
func methodByte(c byte) bool {
	return 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}

func hostByte(c byte) bool {
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || strings.IndexByte("-._:[]", c) >= 0
}

func pathByte(c byte) bool {
	path := "/x" + string([]byte{c})
	return rule.NormalPath(path) == path
}

// matchable reports whether re may match a text of allowed bytes. Bytes above ASCII stand for the
// runes that they are part of.
func matchable(re *syntax.Regexp, allowed func(byte) bool) bool {
	ok := func(r rune) bool {
		if r > unicode.MaxASCII {
			return allowed(0xff)
		}
		return allowed(byte(r))
	}
	switch re.Op {
	case syntax.OpNoMatch:
		return false
	case syntax.OpLiteral:
		for _, r := range re.Rune {
			found := ok(r)
			for f := unicode.SimpleFold(r); re.Flags&syntax.FoldCase != 0 && f != r && !found; f = unicode.SimpleFold(
				f) {
				found = ok(f)
			}
			if !found {
				return false
			}
		}
	case syntax.OpCharClass:
		for i := 0; i+1 < len(re.Rune); i += 2 {
			for r := re.Rune[i]; r <= min(re.Rune[i+1], unicode.MaxASCII+1); r++ {
				if ok(r) {
					return true
				}
			}
			if re.Rune[i+1] > unicode.MaxASCII && ok(re.Rune[i+1]) {
				return true
			}
		}
		return false
	case syntax.OpCapture, syntax.OpPlus:
		return matchable(re.Sub[0], allowed)
	case syntax.OpRepeat:
		return re.Min == 0 || matchable(re.Sub[0], allowed)
	case syntax.OpConcat:
		return !slices.ContainsFunc(re.Sub, func(s *syntax.Regexp) bool { return !matchable(s, allowed) })
	case syntax.OpAlternate:
		return slices.ContainsFunc(re.Sub, func(s *syntax.Regexp) bool { return matchable(s, allowed) })
	}
	return true
}
