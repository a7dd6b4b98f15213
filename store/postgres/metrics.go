package postgres

import "sync/atomic"

// metrics counts what the store does.
type metrics struct {
	calls, failures, swept atomic.Uint64
}
