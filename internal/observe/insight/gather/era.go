package gather

// currentEra is the place of the era that goes on.
const currentEra = 0

// eraFigures is what is known of the requests of one rule in one period, beside their counts.
type eraFigures struct {
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
func (s *ruleState) newEra() eraFigures {
	e := eraFigures{windows: make([]windowState, s.windows), byDoor: map[uint8]uint64{}, with: map[string]uint64{}}
	e.all, e.refused = s.newSamples()
	return e
}

func (s *ruleState) newSamples() (all, refused *sample) {
	return newSample(s.size.all, s.windows, false), newSample(s.size.refused, s.windows, true)
}
