package find

import (
	"bytes"
	"net/netip"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe"
	"github.com/weir-rl/weir/internal/util/clientip"
)

// match says how well a text matches; 0 is not at all.
type match uint8

const (
	inside match = 1 + iota // a value has it inside
	begins                  // a value begins with it
	whole                   // it is a whole value, or the whole key
)

// Matcher tells what the text of a question matches.
type Matcher struct {
	text   folded     // all of it
	name   folded     // before "="; empty if there is none
	value  folded     // behind that
	full   bool       // only whole values match
	addr   netip.Addr // if the value is an address
	hidden []byte     // what is shown in place of the value if it is a secret
	id     idPrefix
}

func newMatcher(q *Query, seed uint64) Matcher {
	text := bytes.TrimSpace(q.Text)
	m := Matcher{text: fold(text), full: q.Whole}
	value := text
	if name, rest, ok := bytes.Cut(text, []byte("=")); ok && len(name) > 0 {
		m.name, value = fold(name), rest
	}
	m.value = fold(value)
	if a, err := netip.ParseAddr(string(value)); err == nil {
		m.addr = clientip.Addr(a)
	}
	if len(value) > 0 {
		m.hidden = observe.Hide(bytes.Clone(value), 0, seed, observe.ShownDigits)
	}
	if !q.Whole {
		m.id = newIDPrefix(text)
	}
	return m
}

// matchKey tells how well the text matches a key as people read it.
func (m *Matcher) matchKey(key []byte) (best match) {
	if m.name != nil && m.text.equal(key) {
		return whole
	}
	if !m.full && m.name != nil && m.text.begins(key) {
		best = begins
	}
	for rest := key; len(rest) > 0; {
		var part []byte
		part, rest = nextPart(rest)
		name, value, ok := bytes.Cut(part, []byte("="))
		if ok {
			best = max(best, m.part(name, value))
		}
	}
	return best
}

// matchAttribute is Match for an attribute. What was asked for is found only by its name: it is no
// client, and most requests share it.
func (m *Matcher) matchAttribute(attribute []byte) match {
	name, value, _ := bytes.Cut(attribute, []byte("="))
	switch string(name) {
	case "method", "path", "host":
		if m.name == nil || !m.name.equal(name) {
			return 0
		}
	}
	return m.part(name, value)
}

// part tells how well the text matches one part of a key.
func (m *Matcher) part(name, value []byte) (best match) {
	if m.name == nil || m.name.equal(name) {
		best = m.matchValue(m.value, value)
		if bytes.Equal(m.hidden, value) || m.addr.IsValid() && m.address(value) {
			return whole
		}
	}
	if m.name != nil && best == 0 { // "=" may be part of the value
		best = m.matchValue(m.text, value)
	}
	return best
}

func (m *Matcher) matchValue(text folded, value []byte) match {
	switch {
	case text.equal(value):
		return whole
	case m.full:
		return 0
	case text.begins(value):
		return begins
	case text.within(value):
		return inside
	}
	return 0
}

// address reports whether a value is the address that is looked for, or a network with it.
func (m *Matcher) address(value []byte) bool {
	if bytes.IndexByte(value, '/') >= 0 {
		p, err := netip.ParsePrefix(string(value))
		return err == nil && p.Contains(m.addr)
	}
	a, err := netip.ParseAddr(string(value))
	return err == nil && clientip.Addr(a) == m.addr
}

// Names reports whether a text names the whole value of a part of a key, such as user=ada.
func Names(text, part string) bool {
	m := newMatcher(&Query{Text: []byte(text), Whole: true}, 0)
	name, value, ok := bytes.Cut([]byte(part), []byte("="))
	return ok && m.part(name, value) == whole
}

// nextPart cuts the first part off a key as people read it. A value may contain ", ", so a part
// begins with a name and "=".
func nextPart(key []byte) (part, rest []byte) {
	for at := 0; ; {
		n := bytes.Index(key[at:], []byte(", "))
		if n < 0 {
			return key, nil
		}
		at += n + 2
		if name, _, ok := bytes.Cut(key[at:], []byte("=")); ok && isName(name) {
			return key[:at-2], key[at:]
		}
	}
}

func isName(b []byte) bool {
	for _, c := range b {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '.', c == '-', c == '|':
		default:
			return false
		}
	}
	return len(b) > 0
}

// folded is a text without case.
type folded []rune

func fold(b []byte) folded {
	f := folded{}
	for len(b) > 0 {
		r, n := next(b)
		f, b = append(f, r), b[n:]
	}
	return f
}

// next returns the first character without its case. A byte that begins no character is one of its
// own.
func next(b []byte) (r rune, n int) {
	if c := b[0]; c < utf8.RuneSelf {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		return rune(c), 1
	}
	r, n = utf8.DecodeRune(b)
	if r == utf8.RuneError && n == 1 {
		return -rune(b[0]), 1
	}
	return unicode.ToLower(unicode.ToUpper(r)), n
}

// prefix returns how many bytes of b begin with f; ok is false if b does not.
func (f folded) prefix(b []byte) (n int, ok bool) {
	for _, want := range f {
		if n == len(b) {
			return n, false
		}
		r, size := next(b[n:])
		if r != want {
			return n, false
		}
		n += size
	}
	return n, true
}

func (f folded) equal(b []byte) bool {
	n, ok := f.prefix(b)
	return ok && n == len(b)
}

func (f folded) begins(b []byte) bool {
	_, ok := f.prefix(b)
	return ok
}

func (f folded) within(b []byte) bool {
	for len(b) > 0 {
		if f.begins(b) {
			return true
		}
		_, n := next(b)
		b = b[n:]
	}
	return false
}

// idPrefix is the beginning of an id of a decision.
type idPrefix struct {
	bits  uint64
	shift uint // of an id, so that the bits of the beginning remain; 0 is no beginning
}

// Few letters begin many ids.
const (
	idLength = 13
	leastID  = 4
)

func newIDPrefix(text []byte) (p idPrefix) {
	letters := strings.ReplaceAll(string(text), "-", "")
	if len(letters) < leastID || len(letters) >= idLength {
		return p
	}
	first, err := weir.ParseDecisionID(letters + strings.Repeat("0", idLength-len(letters)))
	if err != nil {
		return p
	}
	p.shift = 5 * uint(idLength-len(letters))
	p.bits = uint64(first) >> p.shift
	return p
}

// ID reports whether the text is the beginning of an id of a decision.
func (m *Matcher) ID(id uint64) bool { return m.id.shift > 0 && id>>m.id.shift == m.id.bits }
