package rlqs

import (
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	rlqspb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/leasing/broker"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// Bounds on an Envoy's messages.
const (
	maxDomain  = 256
	maxEntries = 16
	maxText    = 256
)

// bucket is the door's memory of a bucket of a stream, beside the Holder.
type bucket struct {
	name    string
	id      []byte // of broker.AppendID
	entries entries
	terms   broker.Terms
	counts  []*limitCount // of the limits of terms.Charges; nil: not counted
}

// entries are the entries of a bucket's id, sorted by key. They are the attributes of its requests.
type entries []rule.Entry

// Attribute implements rule.Attributes.
func (e entries) Attribute(name string) (string, bool) {
	i, ok := slices.BinarySearchFunc(e, name,
		func(e rule.Entry, name string) int { return strings.Compare(e.Key, name) })
	if !ok {
		return "", false
	}
	return e[i].Value, true
}

// All implements rule.Attributes.
func (e entries) All() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for _, x := range e {
			if !yield(x.Key, x.Value) {
				return
			}
		}
	}
}

// appendEntries appends the entries of an id, sorted. An error describes its fault; named is false
// if Envoy does not take it in an answer either.
func appendEntries(e entries, id *rlqspb.BucketId) (list entries, named bool, err error) {
	n := len(id.GetBucket())
	if named = n > 0; n == 0 || n > maxEntries {
		err = fmt.Errorf("it has %d entries, not 1 to %d", n, maxEntries)
	}
	for key, value := range id.GetBucket() {
		named = named && key != "" && value != ""
		if len(key) == 0 || len(key) > maxText || len(value) == 0 || len(value) > maxText {
			err = fmt.Errorf("it has an entry with a key of %d bytes and a value of %d, not 1 to %d", len(key),
				len(value), maxText)
		}
		e = append(e, rule.Entry{Key: key, Value: value})
	}
	slices.SortFunc(e, func(a, b rule.Entry) int { return strings.Compare(a.Key, b.Key) })
	return e, named, err
}

// appendName appends the name of a bucket: its entries without ambiguity.
func (e entries) appendName(b []byte) []byte {
	for _, x := range e { // at most 256 bytes each
		b = append(b, byte(len(x.Key)-1), byte(len(x.Value)), byte(len(x.Value)>>8))
		b = append(append(b, x.Key...), x.Value...)
	}
	return b
}

// meets updates the terms of a bucket, and reports whether they have changed. The limiter's answer
// is in s.request and s.decision.
func (s *stream) meets(b *bucket, now int64) (changed bool) {
	charges := s.asked(b)
	if s.r.o.Expand != nil {
		s.expanded = s.r.o.Expand(charges, s.expanded[:0])
		charges = s.expanded
	}
	t := s.terms(b, charges, now)
	if same(&t, &b.terms) {
		return false
	}
	t.Charges = slices.Clone(t.Charges) // of s.met
	b.terms, b.counts = t, b.counts[:0]
	for i := range t.Charges {
		var count *limitCount // nil for the counter of all regions: its limit is counted already
		if c := t.Charges[i].Counter; c.Index >= 0 {
			count = s.r.limit(c)
		}
		b.counts = append(b.counts, count)
	}
	return true
}

// asked returns the charges that requests of a bucket meet.
func (s *stream) asked(b *bucket) []store.Charge {
	s.request = weir.Request{Domain: s.domain, Attributes: &b.entries, Door: Door}
	return s.r.limiter.Phases().Charges(&s.request, &s.decision)
}

// terms returns the terms of a bucket that meets charges. They are valid until the next call.
func (s *stream) terms(b *bucket, charges []store.Charge, now int64) (t broker.Terms) {
	switch d := &s.decision; {
	case d.Banned.Rule != nil:
		return broker.Terms{Verdict: broker.DenyAll, Until: now + max(d.Banned.Until-d.Time, 0)*int64(time.Microsecond)}
	case !d.Allowed:
		return broker.Terms{Verdict: broker.DenyAll}
	}
	t.Charges = s.met[:0]
	for i := range charges {
		if s.add(&t, b, &charges[i], now); t.Verdict == broker.DenyAll {
			t.Charges = nil
			return t
		}
	}
	if s.met = t.Charges; len(t.Charges) == 0 {
		t.Verdict = broker.AllowAll
	}
	return t
}

// add adds a limit that is met. Limits in shadow have no say.
func (s *stream) add(t *broker.Terms, b *bucket, c *store.Charge, now int64) {
	if c.Mode == rule.Shadow || c.Ask.Cost <= 0 || c.Limit == nil {
		return
	}
	if c.Limit.Scheduled() {
		at := s.storeTime(now)
		in, bound := c.Limit.At(at)
		if until := now + (bound-at)*int64(time.Microsecond); bound > at &&
			bound-at < int64(time.Hour/time.Microsecond) && (t.Until == 0 || until < t.Until) {
			t.Until = until
		}
		if in == nil {
			return // out of force at the moment
		}
	}
	if why := lendless(c); why != "" {
		s.r.note(c.Counter, why)
		t.Verdict = broker.DenyAll
		return
	}
	for i := range t.Charges {
		if o := &t.Charges[i]; o.Counter.ID == c.Counter.ID && o.Key == string(c.Key) {
			o.Cost += c.Ask.Cost
			return
		}
	}
	key := ""
	if n := len(t.Charges); n < len(b.terms.Charges) && b.terms.Charges[n].Key == string(c.Key) {
		key = b.terms.Charges[n].Key // nearly always
	} else {
		key = string(c.Key)
	}
	t.Charges = append(t.Charges,
		broker.Charge{Counter: c.Counter, Limit: c.Limit, Key: key, Cost: c.Ask.Cost, OnStoreError: c.OnStoreError})
}

// lendless says why a limit lends nothing; "" if it does.
func lendless(c *store.Charge) string {
	cfg := c.Limit.Config()
	base := cfg.N
	if cfg.Burst > 0 {
		base = cfg.Burst
	}
	switch {
	case cfg.N == 0:
		return "it admits nothing"
	case c.Limit.Lease() == nil || c.Counter.Lease == nil:
		return "it lends nothing: give it consistency: {lease: 25%, for: 11s}, or name its domain in rlqs.domains; leaky_bucket and concurrency cannot lend"
	case cfg.FirstRequest:
		return "its window begins with the first request, and until then it lends nothing"
	case base*int64(cfg.Lease)/100 < broker.MinFirst:
		return "its lease is less than 2 units: raise it, or the limit"
	}
	return ""
}

// same reports whether two terms come to the same.
func same(a, b *broker.Terms) bool {
	return a.Verdict == b.Verdict && a.Until == b.Until &&
		slices.EqualFunc(a.Charges, b.Charges, func(x, y broker.Charge) bool {
			return x.Counter == y.Counter && x.Limit == y.Limit && x.Key == y.Key && x.Cost == y.Cost
		})
}
