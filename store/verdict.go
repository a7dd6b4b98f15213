package store

import (
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// Verdict is the rule of Store.Take that decides over a call as a whole: add the result of each of
// its charges, in any order, and ask Denied. The zero value is the verdict on no charges, which
// denies nothing. A store that decides in another language says the same rule there once more
// (decideAll in weir.lua), and package storetest says it by itself, to test against.
type Verdict struct {
	enforced bool // an Enforce charge was denied
	quotas   bool // there is a Quota charge in force
	left     bool // and one of these was admitted
}

// VerdictOf is the verdict on charges with the results of each.
func VerdictOf(charges []Charge, results []algo.Result) (v Verdict) {
	for i := range charges {
		v.Add(charges[i].Mode, &results[i])
	}
	return v
}

// Add adds a charge of mode m, whose own limit came to the result r: r.Allowed and r.Off count. A
// Shadow charge has no say, and neither has one whose limit is out of force.
func (v *Verdict) Add(m rule.Mode, r *algo.Result) {
	if r.Off {
		return
	}
	switch m {
	case rule.Enforce:
		v.enforced = v.enforced || !r.Allowed
	case rule.Quota:
		v.quotas, v.left = true, v.left || r.Allowed
	}
}

// Denied reports whether the call as a whole is denied: no Enforce and no Quota charge of it is
// made, but those whose Limit counts denied requests.
func (v Verdict) Denied() bool { return v.enforced || v.QuotasExhausted() }

// QuotasExhausted reports whether there are Quota charges, and all of them were denied.
func (v Verdict) QuotasExhausted() bool { return v.quotas && !v.left }

// QuotaLeft reports whether a Quota charge was admitted.
func (v Verdict) QuotaLeft() bool { return v.left }
