// Package weir decides for each request whether it may pass now: a rate limiter to embed in a Go program, and the
// core of the weir server and proxy.
//
// A Limiter asks the rules in force (package rule) which limits a Request meets, charges them all or none in a Store
// (package store/memory), and folds the answers into a Decision. Denial is a value; an error means that the store failed.
//
//	store, err := memory.New(memory.Options{})
//	limiter, err := weir.New(store, weir.Limit("logins", "5/min"))
//	decision, err := limiter.Allow(ctx, weir.Request{Attributes: weir.Map{"key": user}})
//
// Package httplimit puts a Limiter in front of an http.Handler, package grpclimit in front of a gRPC server.
package weir

import (
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// Map is a request's attributes in a map.
type Map = rule.Map

// Pairs is a request's attributes in a slice, the quickest form for a handful of them.
type Pairs = rule.Pairs

// Request is what a door (or your program) knows of one request. The zero value meets only rules without conditions.
type Request struct {
	Domain      string            // "" means the only domain that the rules hold, else "default"
	Attributes  rule.Attributes   // nil for none
	Descriptors []rule.Descriptor // of the Envoy RLS door; nil for all others
	Hits        int64             // cost of the request in hits: 0 peeks, below 0 refunds. Allow sets it to 1
	// MaxDelay is the longest delay that the asker can honour for a leaky bucket: 0 none, AnyDelay any, RuleDelay as
	// long as the rule's own wait (any, if the rule names none).
	MaxDelay time.Duration
	// Met is called when it is known which limits the request meets (Decision.Matches, Decision.Priority), and that no ban holds, before anything is
	// charged; nil for nobody. If it returns an error nothing is charged, and Decide fails with that error.
	Met func(d *Decision) error
	// Waits is asked about a refusal before anybody else hears of it; nil for nobody. If it returns true the request is held and will ask
	// again, so that it was not refused: Hooks are not told, and bans do not count it.
	Waits func(d *Decision) bool
	// Again says that the request asked before, and was held: limits that were charged then although it was refused, those in
	// shadow and those that count denied requests, are not charged again.
	Again bool
	// Door names the door that the request came through ("http", "rls", …), for Hooks; "" where that is not said.
	Door string
}

// Special values of Request.MaxDelay.
const (
	AnyDelay  time.Duration = -1
	RuleDelay time.Duration = -2
)

// LimitResult is the answer of one limit that the request met.
type LimitResult struct {
	Window *rule.Window // which limit
	algo.Result
	Mode       rule.Mode
	NearLimit  bool   // used ≥ warn × N after the decision
	Slot       string // of an admitted concurrency limit; give it to Limiter.Release
	Descriptor int    // index of the RLS descriptor that met it; -1 for a native limit
}

// Decision is the answer to a Request. Reuse one with Limiter.Decide to save allocations. The zero value is ready.
type Decision struct {
	Allowed bool
	Time    int64  // the store's clock at the decision, in µs since the Unix epoch; 0 if the store was not asked
	Domain  string // the domain that was looked up
	// Known is false if no rule file declares the domain; the request is then allowed.
	Known  bool
	Exempt bool // an exempt entry holds
	// Limits are all limits that were met, shadow ones included, in rule order; on the RLS door those of descriptors first, in
	// their order.
	Limits []LimitResult
	// RetryAfter is the largest of the limits that refused, in µs; 0 if allowed; algo.Never if one of them never admits it.
	RetryAfter int64
	// Delay is how long the admitted request must wait for its turn, in µs; 0 unless a leaky bucket was met.
	Delay int64
	// Generation counts the rule sets from 1: which one decided. 0 if there was none.
	Generation uint64
	Rules      *rule.Set    // the set that decided; nil if there was none
	Matches    rule.Matches // what matching found; Matches.Descriptors is for the RLS door
	// Banned tells of the ban that refused the request outright, the longest of them; its Rule is nil if none did. Limits then are those
	// whose bans they are, and Time is of the Limiter's clock; the store was not asked, and nothing was charged.
	Banned Banned
	// ID names the decision if it is a refusal; 0 if not, unless Identity was asked for one.
	ID DecisionID

	quotaRefused bool  // all quota_mode limits denied
	place        []int // where charges go when others are dropped
	query        rule.Query
	charges      []Charge
	results      []algo.Result
}

// refuses reports whether r is one of the limits for which d is a refusal.
func (d *Decision) refuses(r *LimitResult) bool {
	return !d.Allowed && !r.Allowed && (r.Mode == rule.Enforce || r.Mode == rule.Quota && d.quotaRefused)
}

// Refuses reports whether r, a limit of d, is one for which d is a refusal.
func (d *Decision) Refuses(r *LimitResult) bool { return d.refuses(r) }

// Priority is how important the rules that the request met say it is: critical if one of them says so, else sheddable if one of them
// does. Limits in shadow have no say.
func (d *Decision) Priority() rule.Priority { return d.Matches.Priority }

// OpenWithoutStore reports, after Limiter.Decide failed, whether the request is to be admitted all the same, since each
// enforcing limit that it met says on_store_error: allow.
func (d *Decision) OpenWithoutStore() bool {
	for i := range d.Matches.Hits {
		if h := &d.Matches.Hits[i]; h.Mode != rule.Shadow && h.Window.Rule.OnStoreError != rule.AllowAll {
			return false
		}
	}
	return true
}

// Nearest returns the limit that headers and messages should speak of: on a refusal the one that refuses longest, else
// the enforcing limit nearest to refusing (the smallest Remaining, then the largest ResetAfter, then rule order).
// It is nil if no enforcing limit was met.
func (d *Decision) Nearest() *LimitResult {
	var best *LimitResult
	for i := range d.Limits {
		r := &d.Limits[i]
		if r.Mode == rule.Shadow || !d.Allowed && !d.refuses(r) {
			continue
		}
		if best == nil || d.nearer(r, best) {
			best = r
		}
	}
	return best
}

// nearer reports whether a comes strictly before b in the order of Nearest.
func (d *Decision) nearer(a, b *LimitResult) bool {
	if !d.Allowed {
		return b.RetryAfter != algo.Never && (a.RetryAfter == algo.Never || a.RetryAfter > b.RetryAfter)
	}
	if a.Remaining != b.Remaining {
		return a.Remaining < b.Remaining
	}
	return a.ResetAfter > b.ResetAfter
}

// InForce returns the numbers by which d.Limits[i] decided: those of its window, after a schedule and a signal have had their say.
// It is nil where that is not known.
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

// LimitedBy appends to dst the distinct names of the rules that refused, in the order of Limits. It appends nothing if d allows.
func (d *Decision) LimitedBy(dst []string) []string {
	start := len(dst)
next:
	for i := range d.Limits {
		r := &d.Limits[i]
		if !d.refuses(r) {
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

// SoftExceeded reports whether an enforcing limit admitted the request above the limit, in its soft margin.
func (d *Decision) SoftExceeded() bool {
	for i := range d.Limits {
		if d.Allowed && d.Limits[i].Soft && d.Limits[i].Mode != rule.Shadow {
			return true
		}
	}
	return false
}

// NearLimit reports whether d admits the request, and an enforcing limit is near to refusing: the rule's warn.
func (d *Decision) NearLimit() bool {
	for i := range d.Limits {
		if d.Limits[i].Warns(d) {
			return true
		}
	}
	return false
}

// Warns reports whether r, a limit of d, is one that the client of an admitted request should be warned of.
func (r *LimitResult) Warns(d *Decision) bool {
	return d.Allowed && r.NearLimit && r.Mode != rule.Shadow
}

// Hooks are told what happens; nil functions are skipped. They are called on the deciding path: they must be quick,
// safe for concurrent use, and must not keep their arguments or what those point to.
// JoinHooks makes one of two.
type Hooks struct {
	// Decided is called after each decision.
	Decided func(r *Request, d *Decision)
	// RulesChanged is called after a rule set came into force. The set may be kept.
	RulesChanged func(s *rule.Set, generation uint64)
	// StoreError is called when the store failed.
	StoreError func(err error)
}
