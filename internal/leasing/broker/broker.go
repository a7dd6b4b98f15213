// Package broker computes what the rate_limit_quota filter of an Envoy may let through: it says how
// many units to ask a store.Lender for, and what to assign to each bucket when the answer is there.
//
// An Envoy is a holder of leases that cannot speak the protocol of leases: it counts by itself,
// reports every 5 s how many requests its buckets let through, and gets assignments of how many
// they may let through from now on. A Holder does the rest in its place. It keeps the one invariant
// that makes this safe: the units that are paid, because they are out in the store or charged
// there, are never fewer than the units that the Envoy may have let through without a report, and
// may still let through. docs/guides/rlqs.md says what follows for users, and envoy.go how Envoy
// really treats its assignments.
//
// The package is pure: no I/O, no clock, no lock, no goroutine. Times are in ns of one monotonic
// clock (store.Monotonic), which is passed in, unless they are said to be of the store.
package broker

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/util/pq"
	"github.com/weir-rl/weir/rule"
)

// Facts about Envoy, and about the way to it.
const (
	// Interval is the time between two reports of a stream, whatever the configuration says.
	Interval = 5 * time.Second
	// Delay is how long an assignment may take to be in force at Envoy, and a report to be here.
	Delay = time.Second

	secondNs = int64(time.Second)
	delayNs  = int64(Delay)
)

// TTL is the life of an assignment, whole seconds. A report is due every 5 s and renews it, so one
// may be late or lost. What was assigned and is not used is missing elsewhere for as long.
const TTL = 10 * time.Second

// idleReports is the number of reports of nothing in a row after which a bucket is abandoned: a
// client that comes every 10 s keeps its bucket.
const idleReports = 3

// Bounds of Settings.First.
const (
	MinFirst = 2 // a lender lends no single unit to one who wants more
	MaxFirst = 1_000_000
)

// Settings tune a Holder. The zero value is not valid; see Defaults.
type Settings struct {
	First   int64 // requests of a new bucket before its demand is known, from MinFirst
	Buckets int   // most buckets of one Holder
}

// Defaults are the settings for most. A report holds 1 MiB, so that 4,096 buckets may have ids of
// 250 bytes; one that is larger would cut the Envoy off for good.
func Defaults() Settings { return Settings{First: 5, Buckets: 4096} }

// Charge is a limit that the requests of a bucket meet.
type Charge struct {
	Counter *rule.Counter
	Limit   *algo.Limit // the numbers in force for the key; it must lend (algo.Limit.Lease)
	Key     string
	Cost    int64 // units of each request, at least 1
	// OnStoreError is for callers that charge in place of the Lender. See Holder.Failed.
	OnStoreError rule.StoreErrorPolicy
}

// Verdict says what kind of answer a bucket gets.
type Verdict uint8

const (
	Limited  Verdict = iota // as much as its limits lend; all of it, if it meets none
	AllowAll                // everything
	DenyAll                 // nothing
)

// Terms are the limits and bans that a bucket is subject to at the moment.
type Terms struct {
	Verdict Verdict
	// Until is when DenyAll ends, in ns; 0 if that is not known. The bucket is looked at again
	// then.
	Until int64
	// Charges are the limits, no two of them with the same Counter and Key. Only of Limited.
	Charges []Charge
}

// Holder holds the units of one Envoy: all buckets of one stream. Not safe for concurrent use. Make
// one with NewHolder.
type Holder struct {
	s       Settings
	buckets map[string]*Bucket
	states  map[stateName]*heldState
	wakes   pq.Heap[*Bucket] // those with a wake
	due     []*Bucket        // to be dealt with at the next Ask
	free    []Ask            // of the last Ask, to be used again
	actions []Action         // of the last Granted, to be used again
	round   int64            // counts calls of Ask
	serial  int64
	again   revisits
}

// NewHolder returns a Holder without buckets. The settings must be valid. The seed makes that two
// Holders do not ask in step.
func NewHolder(s Settings, seed uint64) *Holder {
	h := &Holder{s: s, buckets: map[string]*Bucket{}, states: map[stateName]*heldState{}}
	h.wakes = pq.New(func(a, b *Bucket) bool { return a.wake < b.wake }, func(b *Bucket, at int) { b.woken = at + 1 })
	h.again = revisits{most: MostAgain, second: -1, random: rand.New(rand.NewPCG(seed, 0))}
	return h
}

// Bucket is one bucket of an Envoy, and its assignments.
type Bucket struct {
	name  string
	terms Terms
	books []unitBook // one for each of terms.Charges, in order, then for limits it meets no more
	met   int        // how many of books belong to terms.Charges
	dirty bool       // among Holder.due

	entries []assignment // assignments that Envoy may still have, oldest first
	// owed is how many requests Envoy may have let through without having said so, or may still
	// let through, under assignments of units.
	owed int64

	reported int64          // when the last report was here; 0 if there was none
	measured int64          // when rates was brought up to date last
	counted  int64          // requests since then
	rates    [2]requestRate // of the last two reports, the later one first
	known    int            // how many of them there are
	zeros    int            // reports of nothing in a row
	denied   bool           // the last report had refusals
	retireAt int64          // when an idle bucket loses its assignment; 0: not
	heard    bool           // a report was here since the last Ask
	wake     int64          // when to look at it without a report; 0: not
	woken    int            // its place in Holder.wakes, from 1
	handed   int64          // assigned as units since the last report
	patient  int            // reports until it may be looked at between them again

	pace rateState
	plan bucketPlan // the plan between Ask and Granted
}

// requestRate is a number of requests in a time.
type requestRate struct{ n, ns int64 }

// assignmentKind is the kind of an assignment.
type assignmentKind uint8

const (
	assignUnits   assignmentKind = iota // g requests, whenever they come
	assignRate                          // a rate
	assignAll                           // everything
	assignNothing                       // nothing
	assignUnknown                       // an assignment from before the Holder
)

// assignment is what an Envoy may use of a bucket.
type assignment struct {
	kind     assignmentKind
	serial   int64
	g        int64 // its part of Bucket.owed
	used     int64 // requests reported since it was sent
	sent     int64
	deadline int64 // Envoy uses it no longer than until Delay after this
	burst    int64 // of assignRate
	fill     int64 // of assignRate: so many requests
	every    int64 // of assignRate: in so many seconds
}

// unbounded is an assignment without bound, as a number of requests.
const unbounded = 1 << 40

// forever is an instant that never comes.
const forever = math.MaxInt64 / 4

// maxEntries bounds the assignments that are kept apart.
const maxEntries = 6

// Usage is a report on a bucket.
type Usage struct {
	Allowed, Denied int64
}

// Reported is the result of a report.
type Reported struct {
	// Over is how many requests were let through that were not paid for: more than the bucket was
	// assigned. 0, unless Envoy applied an assignment too late.
	Over int64
	// Full says that the bucket is none of the Holder's, which has as many as it may. See Refuse.
	Full bool
}

// Len is the number of buckets.
func (h *Holder) Len() int { return len(h.buckets) }

// Bucket returns a bucket by its name; nil if there is none.
func (h *Holder) Bucket(name string) *Bucket { return h.buckets[name] }

// Buckets calls f for each bucket.
func (h *Holder) Buckets(f func(name string, b *Bucket)) {
	for name, b := range h.buckets {
		f(name, b)
	}
}

// Report takes down Envoy's report on a bucket, and makes the bucket if there is none of this name.
// terms are the bucket's present terms; they may be kept. Ask comes next.
func (h *Holder) Report(now int64, name string, u Usage, terms Terms) Reported {
	b := h.buckets[name]
	if b == nil {
		if len(h.buckets) >= h.s.Buckets {
			return Reported{Full: true}
		}
		// Envoy may have what another node, or this one over another stream, assigned before.
		b = &Bucket{name: name, measured: now, owed: unbounded}
		b.entries = append(b.entries, assignment{kind: assignUnknown, g: unbounded, sent: now,
			deadline: now + int64(TTL)})
		h.buckets[name] = b
	}
	over := b.report(now, u)
	h.look(b, terms)
	return Reported{Over: over}
}

// Look has a bucket dealt with at the next Ask, though there is no report on it, because its terms
// have changed, or its time has come (see Due).
func (h *Holder) Look(name string, terms Terms) {
	if b := h.buckets[name]; b != nil {
		h.look(b, terms)
	}
}

func (h *Holder) look(b *Bucket, terms Terms) {
	h.wakeAt(b, 0)
	h.subject(b, terms)
	if !b.dirty {
		b.dirty = true
		h.due = append(h.due, b)
	}
}

// Due returns when the next bucket is to be looked at without a report; math.MaxInt64 if none is.
// If f is not nil, it is called with the name of each whose time has come, which f must Look at.
func (h *Holder) Due(now int64, f func(name string)) (next int64) {
	for h.wakes.Len() > 0 {
		b := h.wakes.Min()
		if b.wake > now || f == nil {
			return b.wake
		}
		h.wakeAt(b, 0)
		f(b.name)
	}
	return math.MaxInt64
}

// wakeAt sets when to look at a bucket without a report; 0 is never.
func (h *Holder) wakeAt(b *Bucket, at int64) {
	switch b.wake = at; {
	case at == 0 && b.woken > 0:
		h.wakes.Remove(b.woken - 1)
		b.woken = 0
	case at == 0:
	case b.woken > 0:
		h.wakes.Fix(b.woken - 1)
	default:
		h.wakes.Push(b)
	}
}

// report books what Envoy says.
func (b *Bucket) report(now int64, u Usage) (over int64) {
	b.lapse(now)
	a := max(u.Allowed, 0)
	b.measure(now, a+max(u.Denied, 0))
	b.patience(a, now)
	b.reported, b.heard, b.denied = now, true, u.Denied > 0
	if b.zeros++; a > 0 || u.Denied > 0 {
		b.zeros = 0
	}
	over = b.used(a)
	for i := range b.entries {
		b.entries[i].used += a
	}
	b.bury(now)
	return over
}

// used books requests that were let through.
func (b *Bucket) used(a int64) (over int64) {
	x := min(a, b.owed)
	b.owed -= x
	for i := range b.books {
		b.books[i].use(mulCapped(x, b.books[i].charge.Cost))
	}
	return b.pace.used(a - x)
}

// bury forgets, at a report, the assignments that Envoy has no longer, and whose use it has fully
// reported. An assignment is replaced when the next one has been under way for Delay, and a report
// that has been under way for Delay covers it: as reports are Interval apart, nearly always one
// that took far longer. It is over when its life is.
func (b *Bucket) bury(now int64) {
	last := 0
	for i := 1; i < len(b.entries); i++ {
		if now-b.entries[i].sent >= 2*delayNs {
			last = i
		}
	}
	b.entries = b.entries[:copy(b.entries, b.entries[last:])]
	n := 0
	for _, e := range b.entries {
		if now < e.deadline+2*delayNs {
			b.entries[n] = e
			n++
		}
	}
	b.entries = b.entries[:n]
	left := int64(0)
	for i := range b.entries {
		left += b.entries[i].g
	}
	if gone := b.owed - left; gone > 0 {
		b.owed = left
		for i := range b.books { // credit stood for the units that are gone, as far as that goes
			k := &b.books[i]
			k.credit = max(0, k.credit-mulCapped(gone, k.charge.Cost))
		}
	}
}

// assign adds an assignment.
func (b *Bucket) assign(e assignment) {
	if last := b.current(); last != nil && last.kind == assignRate && e.kind != assignRate {
		// The requests it let through are paid for, but not all of them are reported.
		last.g = last.burst + last.fill*(int64(Interval)+2*delayNs)/secondNs/last.every + 1
		b.owed += last.g
		for i := range b.books {
			b.books[i].credit += mulCapped(last.g, b.books[i].charge.Cost)
		}
		b.pace = rateState{}
	}
	if len(b.entries) == maxEntries { // the two oldest are taken as one, that dies as the younger does
		b.entries[1].g += b.entries[0].g
		b.entries[1].deadline = max(b.entries[1].deadline, b.entries[0].deadline)
		b.entries = b.entries[:copy(b.entries, b.entries[1:])]
	}
	b.entries = append(b.entries, e)
	b.owed += e.g
}

// current is the assignment that was sent last; nil if there is none.
func (b *Bucket) current() *assignment {
	if len(b.entries) == 0 {
		return nil
	}
	return &b.entries[len(b.entries)-1]
}

// measure brings the rate up to date.
func (b *Bucket) measure(now, requests int64) {
	b.counted += requests
	if b.reported == 0 {
		b.measured = now
		return
	}
	ns := now - b.measured
	if ns < secondNs { // the grid of reports began soon after the bucket
		return
	}
	b.rates[1], b.rates[0] = b.rates[0], requestRate{b.counted, ns}
	b.known = min(b.known+1, 2)
	b.measured, b.counted = now, 0
}

// perSecond returns the requests of a second by the last two reports, times 1000. ok is false if it
// is not known yet.
func (b *Bucket) perSecond() (milli int64, ok bool) {
	for _, r := range b.rates[:b.known] {
		milli += int64(float64(r.n) / float64(r.ns) * 1e12)
	}
	if b.known == 0 {
		return 0, false
	}
	return milli / int64(b.known), true
}

// mulCapped is a × b, or as much as fits.
func mulCapped(a, b int64) int64 {
	if a != 0 && b > forever/a {
		return forever
	}
	return a * b
}
