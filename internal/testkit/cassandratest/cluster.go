package cassandratest

import (
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/testproc"
)

// Cluster is some servers that are one Cassandra.
type Cluster struct{ servers []*Server }

// StartCluster starts a cluster of a server for each of centres, the names of their data centres:
// at 127.0.0.1, 127.0.0.2 and so on, all of which Linux has. They ask for no password, and have
// Cassandra's own bounds on how long requests take. Options are further lines of each
// cassandra.yaml.
func StartCluster(t testing.TB, centres []string, options ...string) *Cluster {
	t.Helper()
	port, reserved, err := testproc.Reserve(true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { testproc.Release(reserved) })
	c := &Cluster{}
	for n, centre := range centres {
		i := &instance{host: fmt.Sprint("127.0.0.", n+1), port: port, quick: true, member: &member{
			centre: centre, first: n == 0,
			seed:  net.JoinHostPort("127.0.0.1", strconv.Itoa(port+testproc.Beyond)),
			token: math.MinInt64 + 1 + int64(n)*(math.MaxInt64/int64(len(centres))*2),
		}}
		i.prepare(t, options)
		t.Cleanup(i.remove)
		c.servers = append(c.servers, i.show(t))
	}
	// The first one is there before the others look for it.
	c.servers[0].launch(t)
	for _, s := range c.servers[1:] {
		s.begin(t)
	}
	for _, s := range c.servers[1:] {
		s.await(t)
	}
	return c
}

// Servers returns all of them, in the order of their data centres. They are killed, paused and
// restarted one by one.
func (c *Cluster) Servers() []*Server { return c.servers }

// URL returns the address of a keyspace, with all servers.
func (c *Cluster) URL(keyspace string) string {
	var hosts []string
	for _, s := range c.servers {
		hosts = append(hosts, s.Addr())
	}
	return urlOf(strings.Join(hosts, ","), keyspace)
}
