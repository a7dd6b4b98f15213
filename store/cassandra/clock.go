package cassandra

import (
	"context"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/cas"
)

// clock is the clock by which all nodes decide: the median of the clocks of Cassandra's servers. So
// a single server whose clock is wrong changes nothing, and it does not matter which one answers.
//
// It is estimated by asking them all, again and again: a server whose answer has come at t on this
// node's monotonic clock, and said s, has a clock that is at least s - t ahead of it. The largest
// of the latest such differences is the best. So it is never estimated to be later than it is, and
// is earlier by as much as the quickest answer took, and by up to a millisecond, which is as exact
// as Cassandra's answer is.
type clock struct {
	known  atomic.Bool
	ahead  atomic.Int64 // of this node's monotonic clock, in µs
	latest atomic.Int64 // the last instant that was returned

	mu      sync.Mutex
	servers map[string]*differences // by id
}

// differences are the latest of a server.
type differences struct {
	values [16]int64
	n      int // that were ever noted
}

func (d *differences) note(value int64) {
	d.values[d.n%len(d.values)] = value
	d.n++
}

func (d *differences) best() int64 { return slices.Max(d.values[:min(d.n, len(d.values))]) }

// monotonic is this node's clock in µs.
func monotonic() int64 { return store.Monotonic() / 1000 }

// now returns the instant. It does not go back, unless Cassandra's clocks were set back by far.
func (c *clock) now() int64 {
	now := monotonic() + c.ahead.Load()
	for {
		latest := c.latest.Load()
		if now <= latest && latest-now <= cas.MaxSkew {
			return latest
		}
		if c.latest.CompareAndSwap(latest, now) {
			return now
		}
	}
}

// note takes the present time of a server, in ms.
func (c *clock) note(id string, said int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.servers == nil {
		c.servers = map[string]*differences{}
	}
	if c.servers[id] == nil {
		c.servers[id] = &differences{}
	}
	c.servers[id].note(said*1000 - monotonic())
}

// settle computes the median of those servers that are still asked.
func (c *clock) settle(asked []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []int64
	for id, d := range c.servers {
		if !slices.Contains(asked, id) {
			delete(c.servers, id)
			continue
		}
		all = append(all, d.best())
	}
	if len(all) == 0 {
		return // the last estimate is better than none
	}
	slices.Sort(all)
	c.ahead.Store(all[(len(all)-1)/2])
	c.known.Store(true)
}

// How the servers are asked for their clocks.
const (
	askedServers   = 7 // at most
	firstQuestions = 8 // at once, so that one of the answers is quick
	askEach        = time.Second
)

// keepTime asks the servers for their clocks until ctx ends.
func (e *engine) keepTime(ctx context.Context, session *gocql.Session) {
	for range firstQuestions {
		e.askTime(ctx, session)
	}
	tick := time.NewTicker(askEach)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			e.askTime(ctx, session)
		}
	}
}

// askTime asks each of some servers of this data centre once; on all nodes, they are the same ones.
func (e *engine) askTime(ctx context.Context, session *gocql.Session) {
	ctx, cancel := context.WithTimeout(ctx, e.o.Timeout)
	defer cancel()
	var hosts []*gocql.HostInfo
	for _, h := range session.GetHosts() {
		if h.IsUp() && (e.target.localDC == "" || h.DataCenter() == e.target.localDC) {
			hosts = append(hosts, h)
		}
	}
	slices.SortFunc(hosts, func(a, b *gocql.HostInfo) int {
		return slices.Compare([]byte(net.IP(a.ConnectAddress())), []byte(net.IP(b.ConnectAddress())))
	})
	hosts = hosts[:min(len(hosts), askedServers)]
	asked := make([]string, len(hosts))
	var all sync.WaitGroup
	for i, h := range hosts {
		id := h.HostID()
		asked[i] = id
		all.Go(func() {
			var said int64
			q := session.Query("SELECT toUnixTimestamp(now()) FROM system.local").Consistency(gocql.LocalOne).SetHostID(
				id)
			if err := q.ScanContext(ctx, &said); err == nil {
				e.clock.note(id, said)
			}
		})
	}
	all.Wait()
	e.clock.settle(asked)
}
