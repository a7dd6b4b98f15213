package rule

import (
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
)

// leasedSet is a set of one rule that lends, with an override and a signal that it follows.
func leasedSet(t *testing.T, c algo.Config) *Set {
	t.Helper()
	c.Algorithm, c.Lease = algo.TokenBucket, 10
	r := testRule(t, "lends", "user")
	r.Windows = []*Window{{Name: "lends", Limit: testLimit(t, c)}}
	larger := c
	larger.Burst = 50
	r.Overrides = []Override{{Values: []string{"large"},
		Windows: []*Window{{Name: "lends", Limit: testLimit(t, larger)}}}}
	r.Elastic = &Elastic{Signal: "spare", Curve: []Point{{At: 0, Share: 50}, {At: 100, Share: 200}}}
	return testSet(t, &File{Rules: []*Rule{r, testRule(t, "keeps", "user")}})
}

// TestLeaseCounters: a limit that lends has an identity for units lent, which lives as long as
// under any of its numbers, keeps its ID under others, and carries on a predecessor's loans.
func TestLeaseCounters(t *testing.T) {
	first := leasedSet(t, algo.Config{N: 10, Window: time.Minute})
	c, plain := first.counters[0], first.counters[1]
	if plain.Lease != nil || c.Margin != nil {
		t.Errorf("%+v, %+v", plain.Lease, c.Margin)
	}
	l := c.Lease
	if l == nil || l.Group != c.Group || l.ID == c.ID || uint32(l.ID) == uint32(c.ID) || l.Index != -1 ||
		l.Window != c.Window || l.Limit.Algorithm() != algo.Lease {
		t.Fatalf("%+v of %+v", l, c)
	}
	slow, err := c.Limit.Scale(50, 100)
	if err != nil {
		t.Fatal(err)
	}
	// Fifty tokens come back at ten a minute, or at five where the signal is low.
	if life := l.Limit.Config().Window; life < slow.Lease().Config().Window || life < 5*time.Minute {
		t.Errorf("a record lives %v, under half of the numbers %v", life, slow.Lease().Config().Window)
	}
	other := leasedSet(t, algo.Config{N: 20, Burst: 1000, Window: time.Minute, LeaseFor: time.Second})
	if other.Inherit(first); other.counters[0].Lease.ID != l.ID || other.counters[0].Lease.Previous != nil {
		t.Errorf("other numbers and another length of generations change the identity: %+v", other.counters[0].Lease)
	}
	last := leasedSet(t, algo.Config{N: 20, Window: time.Hour})
	last.Inherit(other)
	if p := last.counters[0].Lease.Previous; len(p) != 1 || p[0].ID != l.ID || p[0].Previous != nil ||
		last.counters[0].Previous[0].Lease.ID != l.ID {
		t.Errorf("another W carries on %+v", p)
	}
}
