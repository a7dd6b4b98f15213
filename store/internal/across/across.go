// Package across decides a call over several parts of a store, which decide one by one: all are
// asked at once, and if one of them denies or fails, the charges of the others are given back.
package across

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/internal/waiting"
)

// Call is a decision over several parts. It holds copies of everything, since its caller may give
// up. Make one with New.
type Call struct {
	Charges []store.Charge
	Ahead   []algo.Ahead // empty if nothing may be lent
	Results []algo.Result
	Now     int64
	Asked   int64 // so early that units lent end no sooner than by the clock of Now
	Err     error
	List    []store.Outcome
	Done    chan struct{} // closed when the rest is valid
}

// Share is the charges of a call that lie in one part.
type Share[P comparable] struct {
	Part P

	Charges []store.Charge
	Ahead   []algo.Ahead
	Results []algo.Result
	Now     int64
	Asked   int64
	Err     error

	of []int // of the call's charges
}

// Parts are the operations of a store for a call over several parts P.
type Parts[P comparable] struct {
	Of     func(c *store.Charge) P
	Number func(P) int // for waiting.Failure
	// Ask decides a share, as far as it alone goes: it sets Now, Asked, Err, and what Take sets.
	Ask func(s *Share[P])
	// GiveBack undoes a charge that was made at an instant: in the background, and in its result.
	GiveBack func(p P, c *store.Charge, r *algo.Result, at int64)
	// ReturnLent gives back units that were lent; nil where nothing is lent.
	ReturnLent func(p P, c *store.Charge, a *algo.Ahead)
	Name       string // begins errors
}

// New returns a Call of copies of the charges, and of ahead.
func New(charges []store.Charge, ahead []algo.Ahead) *Call {
	a := &Call{
		Charges: slices.Clone(charges), Ahead: slices.Clone(ahead), Results: make([]algo.Result, len(charges)),
		Done: make(chan struct{}),
	}
	for i := range a.Charges {
		c := &a.Charges[i]
		c.Key = slices.Clone(c.Key)
	}
	return a
}

// Outcomes returns waiting.Failure.OnOutcome for a caller that gave up. background runs a function,
// or reports that it will not.
func (a *Call) Outcomes(background func(f func()) bool) func(f func([]store.Outcome)) {
	return func(f func([]store.Outcome)) {
		select {
		case <-a.Done:
			f(a.List)
			return
		default:
		}
		if !background(func() {
			<-a.Done
			f(a.List)
		}) {
			f(make([]store.Outcome, len(a.Charges)))
		}
	}
}

// Decide asks the parts, and gives back what must not stay charged. It does not close Done.
func Decide[P comparable](a *Call, p *Parts[P]) {
	shares := split(a, p)
	var wg sync.WaitGroup
	for _, s := range shares {
		s.Results = make([]algo.Result, len(s.Charges))
		wg.Go(func() { p.Ask(s) })
	}
	wg.Wait()
	charges, results := a.Charges, a.Results
	a.List = make([]store.Outcome, len(charges))
	var failed *waiting.Failure
	charged := false                 // or perhaps
	earliest := int64(math.MaxInt64) // when a part was asked, from its own now
	var verdict store.Verdict
	for _, s := range shares {
		// The instants differ a little. The earliest one is returned: units that the caller gives
		// back by it later are never more than were charged.
		if s.Err == nil && (a.Now == 0 || s.Now < a.Now) {
			a.Now = s.Now
		}
		if ago := s.Asked - s.Now*1000; s.Err == nil {
			earliest = min(earliest, ago)
		}
		switch {
		case s.Err == nil:
		case failed == nil:
			failed = &waiting.Failure{Err: s.Err, Part: p.Number(s.Part), IsSilent: true}
		default:
			failed.Others = append(failed.Others, p.Number(s.Part))
		}
		charged = charged || !isNotCharged(s.Err)
		for j, i := range s.of {
			results[i] = s.Results[j]
			charges[i].Ask.Slot = s.Charges[j].Ask.Slot
			verdict.Add(charges[i].Mode, &results[i])
		}
	}
	a.Asked = a.Now*1000 + earliest
	giveBack := failed != nil || verdict.Denied()
	for _, s := range shares {
		a.conclude(s.of, s.Charges, s.Results, s.Err, s.Now, func(i, j int) {
			c, r, out := &charges[i], &results[i], &a.List[i]
			// Denied requests that count stay charged.
			if giveBack && out.Made && c.Ask.Cost > 0 && c.Mode != rule.Shadow && !c.Limit.CountDenied() {
				p.GiveBack(s.Part, c, r, s.Now)
				out.Made = false
			}
			if len(a.Ahead) > 0 {
				if a.Ahead[i] = s.Ahead[j]; giveBack && a.Ahead[i].Got > 0 {
					p.ReturnLent(s.Part, c, &a.Ahead[i])
				}
			}
		})
	}
	if failed == nil {
		return
	}
	a.Now, a.Err = 0, failed
	if list := a.List; charged {
		failed.Err = fmt.Errorf("%s: one of several partitions: %v", p.Name, failed.Err)
		failed.OnOutcome = func(f func([]store.Outcome)) { f(list) }
	}
}

// conclude notes the outcomes of the charges of a share. each is called for charges that were
// decided.
func (a *Call) conclude(
	of []int, charges []store.Charge, results []algo.Result, err error, now int64, each func(i, j int),
) {
	own := store.VerdictOf(charges, results)
	for j, i := range of {
		c, r, out := &a.Charges[i], &a.Results[i], &a.List[i]
		if out.Known = err == nil || isNotCharged(err); err != nil {
			continue
		}
		admitted := r.Allowed && (charges[j].Mode == rule.Shadow || !own.Denied())
		out.Made = !r.Off && c.Ask.Cost != 0 && (admitted || c.Limit.CountDenied())
		each(i, j)
		out.Now, out.Result, out.Slot = now, *r, c.Ask.Slot
	}
}

// split makes the shares of a call.
func split[P comparable](a *Call, p *Parts[P]) []*Share[P] {
	var shares []*Share[P]
	at := map[P]*Share[P]{}
	for i := range a.Charges {
		c := a.Charges[i]
		part := p.Of(&c)
		s := at[part]
		if s == nil {
			s = &Share[P]{Part: part}
			at[part], shares = s, append(shares, s)
		}
		// Whether all quotas are exhausted is known only when all parts have answered. Until then
		// each quota is charged by its own verdict.
		if c.Mode == rule.Quota {
			c.Mode = rule.Shadow
		}
		s.of, s.Charges = append(s.of, i), append(s.Charges, c)
		if len(a.Ahead) > 0 {
			s.Ahead = append(s.Ahead, a.Ahead[i])
		}
	}
	return shares
}

func isNotCharged(err error) bool { return err != nil && errors.Is(err, store.ErrNotCharged) }
