package weir

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/limiter/orders"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// LimitResult is the answer of one limit that the request met. Its times are in µs, as stores
// count them; Retry and Reset return durations.
type LimitResult struct {
	Window *rule.Window // which limit
	algo.Result
	Mode       rule.Mode
	Near       bool   // after the decision at least the rule's warn, a share of the limit, is used
	Slot       string // of a concurrency limit that admitted; give it to Limiter.Release
	Descriptor int    // index of the Descriptor that met the limit; -1 if none did
}

// Retry returns after how long the limit would admit the request, if nothing else comes in between;
// 0 if it admitted it. ok is false if it never would.
func (r *LimitResult) Retry() (after time.Duration, ok bool) {
	return duration(r.RetryAfter), r.RetryAfter != algo.Never
}

// Reset returns after how long nothing that was counted so far counts any more. ok is false if that
// never comes.
func (r *LimitResult) Reset() (after time.Duration, ok bool) {
	return duration(r.ResetAfter), r.ResetAfter != algo.Never
}

// duration translates µs; algo.Never becomes 0.
func duration(µs int64) time.Duration {
	const most = math.MaxInt64 / int64(time.Microsecond)
	return time.Duration(min(max(µs, 0), most)) * time.Microsecond
}

// Decision is the answer to a Request. Reuse one with Limiter.Decide to save allocations. It must
// not be copied: a copy would share memory that the next decision overwrites. The zero value is
// ready.
type Decision struct {
	_       noCopy
	Allowed bool
	// Time is the instant of the decision by the store's clock, in µs since the Unix epoch; 0 if
	// the store was not asked.
	Time   int64
	Domain string // that was looked up
	// Known is false if no rule file declares the domain; the request is then allowed, unless
	// DenyUnknownDomains says otherwise. See UnknownDomain.
	Known  bool
	Exempt bool // an exempt entry of the rules applies
	// Limits are all limits that were met, shadow ones included, in the order of Descriptors or of
	// rules; limits of the Lyft form come first.
	Limits []LimitResult
	// RetryAfter is the largest of the limits that refused, in µs; 0 if allowed; algo.Never if one
	// of them never admits the request. See Retry.
	RetryAfter int64
	// Delay is how long the admitted request must wait for its turn in a leaky bucket, in µs; 0 if
	// it met none. See Wait.
	Delay int64
	// Generation is the number of the rule set that decided, counted from 1; 0 if there was none.
	Generation uint64
	Rules      *rule.Set    // the set that decided; nil if there was none
	Matches    rule.Matches // what matching found
	// Banned is the ban that refused the request outright, the longest of several; its Rule is nil
	// if none did. Limits then holds the limits of the bans, and Time is of the Limiter's clock:
	// the store was not asked, and nothing was charged.
	Banned Banned
	// WithoutStore is why the store could not decide, where the rules admit the request all the
	// same (on_store_error: allow); nil otherwise. Limits is empty then, and it is unknown which
	// limits were charged.
	WithoutStore error
	// ID names the decision if it is a refusal; 0 if not, unless Identity was asked for one.
	ID DecisionID

	quotaRefused bool               // all quota_mode limits denied
	byDoor       bool               // a refusal of RefuseBy
	asked        bool               // charges are made, and not yet taken
	place        []int              // where charges go when others are dropped
	bans         []*orders.BanOrder // that refused the request
	charges      []store.Charge
	results      []algo.Result
}

// Retry returns after how long the request would be admitted, if nothing else comes in between; 0
// if it was admitted. ok is false if it never would be.
func (d *Decision) Retry() (after time.Duration, ok bool) {
	return duration(d.RetryAfter), d.RetryAfter != algo.Never
}

// Wait returns how long the admitted request must wait for its turn in a leaky bucket.
func (d *Decision) Wait() time.Duration { return duration(d.Delay) }

// Refuses reports whether r, one of d.Limits, is a reason why d is a refusal.
func (d *Decision) Refuses(r *LimitResult) bool {
	return !d.Allowed && !r.Allowed && (r.Mode == rule.Enforce || r.Mode == rule.Quota && d.quotaRefused)
}

// Warns reports whether d admits the request, and its client should be warned that r, one of
// d.Limits, is near to refusing.
func (d *Decision) Warns(r *LimitResult) bool {
	return d.Allowed && r.Near && r.Mode != rule.Shadow
}

// UnknownDomain reports whether no rule file declares the domain of the request, as where its name
// is misspelt: no limit looked at the request then. See DenyUnknownDomains.
func (d *Decision) UnknownDomain() bool { return !d.Known && d.Rules != nil }

// noCopy makes go vet report copies of a struct that contains one.
type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}

// Priority is how important the request is by the rules that it met: critical if one of them says
// so, else sheddable if one of them does. Limits in shadow have no say.
func (d *Decision) Priority() rule.Priority { return d.Matches.Priority }

// Nearest returns the limit that headers and messages should speak of. On a refusal it is the one
// that refuses longest. Else it is the enforcing limit nearest to refusing: one with too little
// left for the same request once more, then the one with the smallest share left, then the largest
// ResetAfter, then rule order. It is nil if no enforcing limit was met.
func (d *Decision) Nearest() *LimitResult {
	best := -1
	for i := range d.Limits {
		r := &d.Limits[i]
		if r.Mode == rule.Shadow || !d.Allowed && !d.Refuses(r) {
			continue
		}
		if best < 0 || d.Nearer(i, best) {
			best = i
		}
	}
	if best < 0 {
		return nil
	}
	return &d.Limits[best]
}

// Nearer reports whether d.Limits[i] comes strictly before d.Limits[j] in the order of Nearest, for
// callers that speak of some of the limits. Both must have a say in d.
func (d *Decision) Nearer(i, j int) bool {
	a, b := &d.Limits[i], &d.Limits[j]
	if !d.Allowed {
		return b.RetryAfter != algo.Never && (a.RetryAfter == algo.Never || a.RetryAfter > b.RetryAfter)
	}
	if last := d.isLast(i); last != d.isLast(j) {
		return last
	}
	switch compareShares(&a.Result, &b.Result) {
	case -1:
		return true
	case 1:
		return false
	}
	return a.ResetAfter > b.ResetAfter
}

// isLast reports whether d.Limits[i] has too little left for the same request once more.
func (d *Decision) isLast(i int) bool {
	return len(d.charges) == len(d.Limits) && d.Limits[i].Remaining < d.charges[i].Ask.Needs()
}

// compareShares compares the units left of two limits as a share of each: -1 if less is left of a,
// 1 if more. They may count different things: 50 tokens of 60,000 are less than 40 requests of 60.
func compareShares(a, b *algo.Result) int {
	switch {
	case a.Remaining <= 0 || b.Remaining <= 0: // of a limit of 0 nothing is ever left
		return cmp.Compare(max(a.Remaining, 0), max(b.Remaining, 0))
	case a.Limit == b.Limit:
		return cmp.Compare(a.Remaining, b.Remaining)
	}
	aHigh, aLow := bits.Mul64(uint64(a.Remaining), uint64(b.Limit))
	bHigh, bLow := bits.Mul64(uint64(b.Remaining), uint64(a.Limit))
	return cmp.Or(cmp.Compare(aHigh, bHigh), cmp.Compare(aLow, bLow))
}

// DeferTo returns the queue to which all limits that refuse want the request deferred; if they name
// several, the first limit's. It is "" if d allows or is a ban's, and if one of the limits names no
// queue or never admits the request.
func (d *Decision) DeferTo() string {
	if d.Allowed || d.RetryAfter == algo.Never || d.Banned.Rule != nil {
		return ""
	}
	queue := ""
	for i := range d.Limits {
		l := &d.Limits[i]
		if l.Allowed || l.Mode == rule.Shadow {
			continue
		}
		if l.Window.Rule.Defer == "" {
			return ""
		}
		if queue == "" {
			queue = l.Window.Rule.Defer
		}
	}
	return queue
}

// InForce returns the numbers by which d.Limits[i] decided: its window's, after a schedule and a
// signal have had their say. It is nil where they are not known.
func (d *Decision) InForce(i int) *algo.Limit {
	l := d.Limits[i].Window.Limit
	if len(d.charges) == len(d.Limits) {
		l = d.charges[i].Limit
	}
	if l == nil {
		return nil
	}
	if in, _ := l.At(d.Time); in != nil {
		return in
	}
	return l
}

// LimitedBy appends to dst the distinct names of the rules that refused, in the order of Limits. It
// appends nothing if d allows.
func (d *Decision) LimitedBy(dst []string) []string {
	start := len(dst)
next:
	for i := range d.Limits {
		r := &d.Limits[i]
		if !d.Refuses(r) {
			continue
		}
		name := r.Window.Rule.Name
		for _, have := range dst[start:] {
			if have == name {
				continue next
			}
		}
		dst = append(dst, name)
	}
	return dst
}

// SoftExceeded reports whether an enforcing limit admitted the request above the limit, in its soft
// margin.
func (d *Decision) SoftExceeded() bool {
	for i := range d.Limits {
		if d.Allowed && d.Limits[i].Soft && d.Limits[i].Mode != rule.Shadow {
			return true
		}
	}
	return false
}

// NearLimit reports whether d warns of one of its limits.
func (d *Decision) NearLimit() bool {
	for i := range d.Limits {
		if d.Warns(&d.Limits[i]) {
			return true
		}
	}
	return false
}

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
