package simulation

import "testing"

// mistake is something that is wrong on purpose.
type mistake int

const (
	none         mistake = iota
	repeats              // a call whose answer was lost is made again
	halfCharge           // the server charges one limit of a request that another one refuses
	wholeShare           // a node without the server has the whole limit, not its share
	refundsTwice         // what comes back comes back twice
	earlyRetry           // retry_after is a millisecond short
	forgetful            // the server forgets a key now and then
	deaf                 // a caller waits for an answer, whatever the deadline
	leaks                // a goroutine stays
	silentBoard          // what is posted for all nodes is lost
	staleRules           // a node does not take over new rules
	hoards               // a node takes more units than it was lent
	mistakes
)

func (m mistake) String() string {
	return [...]string{"none", "repeats", "half charge", "whole share", "refunds twice", "early retry", "forgetful",
		"deaf", "leaks", "silent board", "stale rules", "hoards"}[m]
}

// found is how many seeds it may take to find a mistake, and plans that give it a chance.
var found = [mistakes]struct {
	seeds uint64
	force func(*plan)
}{
	repeats:      {40, in(exact, false)},
	halfCharge:   {40, in(exact, true)},
	wholeShare:   {40, in(exact, false)},
	refundsTwice: {40, in(exact, true)},
	earlyRetry:   {40, in(exact, true)},
	forgetful:    {40, in(exact, true)},
	deaf:         {40, in(exact, false)},
	leaks:        {1, in(leased, true)},
	silentBoard:  {40, in(exact, true)},
	staleRules:   {40, in(exact, true)},
	hoards:       {60, in(leased, true)},
}

func in(m mode, quiet bool) func(*plan) {
	return func(p *plan) { p.mode, p.quiet = m, quiet }
}

// TestMistakes: the judges find each mistake that is planted, and the same seed finds nothing
// without it.
func TestMistakes(t *testing.T) {
	for m := none + 1; m < mistakes; m++ {
		t.Run(m.String(), func(t *testing.T) {
			f := found[m]
			for seed := uint64(1); seed <= f.seeds; seed++ {
				out := run(t, seed, m, f.force)
				if len(out.problems) == 0 {
					continue
				}
				t.Logf("found by seed %d: %s", seed, out.problems[0])
				if out := run(t, seed, none, f.force); len(out.problems) > 0 {
					t.Errorf("without the mistake seed %d finds: %s", seed, out.problems[0])
				}
				return
			}
			t.Errorf("not found by %d seeds", f.seeds)
		})
	}
}
