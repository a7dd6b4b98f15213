package snapshot

import (
	"testing"

	"github.com/weir-rl/weir/internal/observe/insight"
)

// What a node says of a rule that it never met does not stand if another node met it, in any order
// of nodes, even if those that met it have not judged it yet.
func TestMergeVerdicts(t *testing.T) {
	of := func(met uint64, verdict string) *Snapshot {
		r := Rule{Domain: "shop", Name: "search"}
		r.Count[LaneMet] = met
		if verdict != "" {
			r.Verdicts = []insight.Verdict{{Verdict: verdict, Evidence: map[string]float64{"met": float64(met)}}}
		}
		return &Snapshot{Rules: []Rule{r}}
	}
	unmet, met, fresh := of(0, insight.NeverMet), of(30, insight.Reserve), of(30, "")
	before := of(30, insight.Reserve) // met before the time asked for
	before.Rules[0].Count[LaneMet] = 0
	for i, test := range []struct {
		list []*Snapshot
		want string
	}{
		{[]*Snapshot{unmet, unmet}, insight.NeverMet},
		{[]*Snapshot{of(0, ""), unmet}, insight.NeverMet},
		{[]*Snapshot{unmet, met}, insight.Reserve},
		{[]*Snapshot{met, unmet}, insight.Reserve},
		{[]*Snapshot{unmet, before}, insight.Reserve},
		{[]*Snapshot{unmet, fresh, unmet}, ""},
		{[]*Snapshot{fresh, unmet, met}, insight.Reserve},
	} {
		got := ""
		for _, v := range Merge(test.list...).Rules[0].Verdicts {
			got = v.Verdict
		}
		if got != test.want {
			t.Errorf("case %d: %q, not %q", i, got, test.want)
		}
	}
}
