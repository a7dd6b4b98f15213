package redis

import (
	"context"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// Check asks whether a store that is opened with these options could decide: it loads the
// functions, as each node does, and decides once, on a key that Redis forgets after a second. A
// fault that does not pass by itself is a store.LastingError.
func Check(ctx context.Context, o Options) error {
	o.Heartbeat, o.RememberRefusals, o.Logger = 0, 0, nil
	s, err := Open(o)
	if err != nil {
		return err
	}
	defer s.Close()
	l, err := algo.New(algo.Config{Algorithm: algo.FixedWindow, N: 1, Window: time.Second})
	if err != nil {
		return err
	}
	_, err = s.Take(ctx, []store.Charge{{
		Counter: &rule.Counter{Limit: l}, Limit: l, Key: []byte("weir check"), Ask: algo.Ask{Cost: 1},
	}}, make([]algo.Result, 1))
	return err
}
