package memory

import (
	"context"
	"fmt"
	"testing"
	"time"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// TestCapacity measures what docs/capacity.md says of bytes for each user: users with a key of 16 bytes that have each
// used a limit up to its end. It fails when a figure of the docs no longer holds.
//
//	go test ./store/memory -run TestCapacity -v
func TestCapacity(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("takes a quarter of a GB")
	}
	const users, steps = 50_000, 20
	for _, tc := range []struct {
		name   string
		config algo.Config
		cost   int64   // units that a user takes at once, twenty times, spread evenly over the window
		most   float64 // bytes for each user, key included
	}{
		{"token_bucket", algo.Config{Algorithm: algo.TokenBucket, N: 100, Window: time.Hour}, 1, 80},
		{"leaky_bucket", algo.Config{Algorithm: algo.LeakyBucket, N: 100, Window: time.Hour}, 1, 80},
		{"fixed_window", algo.Config{Algorithm: algo.FixedWindow, N: 100, Window: time.Hour}, 1, 80},
		{"sliding_window, 1 bucket", algo.Config{Algorithm: algo.SlidingWindow, N: 100, Window: time.Hour}, 1, 80},
		{"sliding_window, 60 buckets", algo.Config{Algorithm: algo.SlidingWindow, N: 500, Window: time.Hour, Buckets: 60}, 25, 440},
		{"sliding_log of 60", algo.Config{Algorithm: algo.SlidingLog, N: 60, Window: time.Hour}, 3, 500},
		{"sliding_log of 500", algo.Config{Algorithm: algo.SlidingLog, N: 500, Window: time.Hour}, 25, 3000},
	} {
		t.Run(tc.name, func(t *testing.T) {
			limit, err := algo.New(tc.config)
			if err != nil {
				t.Fatal(err)
			}
			now := int64(1767225600) * 1e6
			before := heapInUse()
			s, err := New(Options{Clock: func() int64 { return now }})
			if err != nil {
				t.Fatal(err)
			}
			counter := &rule.Counter{ID: 1, Domain: "d", Rule: "r", Window: "r", Limit: limit}
			charges, results := make([]weir.Charge, 1), make([]algo.Result, 1)
			step := tc.config.Window.Microseconds() / (steps + 1)
			for range steps {
				for user := range users {
					charges[0] = weir.Charge{Counter: counter, Limit: limit, Key: fmt.Appendf(nil, "user-%011d", user), Ask: algo.Ask{Cost: tc.cost, MaxDelay: -1}}
					if _, err := s.Take(context.Background(), charges, results); err != nil {
						t.Fatal(err)
					}
				}
				now += step
			}
			if keys := s.Stats().Keys; keys != users {
				t.Fatalf("%d keys", keys)
			}
			bytes := float64(heapInUse()-before) / users
			t.Logf("%-27s %6.0f bytes a user, %6.2f GB for a million", tc.name, bytes, bytes*1e6/1e9)
			if bytes > tc.most {
				t.Errorf("%.0f bytes a user, above the %.0f that the docs allow for", bytes, tc.most)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
