package broker

import (
	"slices"

	"github.com/weir-rl/weir/algo"
)

// unitBook holds a bucket's units of one limit and key.
type unitBook struct {
	charge Charge
	of     *heldState
	gens   [2]generation // the generation that ends first is first
	// credit are units of requests that are not reported yet, but need no units: theirs were
	// counted as used when their generation ended, or were not due when the limit was not met.
	credit int64
	// kept are units that may have been used by requests for which credit was taken, since the two
	// cannot be distinguished. They are not given back; they end as used.
	kept int64
	// fresh is when a generation begins in which nothing has been asked for.
	fresh  int64
	single bool  // a single unit is left, which is lent to one who asks for no more
	lapsed int64 // units that ended untold since the limit was paid at a pace last
	since  int64 // the assignments after this serial are under this limit
	// last is the serial of the last assignment under this limit, which the bucket meets no more;
	// 0 while it does.
	last int64
}

// generation holds the units of one generation.
type generation struct {
	end   int64 // by the store's clock, in µs
	until int64 // certainly before end, by the clock here
	held  int64 // units
	used  int64 // units used that are not reported yet, beside held
}

// stateName names a state of the store.
type stateName struct {
	counter uint64
	key     string
}

// heldState is the common part of the books of one state.
type heldState struct {
	state stateName
	key   []byte // the key of state, for the Lender
	books int    // how many there are
	round int64  // in which ask is an index of Holder.Ask's list
	ask   int
	seat  poolSeat
}

// hold returns the state for one more book of a charge.
func (h *Holder) hold(c *Charge) *heldState {
	id := stateName{c.Counter.ID, c.Key}
	o := h.states[id]
	if o == nil {
		o = &heldState{state: id, key: []byte(c.Key)}
		h.states[id] = o
	}
	o.books++
	return o
}

// release takes down that a book is no more.
func (h *Holder) release(k *unitBook) {
	if k.of.books--; k.of.books == 0 {
		delete(h.states, k.of.state)
	}
}

// held is how many units are held.
func (k *unitBook) held() int64 { return k.gens[0].held + k.gens[1].held }

// lasts is until when all that is held lasts.
func (k *unitBook) lasts() int64 {
	least := int64(forever)
	for _, g := range k.gens {
		if g.held > 0 {
			least = min(least, g.until)
		}
	}
	return least
}

// subject puts new terms in force.
func (h *Holder) subject(b *Bucket, terms Terms) {
	b.terms = terms
	newest := int64(0)
	if e := b.current(); e != nil {
		newest = e.serial
	}
	if sameCharges(b.books[:b.met], terms.Charges) {
		for i := range terms.Charges {
			k, c := &b.books[i], terms.Charges[i]
			if k.charge.Limit != c.Limit && k.charge.Limit.Config() != c.Limit.Config() {
				k.since = newest // other numbers: assignments by the old ones are not renewed
			}
			k.charge = c
		}
		return
	}
	books := make([]unitBook, 0, len(terms.Charges)+len(b.books)-b.met)
	for _, c := range terms.Charges {
		at := slices.IndexFunc(b.books, func(k unitBook) bool { return k.charge.same(&c) })
		if at < 0 {
			// Units owed were assigned when the limit was not met, and are not due to it.
			books = append(books, unitBook{charge: c, of: h.hold(&c), credit: mulCapped(b.owed, c.Cost), since: newest})
			continue
		}
		k := b.books[at]
		if k.last != 0 { // it was left, and is met again
			for _, e := range b.entries {
				if e.serial > k.last {
					k.credit += mulCapped(e.g, c.Cost)
				}
			}
			k.credit, k.last, k.since = min(k.credit, mulCapped(b.owed, c.Cost)), 0, newest
		}
		k.charge = c
		books = append(books, k)
		b.books[at].charge = Charge{}
	}
	b.met = len(books)
	for _, k := range b.books {
		if k.charge.Counter == nil {
			continue
		}
		if k.last == 0 {
			k.last = newest
		}
		if k.last == 0 || k.done() {
			h.release(&k)
			continue
		}
		books = append(books, k)
	}
	b.books = books
}

// sameCharges reports whether the books are of these charges.
func sameCharges(books []unitBook, charges []Charge) bool {
	return slices.EqualFunc(books, charges, func(k unitBook, c Charge) bool { return k.charge.same(&c) })
}

// same reports whether both are of the same state, with the same cost.
func (c *Charge) same(o *Charge) bool {
	return c.Counter != nil && c.Counter.ID == o.Counter.ID && c.Key == o.Key && c.Cost == o.Cost
}

// lapse takes down which generations are over: the store counts their held units as used.
func (b *Bucket) lapse(now int64) {
	for i := range b.books {
		k := &b.books[i]
		for j := range k.gens {
			if g := &k.gens[j]; g.end != 0 && now >= g.until {
				spoken := min(k.kept, g.held) // for use that was reported before
				k.kept -= spoken
				k.credit += g.held - spoken
				k.lapsed += g.held - spoken
				*g = generation{}
			}
		}
		if k.gens[0].end == 0 {
			k.gens[0], k.gens[1] = k.gens[1], generation{}
		}
		k.credit = min(k.credit, max(0, mulCapped(b.owed, k.charge.Cost)))
	}
}

// use books units of requests that were reported.
func (k *unitBook) use(n int64) {
	if x := min(n, k.credit); x > 0 && k.last == 0 {
		k.credit -= x
		k.kept += x
		n -= x
	}
	k.spend(n)
	k.kept = min(k.kept, k.held())
}

// spend makes held units used ones, those that end first at first, and returns how many there were
// not.
func (k *unitBook) spend(n int64) (missing int64) {
	for i := range k.gens {
		g := &k.gens[i]
		x := min(n, g.held)
		g.held -= x
		g.used += x
		n -= x
	}
	return n
}

// done reports whether the limit was left, and there is nothing left to report.
func (k *unitBook) done() bool {
	return k.last != 0 && k.held() == 0 && k.gens[0].used+k.gens[1].used == 0
}

// told takes out of the book what to report: the used units, and units to give back, as many as
// exceed keep, those that end first at first.
func (k *unitBook) told(keep int64) (t [2]algo.Told) {
	back := max(0, k.held()-keep-k.kept)
	for i := range k.gens {
		g := &k.gens[i]
		x := min(back, g.held)
		g.held -= x
		back -= x
		t[i] = algo.Told{End: g.end, Used: g.used, Returned: x}
		g.used = 0
		if t[i].Used == 0 && t[i].Returned == 0 {
			t[i] = algo.Told{}
		}
	}
	return t
}

// got books units that were lent.
func (k *unitBook) got(n, end, until int64) {
	if n == 0 {
		return
	}
	for i := range k.gens {
		switch g := &k.gens[i]; {
		case g.end == end:
			g.held += n
			return
		case g.end == 0:
			*g = generation{end: end, until: until, held: n}
			return
		case g.end > end && i == 0 && k.gens[1].end == 0:
			k.gens[1] = *g
			*g = generation{end: end, until: until, held: n}
			return
		}
	}
	// Both places hold other ends, the first of which is over by the store's clock.
	k.credit += k.gens[0].held
	k.gens[0] = k.gens[1]
	k.gens[1] = generation{end: end, until: until, held: n}
}
