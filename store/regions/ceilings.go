package regions

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/weir-rl/weir/algo"
)

// ceilings are the limits that one region never exceeds, derived once for each limit.
type ceilings struct {
	table []Region // in order of name
	at    int      // which one it is
	sum   int64    // of the weights
	// weighted is how many regions have a weight
	weighted int64
	cache    atomic.Pointer[counterCache]
}

// maxCached bounds the number of limits whose ceiling is kept. A server has one for each rule;
// requests and grants with limits of their own may bring more.
const maxCached = 10_000

type counterCache struct {
	limits sync.Map // *algo.Limit → *derivedCounters
	wholes sync.Map // derivedCounters.own → the limit that it is of
	n      atomic.Int64
}

// derivedCounters are the limits that a region makes of one limit, under one percentage.
type derivedCounters struct {
	over int
	own  *algo.Limit // the ceiling
	// all is the limit for the use of all regions. It counts no denied requests: requests that a
	// ceiling denies would use up units that other regions may admit.
	all         *algo.Limit
	limit, soft int64 // Result.Limit and SoftLimit of the whole; of one without a schedule
	closes      bool  // the ceiling has a soft margin that closes
	next        atomic.Pointer[derivedCounters]
}

// newCeilings returns the ceilings of the region of that name.
func newCeilings(table []Region, name string) (*ceilings, error) {
	c := &ceilings{table: slices.Clone(table)}
	slices.SortFunc(c.table, func(a, b Region) int { return strings.Compare(a.Name, b.Name) })
	if len(table) > MaxRegions {
		return nil, fmt.Errorf("there are %d regions; there can be at most %d", len(table), MaxRegions)
	}
	c.at = slices.IndexFunc(c.table, func(r Region) bool { return r.Name == name })
	if name == "" || c.at < 0 {
		return nil, fmt.Errorf("this region is %q, which is none of the table: %s", name, c.names())
	}
	for i, r := range c.table {
		switch {
		case r.Name == "":
			return nil, errors.New("a region has no name")
		case i > 0 && r.Name == c.table[i-1].Name:
			return nil, fmt.Errorf("the region %q stands twice", r.Name)
		case r.Weight < 0 || r.Weight > MaxWeight:
			return nil, fmt.Errorf("the weight of the region %q is %d; it must be from 0 to %d", r.Name, r.Weight,
				MaxWeight)
		}
		if c.sum += int64(r.Weight); r.Weight > 0 {
			c.weighted++
		}
	}
	if c.sum == 0 {
		return nil, errors.New("all weights are 0: a region needs one to admit anything")
	}
	c.cache.Store(new(counterCache))
	return c, nil
}

// name is the name of the region itself.
func (c *ceilings) name() string { return c.table[c.at].Name }

func (c *ceilings) names() string {
	names := make([]string, len(c.table))
	for i := range c.table {
		names[i] = c.table[i].Name
	}
	return strings.Join(names, ", ")
}

// part returns this region's part of n × (100 + over) %. The parts of all regions sum to that,
// rounded down: the units left over by rounding go to the first regions by name that have a weight,
// one each. Where one of these would get nothing though there is a unit for each, each gets one
// first: a loan is taken off the units used, so that a region that can use nothing cannot borrow.
func (c *ceilings) part(n int64, over int) int64 {
	percent := int64(100 + over)
	mine, none := c.divide(n, percent)
	if all := mulDiv(n, percent, 100); none && all >= c.weighted {
		mine, _ = c.divide(all-c.weighted, 100)
		mine++
	}
	if c.table[c.at].Weight == 0 {
		return 0
	}
	return mine
}

// divide returns this region's part of percent of n, and whether one with a weight gets nothing.
func (c *ceilings) divide(n, percent int64) (mine int64, none bool) {
	rest := mulDiv(n, percent, 100)
	for i := range c.table {
		rest -= c.exact(n, percent, i)
	}
	for i := range c.table {
		if c.table[i].Weight == 0 {
			continue
		}
		part := c.exact(n, percent, i)
		if rest > 0 {
			part++
			rest--
		}
		if none = none || part == 0; i == c.at {
			mine = part
		}
	}
	return mine, none
}

// exact is the part of region i of percent of n, rounded down.
func (c *ceilings) exact(n, percent int64, i int) int64 {
	return mulDiv(n, percent*int64(c.table[i].Weight), 100*c.sum)
}

// mulDiv returns x×y/d, rounded down. The quotient must fit 63 bits.
func mulDiv(x, y, d int64) int64 {
	hi, lo := bits.Mul64(uint64(x), uint64(y))
	q, _ := bits.Div64(hi, lo, uint64(d))
	return int64(q)
}

// of returns the limits made of l under a percentage.
func (c *ceilings) of(l *algo.Limit, over int) *derivedCounters {
	kept := c.cache.Load()
	first, ok := kept.limits.Load(l)
	if !ok {
		if kept.n.Load() >= maxCached {
			next := new(counterCache)
			c.cache.CompareAndSwap(kept, next)
			kept = c.cache.Load()
		}
		var had bool
		if first, had = kept.limits.LoadOrStore(l, c.derive(l, over)); !had {
			kept.n.Add(1)
			kept.wholes.Store(first.(*derivedCounters).own, l)
		}
	}
	// One limit under several percentages is for programs that build rules themselves.
	d := first.(*derivedCounters)
	for d.over != over {
		next := d.next.Load()
		if next == nil {
			next = c.derive(l, over)
			if !d.next.CompareAndSwap(nil, next) {
				next = d.next.Load()
			} else {
				kept.wholes.Store(next.own, l)
			}
		}
		d = next
	}
	return d
}

// whole returns the limit that own is the ceiling of, or otherwise if that is not known any more.
func (c *ceilings) whole(own, otherwise *algo.Limit) *algo.Limit {
	if l, ok := c.cache.Load().wholes.Load(own); ok {
		return l.(*algo.Limit)
	}
	return otherwise
}

func (c *ceilings) derive(l *algo.Limit, over int) *derivedCounters {
	d := &derivedCounters{over: over, all: l}
	d.own = l.Shared(func(n int64) int64 { return c.part(n, over) })
	if l.CountDenied() {
		d.all = admittedOnly(l)
	}
	whole := l.Check(&algo.State{}, 0, algo.Ask{})
	d.limit, d.soft, d.closes = whole.Limit, whole.SoftLimit, d.own.Margin() != nil
	return d
}

// admittedOnly returns l without counting denied requests.
func admittedOnly(l *algo.Limit) *algo.Limit {
	of, err := l.Each(func(l *algo.Limit) (*algo.Limit, error) {
		c := l.Config()
		c.CountDenied = false
		return algo.New(c)
	})
	if err != nil {
		return l // never: it asks for less than l does
	}
	return of
}
