package rule

import (
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
)

// regionalSet is a set of one rule that holds over regions, with an override in a window of its
// own.
func regionalSet(t *testing.T, of *Regions, c algo.Config) *Set {
	t.Helper()
	r := testRule(t, "over", "user")
	r.Regions = of
	r.Windows = []*Window{{Name: "over", Limit: testLimit(t, c)}}
	other := c
	other.Window *= 2
	r.Overrides = []Override{{Values: []string{"large"},
		Windows: []*Window{{Name: "other", Limit: testLimit(t, other)}}}}
	return testSet(t, &File{Rules: []*Rule{r, testRule(t, "alone", "user")}})
}

// TestRegionsCounters: a limit that holds over regions has an identity for the use of all of them,
// with the record beside it, if that has a say and is not counted by its own state.
func TestRegionsCounters(t *testing.T) {
	leased := algo.Config{Algorithm: algo.TokenBucket, N: 10, Window: time.Minute, Lease: 50}
	closing := algo.Config{N: 100, Window: time.Minute, Soft: 10, SoftFor: time.Second}
	for _, test := range []struct {
		name   string
		of     *Regions
		config algo.Config
		all    bool
	}{
		{"nothing", nil, leased, false},
		{"a percentage", &Regions{Over: 20, Tell: 3}, leased, true},
		{"a margin that closes", &Regions{Over: 20, Tell: 3}, closing, true},
		{"never more", &Regions{Tell: 3}, leased, false},
		{"sync", &Regions{Sync: true, Tell: 3}, leased, false},
	} {
		s := regionalSet(t, test.of, test.config)
		var seen []uint64
		for i, c := range s.counters[:3] {
			if test.of == nil || i == 2 {
				if c.Regions != nil || c.Heard() != nil {
					t.Errorf("%s: %+v", test.name, c.Regions)
				}
				continue
			}
			if of := c.Regions; of == nil || of == test.of || of.Over != test.of.Over || of.Sync != test.of.Sync ||
				of.Tell != test.of.Tell {
				t.Fatalf("%s: %+v", test.name, c.Regions)
			}
			all := c.Regions.All
			switch heard := c.Heard(); {
			case (all != nil) != test.all, test.of.Sync && heard != c, !test.of.Sync && heard != all:
				t.Fatalf("%s: %+v, heard by %+v", test.name, all, heard)
			case all == nil:
				continue
			}
			if all.Group != c.Group || all.Keys != c.Keys || all.Index != -1 || all.Regions != nil ||
				all.Limit != c.Limit || all.Window != c.Window {
				t.Errorf("%s: %+v of %+v", test.name, all, c)
			}
			if (all.Lease != nil) != (c.Lease != nil) || (all.Margin != nil) != (c.Margin != nil) ||
				c.Lease == nil && c.Margin == nil {
				t.Errorf("%s: beside it are %v and %v, beside the counter %v and %v", test.name, all.Lease, all.Margin,
					c.Lease, c.Margin)
			}
			for _, of := range []*Counter{c, c.Lease, c.Margin, all, all.Lease, all.Margin} {
				if of == nil {
					continue
				}
				for _, other := range seen {
					if uint32(other) == uint32(of.ID) {
						t.Errorf("%s: an identity stands twice", test.name)
					}
				}
				seen = append(seen, of.ID)
			}
		}
	}
}

// TestRegionsInherit: the use of all regions keeps its identity under other numbers and another
// percentage, and is carried on, with the record beside it, where W changes.
func TestRegionsInherit(t *testing.T) {
	c := algo.Config{Algorithm: algo.TokenBucket, N: 10, Window: time.Minute, Lease: 50}
	first := regionalSet(t, &Regions{Over: 20, Tell: 2}, c)
	c.N, c.Burst = 20, 1000
	other := regionalSet(t, &Regions{Over: 100, Tell: 2}, c)
	other.Inherit(first)
	all, before := other.counters[0].Regions.All, first.counters[0].Regions.All
	if all.ID != before.ID || all.Lease.ID != before.Lease.ID || all.Previous != nil {
		t.Errorf("other numbers: %+v, before %+v", all, before)
	}
	c.Window = time.Hour
	last := regionalSet(t, &Regions{Over: 100, Tell: 2}, c)
	last.Inherit(other)
	now := last.counters[0].Regions.All
	if len(now.Previous) != 1 || now.Previous[0].ID != all.ID || now.Previous[0].Previous != nil {
		t.Fatalf("another W carries on %+v", now.Previous)
	}
	if p := now.Lease.Previous; len(p) != 1 || p[0].ID != all.Lease.ID {
		t.Errorf("another W carries on %+v of what is lent", p)
	}
	if all.Previous != nil {
		t.Error("the old set was changed")
	}
	exact := regionalSet(t, &Regions{Tell: 2}, c)
	exact.Inherit(last)
	if exact.counters[0].ID != last.counters[0].ID || exact.counters[0].Regions.All != nil {
		t.Error("without a percentage there is another counter")
	}
}
