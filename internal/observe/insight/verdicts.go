package insight

// Verdicts are the names of all verdicts, the most urgent first. Judge returns them in this order.
var Verdicts = []string{
	Broken, LooseCrowd, LooseFew, Strict, MaybeStrict, Ignored, AddsNothing, NeverMet, NeverBinding, TooEarly, Reserve,
	Works,
}

// The verdicts. docs/operating/insight.md says when each holds.
const (
	Broken       = "broken"        // an expression fails
	LooseCrowd   = "loose_crowd"   // it let a crowd through that saturated the service
	LooseFew     = "loose_few"     // it let a few clients through that saturated the service
	Strict       = "strict"        // it refuses clients that behave well
	MaybeStrict  = "maybe_strict"  // it refuses many, and nothing tells who they are
	Ignored      = "ignored"       // refused clients do not wait as they are told
	AddsNothing  = "adds_nothing"  // something else refuses whatever it refuses
	NeverMet     = "never_met"     // no request met it
	NeverBinding = "never_binding" // nobody came near it
	TooEarly     = "too_early"     // too little is known
	Reserve      = "reserve"       // it refused nobody, and somebody came near
	Works        = "works"         // it refuses, and nothing speaks against it
)

// Alarming reports whether somebody should look at a verdict.
func Alarming(verdict string) bool {
	switch verdict {
	case NeverBinding, TooEarly, Reserve, Works:
		return false
	}
	return true
}

// The confidence of a verdict.
const (
	High = "high"
	Low  = "low"
)

// MendOrDelete is the advice for a rule that is never met.
const MendOrDelete = "Mend its conditions, or delete it."

// Masked returns a verdict for roles that may not see what clients sent: without the patch, since
// rule files may name clients, and without the quoted request.
func (v Verdict) Masked() Verdict {
	switch {
	case v.Proposal == nil:
	case v.Verdict == NeverMet:
		v.Proposal = &Proposal{Sentence: MendOrDelete}
	case v.Verdict == TooEarly:
		v.Proposal = nil
	default:
		v.Proposal = &Proposal{Sentence: v.Proposal.Sentence}
	}
	return v
}
