package weir

import (
	"github.com/weir-rl/weir/rule"
)

// Hooks are functions that a Limiter calls; nil functions are skipped. They are called on the
// deciding path: they must be quick, safe for concurrent use, and must not keep their arguments or
// anything that these point to. JoinHooks makes one of several.
type Hooks struct {
	// Decided is called after each decision, also of one that was made without the store
	// (Decision.WithoutStore).
	Decided func(r *Request, d *Decision)
	// Answered is called once for an admitted request, when it has been answered, by doors that see
	// the answer: the proxy and both middlewares. d is the decision that admitted it; both are as
	// Decided saw them. A request that was turned away all the same, because of overload, is none.
	Answered func(r *Request, d *Decision, a Answer)
	// Reported is called for requests that somebody else decided, by the units assigned before
	// (Phases.Report). d holds what they meet, and no answers.
	Reported func(r *Request, d *Decision, allowed, denied int64)
	// RulesChanged is called before a rule set comes into force, so that no decision by it waits
	// for the work of this hook; Limiter.Rules still returns the set before. Decisions by the old
	// set go on meanwhile, and Decided may be called for some of them afterwards. The set may be
	// kept.
	RulesChanged func(s *rule.Set, generation uint64)
	// StoreError is called when the store failed; not for a call whose context was cancelled, as
	// where a client hung up.
	StoreError func(err error)
}

// Stopwatch times a sample of the decisions of a door. It must be safe for concurrent use.
type Stopwatch interface {
	// Begin is called when a door has a request to decide, and returns the time of a clock of the
	// Stopwatch's own; 0 for a decision that is not in the sample.
	Begin() (start int64)
	// End gets the value that Begin returned, unless that was 0, when the door knows its answer. r
	// and d are the request and its decision; both are nil where there was no decision. They must
	// not be kept.
	End(start int64, r *Request, d *Decision)
}

// Answer is how a request that was admitted was answered. The zero value is of one that got no
// answer.
type Answer struct {
	// Status is the HTTP status of the response; a gRPC status is translated as the gRPC
	// documentation says. 0 is none: the client went away before the answer began. If the upstream
	// went away, it is the status that the client was sent, such as 502; a handler that panicked
	// before it answered has 500.
	Status int
}

// JoinHooks returns hooks that call the hooks of each argument, in this order.
func JoinHooks(hooks ...Hooks) (all Hooks) {
	var (
		decided  []func(*Request, *Decision)
		answered []func(*Request, *Decision, Answer)
		reported []func(*Request, *Decision, int64, int64)
		changed  []func(*rule.Set, uint64)
		failed   []func(error)
	)
	for _, h := range hooks {
		decided, answered = join(decided, h.Decided, h.Decided != nil), join(answered, h.Answered, h.Answered != nil)
		reported = join(reported, h.Reported, h.Reported != nil)
		changed, failed = join(changed, h.RulesChanged, h.RulesChanged != nil),
			join(failed, h.StoreError, h.StoreError != nil)
	}
	all.Decided = joinDecided(decided)
	if len(answered) > 0 {
		all.Answered = func(r *Request, d *Decision, a Answer) {
			for _, f := range answered {
				f(r, d, a)
			}
		}
	}
	if len(reported) > 0 {
		all.Reported = func(r *Request, d *Decision, allowed, denied int64) {
			for _, f := range reported {
				f(r, d, allowed, denied)
			}
		}
	}
	if len(changed) > 0 {
		all.RulesChanged = func(s *rule.Set, generation uint64) {
			for _, f := range changed {
				f(s, generation)
			}
		}
	}
	if len(failed) > 0 {
		all.StoreError = func(err error) {
			for _, f := range failed {
				f(err)
			}
		}
	}
	return all
}

// joinDecided makes one function of several. Hooks that are joined in pairs would be called through
// as many closures, and a loop over three takes a third longer than three calls.
func joinDecided(list []func(*Request, *Decision)) func(*Request, *Decision) {
	switch len(list) {
	case 0:
		return nil
	case 1:
		return list[0]
	case 2:
		a, b := list[0], list[1]
		return func(r *Request, d *Decision) { a(r, d); b(r, d) }
	case 3:
		a, b, c := list[0], list[1], list[2]
		return func(r *Request, d *Decision) { a(r, d); b(r, d); c(r, d) }
	}
	first, rest := joinDecided(list[:3]), joinDecided(list[3:])
	return func(r *Request, d *Decision) { first(r, d); rest(r, d) }
}

// join appends f where it is one.
func join[F any](list []F, f F, ok bool) []F {
	if !ok {
		return list
	}
	return append(list, f)
}
