package store

import "github.com/weir-rl/weir/rule"

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
