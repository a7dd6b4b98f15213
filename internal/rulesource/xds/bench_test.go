package xds

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	configpb "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/rulesource"
	"github.com/weir-rl/weir/internal/testkit/xdstest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store/memory"
)

// newFollower returns a Follower that nothing runs.
func newFollower() *Follower {
	log := slog.New(slog.DiscardHandler)
	f := &Follower{Held: rulesource.NewHeld("xds", log), o: Options{Address: &Address{}, Logger: log, Settle: time.Hour}}
	f.o.Rules.None, f.o.Rules.Kept = true, &f.kept
	return f
}

func stopped() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

// BenchmarkTake takes sets of 1,000 domains with 10 limits each and puts them in force: one that is
// as before, one of which a domain changed, and one that is all new.
func BenchmarkTake(b *testing.B) {
	const domains, limits = 1000, 10
	for _, changes := range []int{0, 1, domains} {
		b.Run(fmt.Sprint("changed=", changes), func(b *testing.B) {
			store, err := memory.New(memory.Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer store.Close()
			l, err := weir.New(store)
			if err != nil {
				b.Fatal(err)
			}
			configs := make([]*configpb.RateLimitConfig, domains)
			fill := func(i int, n uint32) {
				c := &configpb.RateLimitConfig{Name: fmt.Sprint("default/gateway/", i), Domain: fmt.Sprint("default/gateway/", i)}
				route := &configpb.RateLimitDescriptor{Key: fmt.Sprint("httproute/default/", i), Value: fmt.Sprint("httproute/default/", i)}
				for j := range limits {
					d := xdstest.Config("", n, fmt.Sprint("rule-", j, "-match-0")).Descriptors[0]
					d.Value = d.Key
					route.Descriptors = append(route.Descriptors, d)
				}
				c.Descriptors = []*configpb.RateLimitDescriptor{route}
				configs[i] = c
			}
			for i := range configs {
				fill(i, 5)
			}
			f := newFollower()
			f.running, f.o.Changed = true, func(s *rule.Set) { l.SetRules(s) }
			s := &stream{f: f, settle: stopped()}
			take := func() {
				raw := anys(b, configs...)
				b.StartTimer()
				if _, err := f.take(s, "1", raw); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
			}
			b.StopTimer()
			take()
			b.ResetTimer()
			for n := range b.N {
				for i := range changes {
					fill(i, uint32(6+n))
				}
				take()
			}
		})
	}
}
