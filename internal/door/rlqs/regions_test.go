package rlqs

import (
	"context"
	"testing"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/leasing/broker"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store/memory"
	"github.com/weir-rl/weir/store/regions"
)

// newRegionalDoor is a door in one of two regions of the same weight, which share a limit of 6,000
// an hour and may admit half of it more.
func newRegionalDoor(t *testing.T) *door {
	t.Helper()
	m, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := regions.New(m, regions.Options{Region: "eu",
		Table: []regions.Region{{Name: "eu", Weight: 1}, {Name: "us", Weight: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	return newDoorOver(t, m, s, `
domain: edge
limits:
  - { name: tenant, per: [tenant], allow: 6000/hour, algorithm: token_bucket, consistency: {lease: 25%, for: 11s, regions: {over: 50%}} }
`, Options{Settings: broker.Settings{First: 1000, Buckets: 10}, Expand: s.Expand})
}

// halves returns the units out of the ceiling and of all regions' share, and the units left of
// each.
func (d *door) halves(t *testing.T) (out, left [2]int64) {
	t.Helper()
	var decision weir.Decision
	r := weir.Request{Domain: "edge", Attributes: rule.Map{"tenant": "acme"}, Peek: true}
	charges := d.o.Expand(d.limiter.Phases().Charges(&r, &decision), nil)
	if len(charges) != 2 {
		t.Fatalf("%d charges, want the ceiling and all", len(charges))
	}
	ahead, results := make([]algo.Ahead, 2), make([]algo.Result, 2)
	if _, _, err := d.store.TakeAhead(t.Context(), 0, 0, charges, ahead, results); err != nil {
		t.Fatal(err)
	}
	for i := range ahead {
		out[i], left[i] = ahead[i].Out, results[i].Remaining
	}
	return out, left
}

// TestRegionsPaid: what an Envoy is assigned is out of the ceiling and of the whole limit, is gone
// for other doors, and is counted once.
func TestRegionsPaid(t *testing.T) {
	d := newRegionalDoor(t)
	e := d.stream(t)
	e.report(0, 1, "tenant", "acme")
	if s, _ := e.answer(); s.GetTokenBucket().GetMaxTokens() != 1000 {
		t.Fatalf("%v", s)
	}
	if out, left := d.halves(t); out != [2]int64{1000, 1000} || left != [2]int64{3500, 5000} {
		t.Errorf("%d are out, %d left of the ceiling and of all", out, left)
	}
	if n := d.Stats().Limits[weir.RuleName{Domain: "edge", Name: "tenant"}].Assigned; n != 1000 {
		t.Errorf("%d units are assigned, want 1000", n)
	}
	admitted := 0
	for range 4000 {
		dec, err := d.limiter.Allow(context.Background(),
			weir.Request{Domain: "edge", Attributes: rule.Map{"tenant": "acme"}})
		if err != nil {
			t.Fatal(err)
		}
		if dec.Allowed {
			admitted++
		}
	}
	// A few come back meanwhile.
	if admitted < 3500 || admitted > 3600 {
		t.Errorf("another door admits %d, want what is left of the ceiling, 3500", admitted)
	}
}

// TestRegionsLenderAway: where nobody lends, the store is asked for the limits as they are met, of
// which it makes the ceilings itself.
func TestRegionsLenderAway(t *testing.T) {
	d := newRegionalDoor(t)
	d.lender = away{d.lender}
	e := d.stream(t)
	e.report(0, 1, "tenant", "acme")
	if s, _ := e.answer(); s.GetTokenBucket().GetMaxTokens() != 1000 {
		t.Errorf("%v", s)
	}
	out, left := d.halves(t)
	if out != [2]int64{} || left[0] < 3500 || left[0] > 3600 || left[1] < 5000 || left[1] > 5100 {
		t.Errorf("%d are out, %d left of the ceiling and of all", out, left)
	}
}
