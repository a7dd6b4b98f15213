package weir_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/store/redis"
)

// Three nodes share a budget in Redis: what one reserves another one may commit, and what a node
// that died had reserved is given back by one that lives.
func TestReserveAcrossNodes(t *testing.T) {
	server := redistest.Start(t)
	var now atomic.Int64
	trace := azureTrace(t)
	for _, tt := range []struct {
		limit    string
		requests int
	}{
		{"algorithm: fixed_window, align: first_request, allow: 100000000/day", 600},
		{"algorithm: sliding_log, allow: 100000/day", 30},
	} {
		now.Store(trace[0].at)
		set := fmt.Sprintf("limits: [{name: tokens, per: [user], cost_timeout: 1h, %s}]", tt.limit)
		type node struct {
			*weir.Limiter
			store *redis.Store
		}
		var nodes []node
		for range 3 {
			store, err := redis.Open(redis.Options{URL: server.URL(), Clock: now.Load, RememberRefusals: time.Second,
				Timeout: 30 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = store.Close() })
			l, err := weir.New(store, weir.WithRules(load(t, set)))
			if err != nil {
				t.Fatal(err)
			}
			nodes = append(nodes, node{l, store})
		}
		type pending struct {
			by   int
			id   string
			cost int64
		}
		var (
			running               []pending
			committed, open, died int64 // tokens
			lost                  int   // reservations of the node that dies
		)
		for i, q := range trace[:tt.requests] {
			now.Store(q.at)
			by := i % 3
			id, d := reserve(t, nodes[by].Limiter, "ada", q.context+1000, 10*time.Minute)
			if !d.Allowed || id == "" {
				t.Fatalf("request %d of %d tokens is refused: %+v", i, q.context+1000, d.Limits)
			}
			if by == 2 {
				lost++
				died += q.context + 1000
				continue
			}
			running = append(running, pending{by, id, q.real()})
			open += q.context + 1000
		}
		wantUsed(t, nodes[0].Limiter, "ada", open+died)
		// The third node dies with all that it holds, its timer included.
		if err := nodes[2].store.Close(); err != nil {
			t.Fatal(err)
		}
		// Of the others each commits what the other one has reserved.
		slices.Reverse(running)
		for _, p := range running {
			if !commit(t, nodes[1-p.by].Limiter, p.id, p.cost) {
				t.Fatal("a reservation is gone before its time")
			}
			if commit(t, nodes[p.by].Limiter, p.id, p.cost) {
				t.Fatal("committed twice")
			}
			committed += p.cost
		}
		sweep := func(by, want int) {
			t.Helper()
			if n, err := nodes[by].Reservations().Sweep(t.Context()); err != nil || n != want {
				t.Fatalf("swept %d (%v), want %d", n, err, want)
			}
		}
		wantUsed(t, nodes[1].Limiter, "ada", committed+died)
		sweep(1, 0)
		now.Add((11 * time.Minute).Microseconds())
		sweep(1, lost)
		sweep(0, 0)
		wantUsed(t, nodes[0].Limiter, "ada", committed)
		server.Do("FLUSHALL")
	}
}
