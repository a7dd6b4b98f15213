package main

import (
	"context"
	"strconv"
	"time"

	"github.com/tidwall/redcon"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

// serveRedcon serves CL.THROTTLE with redcon: with a constant answer, or with decisions of Weir's
// store.
func serveRedcon(address string, decide bool) error {
	s, err := memory.New(memory.Options{})
	if err != nil {
		return err
	}
	limit, err := algo.New(algo.Config{Algorithm: algo.TokenBucket, N: 100_000, Window: time.Minute, Burst: 1000})
	if err != nil {
		return err
	}
	counter := &rule.Counter{ID: 1, Limit: limit, Index: -1}
	type asker struct {
		charges [1]store.Charge
		results [1]algo.Result
	}
	handle := func(c redcon.Conn, cmd redcon.Command) {
		if len(cmd.Args) < 5 {
			c.WriteArray(0) // redis-benchmark asks for the configuration
			return
		}
		numbers := [5]int64{0, 1000, 999, -1, 1}
		if decide {
			for _, arg := range cmd.Args[2:] { // as a server with a limit has to
				if _, err := strconv.ParseInt(string(arg), 10, 64); err != nil {
					c.WriteError("ERR " + err.Error())
					return
				}
			}
			a := c.Context().(*asker)
			a.charges[0] = store.Charge{Counter: counter, Limit: limit, Key: cmd.Args[1], Ask: algo.Ask{Cost: 1},
				Mode: rule.Enforce}
			if _, err := s.Take(context.Background(), a.charges[:], a.results[:]); err != nil {
				c.WriteError("ERR " + err.Error())
				return
			}
			r := &a.results[0]
			numbers = [5]int64{0, r.Limit, r.Remaining, -1, r.ResetAfter / 1e6}
			if !r.Allowed {
				numbers[0], numbers[3] = 1, r.RetryAfter/1e6
			}
		}
		c.WriteArray(len(numbers))
		for _, n := range numbers {
			c.WriteInt64(n)
		}
	}
	accept := func(c redcon.Conn) bool {
		c.SetContext(new(asker))
		return true
	}
	return redcon.ListenAndServe(address, handle, accept, nil)
}
