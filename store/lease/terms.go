package lease

import (
	"sync"

	"github.com/weir-rl/weir/internal/holder"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// terms are those of the limit of a counter.
type terms struct {
	holder.Terms
	counter *rule.Counter
	counts  *counts
	lends   bool
	next    *terms // of the same limit, for another counter
}

// termsCache finds the terms of charges. A reload makes new limits, an elastic rule has up to a
// hundred for each window, and requests can bring some: terms that are forgotten are made again.
type termsCache struct {
	m      sync.Map // *algo.Limit → *terms
	counts sync.Map // counter's ID → *counts

	mu sync.Mutex // held to add terms
	n  int
}

const maxTerms = 16384

// of returns the terms of a charge; nil if its limit lends nothing.
func (tc *termsCache) of(c *store.Charge) *terms {
	v, _ := tc.m.Load(c.Limit)
	first, _ := v.(*terms)
	for t := first; t != nil; t = t.next {
		if t.counter == c.Counter {
			if t.lends {
				return t
			}
			return nil
		}
	}
	return tc.add(c)
}

func (tc *termsCache) add(c *store.Charge) *terms {
	tc.mu.Lock()
	defer tc.mu.Unlock()
	if tc.n++; tc.n > maxTerms {
		tc.m.Clear()
		tc.n = 1
	}
	v, _ := tc.m.Load(c.Limit)
	next, _ := v.(*terms)
	t := &terms{counter: c.Counter, next: next}
	if h := holder.TermsOf(c.Limit); h != nil {
		n, _ := tc.counts.LoadOrStore(c.Counter.ID, &counts{counter: c.Counter})
		t.Terms, t.counts, t.lends = *h, n.(*counts), true
	}
	tc.m.Store(c.Limit, t)
	if !t.lends {
		return nil
	}
	return t
}

// lends reports whether the limit of a charge lends to nodes: this is all that other limits cost.
func lends(c *store.Charge) bool {
	return c.Counter != nil && c.Counter.Lease != nil && !c.Counter.Lent && c.Limit != nil && c.Limit.Lease() != nil
}
