package regions

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/redis"
)

// reach is eu and us, of one node each, on servers of some kind.
type reach struct {
	t       *testing.T
	counter *rule.Counter
	own     map[string]*redis.Store
	s       map[string]*Store
	failed  uint64 // calls of take
}

// openReach opens two regions on Redis at these URLs, and waits until they hear each other.
func openReach(t *testing.T, eu, us string, c *rule.Counter) *reach {
	t.Helper()
	r := &reach{t: t, counter: c, own: map[string]*redis.Store{}, s: map[string]*Store{}}
	open := func(url string) *redis.Store {
		s, err := redis.Open(redis.Options{URL: url, Partitions: 4, Timeout: 2 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	table := []Region{{"eu", 1}, {"us", 1}}
	for _, of := range []struct{ name, url, other, otherURL string }{{"eu", eu, "us", us}, {"us", us, "eu", eu}} {
		r.own[of.name] = open(of.url)
		s, err := New(r.own[of.name], Options{
			Region: of.name, Table: table, Own: r.own[of.name], Peers: map[string]Neighbour{of.other: open(of.otherURL)}, Rules: rulesOf(c),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		r.s[of.name] = s
	}
	r.hear()
	return r
}

// hear waits until both regions hear each other.
func (r *reach) hear() {
	r.t.Helper()
	patience.Until(r.t, "both regions hear each other", func() bool {
		for _, s := range r.s {
			if stale := s.Stats().Peers[0].Stale; stale < 0 || stale > 3*time.Second {
				return false
			}
		}
		return true
	})
}

// failures counts the calls that failed. Each may have cost units, which no region can use then, or
// the news of them.
func (r *reach) failures() uint64 {
	n := r.failed
	for _, s := range r.s {
		st := s.Stats()
		n += st.Untold + st.Peers[0].Errors + st.Peers[0].Lost
	}
	return n
}

// take asks for units of a key one by one, and returns how many were admitted. With an error none
// is.
func (r *reach) take(region, key string, times int) (admitted int) {
	for range times {
		charges := []store.Charge{{Counter: r.counter, Limit: r.counter.Limit, Key: []byte(key),
			Ask: algo.Ask{Cost: 1}}}
		var results [1]algo.Result
		if _, err := r.s[region].Take(context.Background(), charges, results[:]); err != nil {
			r.failed++
		} else if results[0].Allowed {
			admitted++
		}
	}
	return admitted
}

// hears waits until a region takes so many units of a key to be left, or fewer; or until more calls
// have failed than before.
func (r *reach) hears(region, key string, left int64, before uint64) {
	r.t.Helper()
	patience.Until(r.t, fmt.Sprintf("%s hears that %d are left", region, left), func() bool {
		charges := []store.Charge{{Counter: r.counter, Limit: r.counter.Limit, Key: []byte(key)}}
		var results [1]algo.Result
		_, err := r.s[region].Take(context.Background(), charges, results[:])
		return err == nil && results[0].Remaining <= left || r.failures() > before
	})
}

// TestClusters: regions whose stores are Clusters hear each other in all parts of their logs,
// borrow, and have the same orders.
func TestClusters(t *testing.T) {
	effort.Long(t, "starts two Clusters")
	t.Parallel()
	c := borrowable(t, lasting(kinds[1]), rule.Regions{Over: 40, Tell: 2})
	r := openReach(t, redistest.StartCluster(t, 3, 0).URL(), redistest.StartCluster(t, 3, 0).URL(), c)
	for i, parts := 0, map[int]bool{}; len(parts) < r.own["eu"].Parts(); i++ {
		key := fmt.Sprint("key ", i)
		part := r.own["eu"].PartOf(c, []byte(key))
		if parts[part] {
			continue
		}
		admitted, before := 0, r.failures()
		// It has 630 itself, and may borrow 315.
		patience.Until(t, "eu uses nearly all of a key, or a call fails", func() bool {
			admitted += r.take("eu", key, 50)
			return admitted >= 882 || r.failures() > before
		})
		r.hears("us", key, int64(max(0, 900-admitted)), before)
		if n := r.take("us", key, 1200); admitted+n > 1260 {
			t.Errorf("%s: %d were admitted, at most 1260 may be", key, admitted+n)
		}
		if r.failures() == before { // else another key of this part must show it
			parts[part] = true
		}
	}
	if p := r.s["eu"].Stats().Peers[0]; p.Borrowed == 0 || p.Gaps+p.Unknown != 0 {
		t.Errorf("%+v", p)
	}
	r.ban("us", "eu")
}

// ban has a region take over a ban of another one.
func (r *reach) ban(from, to string) {
	r.t.Helper()
	fact := store.Fact{ID: "ban of " + from, Data: fmt.Appendf(nil, `{"at":%d}`, time.Now().UnixMicro()),
		TTL: time.Hour}
	if err := r.own[from].Post(r.t.Context(), "ban", []store.Fact{fact}); err != nil {
		r.t.Fatal(err)
	}
	patience.Until(r.t, to+" has the ban", func() bool {
		facts, err := r.own[to].List(r.t.Context(), "ban")
		return err == nil && len(facts) > 0 && facts[0].ID == fact.ID
	})
}

// TestSentinels: a region whose Redis fails over goes on hearing, borrowing and obeying its
// ceiling, and so does the other one meanwhile: all of them together stay within the bound.
func TestSentinels(t *testing.T) {
	effort.Long(t, "waits for a failover")
	t.Parallel()
	eu := redistest.StartSentinel(t)
	c := borrowable(t, lasting(kinds[1]), rule.Regions{Over: 30, Tell: 2})
	r := openReach(t, eu.URL(), redistest.Start(t).URL(), c)
	inEU, inUS := 0, 0
	patience.Until(t, "eu has borrowed", func() bool {
		inEU += r.take("eu", "k", 20)
		return r.s["eu"].Stats().Peers[0].Borrowed > 0
	})
	r.hears("us", "k", int64(900-inEU), r.failures())
	old := eu.KillMaster()
	inUS += r.take("us", "k", 100)
	eu.AwaitMaster(old)
	patience.Until(t, "eu decides again", func() bool {
		n := r.take("eu", "k", 1)
		inEU += n
		return n > 0
	})
	r.hear()
	before := r.s["eu"].Stats().Peers[0].Borrowed
	patience.Until(t, "both have used all", func() bool {
		a, b := r.take("eu", "k", 50), r.take("us", "k", 50)
		inEU, inUS = inEU+a, inUS+b
		return a+b == 0
	})
	if all := inEU + inUS; all > 1170 || all < 850 {
		t.Errorf("%d were admitted, want some 900, and never more than 1170", all)
	}
	t.Logf("eu %d, us %d; borrowed %d, and %d more after the failover", inEU, inUS, before,
		r.s["eu"].Stats().Peers[0].Borrowed-before)
	r.ban("us", "eu")
	if p := r.s["us"].Stats().Peers[0]; p.Unknown != 0 {
		t.Errorf("%+v", p)
	}
}
