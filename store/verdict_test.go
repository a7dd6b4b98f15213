package store_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// denied says the definition in the comment of store.Store.Take, word for word: "if an Enforce
// charge is denied, or if there are Quota charges and all of them are denied". A limit that is out
// of force is as if it had not been met.
func denied(charges []store.Charge, results []algo.Result) (denied, quotasExhausted bool) {
	var enforced, quotas []bool // whether each was admitted
	for i := range charges {
		switch {
		case results[i].Off:
		case charges[i].Mode == rule.Enforce:
			enforced = append(enforced, results[i].Allowed)
		case charges[i].Mode == rule.Quota:
			quotas = append(quotas, results[i].Allowed)
		}
	}
	quotasExhausted = len(quotas) > 0 && !slices.Contains(quotas, true)
	return slices.Contains(enforced, false) || quotasExhausted, quotasExhausted
}

func TestVerdict(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 6).Draw(t, "charges")
		charges, results := make([]store.Charge, n), make([]algo.Result, n)
		left := false
		for i := range charges {
			charges[i].Mode = rapid.SampledFrom([]rule.Mode{rule.Enforce, rule.Shadow, rule.Quota}).Draw(t, "mode")
			// Of a limit that is out of force, Allowed says nothing.
			results[i].Allowed = rapid.Bool().Draw(t, "allowed")
			results[i].Off = rapid.IntRange(0, 3).Draw(t, "off") == 0
			left = left || charges[i].Mode == rule.Quota && results[i].Allowed && !results[i].Off
		}
		want, exhausted := denied(charges, results)
		v := store.VerdictOf(charges, results)
		if v.Denied() != want || v.QuotasExhausted() != exhausted || v.QuotaLeft() != left {
			t.Fatalf("%+v %+v: denied %v, quotas exhausted %v, quota left %v; want %v, %v, %v",
				charges, results, v.Denied(), v.QuotasExhausted(), v.QuotaLeft(), want, exhausted, left)
		}
		var other store.Verdict
		for _, i := range rand.Perm(n) {
			other.Add(charges[i].Mode, &results[i])
		}
		if other != v {
			t.Fatalf("%+v %+v: the verdict depends on the order", charges, results)
		}
	})
}
