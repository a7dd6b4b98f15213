package rule

import "strings"

// pathClass classifies the bytes of a path.
type pathClass uint8

const (
	pathPlain   pathClass = iota // stands for itself
	pathUpper                    // A to Z, which stand for themselves
	pathSlash                    // /
	pathDot                      // .
	pathPercent                  // %
	pathEnd                      // ? or #
	pathForeign                  // may not stand in a URI path: percent-encoded
)

var pathClasses = func() (t [256]pathClass) {
	for i := range t {
		t[i] = pathForeign
	}
	for _, c := range []byte("abcdefghijklmnopqrstuvwxyz0123456789-_~!$&'()*+,;=:@") {
		t[c] = pathPlain
	}
	for c := 'A'; c <= 'Z'; c++ {
		t[c] = pathUpper
	}
	t['/'], t['.'], t['%'], t['?'], t['#'] = pathSlash, pathDot, pathPercent, pathEnd, pathEnd
	return t
}()

// NormalPath returns path in the normal form in which it is matched, keyed and replayed: without
// query and fragment, percent-encoding of unreserved characters resolved (others in upper-case
// hex), bytes that may not stand in a path percent-encoded, dot segments and repeated slashes
// removed as in RFC 3986 5.2.4 and 6.2.2, a final slash kept. A percent sign that begins no valid
// encoding stays as it is. The empty path is "/", a path without a leading slash gets one, and "*"
// (of OPTIONS *) stays. It returns path itself, without allocating, if that is normal already.
func NormalPath(path string) string {
	if isNormalPath(path) {
		return path
	}
	var short [256]byte
	normal := appendNormalPath(short[:0], path)
	if string(normal) == path { // such as one with a stray percent sign
		return path
	}
	return string(normal)
}

func isNormalPath(path string) bool {
	normal, _ := scanPath(path)
	return normal
}

// scanPath reports whether path is in its normal form, and if so, whether there is nothing to
// fold in it.
func scanPath(path string) (normal, folded bool) {
	if len(path) == 0 || path[0] != '/' {
		return path == "*", path == "*"
	}
	folded = !hasLooseEnd(path)
	for i := 1; i < len(path); i++ {
		class := pathClasses[path[i]]
		if class == pathPlain {
			continue
		}
		switch class {
		case pathUpper:
			if path[i-1] != '%' && (i < 2 || path[i-2] != '%') { // no digit of an encoding
				folded = false
			}
		case pathSlash:
			if path[i-1] == '/' {
				return false, false
			}
		case pathDot:
			if path[i-1] == '/' && dotSegment(path[i:]) {
				return false, false
			}
		case pathPercent:
			if !normalEscape(path[i:]) {
				return false, false // or at least not known to be: appendNormalPath finds out
			}
			if _, n := likeASCII(path[i:]); n > 0 {
				folded = false
			}
		default:
			return false, false
		}
	}
	return true, folded
}

// normalEscape reports whether s begins with a percent-encoding in normal form (a % is known to be
// there).
func normalEscape(s string) bool {
	if len(s) < 3 || !isUpperHex(s[1]) || !isUpperHex(s[2]) {
		return false
	}
	return !unreserved(byte(unhex(s[1])<<4 | unhex(s[2])))
}

func isUpperHex(c byte) bool { return unhex(c) >= 0 && c < 'a' }

// dotSegment reports whether s begins with the segment . or .. (a . is known to be there).
func dotSegment(s string) bool {
	if len(s) > 1 && s[1] == '.' {
		return len(s) == 2 || s[2] == '/'
	}
	return len(s) == 1 || s[1] == '/'
}

const upperHex = "0123456789ABCDEF"

// unhex returns the value of the hexadecimal digit c, or -1.
func unhex(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// appendNormalPath appends the normal form of path to dst.
func appendNormalPath(dst []byte, path string) []byte {
	if path == "*" {
		return append(dst, '*')
	}
	base := len(dst)
	dst = append(dst, '/')
	// lone is where the last percent sign stands that begins no valid encoding: no digit may be
	// decoded right behind it, or the two would make an encoding that was not there (%%36c must not
	// become %6c).
	lone := -3
	segment := len(dst) // where the current segment begins
	i := 0
	for i < len(path) && path[i] == '/' {
		i++
	}
	for ; i < len(path); i++ {
		c := path[i]
		switch pathClasses[c] {
		case pathEnd:
			return endSegment(dst, base, segment)
		case pathSlash:
			if len(dst) == segment {
				continue // a repeated slash
			}
			if dst = endSegment(dst, base, segment); len(dst) > segment {
				dst = append(dst, '/')
			}
			segment, lone = len(dst), -3
		case pathForeign:
			dst = append(dst, '%', upperHex[c>>4], upperHex[c&15])
		case pathPercent:
			hi, lo := -1, -1
			if i+2 < len(path) {
				hi, lo = unhex(path[i+1]), unhex(path[i+2])
			}
			if hi < 0 || lo < 0 {
				lone = len(dst)
				dst = append(dst, '%')
				continue
			}
			i += 2
			d := byte(hi<<4 | lo)
			if !unreserved(d) || unhex(d) >= 0 && lone >= 0 && completes(dst[lone:]) {
				dst = append(dst, '%', upperHex[hi], upperHex[lo])
			} else {
				dst = append(dst, d)
			}
		default:
			dst = append(dst, c)
		}
	}
	return endSegment(dst, base, segment)
}

// completes reports whether a digit behind tail, which begins with a lone percent sign, could make
// it an encoding.
func completes(tail []byte) bool {
	return len(tail) == 1 || len(tail) == 2 && unhex(tail[1]) >= 0
}

func unreserved(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '.' || c == '_' ||
		c == '~'
}

// endSegment removes the last segment of dst if it is a dot segment, together with its parent if it
// is "..". The path begins at base with a slash.
func endSegment(dst []byte, base, segment int) []byte {
	switch string(dst[segment:]) {
	case ".":
		return dst[:segment]
	case "..":
		end := segment - 1 // the slash before ..
		for end > base && dst[end-1] != '/' {
			end--
		}
		return dst[:max(end, base+1)]
	}
	return dst
}

// lowerPath returns a path in normal form, or a pattern of paths, with its ASCII letters in lower
// case, except the digits of percent-encodings; and with the ASCII letter for each other letter
// that a server may take for it. It returns path itself if there is nothing to do, and else a view
// of scratch.
func lowerPath(path string, scratch *[]byte) string {
	i := 0
	for i < len(path) && (path[i] < 'A' || path[i] > 'Z') {
		i++
	}
	if i == len(path) {
		return path
	}
	begin := len(*scratch)
	b := append(*scratch, path...)
	to := begin
	for from := begin; from < len(b); from++ {
		c := b[from]
		switch {
		case c == '%':
			if letter, n := likeASCII(view(b[from:])); n > 0 {
				c, from = letter, from+n-1
			} else if from+2 < len(b) && isUpperHex(b[from+1]) && isUpperHex(b[from+2]) {
				b[to], b[to+1], c = c, b[from+1], b[from+2]
				from, to = from+2, to+2
			}
		case 'A' <= c && c <= 'Z':
			c += 'a' - 'A'
		}
		b[to] = c
		to++
	}
	*scratch = b[:to]
	return view(b[begin:to])
}

// likeASCII returns the ASCII letter that the percent-encoded letter at the begin of s equals where
// a server ignores the case by Unicode, and how long the encoding is; 0 for any other text. Go's
// strings.ToLower (so Caddy) takes U+0130 for i and U+212A for k, and strings.EqualFold also U+017F
// for s; Java's equalsIgnoreCase takes U+0131 for i.
func likeASCII(s string) (letter byte, n int) {
	if len(s) < 6 || s[1] != 'C' && s[1] != 'E' {
		return 0, 0
	}
	switch s[:6] {
	case "%C4%B0", "%C4%B1":
		return 'i', 6
	case "%C5%BF":
		return 's', 6
	case "%E2%84":
		if strings.HasPrefix(s[6:], "%AA") {
			return 'k', 9
		}
	}
	return 0, 0
}

// cutEnd cuts off the end of a path what servers take no notice of there: a slash, and to Caddy
// dots and blanks.
func cutEnd(path string) string {
	for hasLooseEnd(path) {
		if path[len(path)-1] == '0' {
			path = path[:len(path)-len("%20")]
		} else {
			path = path[:len(path)-1]
		}
	}
	return path
}

// hasLooseEnd reports whether cutEnd cuts anything off.
func hasLooseEnd(path string) bool {
	if len(path) < 2 {
		return false
	}
	switch path[len(path)-1] {
	case '/', '.':
		return true
	case '0':
		return strings.HasSuffix(path, "%20")
	}
	return false
}
