package weir

import (
	"time"

	"github.com/weir-rl/weir/rule"
)

// Hooks are told what happens; nil functions are skipped. They are called on the deciding path:
// they must be quick, safe for concurrent use, and must not keep their arguments or what those
// point to. JoinHooks makes one of two.
type Hooks struct {
	// Decided is called after each decision, also of one that was made without the store
	// (Decision.WithoutStore).
	Decided func(r *Request, d *Decision)
	// Answered is called once for an admitted request, when it has been answered, by doors that see
	// the answer: the proxy and both middlewares. d is the decision that admitted it; both are as
	// Decided saw them. A request that was turned away all the same, because of overload, is none.
	Answered func(r *Request, d *Decision, a Answer)
	// RulesChanged is called after a rule set came into force. The set may be kept.
	RulesChanged func(s *rule.Set, generation uint64)
	// StoreError is called when the store failed.
	StoreError func(err error)
}

// Answer is how a request that was admitted was answered. The zero value is of one that got no
// answer.
type Answer struct {
	// Status is that of the response, by HTTP; a gRPC status is translated as its documentation
	// says. 0 is none: the client went away before the answer began. Where the upstream did, it is
	// what the client was told, such as 502; a handler that panicked before it answered has 500.
	Status int
	// Duration is the time from the decision to the end of the answer.
	Duration time.Duration
}

// JoinHooks returns hooks that call those of a, then those of b.
func JoinHooks(a, b Hooks) Hooks {
	return Hooks{
		Decided:      join2(a.Decided, b.Decided),
		Answered:     join3(a.Answered, b.Answered),
		RulesChanged: join2(a.RulesChanged, b.RulesChanged),
		StoreError:   join1(a.StoreError, b.StoreError),
	}
}

// join1, join2 and join3 leave a function as it is where the other one is nil.
func join1[T any](a, b func(T)) func(T) {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return func(x T) { a(x); b(x) }
}

func join2[T, U any](a, b func(T, U)) func(T, U) {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return func(x T, y U) { a(x, y); b(x, y) }
}

func join3[T, U, V any](a, b func(T, U, V)) func(T, U, V) {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return func(x T, y U, z V) { a(x, y, z); b(x, y, z) }
}
