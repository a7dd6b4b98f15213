package postgres

import "sync/atomic"

// metrics counts the store's actions.
type metrics struct {
	calls, failures, swept atomic.Uint64
}
