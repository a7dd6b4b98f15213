//go:build soak && unix

package stores

import (
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/cassandratest"
	"github.com/weir-rl/weir/internal/testkit/pgtest"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// tableRound is one time that a fault happens, to all kinds at once.
type tableRound struct {
	t      *testing.T
	store  *tableStore
	runs   []*tableRun
	number int
	ended  chan struct{} // closed when no client asks any more
}

// tableRun are the clients of a kind in a round.
type tableRun struct {
	*tableFleet
	keys     []string
	admitted []atomic.Int64 // by key
	refused  []atomic.Int64
	all      atomic.Int64
	once     sync.Once
	held     chan struct{} // closed when a third of all is used
	goOn     chan struct{} // closed when clients go on after that
}

func newTableRun(f *tableFleet, name string) *tableRun {
	r := &tableRun{
		tableFleet: f, admitted: make([]atomic.Int64, tableKeys), refused: make([]atomic.Int64, tableKeys),
		held: make(chan struct{}), goOn: make(chan struct{}),
	}
	for i := range tableKeys {
		r.keys = append(r.keys, strings.NewReplacer(" ", "-", ",", "").Replace(fmt.Sprintf("%s-%d", name, i)))
	}
	return r
}

func (r *tableRun) as(key int) string { return tableAlgorithms[key%len(tableAlgorithms)] }

// clients ask both nodes until each key was refused some times. At a third of all units they wait
// for goOn, so that whatever happens then does so to what both nodes know.
func (r *tableRun) clients() {
	var all sync.WaitGroup
	for client := range 2 * tableClients {
		all.Go(func() {
			for i := client; ; i++ {
				open := false
				for try := range tableKeys {
					key := (i + try) % tableKeys
					if r.refused[key].Load() >= 2*tableClients {
						continue
					}
					open = true
					units, refused := r.ask(client%2, r.keys[key], r.as(key))
					r.admitted[key].Add(int64(units))
					if refused {
						r.refused[key].Add(1)
					}
					if r.all.Add(int64(units)) >= tableKeys*tableUnits/3 {
						r.once.Do(func() { close(r.held) })
						<-r.goOn
					}
					break
				}
				if !open {
					return
				}
				time.Sleep(tablePace)
			}
		})
	}
	all.Wait()
	r.once.Do(func() { close(r.held) })
}

// well waits until the nodes are, and know what became of each unit.
func (r *tableRun) well() {
	r.t.Helper()
	for _, n := range r.nodes {
		n.AwaitBack()
	}
	servertest.Eventually(r.t, "it is known what became of each unit", func() bool { return r.counted()["open"] == 0 })
}

// finish asks for what is left, and adds what was over and under the limits.
func (r *tableRun) finish(c *tableCell) {
	for key := range r.keys {
		r.drain(key)
		over := int(r.admitted[key].Load()) - tableUnits
		c.over += max(0, over)
		c.under += max(0, -over)
	}
}

// drain asks for what is left of a key, one unit at a time.
func (r *tableRun) drain(key int) {
	for node := range r.nodes {
		refusals := 0
		for refusals < 2 {
			status, _ := r.send("GET", r.nodes[node].Http+"/api/v1/limit?hits=1&key="+r.keys[key]+"&as="+r.as(key), "")
			switch status {
			case 200:
				r.admitted[key].Add(1)
			default:
				refusals++
			}
		}
	}
}

// each does something for each kind, when a third of its units are gone.
func (r *tableRound) each(do func(run *tableRun)) {
	var all sync.WaitGroup
	for _, run := range r.runs {
		all.Go(func() {
			<-run.held
			do(run)
		})
	}
	all.Wait()
}

// together waits until a third of all units are gone, lets something begin, and the clients go on.
func (r *tableRound) together(begin func()) {
	r.each(func(*tableRun) {})
	begin()
	for _, run := range r.runs {
		close(run.goOn)
	}
}

// cuts resets all connections again and again, for as long as clients ask.
func (r *tableRound) cuts() {
	r.together(func() {})
	for {
		for _, relay := range r.store.relays {
			relay.Cut()
		}
		select {
		case <-r.ended:
			return
		case <-time.After(r.store.cutEvery):
		}
	}
}

// stops stops a node of each kind, with calls under way.
func (r *tableRound) stops(d time.Duration) {
	for _, run := range r.runs {
		close(run.goOn)
	}
	r.each(func(run *tableRun) {
		p := run.processes[r.number%2].Cmd.Process
		_ = p.Signal(syscall.SIGSTOP)
		time.Sleep(d)
		_ = p.Signal(syscall.SIGCONT)
	})
}

// delays makes answers come late, half of the time on the way there.
func (r *tableRound) delays(d time.Duration) {
	r.together(func() {
		for _, relay := range r.store.relays {
			relay.Delay(d / 2)
		}
	})
	<-r.ended
	for _, relay := range r.store.relays {
		relay.Pass()
	}
}

func (r *tableRound) storeStops(d time.Duration) {
	r.together(r.store.pause)
	time.Sleep(d)
	r.store.resume()
}

func (r *tableRound) repoints() { r.together(func() {}); r.store.repoint() }

// tableStores start the stores.
var tableStores = []struct {
	name  string
	start func(t *testing.T) *tableStore
}{
	{"Redis", func(t *testing.T) *tableStore {
		const quick = "repl-diskless-sync-delay 0"
		master, replica, other := redistest.Start(t, quick), redistest.Start(t, quick), redistest.Start(t)
		follow(t, replica, master)
		s := &tableStore{relays: []*redistest.FaultProxy{redistest.Proxy(t, master.Addr()),
			redistest.Proxy(t, other.Addr())}}
		s.flags = overRedis("redis://"+s.relays[0].Addr(), "redis://"+s.relays[1].Addr())
		s.pausing(&master, &other)
		s.repoint = func() {
			s.relays[0].Lead(replica.Addr())
			handOver(t, master, replica)
			master, replica = replica, master
		}
		return s
	}},
	{"Redis Sentinel", func(t *testing.T) *tableStore {
		s := &tableStore{stays: "a failover forgets what was not copied"}
		var urls []string
		var masters []**redistest.Server
		for range 2 {
			sentinel := redistest.StartSentinel(t)
			master := sentinel.Master()
			relay := redistest.Proxy(t, master.Addr())
			s.relays = append(s.relays, relay)
			host, port, _ := strings.Cut(relay.Addr(), ":")
			for _, one := range sentinel.Sentinels() {
				one.Do("SENTINEL", "REMOVE", "mymaster")
			}
			for _, one := range sentinel.Sentinels() {
				one.Do("SENTINEL", "MONITOR", "mymaster", host, port, "2")
			}
			urls, masters = append(urls, sentinel.URL()), append(masters, &master)
		}
		s.flags = overRedis(urls[0], urls[1])
		s.pausing(masters...)
		return s
	}},
	{"Redis Cluster", func(t *testing.T) *tableStore {
		s := &tableStore{stays: "a Cluster says itself where its masters are"}
		var urls []string
		var masters []**redistest.Server
		for range 2 {
			var addrs []string
			for _, server := range redistest.StartCluster(t, 3, 0).Nodes() {
				relay := redistest.Proxy(t, server.Addr())
				_, port, _ := strings.Cut(relay.Addr(), ":")
				server.Do("CONFIG", "SET", "cluster-announce-port", port)
				s.relays = append(s.relays, relay)
				addrs = append(addrs, relay.Addr())
				masters = append(masters, &server)
			}
			urls = append(urls, "redis+cluster://"+strings.Join(addrs, ","))
		}
		s.flags = overRedis(urls[0], urls[1])
		s.pausing(masters...)
		return s
	}},
	{"PostgreSQL", func(t *testing.T) *tableStore {
		server := pgtest.Start(t)
		s := &tableStore{
			lacks: map[string]string{"lease": "the store lends nothing", "region": "the store joins no regions"},
			stays: "its URL names one server", swaps: true, cutEvery: time.Second, pause: server.Pause, resume: server.Resume,
			relays: []*redistest.FaultProxy{redistest.Proxy(t, server.Addr())},
		}
		s.flags = func(_ *testing.T, fleet string, _ int) []string {
			return []string{"--store=" + throughRelay(t, server.URL(), s.relays[0]) + "&weir_schema=" + fleet}
		}
		return s
	}},
	{"Cassandra", func(t *testing.T) *tableStore {
		server := cassandratest.Start(t)
		s := &tableStore{
			lacks: map[string]string{
				"lease": "the store lends nothing", "region": "the store joins no regions", "reservation": "the store holds no reservations",
			},
			stays: "there is no master", swaps: true, cutEvery: time.Minute, pause: server.Pause, resume: server.Resume,
			relays: []*redistest.FaultProxy{redistest.Proxy(t, server.Addr())},
		}
		keyspaces := map[string]string{}
		s.flags = func(_ *testing.T, fleet string, _ int) []string {
			if keyspaces[fleet] == "" {
				keyspaces[fleet] = server.Keyspace()
			}
			return []string{"--store=" + throughRelay(t, server.URL(keyspaces[fleet]), s.relays[0])}
		}
		return s
	}},
}

// overRedis are the flags of nodes over Redis. Those of the second region have the second one.
func overRedis(urls ...string) func(t *testing.T, fleet string, region int) []string {
	names := []string{"eu", "us"}
	return func(t *testing.T, fleet string, region int) []string {
		flags := []string{"--redis-prefix=" + fleet + ":"}
		if region < 0 {
			return append(flags, "--store="+urls[0])
		}
		config := filepath.Join(t.TempDir(), "weir.yaml")
		servertest.WriteRules(t, config,
			fmt.Sprintf("region: %s\nregions: { weights: { eu: 1, us: 1 }, stores: { %s: %q } }\n",
				names[region], names[1-region], urls[1-region]))
		return append(flags, "--store="+urls[region], "--config="+config)
	}
}

// pausing makes these servers the ones that stand still.
func (s *tableStore) pausing(servers ...**redistest.Server) {
	s.pause = func() {
		for _, server := range servers {
			(*server).Pause()
		}
	}
	s.resume = func() {
		for _, server := range servers {
			(*server).Resume()
		}
	}
}

func throughRelay(t *testing.T, of string, relay *redistest.FaultProxy) string {
	t.Helper()
	u, err := url.Parse(of)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = relay.Addr()
	return u.String()
}

// follow makes a server a replica of another one, and waits until it has all.
func follow(t *testing.T, replica, master *redistest.Server) {
	t.Helper()
	host, port, _ := strings.Cut(master.Addr(), ":")
	replica.Do("REPLICAOF", host, port)
	servertest.Eventually(t, "the replica follows", func() bool { return replica.Info("master_link_status") == "up" })
}

// handOver makes a replica the master without losing a write: the master, which becomes a replica,
// holds up all clients until the other one has all. FAILOVER takes up to a second for that.
func handOver(t *testing.T, master, replica *redistest.Server) {
	t.Helper()
	host, port, _ := strings.Cut(replica.Addr(), ":")
	servertest.Eventually(t, "the replica follows", func() bool { return replica.Info("master_link_status") == "up" })
	master.Do("CLIENT", "PAUSE", "60000", "WRITE")
	servertest.Eventually(t, "the replica has all",
		func() bool { return replica.Info("slave_repl_offset") == master.Info("master_repl_offset") })
	replica.Do("REPLICAOF", "NO", "ONE")
	master.Do("REPLICAOF", host, port)
	master.Do("CLIENT", "UNPAUSE")
}
