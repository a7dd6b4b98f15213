package regions

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

// borrowable makes a limit that holds over regions, as the rules do. Without a lease it lends to
// other regions alone, for half a second if it does not say for how long.
func borrowable(t testing.TB, c algo.Config, g rule.Regions) *rule.Counter {
	t.Helper()
	lent := c.Lease == 0
	if lent && c.Algorithm != algo.LeakyBucket && c.Algorithm != algo.Concurrency {
		c.Lease, c.LeaseFor = 50, cmp.Or(c.LeaseFor, 500*time.Millisecond)
	}
	limit, err := algo.New(c)
	if err != nil {
		t.Fatal(err)
	}
	const group = 0x7e57
	beside := func(id uint64, l *algo.Limit) *rule.Counter {
		return &rule.Counter{ID: id, Group: group, Domain: "test", Rule: "r", Window: "r", Limit: l, Index: -1}
	}
	n := &rule.Counter{ID: 0x1_0000_0001, Group: group, Domain: "test", Rule: "r", Window: "r", Limit: limit,
		Lent: lent, Regions: &g}
	if l := limit.Lease(); l != nil {
		n.Lease = beside(0x2_0000_0002, l)
	}
	if g.Over > 0 && !g.Sync {
		g.All = beside(0x3_0000_0003, limit)
		g.All.Lent = lent
		if l := limit.Lease(); l != nil {
			g.All.Lease = beside(0x4_0000_0004, l)
		}
	}
	return n
}

// testLimit is the name of the limits that borrowable makes.
var testLimit = Name{"test", "r", "r"}

// rulesOf are Options.Rules of a single limit.
func rulesOf(c *rule.Counter) func(uint64, []byte) (*rule.Counter, *algo.Limit, *algo.Limit) {
	return func(id uint64, _ []byte) (*rule.Counter, *algo.Limit, *algo.Limit) {
		if id == c.ID || c.Regions != nil && c.Regions.All != nil && id == c.Regions.All.ID {
			return c, c.Limit, c.Limit
		}
		return nil, nil, nil
	}
}

func newMemory(t testing.TB) *memory.Store {
	t.Helper()
	s, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// near is regions of one node each that share a process.
func near(t *testing.T, c *rule.Counter, weights map[string]int) map[string]*Store {
	t.Helper()
	own := map[string]*memory.Store{}
	var table []Region
	for name, weight := range weights {
		own[name] = newMemory(t)
		table = append(table, Region{name, weight})
	}
	list := map[string]*Store{}
	for name := range weights {
		o := Options{Region: name, Table: table, Own: own[name], Peers: map[string]Neighbour{}, Rules: rulesOf(c)}
		for other, s := range own {
			if other != name {
				o.Peers[other] = s
			}
		}
		s, err := New(own[name], o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		list[name] = s
	}
	return list
}

// ask asks for a decision on a key.
func ask(t testing.TB, s *Store, c *rule.Counter, key string, cost int64) algo.Result {
	t.Helper()
	charges := []store.Charge{{Counter: c, Limit: c.Limit, Key: []byte(key), Ask: algo.Ask{Cost: cost}}}
	results := make([]algo.Result, 1)
	if _, err := s.Take(context.Background(), charges, results); err != nil {
		t.Fatal(err)
	}
	return results[0]
}

// kinds are limits of which nothing comes back while a test runs.
var kinds = []algo.Config{
	{Algorithm: algo.TokenBucket, N: 900, Window: month, Burst: 900},
	{Algorithm: algo.FixedWindow, N: 900, Window: month},
	{Algorithm: algo.SlidingWindow, N: 900, Window: month, Buckets: 1},
	{Algorithm: algo.SlidingWindow, N: 900, Window: month, Buckets: 6},
	{Algorithm: algo.SlidingLog, N: 900, Window: month},
}

const month = 30 * 24 * time.Hour

// lasting returns c with units that are out for so long that none comes too late, and is lost to
// all, however slow the machine is. A region lends half of its ceiling then, and no more of it for
// a while.
func lasting(c algo.Config) algo.Config {
	c.LeaseFor = time.Minute
	return c
}

// TestHears: what one region used is charged in the others, so that all of them together come to N;
// what is given back is, too.
func TestHears(t *testing.T) {
	for _, g := range []rule.Regions{{Over: 200, Tell: 2}, {Sync: true, Tell: 2}} {
		for _, config := range kinds {
			t.Run(fmt.Sprintf("%v %d sync %v", config.Algorithm, config.Buckets, g.Sync), func(t *testing.T) {
				t.Parallel()
				inVirtualTime(t, func(t *testing.T) {
					c := borrowable(t, config, g)
					w := near(t, c, map[string]int{"eu": 1, "us": 1, "ap": 1})
					until(t, "each region hears the others", func() bool {
						for _, s := range w {
							for _, p := range s.Stats().Peers {
								if p.Stale < 0 {
									return false
								}
							}
						}
						return true
					})
					for range 600 {
						if !ask(t, w["eu"], c, "k", 1).Allowed {
							t.Fatal("refused below the limit")
						}
					}
					for _, name := range []string{"us", "ap"} {
						until(t, name+" hears of 600 units",
							func() bool { return ask(t, w[name], c, "k", 0).Remaining == 300 })
					}
					for range 200 {
						if !ask(t, w["us"], c, "k", 1).Allowed {
							t.Fatal("refused below the limit")
						}
					}
					until(t, "the others hear of 200 units", func() bool {
						return ask(t, w["eu"], c, "k", 0).Remaining == 100 &&
							ask(t, w["ap"], c, "k", 0).Remaining == 100
					})
					ask(t, w["eu"], c, "k", -400)
					until(t, "the others hear of 400 that are given back", func() bool {
						return ask(t, w["us"], c, "k", 0).Remaining == 500 &&
							ask(t, w["ap"], c, "k", 0).Remaining == 500
					})
					for _, s := range w {
						if l := s.Stats().Limits[testLimit]; l.Over != 0 || l.Late != (Net{}) {
							t.Errorf("%+v", l)
						}
					}
				})
			})
		}
	}
}

// TestBorrows: one busy region uses what the others do not, and all of them together never more
// than N.
func TestBorrows(t *testing.T) {
	for _, over := range []int{0, 30} {
		for _, config := range kinds {
			t.Run(fmt.Sprintf("%v %d over %d", config.Algorithm, config.Buckets, over), func(t *testing.T) {
				t.Parallel()
				inVirtualTime(t, func(t *testing.T) {
					c := borrowable(t, config, rule.Regions{Over: over, Tell: 2})
					w := near(t, c, map[string]int{"eu": 1, "us": 1, "ap": 1})
					untilNoneLost(t, w["eu"], func(key string, lost func() bool) {
						admitted := 0
						until(t, "eu uses 0.98 N", func() bool {
							for range 20 {
								if ask(t, w["eu"], c, key, 1).Allowed {
									admitted++
								}
							}
							return admitted >= 882 || lost()
						})
						for range 1000 {
							for _, name := range []string{"us", "ap"} {
								if ask(t, w[name], c, key, 1).Allowed {
									admitted++
								}
							}
						}
						if most := 900 * (100 + over) / 100; admitted > most {
							t.Errorf("%d were admitted; at most %d may be", admitted, most)
						}
					})
				})
			})
		}
	}
}

// untilNoneLost tries a key, and others as long as units that a region borrowed for them came too
// late, as they may on a slow machine.
func untilNoneLost(t *testing.T, borrows *Store, try func(key string, lost func() bool)) {
	t.Helper()
	units := func() (n uint64) {
		for _, p := range borrows.Stats().Peers {
			n += p.Lost
		}
		return n
	}
	for i := 0; !t.Failed(); i++ {
		before := units()
		lost := func() bool { return units() > before }
		if try(fmt.Sprint("key ", i), lost); !lost() {
			return
		}
	}
}

// TestDisagrees: nothing is borrowed of a region that has another table or other rules, and that is
// said; it is when they agree again.
func TestDisagrees(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		c := borrowable(t, lasting(kinds[0]), rule.Regions{Tell: 2})
		eu, us := newMemory(t), newMemory(t)
		var rules atomic.Pointer[string]
		old := "old"
		rules.Store(&old)
		open := func(name string, own, other *memory.Store, of string, weight int, digest func() string) *Store {
			s, err := New(own, Options{
				Region: name, Table: []Region{{"eu", 1}, {"us", weight}}, Own: own, Peers: map[string]Neighbour{of: other}, Rules: rulesOf(c), Digest: digest,
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			return s
		}
		in := open("eu", eu, us, "us", 1, func() string { return "new" })
		other := open("us", us, eu, "eu", 2, func() string { return *rules.Load() })
		differs := func(s *Store, want Differs) {
			t.Helper()
			until(t, fmt.Sprintf("it is known that %+v differs", want), func() bool {
				st := s.Stats()
				return st.Leads && st.Peers[0].Differs == want
			})
		}
		differs(in, Differs{Table: true, Rules: true})
		differs(other, Differs{Table: true, Rules: true})
		for range 1000 {
			ask(t, in, c, "k", 1)
		}
		if st := in.Stats(); st.Peers[0].Asked != 0 || st.Limits[testLimit].Ceiling == 0 {
			t.Errorf("asked of a region with another table: %+v", st)
		}
		other.Close()
		open("us", us, eu, "eu", 1, func() string { return *rules.Load() })
		differs(in, Differs{Rules: true})
		same := "new"
		rules.Store(&same)
		differs(in, Differs{})
		until(t, "units are borrowed", func() bool {
			ask(t, in, c, "k", 1)
			return in.Stats().Peers[0].Borrowed > 0
		})
	})
}

// TestHearsSettled: what a request cost that was reserved for is heard of, more or less than was
// reserved; what is given back after its window is over is not.
func TestHearsSettled(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		for _, g := range []rule.Regions{{Over: 200, Tell: 2}, {Sync: true, Tell: 2}} {
			c := borrowable(t, algo.Config{Algorithm: algo.FixedWindow, N: 900, Window: 30 * 24 * time.Hour}, g)
			w := near(t, c, map[string]int{"eu": 1, "us": 1})
			hears := func(left int64) {
				t.Helper()
				until(t, fmt.Sprintf("us hears that %d are left", left),
					func() bool { return ask(t, w["us"], c, "k", 0).Remaining == left })
			}
			until(t, "us listens", func() bool { return w["us"].Stats().Peers[0].Stale >= 0 })
			settle := func(at, reserved, actual int64) {
				t.Helper()
				err := w["eu"].Settle(context.Background(),
					[]store.Settlement{{Counter: c, Limit: c.Limit, Key: []byte("k"), At: at, Reserved: reserved,
						Actual: actual}})
				if err != nil {
					t.Fatal(err)
				}
			}
			ask(t, w["eu"], c, "k", 500)
			hears(400)
			now := time.Now().UnixMicro()
			settle(now, 500, 100)
			hears(800)
			settle(now-c.Limit.Config().Window.Microseconds(), 400, 100)
			settle(now, 50, 100)
			hears(750)
		}
	})
}

// TestBorrowsNotInVain: nothing is borrowed where no use can be taken off: under a ceiling of 0,
// and for a request that costs more than the ceiling.
func TestBorrowsNotInVain(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		c := borrowable(t, lasting(kinds[1]), rule.Regions{Tell: 2})
		w := near(t, c, map[string]int{"eu": 0, "us": 1, "ap": 1})
		until(t, "all can borrow", func() bool {
			mono := store.Monotonic()
			for _, s := range w {
				for _, p := range s.x.peers {
					if p.agrees.Load() < mono {
						return false
					}
				}
			}
			return true
		})
		for range 100 {
			ask(t, w["eu"], c, "k", 1)
			ask(t, w["us"], c, "other", 451)
		}
		admitted := 0
		until(t, "us has more than its ceiling", func() bool {
			for range 20 {
				ask(t, w["eu"], c, "k", 1)
				if ask(t, w["us"], c, "k", 1).Allowed {
					admitted++
				}
			}
			return admitted >= 500
		})
		if n := w["eu"].Stats().Peers; n[0].Asked+n[1].Asked != 0 {
			t.Errorf("a region without a ceiling borrows: %+v", n)
		}
		if r := ask(t, w["ap"], c, "other", 0); r.Remaining != 450 {
			t.Errorf("units were lent for a request that is never admitted: %+v", r)
		}
	})
}

// TestBorrowsWhatIsInForce: where a grant or a signal leaves less of a limit than its rule, no more
// than that is borrowed together.
func TestBorrowsWhatIsInForce(t *testing.T) {
	for _, config := range kinds {
		t.Run(fmt.Sprintf("%v %d", config.Algorithm, config.Buckets), func(t *testing.T) {
			t.Parallel()
			inVirtualTime(t, func(t *testing.T) {
				c := borrowable(t, config, rule.Regions{Tell: 2})
				few, err := c.Limit.Scale(1, 10)
				if err != nil {
					t.Fatal(err)
				}
				table := []Region{{"eu", 1}, {"us", 1}}
				own := map[string]*memory.Store{"eu": newMemory(t), "us": newMemory(t)}
				w := map[string]*Store{}
				for name, other := range map[string]string{"eu": "us", "us": "eu"} {
					w[name], err = New(own[name], Options{Region: name, Table: table, Own: own[name],
						Peers: map[string]Neighbour{other: own[other]},
						Rules: func(uint64, []byte) (*rule.Counter, *algo.Limit,
							*algo.Limit) {
							return c, few, c.Limit
						}})
					if err != nil {
						t.Fatal(err)
					}
					defer w[name].Close()
				}
				untilNoneLost(t, w["eu"], func(key string, lost func() bool) {
					admitted := 0
					use := func(name string) {
						charges := []store.Charge{{Counter: c, Limit: few, Key: []byte(key), Ask: algo.Ask{Cost: 1}}}
						results := make([]algo.Result, 1)
						if _, err := w[name].Take(context.Background(), charges, results); err != nil {
							t.Fatal(err)
						}
						if results[0].Allowed {
							admitted++
						}
					}
					until(t, "eu has borrowed what us has", func() bool {
						for range 20 {
							use("eu")
						}
						return admitted >= 80 || lost()
					})
					asked := w["eu"].Stats().Peers[0].Asked
					until(t, "it has asked again", func() bool {
						for range 20 {
							use("eu")
							use("us")
						}
						return w["eu"].Stats().Peers[0].Asked > asked+2
					})
					if admitted > 90 {
						t.Errorf("%d were admitted; at most 90 may be", admitted)
					}
				})
			})
		})
	}
}
