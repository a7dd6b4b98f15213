package weir

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/limiter/reserve"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// How long a reservation is held: by default, and at most if the caller says how long.
const (
	DefaultReservation = 5 * time.Minute
	MaxReservation     = time.Hour
)

var errEstimate = errors.New("weir: an estimate must be of 0 hits or more")

// Reserve decides r into d as Decide does; r.Hits is an estimate of the request's cost. If the
// request is admitted, Reserve returns the id of a reservation, which holds the estimate until
// Reservations.Commit gives the real cost, or until the timeout: then the estimate is given back.
// See Decision.ReservationTimeout for how long that is.
//
// The id cannot be guessed, and tells nothing; whoever has it may commit. It is "" if there is
// nothing to settle: if d is a refusal, or if no limit was met whose charges can be changed
// afterwards (algo.Limit.Settles). Charges by numbers that a descriptor brings itself (a limit,
// hits of its own) stay as they were made, too.
//
// An estimate of nothing (r.Peek) admits the request, and leaves all of the cost to Commit.
//
// The store is called with the values of ctx, at Commit too, so that a store that follows requests
// in traces finds their spans; hooks find r.Trace.
//
// If the store fails there is no reservation, and the rules decide, as at Decide: r is admitted
// (d.WithoutStore), or Reserve returns an error.
func (l *Limiter) Reserve(ctx context.Context, r *Request, d *Decision, timeout time.Duration) (reservation string,
	err error) {
	err = l.reservations.r.Able()
	switch {
	case err != nil:
		return "", err
	case r.Cost() < 0:
		return "", errEstimate
	case timeout < 0 || timeout > MaxReservation:
		return "", fmt.Errorf("weir: a reservation is held for at most %v, not %v; 0 means %v", MaxReservation, timeout,
			DefaultReservation)
	}
	if err := l.Decide(ctx, r, d); err != nil || !d.Allowed {
		return "", err
	}
	note := d.note(r)
	if note == nil {
		return "", nil
	}
	if reservation, err = l.reservations.r.Hold(ctx, note, d.ReservationTimeout(timeout)); err != nil {
		return "", d.withoutStore(err)
	}
	return reservation, nil
}

// ReservationTimeout returns for how long Reserve holds a reservation of d that was asked for with
// a timeout: no longer than the shortest cost_timeout of the rules that were met. A timeout of 0
// stands for that, or for DefaultReservation if no rule says anything.
func (d *Decision) ReservationTimeout(timeout time.Duration) time.Duration {
	least := time.Duration(0)
	for i := range d.Matches.Hits {
		if t := d.Matches.Hits[i].Window.Rule.CostTimeout; t > 0 && (least == 0 || t < least) {
			least = t
		}
	}
	switch {
	case timeout > 0 && least > 0:
		return min(timeout, least)
	case timeout > 0:
		return timeout
	case least > 0:
		return least
	}
	return DefaultReservation
}

// note returns what must be known to settle an admitted d; nil if nothing can be settled.
func (d *Decision) note(r *Request) []byte {
	var note, last []byte
	for i := range d.charges {
		c, h := &d.charges[i], &d.Matches.Hits[i]
		if c.Counter.Override || h.Descriptor >= 0 && r.Descriptors[h.Descriptor].HasHits || !d.changeable(i) {
			continue
		}
		note = reserve.AppendNote(note, d.Time, &reserve.Charge{
			Counter: c.Counter.ID, Reserved: c.Ask.Cost, Each: algo.ClampCost(max(h.Cost, 0)), Key: c.Key,
		}, last)
		last = c.Key
	}
	return note
}

// changeable reports whether the i-th charge of an admitted decision was made, and may be changed
// afterwards.
func (d *Decision) changeable(i int) bool {
	c := &d.charges[i]
	if !c.Limit.Settles() || c.Ask.Cost < 0 {
		return false
	}
	return d.results[i].Allowed || c.Limit.CountDenied()
}

// Settle replaces the charges of d by the real cost of the request, for callers that decided it and
// know that cost. It calls actual for each limit that d charged, with the units that were charged;
// actual returns the units that the request cost, or not ok to leave the limit as it was charged.
// For giving back, and for limits that are no longer in force, see Reservations.Commit.
//
// d must be an admitted decision of this Limiter that has not been reused. To be called once. No
// reservation is needed; if the process dies before it has called Settle, the estimate stays
// charged.
func (l *Limiter) Settle(ctx context.Context, d *Decision,
	actual func(r *rule.Rule, estimate int64) (units int64, ok bool)) error {
	if !d.Allowed {
		return nil
	}
	if err := l.reservations.r.Able(); err != nil {
		return err
	}
	s := l.reservations.r.Settlements(d.Time)
	for i := range d.charges {
		c, h := &d.charges[i], &d.Matches.Hits[i]
		if !d.changeable(i) {
			continue
		}
		units, ok := actual(h.Window.Rule, c.Ask.Cost)
		if !ok {
			if h.Window.Rule.CostAfter != "" {
				l.reservations.unknown.Add(1)
			}
			continue
		}
		s.Add(c.Counter.ID, c.Key, c.Ask.Cost, units)
	}
	return s.Settle(ctx)
}

// Reservations are charges that the store holds until it is known what their request really cost.
// Limiter.Reserve makes them. Safe for concurrent use. See Limiter.Reservations.
type Reservations struct {
	r       *reserve.Reservations
	unknown atomic.Uint64
}

// Reservations returns the reservations of this Limiter's store.
func (l *Limiter) Reservations() *Reservations { return &l.reservations }

// Commit settles a reservation: its request really cost so many hits, which are counted as the
// estimate was (a rule's cost is per hit). Surplus units are given back, unless they have lapsed by
// then; missing ones are charged even if there is no room for them, so that later requests make up
// for it. 0 hits cancel the reservation.
//
// ok is false if there is none of that id: it was committed before, it timed out, or it was never
// made. Limits that are no longer in force are passed over. After an error, the unsettled charges
// stay as they were.
func (r *Reservations) Commit(ctx context.Context, reservation string, hits int64) (ok bool, err error) {
	return r.r.Commit(ctx, reservation, hits)
}

// CommitEach is Commit where the cost differs from rule to rule: actual is called for each limit of
// the reservation, with the units that were reserved, and returns the units that the request really
// cost; below 0 means 0.
func (r *Reservations) CommitEach(ctx context.Context, reservation string,
	actual func(r *rule.Rule, estimate int64) int64) (ok bool, err error) {
	return r.r.CommitEach(ctx, reservation, actual)
}

// Sweep gives back the estimates of all reservations of the store whose timeout has passed, no
// matter which process made them, and returns how many there were. A Limiter that has made
// reservations sweeps by itself; call Sweep for reservations that outlive the process that made
// them.
func (r *Reservations) Sweep(ctx context.Context) (released int, err error) { return r.r.Sweep(ctx) }

// ReservationStats counts the reservations of this Limiter, and how they ended.
type ReservationStats struct {
	Made      uint64 // reservations made
	Committed uint64 // reservations committed or cancelled, also other processes'
	// reservations whose estimate was given back after their timeout, also other processes'
	Expired uint64
	// charges of rules with cost_after that stay as they were, since the response did not show the
	// cost
	Unknown uint64
}

// Stats returns the counts since the Limiter was made.
func (r *Reservations) Stats() ReservationStats {
	s := r.r.Stats()
	return ReservationStats{Made: s.Made, Committed: s.Committed, Expired: s.Expired, Unknown: r.unknown.Load()}
}

// windowOf returns the limit of a counter that is in force for a key; nil if there is none.
func (l *Limiter) windowOf(counter uint64, key []byte) *rule.Window {
	f := l.rules.Load()
	if f == nil {
		return nil
	}
	r := f.rulesByCounter.of(f.set)[counter]
	if r.rule == nil {
		return nil
	}
	return r.rule.WindowFor(r.counter, key)
}

// settleLimit returns the numbers of a window that are in force for a key, to settle a charge by. A
// grant that lifts the limit has no numbers.
func (l *Limiter) settleLimit(w *rule.Window, key []byte) *algo.Limit {
	limit, _ := l.granted(w, key, l.orders.Now())
	if limit == nil {
		return atSignal(w, w.Limit, l.signals)
	}
	return limit
}

// rulesByCounter finds the rule of a counter by the counter's ID, or by the ID of its
// rule.Regions.All. It is made when it is needed first.
type rulesByCounter struct {
	once sync.Once
	m    map[uint64]counted
}

// counted is a counter of a rule.
type counted struct {
	rule    *rule.Rule
	counter uint64
}

func (c *rulesByCounter) of(s *rule.Set) map[uint64]counted {
	c.once.Do(func() {
		c.m = make(map[uint64]counted, len(s.Counters()))
		add := func(r *rule.Rule, windows []*rule.Window) {
			for _, w := range windows {
				if w.Counter == nil {
					continue
				}
				of := counted{r, w.Counter.ID}
				c.m[w.Counter.ID] = of
				if g := w.Counter.Regions; g != nil && g.All != nil {
					c.m[g.All.ID] = of
				}
			}
		}
		for _, r := range s.Rules() {
			add(r, r.Windows)
			for i := range r.Overrides {
				add(r, r.Overrides[i].Windows)
			}
		}
	})
	return c.m
}

func (l *Limiter) storeError(err error) {
	if l.hooks.StoreError != nil {
		l.hooks.StoreError(err)
	}
}

// GiveBack gives back the turns that d took in leaky buckets, for a request that will not be passed
// on after all (for example, its client hung up while it was held). A turn is given back only if it
// is still the last in its queue, at any door of the store; otherwise it goes unused. The counts of
// other limits stay. It returns the number of turns that went back.
//
// d must be an admitted decision of this Limiter that has not been reused. Call GiveBack at most
// once, before the turn has come.
func (l *Limiter) GiveBack(ctx context.Context, d *Decision) (turns int, err error) {
	var (
		charge [1]store.Charge
		result [1]algo.Result
	)
	for i := range d.charges {
		c := &d.charges[i]
		if !c.Limit.Delays() || c.Ask.Cost <= 0 || !d.results[i].Allowed || !d.Allowed && c.Mode != rule.Shadow {
			continue
		}
		// The queue has drained when the last turn has passed. If that is still at the instant that
		// the decision reported, the last turn is ours.
		charge[0] = *c
		charge[0].Ask = algo.Ask{Cost: -c.Ask.Cost, LastEnds: d.Time + d.results[i].ResetAfter}
		if _, err := l.store.Take(ctx, charge[:], result[:]); err != nil {
			return turns, err
		}
		if result[0].Allowed {
			turns++
		}
	}
	return turns, nil
}
