package regions

import (
	"context"
	"testing"
	"testing/synctest"
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
	ctx context.Context, minWait, maxWait time.Duration, charges []store.Charge, ahead []algo.Ahead, results []algo.Result,
) (now, asked int64, err error) {
	time.Sleep(s.way)
	now, asked, err = s.Store.TakeAhead(ctx, minWait, maxWait, charges, ahead, results)
	time.Sleep(s.way)
	return now, asked, err
}

// A question that is under way while a window begins is answered with units of the new one, which
// nobody here has used yet. They go back: else the lender would lack them, and nobody would have
// them.
func TestLoanAcrossTheTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// A bubble begins in 2000, before this process, and its monotonic clock below 0.
		time.Sleep(time.Until(time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)))
		c := borrowable(t, algo.Config{Algorithm: algo.FixedWindow, N: 200, Window: time.Minute}, rule.Regions{Tell: 2})
		table := []Region{{"eu", 1}, {"us", 1}}
		own, s := map[string]*memory.Store{}, map[string]*Store{}
		for _, r := range table {
			m, err := memory.New(memory.Options{MaxKeys: 1000})
			if err != nil {
				t.Fatal(err)
			}
			own[r.Name] = m
		}
		for name, other := range map[string]string{"eu": "us", "us": "eu"} {
			var err error
			s[name], err = New(own[name], Options{
				Region: name, Table: table, Own: own[name], Rules: rulesOf(c), Peers: map[string]Neighbour{other: slow{own[other], 100 * time.Millisecond}},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer s[name].Close()
		}
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
