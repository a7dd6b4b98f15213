package regions

import (
	"context"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

// slow is the store of a region whose lending takes time, in both directions.
type slow struct {
	*memory.Store
	way time.Duration
}

func (s slow) TakeAhead(
	ctx context.Context, minWait, maxWait time.Duration, charges []store.Charge, ahead []algo.Ahead,
	results []algo.Result,
) (now, asked int64, err error) {
	time.Sleep(s.way)
	now, asked, err = s.Store.TakeAhead(ctx, minWait, maxWait, charges, ahead, results)
	time.Sleep(s.way)
	return now, asked, err
}

// apart opens eu and us, whose lending to each other takes so long each way.
func apart(t *testing.T, c *rule.Counter, way time.Duration) map[string]*Store {
	t.Helper()
	table := []Region{{"eu", 1}, {"us", 1}}
	own, s := map[string]*memory.Store{"eu": newMemory(t), "us": newMemory(t)}, map[string]*Store{}
	for name, other := range map[string]string{"eu": "us", "us": "eu"} {
		var err error
		s[name], err = New(own[name], Options{
			Region: name, Table: table, Own: own[name], Rules: rulesOf(c), Peers: map[string]Neighbour{other: slow{own[other], way}},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s[name].Close() })
	}
	return s
}

// A question that is under way while a window begins is answered with units of the new one, which
// nobody here has used yet. They go back: else the lender would lack them, and nobody would have
// them.
func TestLoanAcrossTheTurn(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		c := borrowable(t, algo.Config{Algorithm: algo.FixedWindow, N: 200, Window: time.Minute}, rule.Regions{Tell: 2})
		s := apart(t, c, 100*time.Millisecond)
		admits := func(region string, n int) (admitted int) {
			for range n {
				if ask(t, s[region], c, "k", 1).Allowed {
					admitted++
				}
			}
			return admitted
		}
		// Both use all, and ask each other just before the minute turns.
		time.Sleep(59900 * time.Millisecond)
		for region := range s {
			if n := admits(region, 110); n != 100 {
				t.Errorf("%s admits %d, want its ceiling of 100", region, n)
			}
		}
		time.Sleep(time.Second)
		for region := range s {
			if st := s[region].Stats(); st.Peers[0].Asked == 0 || st.Peers[0].Borrowed != 0 || st.Peers[0].Lost != 0 {
				t.Errorf("%s: %+v", region, st.Peers[0])
			}
			if n := admits(region, 90); n != 90 {
				t.Errorf("in the new minute %s admits %d, less than its ceiling", region, n)
			}
		}
	})
}

// TestLoanTooLate: units that have ended where they were lent before they are here are lost to
// both regions, and are counted as such.
func TestLoanTooLate(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		c := borrowable(t, kinds[1], rule.Regions{Tell: 2}) // lends for half a second
		s := apart(t, c, 700*time.Millisecond)
		time.Sleep(5 * time.Second)
		for range 450 {
			ask(t, s["eu"], c, "k", 1)
		}
		time.Sleep(5 * time.Second)
		if p := s["eu"].Stats().Peers[0]; p.Asked == 0 || p.Borrowed != 0 || p.Lost == 0 {
			t.Errorf("%+v", p)
		}
		if left := ask(t, s["us"], c, "k", 0).Remaining; uint64(450-left) != s["eu"].Stats().Peers[0].Lost {
			t.Errorf("%d of 450 are left, and %d are lost", left, s["eu"].Stats().Peers[0].Lost)
		}
	})
}
