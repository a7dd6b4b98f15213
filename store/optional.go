package store

import (
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// Forgetter is implemented by stores that remember refusals and repeat them without a new decision.
// Forget drops the refusals of a key, on all nodes, because the key may be admitted earlier than
// they said.
type Forgetter interface {
	Forget(c *rule.Counter, key []byte)
}

// Remote is implemented by stores that may answer over a network. If Remote returns true, the
// Limiter counts denials for bans after it has answered, not before.
type Remote interface {
	Remote() bool
}

// Prompt is implemented by stores that can decide some calls without waiting for anything. Doors
// ask them on the goroutine that reads the connection, and hand a call to another one only if it
// has to wait. TakeNow is safe for concurrent use, and so quick that others may wait for it. A
// store that wraps a Prompt has to be one itself: it is not looked for with As.
type Prompt interface {
	// TakeNow is Take for a call that can be decided at once. If ok is false, it cannot: nothing
	// was charged, the results are not valid, and Take is to be called. now is as with Take.
	TakeNow(charges []Charge, results []algo.Result) (now int64, ok bool)
}

// As returns s as a T (a Reserver, a Board, …), or else the first T among the stores that s
// wraps. A store that wraps another one has a method Unwrap() Store. ok is false if there is none.
func As[T any](s Store) (t T, ok bool) {
	for s != nil {
		if t, ok = s.(T); ok {
			return t, true
		}
		w, wraps := s.(interface{ Unwrap() Store })
		if !wraps {
			break
		}
		s = w.Unwrap()
	}
	return t, false
}
