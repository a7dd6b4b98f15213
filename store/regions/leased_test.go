package regions

import (
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/lease"
)

// TestLoanEndsRefusals: a node that repeats refusals of a key which it leases asks again as soon as
// units were borrowed.
func TestLoanEndsRefusals(t *testing.T) {
	c := borrowable(t, algo.Config{Algorithm: algo.FixedWindow, N: 2000, Window: 30 * 24 * time.Hour, Lease: 10,
		LeaseFor: algo.MaxLeaseFor}, rule.Regions{Tell: 2})
	own, other := newMemory(t), newMemory(t)
	leases, err := lease.New(own, lease.Options{})
	if err != nil {
		t.Fatal(err)
	}
	table := []Region{{"eu", 1}, {"us", 1}}
	s, err := New(leases, Options{Region: "eu", Table: table, Own: own, Peers: map[string]Neighbour{"us": other},
		Rules: rulesOf(c)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i := range 100 { // so that it leases
		if !ask(t, s, c, "k", 1).Allowed {
			t.Fatalf("request %d is refused", i)
		}
	}
	some := func() (refused bool) {
		for range 100 {
			refused = refused || !ask(t, s, c, "k", 1).Allowed
		}
		return refused
	}
	patience.Until(t, "all of the ceiling is used", some)
	repeated := func() bool {
		_, ok := s.TakeNow([]store.Charge{{Counter: c, Limit: c.Limit, Key: []byte("k"), Ask: algo.Ask{Cost: 1}}},
			make([]algo.Result, 1))
		return ok
	}
	patience.Until(t, "a refusal is repeated", func() bool { return some() && repeated() })
	us, err := New(other, Options{Region: "us", Table: table, Own: other, Rules: rulesOf(c)})
	if err != nil {
		t.Fatal(err)
	}
	defer us.Close()
	patience.Until(t, "eu borrows", func() bool {
		ask(t, s, c, "k", 1)
		return s.Stats().Limits[testLimit].Borrowed > 0
	})
	if !ask(t, s, c, "k", 1).Allowed {
		t.Error("it is refused though units were borrowed")
	}
}
