package redis

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/internal/waiting"
)

// TestLentTogether holds random calls against algo, every field and every unit lent: calls that
// tell and want, and others on the same keys, go to Redis as one, and each comes out as if they had
// been made one after the other, around the ends of generations, windows and phases.
// WEIR_LEND_CALLS sets how many calls at least, 600000 for one before a release.
func TestLentTogether(t *testing.T) {
	now := int64(1767225600_000000)
	_, s, rnd := openRandom(t, &now)
	p := s.partitions[0]
	most := atLeast(t, "WEIR_LEND_CALLS", 20_000, 4_000)
	const border = 600_000_000 // of phases, and of all longer windows
	var calls, undecided, merged, granted, told int
	for calls < most {
		m := newLendModel(t, rnd)
		for range 30 {
			now += []int64{0, 1, rnd.Int64N(50_000), rnd.Int64N(3_000_000)}[rnd.IntN(4)]
			switch rnd.IntN(12) {
			case 0, 1:
				if len(m.loans) > 0 { // the end of something that is out
					now = max(now, m.loans[rnd.IntN(len(m.loans))].End+rnd.Int64N(3)-1)
				}
			case 2:
				now += border - now%border + rnd.Int64N(3) - 1
			case 3: // shortly before, so that what is lent ends with the phase
				now = max(now, now+border-now%border-rnd.Int64N(3_000_000))
			}
			var batch []*call
			asked := map[*call][]store.Charge{}
			for range 1 + rnd.IntN(8) {
				charges := m.asks()
				c := s.newCall(p, charges, m.ahead())
				for i := range c.ahead {
					if c.ahead[i].Told != [2]algo.Told{} {
						told++
					}
				}
				batch, asked[c] = append(batch, c), charges
			}
			p.decide(context.Background(), batch)
			calls += len(batch)
			// in the order in which Redis decided
			for i := range p.runs {
				for c := p.runs[i].first; c != nil; c = c.nextGroup {
					for same := c; same != nil; same = same.next {
						if merged = max(merged, c.group); same.err != nil {
							t.Fatal(same.err)
						}
						if same.undecided {
							undecided++
							continue
						}
						m.compare(t, asked[same], same.ahead, same.results, now)
					}
				}
			}
			for _, c := range batch {
				if c.undecided {
					if _, err := p.swapTake(&waiting.Waiter{Ctx: context.Background()}, asked[c], c.ahead, c.results, c.slots, false); err != nil {
						t.Fatal(err)
					}
					m.compare(t, asked[c], c.ahead, c.results, now)
				}
				for i := range c.ahead {
					if h := &c.ahead[i]; h.Got > 0 {
						granted++
						m.loans = append(m.loans, algo.Told{End: h.Until, Used: h.Got})
					}
				}
			}
		}
	}
	t.Logf("%d calls, %d left to the node, up to %d as one, %d lent to, %d tell", calls, undecided, merged, granted,
		told)
	if merged < 2 || granted < calls/20 || told < calls/20 || undecided > calls/20 || s.Stats().Disagreements > 0 {
		t.Errorf("too few of a kind, or %d disagreements", s.Stats().Disagreements)
	}
}

// lendModel decides by algo alone.
type lendModel struct {
	rnd             *rand.Rand
	charges         []store.Charge
	states, records []algo.State
	loans           []algo.Told
}

func newLendModel(t *testing.T, rnd *rand.Rand) *lendModel {
	m := &lendModel{rnd: rnd}
	group := uint64(0)
	if rnd.IntN(3) > 0 {
		group = rnd.Uint64()
	}
	for range 1 + rnd.IntN(3) {
		c := algo.Config{
			N: []int64{5, 12, 40, 300}[rnd.IntN(4)], Window: []time.Duration{time.Second, 10 * time.Second, time.Minute}[rnd.IntN(3)],
			Lease: []int{90, 50, 20}[rnd.IntN(3)], LeaseFor: []time.Duration{0, algo.MinLeaseFor, time.Second}[rnd.IntN(3)], Soft: []int{0, 0, 50}[rnd.IntN(3)],
		}
		switch rnd.IntN(9) {
		case 0:
			c.Algorithm = algo.FixedWindow
		case 8:
			c.Algorithm, c.Calendar, c.Window = algo.FixedWindow, algo.Day, 0
		case 1:
			c.Algorithm, c.CountDenied = algo.FixedWindow, true
		case 2:
			c.Algorithm, c.FirstRequest = algo.FixedWindow, true
		case 3:
			c.Algorithm = algo.SlidingLog
		case 4:
			c.Algorithm, c.Burst = algo.TokenBucket, []int64{0, 10, 30}[rnd.IntN(3)]
		case 5:
			c.Buckets = 4
		case 6:
			c.Lease, c.LeaseFor = 0, 0
		}
		l, err := algo.New(c)
		if err == nil && c.Calendar == algo.NoCalendar && rnd.IntN(4) == 0 {
			l, err = phased(l, c)
		}
		if err != nil {
			t.Fatal(err)
		}
		of := &rule.Counter{ID: rnd.Uint64(), Group: group, Limit: l}
		if n := l.Lease(); n != nil {
			of.Lease = &rule.Counter{ID: rnd.Uint64(), Group: group, Limit: n}
		}
		m.charges = append(m.charges, store.Charge{
			Counter: of, Limit: l, Key: []byte("k"), Ask: algo.Ask{Cost: 1 + rnd.Int64N(2), MaxDelay: -1},
			Mode: []rule.Mode{rule.Enforce, rule.Enforce, rule.Enforce, rule.Shadow, rule.Quota}[rnd.IntN(5)],
		})
	}
	m.states, m.records = make([]algo.State, len(m.charges)), make([]algo.State, len(m.charges))
	return m
}

// phased is l with other numbers, and without a limit, for parts of each hour.
func phased(l *algo.Limit, c algo.Config) (*algo.Limit, error) {
	c.N, c.Burst = 2*c.N, 2*c.Burst
	twice, err := algo.New(c)
	if err != nil {
		return nil, err
	}
	var phases []algo.Phase
	for hour := range time.Duration(24) {
		at := hour * time.Hour
		phases = append(phases,
			algo.Phase{From: at + 20*time.Minute, Until: at + 40*time.Minute, Limit: twice},
			algo.Phase{From: at + 50*time.Minute, Until: (at + 60*time.Minute) % (24 * time.Hour)})
	}
	return algo.Scheduled(l, phases, nil)
}

// asks is the charges of a call. Most equal other calls' charges.
func (m *lendModel) asks() []store.Charge {
	charges := slices.Clone(m.charges)
	if m.rnd.IntN(4) == 0 {
		for i := range charges {
			charges[i].Ask.Cost = []int64{-1, 0, 1, 1, 2, 10}[m.rnd.IntN(6)]
		}
	}
	return charges
}

// ahead is what a call tells and wants; nothing for two of three.
func (m *lendModel) ahead() []algo.Ahead {
	ahead := make([]algo.Ahead, len(m.charges))
	switch m.rnd.IntN(3) {
	case 0:
		return nil
	case 1:
		return ahead
	}
	for i := range ahead {
		h := &ahead[i]
		h.Want, h.First = []int64{0, 1, 2, 5, 1000}[m.rnd.IntN(5)], m.rnd.IntN(2) == 0
		for j := range h.Told {
			if len(m.loans) > 0 && m.rnd.IntN(3) == 0 {
				o := m.loans[m.rnd.IntN(len(m.loans))]
				h.Told[j] = algo.Told{End: o.End, Used: m.rnd.Int64N(o.Used + 2), Returned: m.rnd.Int64N(o.Used + 2)}
			}
		}
	}
	return ahead
}

func (m *lendModel) compare(t *testing.T, charges []store.Charge, ahead []algo.Ahead, got []algo.Result, now int64) {
	t.Helper()
	wanted, results := slices.Clone(ahead), make([]algo.Result, len(m.charges))
	if len(ahead) == 0 {
		wanted = make([]algo.Ahead, len(m.charges))
	}
	for i := range charges {
		c := &charges[i]
		c.Limit.Learn(&m.states[i], &m.records[i], now, &wanted[i])
		results[i] = c.Limit.CheckWith(&m.states[i], &m.records[i], now, c.Ask)
	}
	denied := store.VerdictOf(charges, results).Denied()
	for i := range charges {
		c := &charges[i]
		if !denied || len(charges) == 1 || c.Mode == rule.Shadow || c.Limit.CountDenied() {
			was := results[i]
			results[i] = c.Limit.TakeWith(&m.states[i], &m.records[i], now, c.Ask)
			results[i].Allowed = was.Allowed
		} else {
			c.Limit.Mend(&m.states[i], now)
		}
		if !denied && results[i].Allowed {
			c.Limit.Lend(&m.states[i], &m.records[i], now, &wanted[i])
		}
	}
	for i := range charges {
		if got[i] != results[i] || len(ahead) > 0 && ahead[i] != wanted[i] {
			text := ""
			if len(ahead) > 0 {
				text = fmt.Sprintf("%+v", ahead[i])
			}
			t.Fatalf("charge %d of %s\n got %+v %s\nwant %+v %+v", i, describe(charges), got[i], text, results[i],
				wanted[i])
		}
	}
}
