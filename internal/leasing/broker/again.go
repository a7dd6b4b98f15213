package broker

import "math/rand/v2"

// A bucket that got less than it wants is looked at again before its next report, when it has
// probably used what it got. So room that its limits gain takes effect at Envoy within a second:
// after a reset, a limit that was raised on another node, or units that others give back. And
// Envoys share the room that appears by and by, even if they report to different nodes: a lender
// lends to whoever asks first, and reports come at the same moments of every Interval, so that
// always the same one would be first. These looks come at random moments.

// MostAgain bounds the looks of one Holder in a second. The buckets beyond wait for their reports.
const MostAgain = 100

const (
	// againSoonest is how long after an assignment a bucket is looked at again, at least, and
	// againSpread how much later, at most.
	againSoonest, againSpread = secondNs / 2, secondNs / 2
	// nearlySpent is for how long, by its recent rate, a bucket has units, to be looked at again
	// before its next report, at most. Units that it has not used then are lost until that report,
	// as another assignment takes their place.
	nearlySpent = 4 * secondNs
	// againPause is how many reports such looks stay out if most of the assigned units were not
	// used: the requests come in bursts, or have ended.
	againPause = 3
)

// revisits is a Holder's state for looking at buckets again.
type revisits struct {
	random *rand.Rand
	most   int
	second int64 // of which left is the rest
	left   int
}

// Again sets how many buckets may be looked at again in a second, MostAgain at most.
func (h *Holder) Again(most int) { h.again.most = min(most, MostAgain) }

// later is a random time, up to d.
func (h *Holder) later(d int64) int64 { return h.again.random.Int64N(d) }

// lookAgain returns when to look at a bucket that got less than it wants; 0 if its next report is
// early enough.
func (h *Holder) lookAgain(b *Bucket, got, now int64) int64 {
	if b.zeros > 0 || b.patient > 0 || now-b.reported > int64(Interval)+2*delayNs {
		return 0
	}
	dry := int64(0)
	if milli, ok := b.perSecond(); ok && got > 0 {
		dry = int64(float64(got) / float64(max(milli, 1)) * 1000 * float64(secondNs))
	}
	if dry > nearlySpent {
		return 0
	}
	a := &h.again
	if s := now / secondNs; s != a.second {
		a.second, a.left = s, a.most
	}
	if a.left <= 0 {
		return 0
	}
	a.left--
	return now + max(dry, againSoonest) + h.later(againSpread)
}

// patience takes down whether the units assigned since the last report were used, as far as there
// was time to.
func (b *Bucket) patience(used, now int64) {
	if e := b.current(); e != nil && e.kind == assignUnits && now-e.sent < secondNs && e.sent > b.reported {
		b.handed -= e.g
	}
	if b.handed > 0 && used < b.handed/2 {
		b.patient = againPause
	} else if b.patient > 0 {
		b.patient--
	}
	b.handed = 0
}

// keeps reports whether Envoy goes on with its assignment if nothing is sent: units under the
// limits in force, for longer than an assignment is under way.
func (b *Bucket) keeps(cur *assignment, now int64) bool {
	if cur == nil || cur.kind != assignUnits && cur.kind != assignNothing || now+2*delayNs > cur.deadline {
		return false
	}
	for i := range b.books[:b.met] {
		if b.books[i].since >= cur.serial {
			return false
		}
	}
	return true
}
