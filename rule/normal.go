package rule

import (
	"net/netip"
	"strings"

	"github.com/weir-rl/weir/internal/util/clientip"
	"github.com/weir-rl/weir/internal/util/httpfield"
)

// attributeKind says in which normal form an attribute is matched.
type attributeKind uint8

const (
	kindPlain attributeKind = iota
	kindPath
	kindMethod
	kindHost
	kindIP
	kindCredentials
	kindField // of the header or the query, which may be a signed token
)

func kindOf(attribute string) attributeKind {
	switch attribute {
	case "path":
		return kindPath
	case "method":
		return kindMethod
	case "host":
		return kindHost
	case "ip":
		return kindIP
	case "header.authorization", "header.proxy-authorization":
		return kindCredentials
	}
	if strings.HasPrefix(attribute, headerPrefix) || strings.HasPrefix(attribute, queryPrefix) {
		return kindField
	}
	return kindPlain
}

// spelledOf is what of the values of an attribute may be spelled in other ways.
func spelledOf(kind attributeKind) spelling {
	switch kind {
	case kindPath:
		return pathSpelled
	case kindMethod:
		return headSpelled
	}
	return 0
}

// normalText returns a value in the normal form of its kind, and for an ip the address if it is
// one. It writes a value that is not normal yet to scratch.
func normalText(kind attributeKind, raw string, scratch *[]byte) (string, netip.Addr) {
	begin := len(*scratch)
	switch kind {
	case kindPath:
		if isNormalPath(raw) {
			return raw, netip.Addr{}
		}
		*scratch = appendNormalPath(*scratch, raw)
	case kindMethod:
		if !hasRange(raw, 'a', 'z') {
			return raw, netip.Addr{}
		}
		*scratch = append(*scratch, raw...)
		for i, c := range (*scratch)[begin:] {
			if 'a' <= c && c <= 'z' {
				(*scratch)[begin+i] = c - 'a' + 'A'
			}
		}
	case kindHost:
		raw = bareHost(raw)
		if !hasRange(raw, 'A', 'Z') {
			return raw, netip.Addr{}
		}
		*scratch = append(*scratch, raw...)
		for i, c := range (*scratch)[begin:] {
			if 'A' <= c && c <= 'Z' {
				(*scratch)[begin+i] = c - 'A' + 'a'
			}
		}
	case kindIP:
		if strings.IndexByte(raw, ':') < 0 {
			return raw, parseIPv4(raw) // the text of an IPv4 address is normal
		}
		addr := parseIP(raw)
		if !addr.IsValid() {
			return raw, addr
		}
		*scratch = addr.AppendTo(*scratch)
		return view((*scratch)[begin:]), addr
	case kindCredentials:
		return httpfield.NormalCredentials(scratch, raw), netip.Addr{}
	case kindField:
		raw, _ = httpfield.CutSigned(raw)
		return raw, netip.Addr{}
	default:
		return raw, netip.Addr{}
	}
	return view((*scratch)[begin:]), netip.Addr{}
}

// NormalValue returns the value of an attribute in the normal form in which it is matched and
// keyed.
func NormalValue(attribute, value string) string {
	var scratch []byte
	text, _ := normalText(kindOf(attribute), value, &scratch)
	return text
}

// hasRange reports whether s holds a byte from low to high.
func hasRange(s string, low, high byte) bool {
	for i := range len(s) {
		if low <= s[i] && s[i] <= high {
			return true
		}
	}
	return false
}

// bareHost cuts off what follows the colon of a host, whether or not it is a port, and the dots at
// the end of its name: servers answer to shop.example. and shop.example:http as to shop.example. A
// host in brackets (IPv6) keeps them.
func bareHost(host string) string {
	i := strings.IndexByte(host, ':')
	switch {
	case host != "" && host[0] == '[':
		if j := strings.IndexByte(host, ']'); j >= 0 && j+1 < len(host) && host[j+1] == ':' {
			return host[:j+1]
		}
		return host
	case i >= 0 && strings.LastIndexByte(host, ':') != i:
		return host // an IPv6 address without brackets
	case i >= 0:
		host = host[:i]
	}
	if name := strings.TrimRight(host, "."); name != "" {
		return name
	}
	return host
}

// parseIP parses an address as rules see it: by clientip.Addr. It returns the zero Addr if s is no
// address, mostly without making an error.
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
	return clientip.Addr(a)
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
