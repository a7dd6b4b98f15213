package httpapi

import (
	"fmt"
	"iter"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/rule"
)

// maxHits bounds hits in both directions.
const maxHits = algo.MaxHits

// question is one decoded request of the HTTP decision API.
type question struct {
	domain   string
	attrs    attributes
	hits     int64
	maxDelay time.Duration
}

func (q *question) reset() {
	q.domain = ""
	q.attrs.reset()
	q.hits = 1
	q.maxDelay = weir.AnyDelay
}

// attributes is rule.Attributes behind a pointer, so that a question can be used again without
// allocating.
type attributes struct {
	pairs rule.Pairs
	index map[string]int // of pairs, once they are many
}

const manyAttributes = 32

func (a *attributes) reset() {
	if cap(a.pairs) > 4*manyAttributes {
		a.pairs = nil
	}
	clear(a.pairs)
	a.pairs = a.pairs[:0]
	a.index = nil
}

// add reports false if name is there already.
func (a *attributes) add(name, value string) bool {
	if a.index == nil && len(a.pairs) == manyAttributes {
		a.index = make(map[string]int, 2*manyAttributes)
		for i, p := range a.pairs {
			a.index[p.Name] = i
		}
	}
	if _, ok := a.Attribute(name); ok {
		return false
	}
	if a.index != nil {
		a.index[name] = len(a.pairs)
	}
	a.pairs = append(a.pairs, rule.Pair{Name: name, Value: value})
	return true
}

func (a *attributes) Attribute(name string) (string, bool) {
	if a.index == nil {
		return a.pairs.Attribute(name)
	}
	i, ok := a.index[name]
	if !ok {
		return "", false
	}
	return a.pairs[i].Value, true
}

func (a *attributes) All() iter.Seq2[string, string] { return a.pairs.All() }

// decoder reads the few JSON messages of the decision API, strictly: RFC 8259, valid UTF-8, no
// unknown, doubled or null member. As the messages nest two levels deep and no value is ever
// skipped, hostile nesting costs nothing.
type decoder struct {
	s    string
	i    int
	item string // prefix of field names: "" or "requests[3]."
	// extra reads a member that only some messages have, at its value; known is false if it is none
	// of them. nil for none.
	extra func(name string) (known bool, err error)
}

func (d *decoder) fail(field, format string, args ...any) error {
	return &answer.FieldError{Field: d.item + field, Message: fmt.Sprintf(format, args...)}
}

func (d *decoder) syntax(expected string) error {
	if d.i >= len(d.s) {
		return &answer.FieldError{Field: "body", Message: "is not JSON: it ends where " + expected + " should be"}
	}
	r, _ := utf8.DecodeRuneInString(d.s[d.i:])
	return &answer.FieldError{Field: "body",
		Message: fmt.Sprintf("is not JSON: expected %s at byte %d, got %q", expected, d.i, r)}
}

func (d *decoder) space() {
	for d.i < len(d.s) {
		switch d.s[d.i] {
		case ' ', '\t', '\n', '\r':
			d.i++
		default:
			return
		}
	}
}

// peek returns the next byte that is no white space, 0 at the end.
func (d *decoder) peek() byte {
	d.space()
	if d.i < len(d.s) {
		return d.s[d.i]
	}
	return 0
}

func (d *decoder) expect(c byte) error {
	if d.peek() != c {
		return d.syntax("'" + string(c) + "'")
	}
	d.i++
	return nil
}

// end fails unless nothing but white space is left.
func (d *decoder) end() error {
	if d.space(); d.i < len(d.s) {
		return d.syntax("the end")
	}
	return nil
}

// object calls member for each name of the object that begins here, at its value.
func (d *decoder) object(member func(name string) error) error {
	if err := d.expect('{'); err != nil {
		return err
	}
	if d.peek() == '}' {
		d.i++
		return nil
	}
	for {
		if d.peek() != '"' {
			return d.syntax("a name in quotes")
		}
		name, err := d.string()
		if err != nil {
			return err
		}
		if err := d.expect(':'); err != nil {
			return err
		}
		if err := member(name); err != nil {
			return err
		}
		switch d.peek() {
		case ',':
			d.i++
		case '}':
			d.i++
			return nil
		default:
			return d.syntax("',' or '}'")
		}
	}
}

// string reads the string that begins here (the caller has seen the quote).
func (d *decoder) string() (string, error) {
	d.i++
	start := d.i
	ascii := true
	for d.i < len(d.s) {
		switch c := d.s[d.i]; {
		case c == '"':
			s := d.s[start:d.i]
			if !ascii && !utf8.ValidString(s) {
				return "", &answer.FieldError{Field: "body",
					Message: fmt.Sprintf("is not JSON: the string at byte %d is not UTF-8", start-1)}
			}
			d.i++
			return s, nil
		case c == '\\':
			return d.escapedString(start)
		case c < ' ':
			return "", d.syntax("no control character in a string")
		case c >= utf8.RuneSelf:
			ascii = false
		}
		d.i++
	}
	return "", d.syntax("the end of a string")
}

// escapedString goes on where string met the first backslash.
func (d *decoder) escapedString(start int) (string, error) {
	b := append(make([]byte, 0, 2*(d.i-start)+16), d.s[start:d.i]...)
	for d.i < len(d.s) {
		c := d.s[d.i]
		switch {
		case c == '"':
			d.i++
			if !utf8.Valid(b) {
				return "", &answer.FieldError{Field: "body",
					Message: fmt.Sprintf("is not JSON: the string at byte %d is not UTF-8", start-1)}
			}
			return string(b), nil
		case c < ' ':
			return "", d.syntax("no control character in a string")
		case c != '\\':
			b = append(b, c)
			d.i++
			continue
		}
		d.i++
		if d.i == len(d.s) {
			break
		}
		switch e := d.s[d.i]; e {
		case '"', '\\', '/':
			b = append(b, e)
		case 'b':
			b = append(b, '\b')
		case 'f':
			b = append(b, '\f')
		case 'n':
			b = append(b, '\n')
		case 'r':
			b = append(b, '\r')
		case 't':
			b = append(b, '\t')
		case 'u':
			r, ok := d.hex4(d.i + 1)
			if !ok {
				return "", d.syntax("four hexadecimal digits after \\u")
			}
			d.i += 4
			if utf16.IsSurrogate(r) {
				low, ok := rune(0), false
				if strings.HasPrefix(d.s[d.i+1:], `\u`) {
					low, ok = d.hex4(d.i + 3)
				}
				if r = utf16.DecodeRune(r, low); !ok || r == utf8.RuneError {
					return "", d.syntax("a whole surrogate pair")
				}
				d.i += 6
			}
			b = utf8.AppendRune(b, r)
		default:
			return "", d.syntax("an escape of JSON")
		}
		d.i++
	}
	return "", d.syntax("the end of a string")
}

func (d *decoder) hex4(at int) (rune, bool) {
	if at+4 > len(d.s) {
		return 0, false
	}
	var r rune
	for _, c := range []byte(d.s[at : at+4]) {
		switch {
		case '0' <= c && c <= '9':
			r = r<<4 | rune(c-'0')
		case 'a' <= c && c <= 'f':
			r = r<<4 | rune(c-'a'+10)
		case 'A' <= c && c <= 'F':
			r = r<<4 | rune(c-'A'+10)
		default:
			return 0, false
		}
	}
	return r, true
}

// token returns the bytes up to the next one that cannot be part of a number: what stands where a
// number should be.
func (d *decoder) token() string {
	d.space()
	start := d.i
	for d.i < len(d.s) && strings.IndexByte(" \t\r\n,:{}[]\"", d.s[d.i]) < 0 {
		d.i++
	}
	return d.s[start:d.i]
}

// numberKind reports whether s is a number of JSON, and whether it is written as an integer.
func numberKind(s string) (number, integer bool) {
	i := 0
	digits := func() bool {
		from := i
		for i < len(s) && '0' <= s[i] && s[i] <= '9' {
			i++
		}
		return i > from
	}
	if i < len(s) && s[i] == '-' {
		i++
	}
	if i < len(s) && s[i] == '0' {
		i++
	} else if !digits() {
		return false, false
	}
	if i == len(s) {
		return true, true
	}
	if s[i] == '.' {
		if i++; !digits() {
			return false, false
		}
	}
	if i < len(s) && (s[i] == 'e' || s[i] == 'E') {
		if i++; i < len(s) && (s[i] == '+' || s[i] == '-') {
			i++
		}
		if !digits() {
			return false, false
		}
	}
	return i == len(s), false
}

func parseHits(s string) (int64, bool) {
	number, integer := numberKind(s)
	if number && !integer {
		s, integer = wholeDigits(s)
	}
	if !integer {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil && -maxHits <= n && n <= maxHits
}

// wholeDigits returns the digits of a number of JSON that has a fraction or an exponent, and is an
// integer all the same: 1.0 is 1 (JSON Schema Validation, 6.1.1). Programs in languages that have
// one kind of number write such.
func wholeDigits(s string) (string, bool) {
	const most = 20 // digits; a longer number is out of range
	sign, exponent := "", "0"
	if s[0] == '-' {
		sign, s = "-", s[1:]
	}
	if at := strings.IndexAny(s, "eE"); at >= 0 {
		s, exponent = s[:at], s[at+1:]
	}
	whole, fraction, _ := strings.Cut(s, ".")
	digits := strings.TrimRight(whole+fraction, "0")
	shift, err := strconv.Atoi(exponent)
	zeros := len(whole) + shift - len(digits)
	switch digits = strings.TrimLeft(digits, "0"); {
	case digits == "":
		return "0", true
	case err != nil || shift > most || zeros < 0 || len(digits)+zeros > most:
		return "", false
	}
	return sign + digits + strings.Repeat("0", zeros), true
}

const hitsRule = "must be an integer from -2147483647 to 2147483647"

func parseMaxDelay(s string) (time.Duration, bool) {
	if number, _ := numberKind(s); !number {
		return 0, false
	}
	seconds, err := strconv.ParseFloat(s, 64)
	if err != nil || seconds < 0 {
		return 0, false
	}
	// Rounded to the microsecond, as every time of an answer is.
	if us := math.Round(seconds * 1e6); us < float64(math.MaxInt64/1000) {
		return time.Duration(us) * time.Microsecond, true
	}
	return math.MaxInt64, true
}

const maxDelayRule = "must be a number of seconds, 0 or more"

// question reads one request object into q.
func (d *decoder) question(q *question) error {
	q.reset()
	if d.peek() != '{' {
		if d.item != "" {
			return &answer.FieldError{Field: strings.TrimSuffix(d.item, "."), Message: "must be an object"}
		}
		if d.i == len(d.s) {
			return d.fail("body", "is empty; expected a JSON object such as {\"attributes\": {\"user\": \"ada\"}}")
		}
		return d.fail("body", "must be a JSON object")
	}
	const domain, attrs, hits, maxDelay = 1, 2, 4, 8
	seen := 0
	once := func(bit int, name string) error {
		if seen&bit != 0 {
			return d.fail(name, "is given twice")
		}
		seen |= bit
		return nil
	}
	return d.object(func(name string) error {
		switch name {
		case "domain":
			if err := once(domain, name); err != nil {
				return err
			}
			if d.peek() != '"' {
				return d.fail(name, "must be a string")
			}
			var err error
			q.domain, err = d.string()
			return err
		case "attributes":
			if err := once(attrs, name); err != nil {
				return err
			}
			return d.attributes(&q.attrs)
		case "hits":
			if err := once(hits, name); err != nil {
				return err
			}
			var ok bool
			if q.hits, ok = parseHits(d.token()); !ok {
				return d.fail(name, hitsRule)
			}
			return nil
		case "max_delay":
			if err := once(maxDelay, name); err != nil {
				return err
			}
			var ok bool
			if q.maxDelay, ok = parseMaxDelay(d.token()); !ok {
				return d.fail(name, maxDelayRule)
			}
			return nil
		}
		if d.extra != nil {
			if known, err := d.extra(name); known || err != nil {
				return err
			}
		}
		return d.fail(answer.Printable(name), "is not known here (known are domain, attributes, hits and max_delay)")
	})
}

func (d *decoder) attributes(a *attributes) error {
	if d.peek() != '{' {
		return d.fail("attributes", "must be an object of strings")
	}
	return d.object(func(name string) error {
		if name == "" {
			return d.fail("attributes", "an attribute has an empty name")
		}
		if d.peek() != '"' {
			return d.fail("attributes."+answer.Printable(name), "must be a string")
		}
		value, err := d.string()
		if err != nil {
			return err
		}
		if !a.add(name, value) {
			return d.fail("attributes."+answer.Printable(name), "is given twice")
		}
		return nil
	})
}

// batch reads {"requests": [...]} and calls each for every item, at its object.
func (d *decoder) batch(most int, each func() error) error {
	if d.peek() != '{' {
		return d.fail("body", "must be a JSON object with the member \"requests\"")
	}
	found := false
	err := d.object(func(name string) error {
		if name != "requests" {
			return d.fail(answer.Printable(name), "is not known here (known is requests)")
		}
		if found {
			return d.fail("requests", "is given twice")
		}
		found = true
		if d.peek() != '[' {
			return d.fail("requests", "must be an array")
		}
		d.i++
		if d.peek() == ']' {
			d.i++
			return nil
		}
		defer func() { d.item = "" }()
		for n := 0; ; n++ {
			if n == most {
				return &answer.FieldError{Field: "requests", Message: fmt.Sprintf("holds more than %d items", most),
					TooMany: true}
			}
			d.item = "requests[" + strconv.Itoa(n) + "]."
			if err := each(); err != nil {
				return err
			}
			switch d.peek() {
			case ',':
				d.i++
			case ']':
				d.i++
				return nil
			default:
				return d.syntax("',' or ']'")
			}
		}
	})
	if err == nil && !found {
		return d.fail("requests", "is missing")
	}
	if err == nil {
		err = d.end()
	}
	return err
}

// slot reads {"slot": "…"}.
func (d *decoder) slot() (slot string, err error) {
	if d.peek() != '{' {
		return "", d.fail("body", "must be a JSON object with the member \"slot\"")
	}
	found := false
	err = d.object(func(name string) error {
		if name != "slot" {
			return d.fail(answer.Printable(name), "is not known here (known is slot)")
		}
		if found {
			return d.fail("slot", "is given twice")
		}
		found = true
		if d.peek() != '"' {
			return d.fail("slot", "must be a string")
		}
		slot, err = d.string()
		return err
	})
	if err == nil && !found {
		return "", d.fail("slot", "is missing")
	}
	if err == nil {
		err = d.end()
	}
	return slot, err
}
