// Package cassandra keeps counters in Apache Cassandra 4.1 or newer, so that any number of nodes
// enforce one limit as one node would. Package cas decides; this package has Cassandra carry it
// out. docs/operating/stores.md says when that is the right choice, and what it costs.
//
// A subject, all limits of one client, is a partition, and each value a row of it. Values that are
// decided together change in one conditional batch within a partition (a lightweight transaction):
//
//   - Read and Swap: engine.go. Swaps of several partitions are under way at the same time.
//   - After a batch that ended with an error, its outcome is read (settle.go).
//   - The clock is the median of the clocks of Cassandra's servers (clock.go).
//   - How it connects, and makes its tables: connect.go; what a URL says: url.go.
//   - Scan walks through all partitions (scan.go). Heartbeats count the nodes alive (nodes.go).
//
// Reservations and facts that all nodes share (store.Reserver, store.Board) are not kept here:
// Cassandra notifies nobody of a change, and to find records by their time would need a scan. Nor
// can keys be locked (cas.Locker): nodes that are in each other's way try again.
package cassandra

import (
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/cas"
)

// Store implements store.Store and store.Inspector. Make one with Open. Safe for concurrent use.
//
// A decision whose answer was lost counts as charged, and is never made twice.
type Store struct {
	*cas.Store
	engine *engine
}

var (
	_ store.Store     = (*Store)(nil)
	_ store.Inspector = (*Store)(nil)
)

// Open returns a store. Cassandra need not be reachable: until it is, every call fails at once. An
// error means that the options make no sense.
func Open(o Options) (*Store, error) {
	t, err := o.complete()
	if err != nil {
		return nil, err
	}
	e := newEngine(o, t)
	s, err := cas.New(e, cas.Options{
		Name: "cassandra store", Connections: o.InFlight, Timeout: o.Timeout, RememberRefusals: o.RememberRefusals, Logger: o.Logger, Clock: o.Clock,
	})
	if err != nil {
		_ = e.Close()
		return nil, err
	}
	return &Store{Store: s, engine: e}, nil
}

// Nodes returns how many nodes were alive when Cassandra was last asked; 0 if that is not known.
func (s *Store) Nodes() int { return int(s.engine.nodes.Load()) }

// Name returns the name that the store has given itself: random, and another one after a restart.
func (s *Store) Name() string { return s.engine.name }
