package insight

import "time"

// eraLasts is how long an era lasts, in s. Eras begin at the same instants on all nodes: at
// midnight and noon, UTC.
const eraLasts = 12 * 60 * 60

// eras is how many are kept: the current one and the two before, so that at least the last 24 hours
// are known. With two, a client that was refused 13 hours ago would be missing from the clients of
// the last day, but not from its refusals.
const (
	current = 0
	eras    = 3
)

// era is what is known of the requests of one rule in one period, beside their counts.
type era struct {
	all, refused *sample // nil where the rule was not met
	windows      []windowState

	// Counts of the decisions that were drawn by chance, with their weight.
	drawn, drawnKnown uint64
	answers, well     uint64            // without status 429
	byDoor            map[uint8]uint64  // refusals
	with              map[string]uint64 // rules that refused the same requests
}

// windowState is what is known of one limit of a rule.
type windowState struct {
	refused uint64 // decisions looked at, with their weight
	maxFill float32
}

// newEra begins an era of a rule whose size is known.
func (s *ruleState) newEra() era {
	e := era{windows: make([]windowState, s.windows), byDoor: map[uint8]uint64{}, with: map[string]uint64{}}
	e.all, e.refused = s.newSamples()
	return e
}

func (s *ruleState) newSamples() (all, refused *sample) {
	return newSample(s.size.all, s.windows, false), newSample(s.size.refused, s.windows, true)
}

// JudgedOver returns the time over which rules are judged: since the oldest kept era began, 24 to
// 36 hours. So the counts and the samples cover the same time. Half a step of the counts is added,
// so that nodes whose clocks differ by less agree on the time.
func JudgedOver(now time.Time) time.Duration {
	began := time.Unix((now.Unix()/eraLasts-(eras-1))*eraLasts, 0)
	return now.Sub(began) + 150*time.Second
}
