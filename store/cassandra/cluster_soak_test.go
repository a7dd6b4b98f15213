//go:build soak && linux

package cassandra

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/cassandratest"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/testproc"
	"github.com/weir-rl/weir/store"
)

// TestClusterSoak: three servers in two data centres, with a copy of everything on each. Decisions
// stay exact, and go on, while any one of the servers is killed, stands still and comes back; and a
// data centre that decides alone does so without the other one. WEIR_CLUSTER_SOAK is how long each
// server is away (5s by default).
func TestClusterSoak(t *testing.T) {
	away := 5 * time.Second
	if text := os.Getenv("WEIR_CLUSTER_SOAK"); text != "" {
		var err error
		if away, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	c := cassandratest.StartCluster(t, []string{"dc1", "dc1", "dc2"})
	t.Logf("three servers were up after %v", time.Since(began))
	t.Run("linearizable", func(t *testing.T) { linearizableOn(t, c, away) })
	t.Run("exact", func(t *testing.T) { exactOn(t, c) })
	t.Run("data centres", func(t *testing.T) { apartOn(t, c) })
}

// everywhere makes a keyspace with a copy on each server.
func everywhere(c *cassandratest.Cluster) string {
	return c.Servers()[0].KeyspaceOn("'dc1': 2, 'dc2': 1")
}

// linearizableOn: the calls of three processes have an order, and some are answered while each of
// the servers is away.
func linearizableOn(t *testing.T, c *cassandratest.Cluster, away time.Duration) {
	const limit = 100_000
	f := startFleet(t, 3, job{
		URL: c.URL(everywhere(c)), Timeout: 2 * time.Second, Limit: limit, Keys: 12, Clients: 8,
	})
	type span struct {
		what     string
		from, to time.Duration
	}
	var spans []span
	during := func(what string, begin, end func()) {
		time.Sleep(time.Second) // as long as each fault lasts, it decides nothing
		from := testproc.Clock()
		begin()
		time.Sleep(away)
		spans = append(spans, span{what, from, testproc.Clock()})
		end()
	}
	for _, s := range c.Servers() {
		during("killed "+s.Addr(), s.Kill, s.Restart)
		during("hung "+s.Addr(), s.Pause, s.Resume)
	}
	time.Sleep(time.Second)
	all := f.end()
	for _, in := range spans {
		answered, longest := 0, time.Duration(0)
		for i := range all {
			if one := &all[i]; one.Err == "" && one.Called >= in.from && one.Returned <= in.to {
				answered++
				longest = max(longest, one.Returned-one.Called)
			}
		}
		t.Logf("%s: %d decisions in %v, the slowest in %v", in.what, answered, in.to-in.from, longest)
		if answered == 0 {
			t.Errorf("%s: nothing was decided", in.what)
		}
	}
	checkLinearizable(t, all, limit)
}

// exactOn: four processes make 20,000 attempts on one limit of 2,000, and a server is killed
// meanwhile. No unit is admitted twice, and none is lost but to calls that were told so.
func exactOn(t *testing.T, c *cassandratest.Cluster) {
	const limit, processes, clients, each = 2000, 4, 100, 50
	keyspace := everywhere(c)
	f := startFleet(t, processes, job{
		URL: c.URL(keyspace), Timeout: 30 * time.Second, Limit: limit, Keys: 1, Clients: clients, Each: each,
	})
	victim := c.Servers()[1]
	victim.Kill()
	all := f.wait()
	admitted, unknown, left := 0, 0, map[int64]int{}
	for _, one := range all {
		switch {
		case one.Unknown:
			unknown++
		case one.Err == "" && one.Allowed:
			admitted++
			left[one.Remaining]++
		}
	}
	if len(all) != processes*clients*each || admitted > limit || admitted+unknown < limit {
		t.Errorf("%d of %d attempts were admitted, and of %d it is not known; the limit is %d", admitted, len(all),
			unknown, limit)
	}
	for n, times := range left {
		if times != 1 {
			t.Errorf("%d attempts were told that %d are left", times, n)
		}
	}
	t.Logf("%d of %d attempts were admitted, of %d it is not known", admitted, len(all), unknown)
	victim.Restart()
}

// apartOn: with LOCAL_SERIAL a data centre counts alone, and needs no other; with SERIAL one limit
// is held over both.
func apartOn(t *testing.T, c *cassandratest.Cluster) {
	servers := c.Servers()
	local := func(centre, copies string) *Store {
		url := c.URL(servers[0].KeyspaceOn("'" + centre + "': " + copies))
		return openStore(t, Options{URL: url + "?consistency=LOCAL_SERIAL&local_dc=" + centre,
			Timeout: 5 * time.Second})
	}
	first, second := local("dc1", "2"), local("dc2", "1")
	over := openStore(t, Options{URL: c.URL(everywhere(c)), Timeout: 5 * time.Second})
	for _, s := range []*Store{first, second, over} {
		if left := await(t, s); left != 99 {
			t.Errorf("%d are left, want 99", left)
		}
	}

	servers[2].Kill() // all of dc2
	if left := await(t, first); left != 98 {
		t.Errorf("dc1 alone: %d are left, want 98", left)
	}
	if left := await(t, over); left != 98 {
		t.Errorf("over both, without dc2: %d are left, want 98", left)
	}
	if _, err := take(t, second, "key"); err == nil {
		t.Error("dc2 decides, and its server is dead")
	}
	servers[1].Kill() // now no majority is left anywhere
	for name, s := range map[string]*Store{"dc1": first, "both": over} {
		patience.Until(t, name+" has no majority", func() bool {
			_, err := take(t, s, "other")
			if err == nil {
				t.Fatalf("%s: decided without a majority", name)
			}
			return errors.Is(err, store.ErrNotCharged)
		})
	}

	servers[1].Restart()
	servers[2].Restart()
	for _, s := range []*Store{first, over} {
		if left := await(t, s); left != 97 {
			t.Errorf("all are back: %d are left, want 97", left)
		}
	}
	if left := await(t, second); left != 98 {
		t.Errorf("dc2 is back: %d are left, want 98", left)
	}
	// Data centres that share a keyspace would write over each other.
	shared := openStore(t, Options{URL: c.URL(everywhere(c)) + "?consistency=LOCAL_SERIAL&local_dc=dc1"})
	patience.Until(t, "a shared keyspace is refused", func() bool {
		_, err := take(t, shared, "key")
		if err == nil {
			t.Fatal("it decides")
		}
		return strings.Contains(err.Error(), "lies in the data centre dc1 alone")
	})
}
