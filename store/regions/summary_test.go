package regions

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// result is what a run came to.
type result struct {
	plan           plan
	found          string // what went over the bound; "" if nothing did
	units          int64  // admitted
	refused        int
	borrowed, lost uint64
	over           uint64 // heard beyond N
	fill           int    // of the units allowed at once, in percent
	// Of a failover: what the store may have forgotten, and what was admitted beyond the bound.
	forgotten, beyond int64
	faults            map[string]int
}

func (r *result) String() string {
	p := &r.plan
	text := fmt.Sprintf(
		"%v, %d in %v, over %v, leases %v, clocks %v: %d units admitted, full to %d %%, %d refusals, %d units borrowed, %d lost, %d over N, %v",
		p.config.Algorithm, p.config.N, p.config.Window, p.cell, p.leases, p.ahead, r.units, r.fill, r.refused,
		r.borrowed, r.lost, r.over, r.faults)
	if p.failover {
		text += fmt.Sprintf("; %d may be forgotten, %d were admitted once more", r.forgotten, r.beyond)
	}
	return text
}

func (c cell) String() string {
	if c.over == syncs {
		return "sync"
	}
	return fmt.Sprint(c.over, " %")
}

// row counts runs of a cell.
type row struct{ runs, fill int }

// summary counts runs. Safe for concurrent use.
type summary struct {
	of uint64 // how many there are to be

	mu         sync.Mutex
	done       int
	violations []uint64 // seeds
	cells      map[cell]*row
	faults     map[string]int
	with       struct{ clocks, restarts, failovers, leases int }
	units      int64
	borrowed   uint64
	beyond     int64 // admitted once more after failovers
}

// add adds a run, and returns how many there are now.
func (s *summary) add(r *result) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done++
	if r.found != "" {
		s.violations = append(s.violations, r.plan.seed)
	}
	c := s.cells[r.plan.cell]
	if c == nil {
		c = &row{}
		s.cells[r.plan.cell] = c
	}
	c.runs++
	c.fill = max(c.fill, r.fill)
	if s.faults == nil {
		s.faults = map[string]int{}
	}
	for name, n := range r.faults {
		s.faults[name] += n
	}
	for _, with := range []struct {
		is bool
		n  *int
	}{
		{r.plan.ahead != [3]time.Duration{}, &s.with.clocks},
		{r.faults[restarted] > 0, &s.with.restarts}, {r.faults[failedOver] > 0, &s.with.failovers}, {r.plan.leases, &s.with.leases},
	} {
		if with.is {
			*with.n++
		}
	}
	s.units, s.borrowed, s.beyond = s.units+r.units, s.borrowed+r.borrowed, s.beyond+r.beyond
	return s.done
}

// String is a table of algorithms by over: how many runs, and how full the fullest was.
func (s *summary) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b,
		"%d of %d runs, %d violations %v; %d units admitted, %d borrowed, %d admitted once more after failovers\n",
		s.done, s.of, len(s.violations), s.violations, s.units, s.borrowed, s.beyond)
	fmt.Fprintf(&b, "runs with clocks apart %d, restarts %d, a failover %d, leases %d; faults: %v\n",
		s.with.clocks, s.with.restarts, s.with.failovers, s.with.leases, s.faults)
	fmt.Fprintln(&b, "runs, and how full the limit was at most, by algorithm and over:")
	last := ""
	for _, c := range cells {
		name := ""
		if last != c.algorithm.String() {
			last = c.algorithm.String()
			name = fmt.Sprintf("\n%-15s", last)
		}
		n := s.cells[c]
		if n == nil {
			n = &row{}
		}
		fmt.Fprintf(&b, "%s  %5v: %3d (%3d %%)", name, c, n.runs, n.fill)
	}
	return b.String()
}
