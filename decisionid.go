package weir

import (
	"fmt"
	"math/rand/v2"
)

// DecisionID names one decision, for people: a refused client quotes it, and an operator looks it
// up. 0 is no name.
//
// IDs are random: two are very unlikely to be the same, and they tell nothing of how many decisions
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
// not matter, i and l are taken as 1, o as 0, and hyphens are passed over.
func ParseDecisionID(s string) (DecisionID, error) {
	id, n := DecisionID(0), 0
	for i := range len(s) {
		c := s[i]
		if c == '-' {
			continue
		}
		digit := idDigit(c)
		if digit < 0 || n == idLength || n == 0 && digit > 15 {
			return 0, errID(s)
		}
		id, n = id<<5|DecisionID(digit), n+1
	}
	if n != idLength || id == 0 {
		return 0, errID(s)
	}
	return id, nil
}

func errID(s string) error {
	if len(s) > 64 {
		s = s[:64] + "…"
	}
	return fmt.Errorf("%q is no id of a decision: that has %d letters and digits, as in a refusal's X-RateLimit-Decision", s, idLength)
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
