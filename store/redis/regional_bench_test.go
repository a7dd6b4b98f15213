package redis_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/redis"
)

// BenchmarkChange charges what other regions told, 500 changes a call, to 10,000 keys. redis-µs is
// the processor time of Redis for each change.
func BenchmarkChange(b *testing.B) {
	for _, c := range []algo.Config{
		{Algorithm: algo.FixedWindow, N: 600, Window: time.Minute}, {N: 600, Window: time.Minute}, {N: 600, Window: time.Minute, Buckets: 6},
		{Algorithm: algo.TokenBucket, N: 600, Window: time.Minute}, {Algorithm: algo.SlidingLog, N: 600, Window: time.Minute},
		{N: 600, Window: time.Minute, Lease: 10},
	} {
		for _, units := range []int64{6} {
			l := mustLimit(b, c)
			b.Run(l.String(), func(b *testing.B) {
				server := redistest.Start(b)
				s := open(b, redis.Options{URL: server.URL()})
				counter := &rule.Counter{ID: 7, Group: 9, Limit: l}
				if l.Lease() != nil {
					counter.Lease = &rule.Counter{ID: 8, Group: 9, Limit: l.Lease()}
				}
				changes, done := make([]store.Change, 500), make([]store.Changed, 500)
				keys := make([][]byte, 10_000)
				for i := range keys {
					keys[i] = fmt.Appendf(nil, "a user of id %03d", i)
				}
				at, call := "", 0
				cpu := server.CPU()
				b.ResetTimer()
				for n := 0; n < b.N; n += len(changes) {
					for i := range changes {
						changes[i] = store.Change{Counter: counter, Limit: l, Key: keys[(n+i)%len(keys)], Units: units}
					}
					call++
					to := strconv.Itoa(call) + "-0"
					if _, err := s.Change(b.Context(), 0, "us", at, to, changes, done); err != nil {
						b.Fatal(err)
					}
					at = to
				}
				b.ReportMetric(float64((server.CPU()-cpu).Nanoseconds())/1000/float64((b.N+499)/500*500), "redis-µs/op")
			})
		}
	}
}

// BenchmarkTell reports 100 keys a call, with names of 16 bytes. bytes is the memory of the log for
// each.
func BenchmarkTell(b *testing.B) {
	server := redistest.Start(b)
	s := open(b, redis.Options{URL: server.URL()})
	told := make([]store.Told, 100)
	before, cpu := server.UsedMemory(), server.CPU()
	calls := 0
	b.ResetTimer()
	for n := 0; n < b.N; n += len(told) {
		for i := range told {
			told[i] = store.Told{Counter: 0x0123456789abcdef, Key: fmt.Appendf(nil, "a user of id %03d", i), Units: 12,
				At: time.Now().UnixMicro() - int64(i)*700}
		}
		if err := s.Tell(b.Context(), 0, told); err != nil {
			b.Fatal(err)
		}
		calls++
	}
	b.StopTimer()
	entries := float64(calls * len(told))
	b.ReportMetric(float64((server.CPU()-cpu).Nanoseconds())/1000/entries, "redis-µs/op")
	if calls < 10_000 {
		b.ReportMetric(float64(server.UsedMemory()-before)/entries, "bytes/op")
	}
}
