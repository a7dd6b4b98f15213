package weir

import "github.com/weir-rl/weir/rule"

// Hooks are told what happens; nil functions are skipped. They are called on the deciding path:
// they must be quick, safe for concurrent use, and must not keep their arguments or what those
// point to. JoinHooks makes one of two.
type Hooks struct {
	// Decided is called after each decision, also of one that was made without the store
	// (Decision.WithoutStore).
	Decided func(r *Request, d *Decision)
	// RulesChanged is called after a rule set came into force. The set may be kept.
	RulesChanged func(s *rule.Set, generation uint64)
	// StoreError is called when the store failed.
	StoreError func(err error)
}

// JoinHooks returns hooks that call those of a, then those of b.
func JoinHooks(a, b Hooks) Hooks {
	return Hooks{
		Decided:      join2(a.Decided, b.Decided),
		RulesChanged: join2(a.RulesChanged, b.RulesChanged),
		StoreError:   join1(a.StoreError, b.StoreError),
	}
}

// join1 and join2 leave a function as it is where the other one is nil.
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
