package weir

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// DecisionID names one decision, for people: a refused client quotes it, and an operator looks it
// up. 0 is no name.
//
// IDs are random: two are very unlikely to be the same, and they do not show how many decisions
// there were or which was made before another.
type DecisionID uint64

// idAlphabet is Crockford's base 32: lower case, without i, l, o and u.
const idAlphabet = "0123456789abcdefghjkmnpqrstvwxyz"

// idLength is how many characters of 5 bits hold a DecisionID.
const idLength = 13

// AppendTo appends the 13 characters of id to dst; nothing if id is 0.
func (id DecisionID) AppendTo(dst []byte) []byte {
	if id == 0 {
		return dst
	}
	for shift := 5 * (idLength - 1); shift >= 0; shift -= 5 {
		dst = append(dst, idAlphabet[id>>shift&31])
	}
	return dst
}

// String returns the 13 characters of id, "" if it is 0.
func (id DecisionID) String() string {
	var b [idLength]byte
	return string(id.AppendTo(b[:0]))
}

// MarshalText implements encoding.TextMarshaler.
func (id DecisionID) MarshalText() ([]byte, error) { return id.AppendTo(nil), nil }

// UnmarshalText implements encoding.TextUnmarshaler. An empty text is 0.
func (id *DecisionID) UnmarshalText(text []byte) (err error) {
	*id = 0
	if len(text) > 0 {
		*id, err = ParseDecisionID(string(text))
	}
	return err
}

// ParseDecisionID is the inverse of DecisionID.String. As people may have read it out, case does
// not matter, i and l are taken as 1, o as 0, and hyphens are passed over. The error says why s is
// no ID.
func ParseDecisionID(s string) (DecisionID, error) {
	id, n, first := DecisionID(0), 0, 0
	for i := range len(s) {
		c := s[i]
		if c == '-' {
			continue
		}
		digit := idDigit(c)
		if digit < 0 {
			return 0, errID(s, fmt.Sprintf("no id has a %q", []rune(s[i:])[0]))
		}
		if n == 0 {
			first = digit
		}
		id, n = id<<5|DecisionID(digit), n+1
	}
	switch {
	case n != idLength:
		return 0, errID(s, fmt.Sprintf("that has %d letters and digits, and this has %d", idLength, n))
	case first > 15 || id == 0:
		return 0, fmt.Errorf("no decision has the id %q: ids begin with 0 to 9 or a to f, and are not 0", s)
	}
	return id, nil
}

// errID is the error for a text that is no id.
func errID(s, why string) error {
	if len(s) > 64 {
		s = strings.ToValidUTF8(s[:64], "") + "…"
	}
	return fmt.Errorf("%q is no id of a decision: %s; a refusal has it as X-RateLimit-Decision", s, why)
}

func idDigit(c byte) int {
	if 'A' <= c && c <= 'Z' {
		c += 'a' - 'A'
	}
	switch c {
	case 'i', 'l':
		return 1
	case 'o':
		return 0
	}
	for i := range len(idAlphabet) {
		if idAlphabet[i] == c {
			return i
		}
	}
	return -1
}

// newDecisionID returns a random ID. It is no secret: crypto/rand would cost several times as much
// and gain nothing.
func newDecisionID() DecisionID {
	for {
		if id := DecisionID(rand.Uint64()); id != 0 {
			return id
		}
	}
}

// Identity returns d.ID, and gives d one if it has none yet. Not safe for concurrent use.
func (d *Decision) Identity() DecisionID {
	if d.ID == 0 {
		d.ID = newDecisionID()
	}
	return d.ID
}
