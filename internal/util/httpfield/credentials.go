// Package httpfield knows the fields of HTTP requests: which have one value, which hold secrets,
// and which spellings of credentials and of signed tokens are one.
//
// Begin with CutSigned (signed.go) and CutCredentials (credentials.go); names.go goes by names.
package httpfield

import (
	"encoding/base64"
	"strings"
	"unsafe"
)

// Credentials are the value of a field such as Authorization (RFC 9110 11.4), cut as servers read
// it.
type Credentials struct {
	Scheme string // as it was written
	// Rest is what comes behind the scheme, without the blanks around it: a text of base64, or
	// parameters; "" if there is nothing.
	Rest string
}

// CutCredentials cuts the value of a field of credentials. Blanks and tabs around the scheme do not
// count, however many there are. ok is false if the value does not begin with a scheme that ends
// where a blank or the value does.
func CutCredentials(value string) (c Credentials, ok bool) {
	value = trimBlanks(value)
	i := 0
	for i < len(value) && isTokenByte[value[i]] {
		i++
	}
	if i == 0 || i < len(value) && !isBlank(value[i]) {
		return Credentials{}, false
	}
	return Credentials{value[:i], trimBlanks(value[i:])}, true
}

func isBlank(c byte) bool { return c == ' ' || c == '\t' }

// trimBlanks is strings.Trim(s, " \t"), quick for a text without any.
func trimBlanks(s string) string {
	if s == "" || !isBlank(s[0]) && !isBlank(s[len(s)-1]) {
		return s
	}
	return strings.Trim(s, " \t")
}

// The alphabets of credentials.
const (
	letters     = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	base64Std   = letters + "+/"
	base64URL   = letters + "-_"
	bearerBytes = letters + "-._~+/"
	opaqueBytes = bearerBytes + "!#$%&'()*:<=>?@[]^`{|}" // visible, without quotes and a backslash, and without the bytes that end a token for Rails: , and ;
	tokenBytes  = letters + "!#$%&'*+-.^_`|~"
)

func tableOf(bytes string) (table [256]bool) {
	for i := range len(bytes) {
		table[bytes[i]] = true
	}
	return table
}

var (
	isBase64Byte    = tableOf(base64Std)
	isBase64URLByte = tableOf(base64URL)
	isBearerByte    = tableOf(bearerBytes)
	isOpaqueByte    = tableOf(opaqueBytes)
	isTokenByte     = tableOf(tokenBytes)
)

func consistsOf(s string, table *[256]bool) bool {
	for i := range len(s) {
		if !table[s[i]] {
			return false
		}
	}
	return true
}

// Basic returns the base64 of Basic credentials without its padding. ok is false if it is none:
// some servers take no notice of characters that are not of the alphabet.
func (c Credentials) Basic() (encoded string, ok bool) {
	encoded = strings.TrimRight(c.Rest, "=")
	return encoded, encoded != "" && len(encoded)%4 != 1 && consistsOf(encoded, &isBase64Byte)
}

// User appends the user name of Basic credentials. ok is false if they are not base64, have no
// colon, or the name holds a control character, at which some servers end it (RFC 7617 allows
// none).
func (c Credentials) User(dst []byte) (_ []byte, ok bool) {
	encoded, ok := c.Basic()
	if !ok {
		return dst, false
	}
	begin := len(dst)
	dst, err := base64.RawStdEncoding.AppendDecode(dst, unsafe.Slice(unsafe.StringData(encoded), len(encoded)))
	if err != nil {
		return dst, false
	}
	for i, b := range dst[begin:] {
		switch {
		case b == ':':
			return dst[:begin+i], true
		case b < ' ' || b == 0x7f:
			return dst, false
		}
	}
	return dst, false
}

// Misspelled returns the scheme of a value that servers may take for credentials of it, and that
// cannot be read: "Basic", if basic, "Bearer", if bearer; "" for one that can be read, for one
// without credentials, and for other schemes.
func Misspelled(value string, basic, bearer bool) (scheme string) {
	// Some servers take off more than blanks, and some take any byte for the one behind the scheme.
	i := 0
	for i < len(value) && (value[i]|0x20 < 'a' || value[i]|0x20 > 'z') {
		i++
	}
	switch name := value[i:]; {
	case basic && hasPrefixFold(name, "Basic"):
		scheme = "Basic"
	case bearer && hasPrefixFold(name, "Bearer"):
		scheme = "Bearer"
	default:
		return ""
	}
	c, ok := CutCredentials(value)
	if !ok || len(c.Scheme) != len(scheme) {
		return scheme
	}
	switch {
	case c.Rest == "":
		return ""
	case scheme == "Basic":
		var room [192]byte // most fit in
		_, ok = c.User(room[:0])
	default:
		_, ok = c.Bearer()
	}
	if ok {
		return ""
	}
	return scheme
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

// Bearer returns a bearer token. It leaves out padding of a signed token, which has none, and which
// servers ignore. ok is false for a value that is no token, and for a signed token that is not
// written as an encoder writes it: some servers ignore that, too, so that one token would have any
// number of spellings. Other tokens stay as they are: many have characters that RFC 6750 does not
// allow, such as the bar of Laravel's. Rails takes token=abc for abc.
func (c Credentials) Bearer() (token string, ok bool) {
	bare := strings.TrimRight(c.Rest, "=")
	if bare == "" || !consistsOf(bare, &isBearerByte) &&
		(strings.Count(bare, ".") > 1 || !consistsOf(c.Rest, &isOpaqueByte)) {
		return "", false
	}
	if hasPrefixFold(bare, "token=") || endsInDot(bare) {
		return "", false
	}
	if form, at := signedFormOf(bare); form != unsigned {
		return bare, form.wellFormed(bare[:at-1], bare[at:])
	}
	return c.Rest, true
}

// NormalCredentials returns the value of a field of credentials in its normal form: the scheme, one
// blank, and the rest. The names in schemes are spelled as they are there, all others are in lower
// case. Base64 of Basic is as an encoder writes it, and a signed token as CutSigned has it. A value
// without a scheme, or with nothing behind it, stays as it is, without blanks around it.
func NormalCredentials(scratch *[]byte, raw string) string {
	raw = trimBlanks(raw)
	c, ok := CutCredentials(raw)
	if !ok || c.Rest == "" {
		raw, _ = CutSigned(raw)
		return raw
	}
	begin := len(*scratch)
	b := appendScheme(*scratch, c.Scheme)
	scheme := unsafe.String(unsafe.SliceData(b[begin:]), len(b)-begin)
	b = append(b, ' ')
	rest := c.Rest
	switch scheme {
	case "Basic":
		if encoded, ok := c.Basic(); ok {
			b, rest = appendBare(b, encoded), ""
			for n := len(encoded); n%4 != 0; n++ {
				b = append(b, '=')
			}
		}
	case "Bearer":
		if token, ok := c.Bearer(); ok {
			rest, _ = CutSigned(token)
		}
	default:
		rest, _ = CutSigned(rest)
	}
	b = append(b, rest...)
	*scratch = b
	return unsafe.String(unsafe.SliceData(b[begin:]), len(b)-begin)
}

// appendBare appends base64 without its padding. The bits of the last digit that hold nothing are
// 0, as an encoder has them: few decoders look at them.
func appendBare(dst []byte, encoded string) []byte {
	if encoded == "" {
		return dst
	}
	dst = append(dst, encoded...)
	last := &dst[len(dst)-1]
	switch digit := strings.IndexByte(base64Std, *last); len(encoded) % 4 {
	case 2:
		*last = base64Std[digit&^15]
	case 3:
		*last = base64Std[digit&^3]
	}
	return dst
}

// schemes are those whose names are spelled as people know them.
var schemes = [...]string{"Basic", "Bearer", "Digest", "DPoP", "Negotiate"}

// appendScheme appends the name of a scheme, whose case does not matter.
func appendScheme(dst []byte, name string) []byte {
	for _, known := range schemes {
		if strings.EqualFold(known, name) {
			return append(dst, known...)
		}
	}
	begin := len(dst)
	dst = append(dst, name...)
	for i, c := range dst[begin:] {
		if 'A' <= c && c <= 'Z' {
			dst[begin+i] = c - 'A' + 'a'
		}
	}
	return dst
}

// FoldScheme returns a pattern with wildcards for the value of a field of credentials with the
// scheme as NormalCredentials has it, if a blank follows one without wildcards.
func FoldScheme(pattern string) string {
	i := strings.IndexByte(pattern, ' ')
	if i <= 0 || !consistsOf(pattern[:i], &isTokenByte) || strings.IndexByte(pattern[:i], '*') >= 0 {
		return pattern
	}
	return string(appendScheme(nil, pattern[:i])) + pattern[i:]
}
