//go:build unix

package stores

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/admin"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/testkit/cassandratest"
	"github.com/weir-rl/weir/internal/testkit/pgtest"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
	"github.com/weir-rl/weir/internal/util/human"
)

const outageRules = `domain: shop
limits:
  - { name: search, when: { path: /search }, per: [user], allow: 20/day, algorithm: sliding_log }
  - { name: open, when: { path: /open }, per: [user], allow: 20/day, on_store_error: allow }
  - { name: shut, when: { path: /shut }, per: [user], allow: 20/day, on_store_error: deny }
`

// outageStore is a store that can be killed and started again.
type outageStore struct {
	kind, url     string
	kill, restart func()
	lost          bool // it comes back without its counters
	merged        bool // nodes hear each other over it
}

// TestOutageRedis and the others: two servers of the built program lose their store. While it is
// away, each says how it decides, and how many it has decided alone. When it is back, they say what
// both decided alone, how much went over, and whether the counters were lost, whichever is asked.
func TestOutageRedis(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t, "appendonly yes", "appendfsync always")
	testOutage(t, outageStore{kind: "redis", url: r.URL(), kill: r.Kill, restart: r.Restart, merged: true})
}

func TestOutageRedisComesBackEmpty(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	testOutage(t, outageStore{kind: "redis", url: r.URL(), kill: r.Kill, restart: r.Restart, lost: true, merged: true})
}

func TestOutagePostgreSQL(t *testing.T) {
	t.Parallel()
	p := pgtest.Start(t)
	// Without it a crash forgets the last charges before it.
	testOutage(t, outageStore{kind: "postgres", url: p.URL() + "&weir_tables=synced", kill: p.Kill, restart: p.Restart})
}

func TestOutagePostgreSQLUnlogged(t *testing.T) {
	t.Parallel()
	p := pgtest.Start(t)
	testOutage(t, outageStore{kind: "postgres", url: p.URL() + "&weir_tables=unlogged", kill: p.Kill, restart: p.Restart,
		lost: true})
}

// TestOutageCassandra takes long to start and to come back.
func TestOutageCassandra(t *testing.T) {
	t.Parallel()
	c := cassandratest.Start(t)
	testOutage(t, outageStore{kind: "cassandra", url: c.URL(c.Keyspace()), kill: c.Kill, restart: c.Restart})
}

func testOutage(t *testing.T, s outageStore) {
	program, dir := servertest.BuiltProgram(t), t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "rules.yaml"), outageRules)
	var nodes []*servertest.Node
	for range 2 {
		p := servertest.Launch(t, program, dir,
			append([]string{"serve", "--rules=rules.yaml", "--store=" + s.url}, servertest.Patient...)...)
		nodes = append(nodes, servertest.NodeOf(t, p.Stderr, p.Addr))
	}
	for _, n := range nodes {
		n.AwaitBack()
		servertest.Eventually(t, "the nodes know of each other",
			func() bool { return n.Metric("weir_store_share_nodes") == "2" })
	}
	// A Cassandra may be away until it is connected; later that is told as another outage.
	earlier := make([]int, len(nodes))
	for i, n := range nodes {
		servertest.Eventually(t, "nothing was away lately", func() bool {
			list := get[admin.OutageList](t, n.Admin+"/api/v1/outages").Outages
			if earlier[i] = len(list); len(list) != 0 && s.kind != "cassandra" {
				t.Fatalf("outages without one: %+v", list)
			}
			return len(list) == 0 || !list[0].Lasts() && time.Since(*list[0].To) > time.Minute
		})
	}
	// The second node has not heard of ada, who has nothing left.
	if n := nodes[0].Admitted(20, "domain=shop&path=/search&user=ada"); n != 20 {
		t.Fatal(n)
	}

	s.kill()
	alone := make([]uint64, 2)
	for i, n := range nodes {
		servertest.Eventually(t, "the store counts as away", func() bool {
			n.AskAtOnce("domain=shop&path=/search&user=away-" + fmt.Sprint(i))
			_, body := n.Readyz()
			return strings.Contains(body, "without the store")
		})
		if got := n.Ask("domain=shop&path=/open&user=ada"); got != 200 {
			t.Error(got)
		}
		if got := n.Ask("domain=shop&path=/shut&user=ada"); got != 503 {
			t.Error(got)
		}
		if i == 1 {
			if got := n.Admitted(12, "domain=shop&path=/search&user=ada"); got != 10 {
				t.Errorf("%d of the share are admitted", got)
			}
		}
		alone[i] = counted(n)
		servertest.Eventually(t, "the outage is told while it lasts", func() bool {
			list := get[admin.OutageList](t, n.Admin+"/api/v1/outages").Outages
			return len(list) == earlier[i]+1 && list[0].Lasts() && list[0].Alone == alone[i] && len(list[0].Nodes) == 1
		})
		o := get[admin.OutageList](t, n.Admin+"/api/v1/outages").Outages[0]
		if o.Store != s.kind || o.Kind != insight.StoreAway || o.Times != 1 || o.Cause == "" || o.CountersLost ||
			o.Admitted != 1 || o.Refused != 1 || o.ShareAdmitted+o.ShareRefused != alone[i]-2 ||
			o.Nodes[0].Does != "admits 1/2 of each limit under 1 rule, fails open (admits all) under 1 rule, "+
				"fails closed (refuses all) under 1 rule" {
			t.Errorf("%+v", o)
		}
	}

	for _, sees := range []string{" away since ", ": " + human.Number(alone[0]) + " decided alone"} {
		if status, out, errors := servertest.RunBuilt(t, "top", "--batch", "--server="+nodes[0].Admin); status != 0 ||
			!strings.Contains(out, sees) {
			t.Errorf("%d: %s%s", status, out, errors)
		}
	}

	s.restart()
	for _, n := range nodes {
		n.AwaitBack()
	}
	var last insight.Outage
	for i, n := range nodes {
		want, of := alone[i], 1
		if s.merged {
			want, of = alone[0]+alone[1], 2
		}
		servertest.Eventually(t, "the outage is told when it is over", func() bool {
			list := get[admin.OutageList](t, n.Admin+"/api/v1/outages").Outages
			if len(list) != earlier[i]+1 {
				t.Fatalf("%+v", list)
			}
			last = list[0]
			return !last.Lasts() && last.Alone == want && last.Unsettled == 0 && len(last.Nodes) == of &&
				last.CountersLost == s.lost
		})
		over := uint64(0)
		if !s.lost && (s.merged || i == 1) {
			over = 10
		}
		if last.Over != over || !last.From.Before(*last.To) {
			t.Errorf("%+v", last)
		}
		title := map[string]string{"redis": "Redis away", "postgres": "PostgreSQL away", "cassandra": "Cassandra away"}[s.kind]
		if last.Title != title || !strings.HasPrefix(last.Summary, human.Number(want)+" decided alone") ||
			strings.Contains(last.Summary, "10 over") != (over == 10) ||
			strings.Contains(last.Summary, "counters lost") != s.lost {
			t.Errorf("%s: %s", last.Title, last.Summary)
		}
	}
}

// counted is how many decisions a node has made without its store, by its metrics.
func counted(n *servertest.Node) (sum uint64) {
	for _, outcome := range []string{"local_allowed", "local_denied", "uncounted", "refused"} {
		sum += uint64(n.Number(`weir_store_fallback_decisions_total{outcome="` + outcome + `"}`))
	}
	return sum
}
