package door

import (
	"net/netip"
	"strconv"
	"strings"
)

// ValidHost reports whether a Host is one that every server reads alike: a name or an address, and
// a port in digits; "" is. Some programs would write a Unicode name anew, some ignore the text
// after a colon, and some cut off one final dot of two, so that they would read another host than
// the rules. A name is of nonempty labels of letters, digits, - and _; one dot may stand at its
// end. Brackets hold an IPv6 address without a zone.
func ValidHost(host string) bool {
	if host == "" {
		return true
	}
	name, port := host, ""
	if host[0] == '[' {
		end := strings.IndexByte(host, ']')
		if end < 0 {
			return false
		}
		if addr, err := netip.ParseAddr(host[1:end]); err != nil || !addr.Is6() || addr.Zone() != "" {
			return false
		}
		name, port = "", host[end+1:]
	} else {
		if i := strings.IndexByte(host, ':'); i >= 0 {
			name, port = host[:i], host[i:]
		}
		if !validName(name) {
			return false
		}
	}
	if port == "" || port == ":" {
		return true
	}
	if port[0] != ':' || strings.Trim(port[1:], "0123456789") != "" {
		return false
	}
	_, err := strconv.ParseUint(port[1:], 10, 16)
	return err == nil
}

// validName reports whether s is of labels that are not empty, with or without a final dot.
func validName(s string) bool {
	label := 0
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_':
			label++
		case c == '.' && label > 0:
			label = 0
		default:
			return false
		}
	}
	return s != ""
}

// AmbiguousPath returns a part of path that servers read in different ways; "" if there is
// none. Such parts are "%2F", "\\" and "%5C", unless keepSlash, and always a control character and
// "#". At "%00" some end the path, and to a regular expression that ends in $, which Starlette
// makes of a route, /login%0A is /login. No client may send a # (RFC 9112 3.2), but net/http takes
// it as a character of the path: /x#/../login is /login to a file server, and /x to a server that
// cuts it off. A segment that is empty, . or .. apart from its parameters, as "..;", always counts,
// too: see bareParameters. path is as it came over the wire, without a query.
func AmbiguousPath(path string, keepSlash bool) string {
	if strings.IndexByte(path, '#') >= 0 {
		return "#"
	}
	if strings.IndexByte(path, ';') >= 0 || strings.Contains(path, "%3B") || strings.Contains(path, "%3b") {
		if what := bareParameters(path); what != "" {
			return what
		}
	}
	if !keepSlash && strings.IndexByte(path, '\\') >= 0 {
		return `\`
	}
	for {
		i := strings.IndexByte(path, '%')
		if i < 0 || i+2 >= len(path) {
			return ""
		}
		switch code := path[i+1 : i+3]; {
		case isHex(code[1]) && (code[0] == '0' || code[0] == '1'), code == "7F", code == "7f":
			return "%" + strings.ToUpper(code)
		case keepSlash:
		case code == "2F" || code == "2f":
			return "%2F"
		case code == "5C" || code == "5c":
			return "%5C"
		}
		path = path[i+1:]
	}
}

// bareParameters returns the begin of the first segment of a path that becomes empty, . or .. when
// servlet containers, such as Tomcat, take its parameters off: "..;", ".;", or "/;". They resolve
// the rest, so that /x/..;a=b/login and /;/login are /login to them. A server in front may have
// decoded %3B and %2E before. A last segment of nothing but parameters is none: some write the
// session there, as in /shop/;jsessionid=1.
func bareParameters(path string) string {
	for path = strings.TrimPrefix(path, "/"); path != ""; {
		segment, rest, more := strings.Cut(path, "/")
		path = rest
		dots := 0
		for segment != "" {
			switch {
			case segment[0] == '.':
				segment = segment[1:]
			case hasPrefixFold(segment, "%2e"):
				segment = segment[3:]
			case segment[0] != ';' && !hasPrefixFold(segment, "%3b"), dots > 2:
				segment = ""
				continue
			case dots > 0:
				return "..;"[2-dots:]
			case more:
				return "/;"
			default:
				return ""
			}
			dots++
		}
	}
	return ""
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// KeepSlash is the setting of a server that keeps encoded slashes, for AmbiguousPathDetail.
const KeepSlash = "fields.encoded_slash: keep"

// AmbiguousPathDetail explains to people the fault of a path, with AmbiguousPath's result; setting
// is the name of the setting that keeps it.
func AmbiguousPathDetail(what, setting string) string {
	if what == "#" {
		return "The target of the request holds #, which no client may send (RFC 9112 3.2) and servers read in different ways: " +
			"a rate limit might be about another path than what the server behind it does. Where it is data, write %23."
	}
	text := "The path of the request holds " + what +
		", which servers read in different ways: a rate limit might be about another path than what the server behind it does."
	if what == "%2F" || what == "%5C" || what == `\` {
		text += " If it is data here, as in the name of an object, the setting " + setting + " lets it pass."
	}
	return text
}

// Dashed returns the name of a field with a dash for each sign that programs behind CGI know as an
// underscore: names that they take for one are one.
func Dashed(name string) string {
	return strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' {
			return r
		}
		return '-'
	}, name)
}
