package redis_test

import (
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/redis"
)

// twoStates returns a Counter that lends, and one beside it as rule.Regions.All is.
func twoStates(id uint64, l *algo.Limit) (own, all *rule.Counter) {
	const group = 0x7e57
	beside := func(n uint64, l *algo.Limit) *rule.Counter {
		return &rule.Counter{ID: id<<8 + n, Group: group, Limit: l}
	}
	own, all = beside(1, l), beside(3, l)
	own.Lease, all.Lease = beside(2, l.Lease()), beside(4, l.Lease())
	own.Lent, all.Lent = true, true
	return own, all
}

// TestBareCarries: units that are out under an older identity are not forgotten where there is no
// state that they lie beside, with one state and with two.
func TestBareCarries(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, redis.Options{URL: server.URL()})
	l := mustLimit(t, algo.Config{Algorithm: algo.TokenBucket, N: 100, Window: 24 * time.Hour, Lease: 50,
		LeaseFor: time.Minute})
	for states, key := range []string{"", "one", "two"} {
		if states == 0 {
			continue
		}
		wasOwn, wasAll := twoStates(7, l)
		own, all := twoStates(8, l)
		own.Previous, own.Lease.Previous = []*rule.Counter{wasOwn}, []*rule.Counter{wasOwn.Lease}
		all.Previous, all.Lease.Previous = []*rule.Counter{wasAll}, []*rule.Counter{wasAll.Lease}
		ahead, results := []algo.Ahead{{Want: 20}}, make([]algo.Result, 1)
		if _, _, err := s.TakeAhead(t.Context(), 0, 0, []store.Charge{{Counter: wasOwn, Limit: l, Key: []byte(key)}}, ahead, results); err != nil || ahead[0].Got != 20 {
			t.Fatal(err, ahead)
		}
		var charges []store.Charge
		for _, c := range []*rule.Counter{own, all}[:states] {
			charges = append(charges, store.Charge{Counter: c, Limit: l, Key: []byte(key), Ask: algo.Ask{Cost: 1}})
		}
		results = make([]algo.Result, states)
		if _, err := s.Take(t.Context(), charges, results); err != nil || results[0].Remaining != 79 {
			t.Errorf("%s: %v, %+v", key, err, results)
		}
	}
}

// TestBareExpiry: a value with one state or two lives until the last of them is fresh.
func TestBareExpiry(t *testing.T) {
	redistest.NeedsFunctions(t)
	server := redistest.Start(t)
	s := open(t, redis.Options{URL: server.URL()})
	bucket := func(w time.Duration) *algo.Limit {
		return mustLimit(t, algo.Config{Algorithm: algo.TokenBucket, N: 10, Window: w, Lease: 50,
			LeaseFor: 500 * time.Millisecond})
	}
	fast, slow := bucket(17*time.Hour), bucket(391*time.Hour)
	own, all := twoStates(7, fast)
	for states := 1; states <= 2; states++ {
		server.Do("FLUSHALL")
		// ask asks for cost and returns until when the value lives, and until when it must.
		ask := func(cost int64, limits ...*algo.Limit) (lives, must int64, admitted bool) {
			t.Helper()
			var charges []store.Charge
			for i, c := range []*rule.Counter{own, all}[:states] {
				charges = append(charges, store.Charge{Counter: c, Limit: limits[i], Key: []byte("the key"),
					Ask: algo.Ask{Cost: cost}})
			}
			results := make([]algo.Result, states)
			now, err := s.Take(t.Context(), charges, results)
			if err != nil {
				t.Fatal(err)
			}
			admitted = true
			for _, r := range results {
				must, admitted = max(must, now+r.ResetAfter), admitted && r.Allowed
			}
			return server.Do("PEXPIRETIME", onlyKey(t, server, "*the key")).(int64), (must + 999) / 1000, admitted
		}
		for i, step := range []struct {
			cost     int64
			limits   []*algo.Limit
			admitted bool
		}{
			{4, []*algo.Limit{slow, fast}, true}, {10, []*algo.Limit{slow, fast}, false}, {4, []*algo.Limit{slow, fast}, true}, {10, []*algo.Limit{slow, slow}, false},
			{1, []*algo.Limit{slow, slow}, true},
		} {
			lives, must, admitted := ask(step.cost, step.limits...)
			if lives != must && lives != must+1 || admitted != step.admitted {
				t.Errorf("%d states, step %d: it lives until %d and must until %d; admitted %v", states, i, lives, must,
					admitted)
			}
		}
		if n := s.Stats().Disagreements; n != 0 {
			t.Errorf("%d disagreements", n)
		}
	}
}
