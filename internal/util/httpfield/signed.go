package httpfield

import "strings"

// A signed token is a text that a server has given out and knows again by the signature at its end,
// in parts with a dot in between: a JSON Web Token, or a session of Flask, Starlette or Phoenix.
// Its signed part is compared as it is written, but most servers decode the signature, and take no
// notice of bits that hold nothing, of padding, or of bytes that are not base64. So one token has
// any number of spellings. It has one key: the signed part, and the start of the signature, which
// is enough that nobody uses up another's limit with a token of their own making.

const (
	// leastSignature is how many digits of base64 a signature has at least.
	leastSignature = 20
	// keptSignature is how many of them are part of a key: 96 bits, or 64 of a signature in
	// hexadecimal. That leaves out the second half of an ECDSA signature: anybody who has one can
	// make another that differs there alone.
	keptSignature = 16
)

// signedForm is how a signed token is written.
type signedForm uint8

const (
	unsigned      signedForm = iota // it is none
	compactForm                     // the signature is base64url; the signed part may be padded (AWS)
	encryptedForm                   // base64url without padding throughout
	looseForm                       // two parts, of either alphabet
)

// CutSigned returns the form under which a value counts: a signed token without the rest of its
// signature, and any other value as it is. ok is false for a signed token that is not written as an
// encoder writes it: servers read such tokens in different ways.
//
// A signed token shows in its signed part, which nobody can spell in another way. The first of it
// is base64 of JSON, or behind a dot of zlib data, or it names the algorithm as Phoenix
// does; one or two parts follow, or the four of an encrypted JSON Web Token. An opaque key, such as
// sk.live.SECRET, is none.
func CutSigned(value string) (key string, ok bool) {
	last := strings.LastIndexByte(value, '.')
	if last < 0 {
		return value, true // nearly all
	}
	token := withoutBearer(value)
	if len(value)-last <= leastSignature {
		return value, !endsInDot(token)
	}
	form, at := signedFormOf(token)
	if form == unsigned {
		return value, true
	}
	signature := strings.TrimRight(token[at:], "=")
	if len(signature) < leastSignature {
		return value, true
	}
	if !form.wellFormed(token[:at-1], signature) {
		return value, false
	}
	if form == looseForm {
		if kept := oneSpelling(signature)[:keptSignature]; kept != signature[:keptSignature] {
			return token[:at] + kept, true
		}
	}
	return token[:at+keptSignature], true
}

// WellFormed reports whether the value of a field of the header, by its name in lower case, is none
// for which CutSigned has ok false.
func WellFormed(field, value string) bool {
	value = trimBlanks(value)
	if field == "authorization" || field == "proxy-authorization" {
		if c, ok := CutCredentials(value); ok && c.Rest != "" {
			value = c.Rest
		}
	}
	_, ok := CutSigned(value)
	return ok
}

// withoutBearer cuts off the word that some programs want before a token in a field of their own,
// or in a cookie.
func withoutBearer(value string) string {
	const word = "bearer"
	if !hasPrefixFold(value, word) {
		return value
	}
	rest := strings.TrimLeft(value[len(word):], " \t+")
	if len(rest) == len(value)-len(word) {
		return value // the word goes on
	}
	return rest
}

// endsInDot reports whether a value is a JSON Web Token with dots behind it, which Ruby's jwt
// passes over. With nothing behind the second dot it is one that is not signed.
func endsInDot(value string) bool {
	bare := strings.TrimRight(value, "=")
	if bare == "" || bare[len(bare)-1] != '.' {
		return false
	}
	bare = strings.TrimRight(bare, "=.")
	form, _ := signedFormOf(bare)
	return form != unsigned && strings.Count(bare, ".") > 1
}

// signedFormOf returns the form of a signed token, and where its signature begins. It has one of
// any length.
func signedFormOf(value string) (form signedForm, at int) {
	at = strings.LastIndexByte(value, '.') + 1
	if at <= 1 {
		return unsigned, 0
	}
	first, rest, _ := strings.Cut(value[:at-1], ".")
	dots := strings.Count(rest, ".")
	switch {
	case first == "":
		if packed, _, _ := strings.Cut(rest, "."); dots <= 1 && isZlib(packed) {
			return compactForm, at
		}
	case len(first) == at-1:
		if isJSON(first) && !isJSON(value[at:]) { // else it has its signature in another cookie
			return looseForm, at
		}
	case dots == 0:
		if isJSON(first) || first == "SFMyNTY" || first == "SFMzODQ" || first == "SFM1MTI" { // HS256, …
			return compactForm, at
		}
	case dots == 2:
		if isJSON(first) || len(first) == 10 && first[:9] == "QTEyOEdDT" { // A128GCM of Phoenix
			return encryptedForm, at
		}
	}
	return unsigned, 0
}

// wellFormed reports whether a token of the form is written as an encoder writes it, except for
// unused bits at the end of the signature, and padding of it.
func (form signedForm) wellFormed(signed, signature string) bool {
	if !consistsOf(signature, &isBase64URLByte) && (form != looseForm || !consistsOf(signature, &isBase64Byte)) {
		return false
	}
	for part := ""; signed != ""; {
		part, signed, _ = strings.Cut(signed, ".")
		if !isEncoded(part, form != encryptedForm) {
			return false
		}
	}
	return true
}

// isEncoded reports whether s is base64url as an encoder writes it, without padding. With padded it
// may have padding, and be of the other alphabet.
func isEncoded(s string, padded bool) bool {
	bare := s
	if padded {
		bare = strings.TrimRight(s, "=")
	}
	if n := len(s) - len(bare); n > 0 && n != -len(bare)&3 || len(bare)%4 == 1 {
		return false
	}
	alphabet := base64URL
	if !consistsOf(bare, &isBase64URLByte) {
		if alphabet = base64Std; !padded || !consistsOf(bare, &isBase64Byte) {
			return false
		}
	}
	if bare == "" {
		return true
	}
	last := strings.IndexByte(alphabet, bare[len(bare)-1])
	return len(bare)%4 == 0 || len(bare)%4 == 2 && last&15 == 0 || len(bare)%4 == 3 && last&3 == 0
}

// oneSpelling writes a signature in base64url, or in lower case if it is of hexadecimal digits.
func oneSpelling(signature string) string {
	if strings.Trim(signature, "0123456789abcdefABCDEF") == "" {
		return strings.ToLower(signature)
	}
	return toBase64URL.Replace(signature)
}

var toBase64URL = strings.NewReplacer("+", "-", "/", "_")

// isJSON reports whether the text behind base64 begins and ends as an object, a list or a text of
// JSON does. It ignores characters that are no base64, as servers do.
func isJSON(s string) bool {
	first, second, last := ends(s)
	switch first {
	case '{':
		return last == '}' && (second == '"' || second == '}')
	case '[':
		return last == ']'
	case '"':
		return last == '"'
	}
	return false
}

// ends returns the first two bytes behind base64 and the last one, of those that are no blanks; -1
// for one that is not there.
func ends(s string) (first, second, last int) {
	if n := len(s); n >= 4 && n%4 != 1 && consistsOf(s, &isBase64URLByte) { // nearly all: only the ends are looked at
		begin := decoder{rest: s[:4]}
		end := decoder{rest: s[(n-1)&^3:]}
		first, second = begin.next(), begin.next()
		for c := end.next(); c >= 0; c = end.next() {
			last = c
		}
		if !isJSONBlank(first) && !isJSONBlank(second) && !isJSONBlank(last) {
			return first, second, last
		}
	}
	first, second, last = -1, -1, -1
	d := decoder{rest: s}
	for c := d.next(); c >= 0; c = d.next() {
		switch {
		case isJSONBlank(c):
			continue
		case first < 0:
			if first = c; c != '{' && c != '[' && c != '"' {
				return first, -1, -1 // no JSON that is signed
			}
		case second < 0:
			second = c
		}
		last = c
	}
	return first, second, last
}

func isJSONBlank(c int) bool { return c == ' ' || c == '\n' || c == '\r' || c == '\t' }

// isZlib reports whether base64 is of data that zlib has packed.
func isZlib(s string) bool {
	d := decoder{rest: s}
	first, second := d.next(), d.next()
	return first == 0x78 && second >= 0 && (first<<8|second)%31 == 0
}

// decoder decodes base64 of either alphabet byte by byte, and ignores other characters.
type decoder struct {
	rest string
	bits uint
	have int
}

// next returns the next byte; -1 at the end.
func (d *decoder) next() int {
	for d.rest != "" {
		digit := digits[d.rest[0]]
		if d.rest = d.rest[1:]; digit < 0 {
			continue
		}
		d.bits = d.bits<<6 | uint(digit)
		if d.have += 6; d.have >= 8 {
			d.have -= 8
			return int(d.bits >> d.have & 0xff)
		}
	}
	return -1
}

// digits are the values of the digits of base64; -1 for any other byte.
var digits = func() (table [256]int8) {
	for i := range table {
		table[i] = -1
	}
	for i := range len(base64Std) {
		table[base64Std[i]], table[base64URL[i]] = int8(i), int8(i)
	}
	return table
}()
