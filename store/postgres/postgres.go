// Package postgres keeps counters in PostgreSQL 15 or newer, so that any number of nodes enforce
// one limit as one node would. docs/operating/stores.md says what it promises in each failure.
//
// Package store/cas makes the decisions, in Go; this is its database (cas.Engine):
//
//   - Values lie in one table, a row for each subject. Swap calls a function in PL/pgSQL that
//     compares and writes the rows of many decisions in one round trip (engine.go, sql/swap.sql).
//     Where many nodes change one row, Lock holds it in a transaction (lock.go).
//   - Rows that are over are deleted bit by bit, in the order of the table's pages (Store.tend).
//   - The tables and functions are made by the first node that comes (schema.go).
//   - Calls are in PostgreSQL's binary protocol, prepared on each connection, or with their text if
//     a pooler spreads the statements of a connection over several (conn.go, wire.go).
//
// Beside that: reservations (reserve.go), facts that all nodes share (board.go), messages between
// nodes (listen.go), and the number of nodes alive (nodes.go).
package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/cas"
)

// Options configure Open. URL is required; the zero value of every other field suits most.
type Options struct {
	// URL is the address of a database, with all the parameters that pgx knows, and the two that
	// docs/operating/stores.md describes:
	//
	//	postgres://user:password@host:5432/database?sslmode=verify-full
	//	postgres://user@host1,host2/database?passfile=/etc/weir/pgpass    that which takes writes
	URL string
	// Connections is how many connections decide; 0 means DefaultConnections, or as many as the
	// URL's pool_max_conns leaves. The store has up to Spare more for all else, and one that
	// listens.
	Connections int
	// Timeout is how long one call may take before its outcome counts as unknown; 0 means 1 s. It
	// is not the deadline of a decision, which the caller's context (or package fallback) sets.
	Timeout time.Duration
	// RememberRefusals is how long at most this node repeats a refusal without asking PostgreSQL; 0
	// means never. A second is good.
	RememberRefusals time.Duration
	// Heartbeat is the interval of this node's heartbeats, by which all nodes know how many there
	// are; 0 means none. A node without one for five intervals counts as gone.
	Heartbeat time.Duration
	// Logger gets warnings for operators; nil means that nothing is logged.
	Logger *slog.Logger
	// Clock is for tests: it returns the instant of each call, in µs since the Unix epoch, in
	// place of the server's.
	Clock func() int64
}

// The defaults of Options.
const (
	DefaultConnections = 4
	DefaultTimeout     = time.Second
	// Spare is how many connections there are at most for all that is no decision.
	Spare = 3
)

// Store implements store.Store. Make one with Open. Safe for concurrent use.
//
// A decision whose answer was lost counts as charged, and is never made twice.
type Store struct {
	*cas.Store
	engine   *engine
	o        Options
	name     string       // of this node
	live     atomic.Int64 // nodes
	listener listener
	tokens   tokens

	ctx  context.Context // ends at Close
	stop context.CancelFunc
	life struct {
		mu     sync.Mutex
		closed bool
		work   sync.WaitGroup
	}
}

var (
	_ store.Reserver  = (*Store)(nil)
	_ store.Board     = (*Store)(nil)
	_ store.Inspector = (*Store)(nil)
)

var errClosed = errors.New("postgres store: it is closed")

// Open returns a store. PostgreSQL need not be reachable: until it is, every call fails. An error
// means that the options make no sense.
func Open(o Options) (*Store, error) {
	t, err := parseURL(o.URL)
	if err != nil {
		return nil, err
	}
	if o.Connections == 0 {
		if o.Connections = DefaultConnections; t.poolSize {
			o.Connections = max(1, int(t.config.MaxConns)-Spare)
		}
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	switch {
	case o.Connections < 1 || o.Connections > 256:
		return nil, fmt.Errorf("postgres store: the number of connections is %d; it must be from 1 to 256",
			o.Connections)
	case o.Timeout < 0 || o.RememberRefusals < 0 || o.Heartbeat < 0:
		return nil, fmt.Errorf(
			"postgres store: Timeout (%v), RememberRefusals (%v) and Heartbeat (%v) must not be negative", o.Timeout, o.RememberRefusals, o.Heartbeat)
	}
	d, err := openDatabase(t, o.Connections+Spare, o.Timeout)
	if err != nil {
		return nil, err
	}
	s := &Store{o: o, engine: newEngine(d), name: strconv.FormatUint(rand.Uint64(), 36)}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.listener.init(s)
	s.Store, err = cas.New(s.engine, cas.Options{
		Name: "postgres store", Connections: o.Connections, Timeout: o.Timeout, RememberRefusals: o.RememberRefusals,
		Logger: o.Logger, Clock: o.Clock, Freed: s.listener.freed,
	})
	if err != nil {
		d.close()
		return nil, err
	}
	s.background(s.tend)
	if o.Heartbeat > 0 {
		s.background(s.beat)
	}
	if o.RememberRefusals > 0 {
		s.listener.start()
	}
	return s, nil
}

// Name returns the name that was drawn for this node.
func (s *Store) Name() string { return s.name }

// Target names the servers and the database, without credentials.
func (s *Store) Target() string { return s.engine.target.hosts }

// Pool returns the connections, for other uses of the database. They close with the store.
// Statements on them should not be prepared, since there may be a pooler.
func (s *Store) Pool() *pgxpool.Pool { return s.engine.pool }

// Schema returns the name of the schema.
func (s *Store) Schema() string { return s.engine.target.schema }

// Stats counts the doings of the store since it was opened.
type Stats struct {
	cas.Stats
	Swept uint64 // states that were over, and that this node has deleted
	Nodes int    // see Store.Nodes
}

// Stats returns a reading.
func (s *Store) Stats() Stats {
	return Stats{Stats: s.Store.Stats(), Swept: s.engine.metrics.swept.Load(), Nodes: s.Nodes()}
}

// virtual adds the instant of the test's clock to parameters; null without one.
func (s *Store) virtual(p *params) {
	if s.o.Clock == nil {
		p.null(oidInt8)
		return
	}
	p.int8(s.o.Clock())
}

// tend deletes states that are over, until the store is closed.
func (s *Store) tend() {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	warned := false
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
		err := s.engine.sweep(s.ctx)
		if code := codeOf(err); code != "" && code != codeReadOnly && !warned {
			// A server answers, and does not do as it is asked: its operator must know.
			warned = true
			s.o.Logger.Warn(err.Error())
		}
		if err == nil {
			warned = false
		}
	}
}

// background runs f in a goroutine that Close waits for. After Close it does nothing.
func (s *Store) background(f func()) {
	s.life.mu.Lock()
	defer s.life.mu.Unlock()
	if !s.life.closed {
		s.life.work.Go(f)
	}
}

// Close stops the store's goroutines, and announces to the other nodes that this one leaves. Calls
// under way fail. It returns nil; a second Close does nothing.
func (s *Store) Close() error {
	s.life.mu.Lock()
	closed := s.life.closed
	s.life.closed = true
	s.life.mu.Unlock()
	if closed {
		return nil
	}
	s.leave()
	s.stop()
	s.life.work.Wait()
	return s.Store.Close()
}
