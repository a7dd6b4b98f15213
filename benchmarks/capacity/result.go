package capacity

import (
	"time"
)

// Result is the result of a scenario.
type Result struct {
	Tally
	Strata []Tally // of each stratum, for all its keys
	Over   int64   // admissions beyond the guarantee of a limit: 0, or a defect
	// Late counts units that a node may have used after their end, as package lessee finds out by
	// its clock. It is 0 unless clocks are off by more than the margins.
	Late int64
	// Jain is Jain's index of fairness over the nodes' shares of requests that were admitted: 1 if
	// all are equal, and 1/n if one of n nodes gets all. 0 if nothing was admitted.
	Jain float64
	// Busy is the share of its time during which a store serves, for the busiest store. It leaves
	// out the keys that are not simulated themselves.
	Busy float64
	// The latency of decisions in the network and at the store.
	Mean, Median, P99, Longest time.Duration
	Events                     int64 // requests, and everything else that happened
	Took                       time.Duration
	Length                     time.Duration // Scenario.Length
}

// Tally counts decisions and their costs, in the time that was measured.
type Tally struct {
	Decisions   float64
	Admitted    float64
	Ideal       float64 // what the limit would have admitted with no way to the store
	Here        float64 // admitted by a node itself
	RefusedHere float64
	Lost        float64 // requests whose node died
	Operations  float64 // of stores; equal decisions that are merged are one
	Ahead       float64 // of them, operations that only ask for units
	Told        float64 // of them, operations that only report units
	Calls       float64 // to stores; each operation has an equal part of its call
}

func (t *Tally) add(o *Tally, weight float64) {
	t.Decisions += o.Decisions * weight
	t.Admitted += o.Admitted * weight
	t.Ideal += o.Ideal * weight
	t.Here += o.Here * weight
	t.RefusedHere += o.RefusedHere * weight
	t.Lost += o.Lost * weight
	t.Operations += o.Operations * weight
	t.Ahead += o.Ahead * weight
	t.Told += o.Told * weight
	t.Calls += o.Calls * weight
}

// PerDecision returns a number of Tally for each decision.
func (t *Tally) PerDecision(n float64) float64 {
	if t.Decisions == 0 {
		return 0
	}
	return n / t.Decisions
}

// Local returns the share of the decisions that nodes make by themselves.
func (t *Tally) Local() float64 { return t.PerDecision(t.Here + t.RefusedHere) }

func (w *world) result(took time.Duration) *Result {
	r := &Result{Over: w.over, Late: w.late, Events: w.events, Took: took, Length: w.s.Length}
	for i := range w.tallies {
		var t Tally
		t.add(&w.tallies[i], w.s.Strata[i].weight())
		r.Strata = append(r.Strata, t)
		r.add(&t, 1)
	}
	var n, sum, squares float64
	for i := range w.nodes {
		if o := w.nodes[i].offered; o > 0 {
			share := w.nodes[i].admitted / o
			n, sum, squares = n+1, sum+share, squares+share*share
		}
	}
	if squares > 0 {
		r.Jain = sum * sum / (n * squares)
	}
	for i := range w.stores {
		r.Busy = max(r.Busy, float64(w.stores[i].busy)/float64(w.s.Length))
	}
	r.Mean, r.Median, r.P99, r.Longest = w.latency.Mean(), w.latency.Quantile(0.5), w.latency.Quantile(0.99),
		w.latency.Quantile(1)
	return r
}
