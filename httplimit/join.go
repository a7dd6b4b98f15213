package httplimit

import (
	"cmp"
	"math/bits"
	"net/http"
	"slices"
	"strings"

	"github.com/dunglas/httpsfv"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
)

// A request may meet limits one behind the other: middleware within middleware, or a server that
// limits too behind a proxy. Its answer then reports all of them, as far as the fields can.

// ofOne are the fields that have room for one limit, the limit and what remains first.
var ofOne = [...][]string{
	{hdrLimit, hdrRemaining, hdrReset, hdrXRetry},
	{hdr03Limit, hdr03Remains, hdr03Reset},
}

// heldBy reports whether h has fields of the families that describe another limit.
func (f Headers) heldBy(h http.Header) bool {
	return f&(XDelta|XEpoch|Envoy03) != 0 && (len(h[hdrLimit]) > 0 || len(h[hdrRemaining]) > 0) ||
		f&Draft03 != 0 && (len(h[hdr03Limit]) > 0 || len(h[hdr03Remains]) > 0) ||
		f&(Draft03|Draft11|Next) != 0 && len(h[hdrPolicy]) > 0 ||
		f&(Draft11|Next) != 0 && len(h[hdrRateLimit]) > 0 ||
		f&^Off != 0 && (len(h[hdrSoft]) > 0 || len(h[hdrWarning]) > 0 || len(h[hdrDecision]) > 0)
}

// addedTo reports whether h, to which Write has written, got more of the same fields since: Write
// leaves one value in each.
func (f Headers) addedTo(h http.Header) bool {
	return f&(XDelta|XEpoch|Envoy03) != 0 && (len(h[hdrLimit]) > 1 || len(h[hdrRemaining]) > 1) ||
		f&Draft03 != 0 && (len(h[hdr03Limit]) > 1 || len(h[hdr03Remains]) > 1) ||
		f&(Draft03|Draft11|Next) != 0 && len(h[hdrPolicy]) > 1 ||
		f&(Draft11|Next) != 0 && len(h[hdrRateLimit]) > 1
}

// gather joins the fields that Write wrote to h for d with the fields that a handler has added
// since, as a reverse proxy adds those from the server behind it. Fields that a handler has put in
// the place of ours stay as they are.
func (f Headers) gather(h http.Header, d *weir.Decision) {
	f = f.effective()
	if !f.addedTo(h) {
		return
	}
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
			if near := d.Nearest(); i >= 2 && len(h[key]) == 1 && near != nil && near.ResetAfter == algo.Never {
				from = 0 // we have said none
			}
			move(key, from)
		}
	}
	for _, key := range [...]string{hdrRateLimit, hdrPolicy, hdrWarning, hdrSoft, hdrDecision} {
		move(key, 1)
	}
	join(h, added, unlessFurther)
}

// precedence says when fields for one limit replace those that are there.
type precedence uint8

const (
	ifNearer      precedence = iota // where a smaller share is left
	unlessFurther                   // also where the same share is left
	always
)

// join adds to h the fields of other, which describe another limit.
func join(h, other http.Header, say precedence) {
	joinStructured(h, other, say)
	for _, keys := range ofOne {
		joinOne(h, other, keys, say)
	}
	joinList(h, other, hdrWarning)
	for _, key := range [...]string{hdrSoft, hdrDecision, hdrRetryAfter} {
		if lines := other[key]; len(lines) > 0 && (len(h[key]) == 0 || say != unlessFurther) {
			h[key] = lines
		}
	}
}

// joinOne leaves in h the fields of one limit: as a whole, since they mean nothing apart.
func joinOne(h, other http.Header, keys []string, say precedence) {
	theirs, readable := shareIn(other, keys)
	if len(other[keys[0]]) == 0 && len(other[keys[1]]) == 0 {
		return
	}
	if say != always {
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
func joinStructured(h, other http.Header, say precedence) {
	if len(other[hdrRateLimit]) > 0 && len(h[hdrRateLimit]) > 0 &&
		!(isList(h[hdrRateLimit]) && isList(other[hdrRateLimit])) {
		ours, ok := leastIn(h)
		theirs, readable := leastIn(other)
		if ok && (!readable || say != always && !theirs.before(ours, say)) {
			return
		}
		h[hdrRateLimit] = other[hdrRateLimit]
		if lines := other[hdrPolicy]; len(lines) > 0 {
			h[hdrPolicy] = lines
		} else {
			delete(h, hdrPolicy)
		}
		return
	}
	joinList(h, other, hdrRateLimit)
	joinList(h, other, hdrPolicy)
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
func (r rest) before(other rest, say precedence) bool {
	c := r.compare(other)
	return c < 0 || c == 0 && say == unlessFurther
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
		r := rest{uint64(p.left), uint64(p.quota)}
		if p.left > 0 && p.quota <= 0 {
			continue
		}
		if !ok || r.compare(least) < 0 {
			least, ok = r, true
		}
	}
	return least, ok
}
