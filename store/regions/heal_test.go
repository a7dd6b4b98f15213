package regions

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
	"github.com/weir-rl/weir/store/redis"
)

// TestHeals: after a cut of each kind the other region is heard again. How long that takes is
// shown, and has no bound here, since machines may be busy; TestHealsSoon has one.
func TestHeals(t *testing.T) {
	effort.Long(t, "waits until a cut is noticed; TestHealsSoon does so in virtual time")
	t.Parallel()
	heals(t, 1, 0)
}

// heals makes so many cuts of each kind, of up to most after they are noticed.
func heals(t *testing.T, cuts int, most time.Duration) {
	c := borrowable(t, algo.Config{Algorithm: algo.FixedWindow, N: 1000, Window: time.Hour},
		rule.Regions{Over: 20, Tell: 2})
	for name, cut := range map[string]func(l *redistest.FaultProxy){
		"refuses":       func(l *redistest.FaultProxy) { l.Refuse(); l.Cut() },
		"loses all":     func(l *redistest.FaultProxy) { l.BlackHole() },
		"loses answers": func(l *redistest.FaultProxy) { l.LoseReplies() },
		// What comes meanwhile, and all that comes on the same connections, arrives never.
		"forgets connections": func(l *redistest.FaultProxy) { l.Delay(24 * time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			urls, links := make([]string, 2), make([]*redistest.FaultProxy, 2)
			for i := range urls {
				server := redistest.Start(t)
				urls[i], links[i] = server.URL(), redistest.Proxy(t, server.Addr())
			}
			open := func(url string) *redis.Store {
				s, err := redis.Open(redis.Options{URL: url, Logger: slog.New(slog.DiscardHandler)})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { s.Close() })
				return s
			}
			table, list := []Region{{"eu", 1}, {"us", 1}}, make([]*Store, 2)
			for i, name := range []string{"eu", "us"} {
				own, peer := open(urls[i]), open("redis://"+links[1-i].Addr())
				s, err := New(own, Options{Region: name, Table: table, Own: own,
					Peers: map[string]Neighbour{table[1-i].Name: peer}, Rules: rulesOf(c)})
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				list[i] = s
			}
			eu, link := list[0], links[1]
			fresh := func() bool { stale := eu.Stats().Peers[0].Stale; return stale >= 0 && stale < time.Second }
			var took []time.Duration
			for range cuts {
				patience.Until(t, "eu hears us", fresh)
				cut(link)
				patience.Until(t, "eu notices", func() bool { return eu.Stats().Peers[0].Stale > 2*time.Second })
				if most > 0 {
					time.Sleep(rand.N(most))
				}
				link.Pass()
				healed := time.Now()
				patience.Until(t, "eu hears us again", fresh)
				took = append(took, time.Since(healed))
			}
			slices.Sort(took)
			t.Logf("heard again after %v, %v, %v (least, median, most of %d)", took[0], took[len(took)/2],
				took[len(took)-1], len(took))
		})
	}
}

// cutOff is the store of a region that answers nothing while it is cut off: a call fails after a
// while, as one does that connects to it, also if it is whole again by then.
type cutOff struct {
	*memory.Store
	cut    atomic.Bool
	within time.Duration // in which a call fails
}

func (s *cutOff) Told(ctx context.Context, part int, after string, limit int, wait time.Duration) ([]store.Told, string,
	bool, int64, error) {
	if s.cut.Load() {
		select {
		case <-ctx.Done():
		case <-time.After(s.within):
		}
		return nil, "", false, 0, errBroken
	}
	return s.Store.Told(ctx, part, after, limit, wait)
}

// TestHealsSoon: two seconds after a cut at the latest, what another region tells is less than a
// second old, however long the cut was and whenever it ended. To connect takes at most a second.
func TestHealsSoon(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		c := borrowable(t, kinds[1], rule.Regions{Over: 20, Tell: 2})
		table := []Region{{"eu", 1}, {"us", 1}}
		own := []*cutOff{{Store: newMemory(t)}, {Store: newMemory(t)}}
		list := make([]*Store, 2)
		for i := range list {
			var err error
			if list[i], err = New(own[i].Store, Options{
				Region: table[i].Name, Table: table, Own: own[i].Store, Peers: map[string]Neighbour{table[1-i].Name: own[1-i]}, Rules: rulesOf(c),
			}); err != nil {
				t.Fatal(err)
			}
			defer list[i].Close()
		}
		eu, us := list[0], own[1]
		rnd := rand.New(rand.NewPCG(15, 2))
		most := time.Duration(0)
		for range effort.Of(100, 300) {
			time.Sleep(3 * time.Second)
			us.within = []time.Duration{0, 200 * time.Millisecond, time.Second}[rnd.IntN(3)]
			us.cut.Store(true)
			time.Sleep(2*time.Second + time.Duration(rnd.Int64N(int64(8*time.Second))))
			us.cut.Store(false)
			healed := time.Now()
			for eu.Stats().Peers[0].Stale >= time.Second {
				time.Sleep(5 * time.Millisecond)
			}
			most = max(most, time.Since(healed))
		}
		if t.Logf("heard again after %v at the most", most); most > 2*time.Second {
			t.Errorf("it took %v", most)
		}
	})
}
