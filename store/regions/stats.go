package regions

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// Name names a limit: a rule, and one of its windows as rule.Counter.Window does.
type Name struct{ Domain, Rule, Limit string }

// regionCounts are what Stats reads.
type regionCounts struct {
	untold atomic.Uint64 // uses that the others may hear of or not
	orders atomic.Uint64
	limits sync.Map // Name → *limitCounts

	// byCounter finds the same by Counter, for the deciding path; it is emptied now and then, since
	// each reload makes other Counters.
	byCounter sync.Map // *rule.Counter → *limitCounts
	found     atomic.Int64
}

// maxFound is how many Counters byCounter holds.
const maxFound = 20_000

type peerCounts struct {
	uses, unknown, gaps, errors, asked, borrowed, lost atomic.Uint64
}

type limitCounts struct {
	used, told, heard, late, unsure netUnits
	over, borrowed, ceiling         atomic.Uint64
}

// netUnits counts units that are used, and such that are given back.
type netUnits struct{ used, back atomic.Uint64 }

// add adds units, which were given back if they are below 0.
func (n *netUnits) add(units int64) {
	if units < 0 {
		n.back.Add(uint64(-units))
		return
	}
	n.used.Add(uint64(units))
}

func (n *netUnits) read() Net { return Net{n.used.Load(), n.back.Load()} }

func (s *regionCounts) limit(c *rule.Counter) *limitCounts {
	if n, ok := s.byCounter.Load(c); ok {
		return n.(*limitCounts)
	}
	n, _ := s.limits.LoadOrStore(Name{c.Domain, c.Rule, c.Window}, new(limitCounts))
	if s.found.Add(1) > maxFound {
		s.byCounter.Clear()
		s.found.Store(0)
	}
	s.byCounter.Store(c, n)
	return n.(*limitCounts)
}

// Stats is a reading of the exchange between this node's region and the others.
type Stats struct {
	// Leads says that this node hears the other regions for all nodes of its own.
	Leads bool
	// Leading is for how long it does; 0 if it does not. Reports that it has not heard are no sign
	// of a region's silence before there was time to hear them.
	Leading time.Duration
	// Untold is how many uses may not have been reported, since the store failed meanwhile.
	Untold uint64
	// Orders is how many bans and grants of other regions this node took over, and ended.
	Orders uint64
	// Keys is how many keys have unreported uses.
	Keys   int
	Peers  []PeerStats // in order of name
	Limits map[Name]LimitStats
}

// PeerStats are of one other region, as this node sees it.
type PeerStats struct {
	Name string
	// Stale is how old the newest use is that was certainly heard, if this node Leads; -1 if
	// nothing was heard yet, since it does.
	Stale time.Duration
	Uses  uint64 // entries that were heard
	// Unknown counts entries whose rule is not known here.
	Unknown  uint64
	Gaps     uint64 // times that a part of its log was gone before it was read
	Errors   uint64 // calls of its store that failed
	Asked    uint64 // times that it was asked for units
	Borrowed uint64 // units that it lent and that were put to use
	Lost     uint64 // units that it lent and that came too late
	Differs  Differs
}

// LimitStats are counts of units of one limit.
type LimitStats struct {
	Used  Net // by this node
	Told  Net // by this node
	Heard Net // of other regions, charged by this node
	Late  Net // heard when it did not count any more
	// Unsure are units heard while the own store failed: it is unknown whether they were charged.
	Unsure Net
	// Over is how many of the units that were heard found the limit full: what all regions
	// admitted beyond the limit.
	Over     uint64
	Borrowed uint64
	// Ceiling counts the requests that the ceiling of this region refused though the limit had room
	// by the reports of the others: the price of the bound.
	Ceiling uint64
}

// Net is units that were used, and how many of them were given back.
type Net struct{ Used, Back uint64 }

// Heard returns Stats.Leading, and PeerStats.Stale of the region of that name, without the counts.
func (s *Store) Heard(region string) (leading, stale time.Duration) {
	stale = -1
	since := int64(0)
	if s.x != nil {
		since = s.x.leads.Load()
	}
	if since == 0 {
		return 0, stale
	}
	mono := store.Monotonic()
	for _, p := range s.x.peers {
		if heard := p.stale(mono); p.name == region && heard != math.MaxInt64 {
			stale = time.Duration(heard)
		}
	}
	return time.Duration(mono - since), stale
}

func (x *exchange) readStats() Stats {
	s := Stats{Untold: x.stats.untold.Load(), Orders: x.stats.orders.Load(), Keys: x.ledger.len(),
		Limits: map[Name]LimitStats{}}
	mono := store.Monotonic()
	if since := x.leads.Load(); since != 0 {
		s.Leads, s.Leading = true, time.Duration(mono-since)
	}
	for _, p := range x.peers {
		c := &p.counts
		r := PeerStats{
			Name: p.name, Uses: c.uses.Load(), Unknown: c.unknown.Load(), Gaps: c.gaps.Load(), Errors: c.errors.Load(), Asked: c.asked.Load(),
			Borrowed: c.borrowed.Load(), Lost: c.lost.Load(), Stale: -1,
		}
		if stale := p.stale(mono); s.Leads && stale != math.MaxInt64 {
			r.Stale = time.Duration(stale)
			if d := p.differs.Load(); d != nil {
				r.Differs = *d
			}
		}
		s.Peers = append(s.Peers, r)
	}
	x.stats.limits.Range(func(name, n any) bool {
		c := n.(*limitCounts)
		s.Limits[name.(Name)] = LimitStats{
			Used: c.used.read(), Told: c.told.read(), Heard: c.heard.read(), Late: c.late.read(), Unsure: c.unsure.read(),
			Over: c.over.Load(), Borrowed: c.borrowed.Load(), Ceiling: c.ceiling.Load(),
		}
		return true
	})
	return s
}
