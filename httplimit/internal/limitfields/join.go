package limitfields

import (
	"cmp"
	"math/bits"
	"net/http"
	"slices"
	"strings"

	"github.com/dunglas/httpsfv"
)

// A request may meet limits one behind the other: middleware within middleware, or a server that
// limits too behind a proxy. Its answer then reports all of them, as far as the fields can.

// ofOne are the fields that have room for one limit, the limit and what remains first.
var ofOne = [...][]string{
	{Limit, Remaining, Reset, XRetry},
	{Limit03, Remaining03, Reset03},
}

// Gather joins the fields that Write wrote to h with those that a handler has added since, as a
// reverse proxy adds those from the server behind it. Write leaves one value in each field, and no
// reset if noReset says so. Fields that a handler has put in the place of ours stay as they are.
func Gather(h http.Header, noReset bool) {
	added := make(http.Header, 12)
	move := func(key string, from int) {
		if lines := h[key]; len(lines) > from {
			added[key] = slices.Clone(lines[from:])
			if h[key] = lines[:from:from]; from == 0 {
				delete(h, key)
			}
		}
	}
	for _, keys := range ofOne {
		if len(h[keys[0]]) < 2 && len(h[keys[1]]) < 2 {
			continue
		}
		for i, key := range keys {
			from := 1
			if i >= 2 && len(h[key]) == 1 && noReset {
				from = 0 // we have said none
			}
			move(key, from)
		}
	}
	for _, key := range [...]string{RateLimit, Policy, Warning, Soft, Decision} {
		move(key, 1)
	}
	Join(h, added, UnlessFurther)
}

// Precedence says when fields for one limit replace those that are there.
type Precedence uint8

const (
	IfNearer      Precedence = iota // where a smaller share is left
	UnlessFurther                   // also where the same share is left
	Always
)

// Join adds to h the fields of other, which describe another limit.
func Join(h, other http.Header, say Precedence) {
	joinStructured(h, other, say)
	for _, keys := range ofOne {
		joinOne(h, other, keys, say)
	}
	joinList(h, other, Warning)
	for _, key := range [...]string{Soft, Decision, RetryAfter} {
		if lines := other[key]; len(lines) > 0 && (len(h[key]) == 0 || say != UnlessFurther) {
			h[key] = lines
		}
	}
}

// joinOne leaves in h the fields of one limit: as a whole, since they mean nothing apart.
func joinOne(h, other http.Header, keys []string, say Precedence) {
	theirs, readable := shareIn(other, keys)
	if len(other[keys[0]]) == 0 && len(other[keys[1]]) == 0 {
		return
	}
	if say != Always {
		ours, ok := shareIn(h, keys)
		if ok && (!readable || !theirs.before(ours, say)) {
			return
		}
	}
	for _, key := range keys {
		if lines := other[key]; len(lines) > 0 {
			h[key] = lines
		} else {
			delete(h, key)
		}
	}
}

// joinStructured joins RateLimit with RateLimit-Policy. Where one of two is none of the lists that
// drafts 8 and later have, as draft 7's is none, one stays as a whole.
func joinStructured(h, other http.Header, say Precedence) {
	if len(other[RateLimit]) > 0 && len(h[RateLimit]) > 0 &&
		!(isList(h[RateLimit]) && isList(other[RateLimit])) {
		ours, ok := leastIn(h)
		theirs, readable := leastIn(other)
		if ok && (!readable || say != Always && !theirs.before(ours, say)) {
			return
		}
		h[RateLimit] = other[RateLimit]
		if lines := other[Policy]; len(lines) > 0 {
			h[Policy] = lines
		} else {
			delete(h, Policy)
		}
		return
	}
	joinList(h, other, RateLimit)
	joinList(h, other, Policy)
}

// joinList adds to a field that is a list. Malformed items are left out.
func joinList(h, other http.Header, key string) {
	ours, theirs := h[key], other[key]
	switch {
	case len(theirs) == 0 || len(ours) > 0 && !isList(theirs):
	case len(ours) == 0 || !isList(ours):
		h[key] = theirs
	default:
		all, more := strings.Join(ours, ", "), strings.Join(theirs, ", ")
		if !strings.Contains(", "+all+", ", ", "+more+", ") { // it may have been written twice
			all += ", " + more
		}
		h[key] = []string{all}
	}
}

// isList reports whether the lines of a field are a list of RFC 9651 that has members.
func isList(lines []string) bool {
	size := 0
	for _, line := range lines {
		size += len(line)
	}
	if size > maxHintBytes {
		return false
	}
	list, err := httpsfv.UnmarshalList(lines)
	return err == nil && len(list) > 0
}

// rest is how many units of a limit are left, of how many.
type rest struct{ left, of uint64 }

// before reports whether fields about r are to replace fields about other.
func (r rest) before(other rest, say Precedence) bool {
	c := r.compare(other)
	return c < 0 || c == 0 && say == UnlessFurther
}

// compare compares the shares that are left.
func (r rest) compare(other rest) int {
	if r.left == 0 || other.left == 0 { // of a limit of 0 nothing is ever left
		return cmp.Compare(r.left, other.left)
	}
	aHigh, aLow := bits.Mul64(r.left, other.of)
	bHigh, bLow := bits.Mul64(other.left, r.of)
	return cmp.Or(cmp.Compare(aHigh, bHigh), cmp.Compare(aLow, bLow))
}

// shareIn reads the fields of one limit. Where nothing is left it needs to know no more.
func shareIn(h http.Header, keys []string) (r rest, ok bool) {
	left, ok := leadingWhole(h, keys[1])
	if !ok {
		return rest{}, false
	}
	of, ok := leadingWhole(h, keys[0])
	if !ok || of <= 0 {
		return rest{}, left == 0
	}
	return rest{uint64(left), uint64(of)}, true
}

// leastIn reads RateLimit, with the quotas of RateLimit-Policy: the smallest share that
// one of them names.
func leastIn(h http.Header) (least rest, ok bool) {
	for _, p := range appendStructured(nil, h) {
		r := rest{uint64(p.Left), uint64(p.Quota)}
		if p.Left > 0 && p.Quota <= 0 {
			continue
		}
		if !ok || r.compare(least) < 0 {
			least, ok = r, true
		}
	}
	return least, ok
}
