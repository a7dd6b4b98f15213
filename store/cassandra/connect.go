package cassandra

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/weir-rl/weir/store"
)

// connection is a session, with the statements for its keyspace.
type connection struct {
	session                                   *gocql.Session
	selectRows, updateRow, deleteRow, keepRow string
	scanRows, tokens, beat, leave, countNodes string
}

// The tables. docs/operating/stores.md says how an operator makes them by hand.
const (
	countersTable = "weir_counters"
	nodesTable    = "weir_nodes"

	// A value that has expired, and what remains of a deleted one, is dropped after three hours;
	// that is for how long Cassandra's servers keep hints for one that is away.
	createCounters = `CREATE TABLE IF NOT EXISTS %s.` + countersTable + ` (place bigint, name blob, version bigint, was bigint, data blob, kept boolean,
PRIMARY KEY (place, name)) WITH gc_grace_seconds = 10800`
	createNodes = `CREATE TABLE IF NOT EXISTS %s.` + nodesTable + ` (fleet text, node text, seen timestamp,
PRIMARY KEY (fleet, node)) WITH gc_grace_seconds = 10800`
)

func newConnection(session *gocql.Session) *connection {
	// A condition that always holds makes Cassandra return the column with a refusal.
	const row, condition = " WHERE place = ? AND name = ?", " IF version = ? AND data != ?"
	return &connection{
		session:    session,
		selectRows: "SELECT name, version, was, data FROM " + countersTable + " WHERE place = ? AND name IN ?",
		updateRow:  "UPDATE " + countersTable + " USING TTL ? SET version = ?, was = ?, data = ?" + row + condition,
		deleteRow:  "DELETE FROM " + countersTable + row + condition,
		// There is no statement that only compares: this one deletes a column that is never set.
		keepRow:    "DELETE kept FROM " + countersTable + row + condition,
		scanRows:   "SELECT name, version, data FROM " + countersTable,
		tokens:     "SELECT token(place) FROM " + countersTable + " LIMIT ?",
		beat:       "UPDATE " + nodesTable + " USING TTL ? SET seen = toTimestamp(now()) WHERE fleet = ? AND node = ?",
		leave:      "DELETE FROM " + nodesTable + " WHERE fleet = ? AND node = ?",
		countNodes: "SELECT count(*) FROM " + nodesTable + " WHERE fleet = ?",
	}
}

// errConnecting is the failure before there was any other.
var errConnecting = errors.New("there was no answer yet")

// connected returns the connection, or why there is none.
func (e *engine) connected(ctx context.Context) (*connection, error) {
	if c := e.connection.Load(); c != nil {
		return c, nil
	}
	if err := ctx.Err(); err != nil {
		return nil, notChargedError{err}
	}
	err := errConnecting
	if f := e.failure.Load(); f != nil {
		err = *f
	}
	return nil, notChargedError{fmt.Errorf("cassandra: it cannot be reached: %w", e.explain(err))}
}

// Pauses between attempts to connect.
const (
	firstPause = 50 * time.Millisecond
	maxPause   = 2 * time.Second
)

// connect connects, again and again until that succeeds, and then keeps time until the engine is
// closed. The driver itself finds servers again that went away.
func (e *engine) connect() {
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		session, err := e.open()
		if err == nil {
			e.serve(session)
			return
		}
		if e.ctx.Err() != nil {
			return
		}
		if e.failure.Swap(&err) == nil {
			e.log.Warn("cassandra: no connection yet", "cause", strings.ReplaceAll(err.Error(), "\n", "; "))
		}
		select {
		case <-e.ctx.Done():
			return
		case <-time.After(pause/2 + rand.N(pause)):
		}
	}
}

// serve uses a session until the engine is closed.
func (e *engine) serve(session *gocql.Session) {
	defer session.Close()
	c := newConnection(session)
	for range firstQuestions {
		e.askTime(e.ctx, session)
	}
	e.connection.Store(c)
	var beats sync.WaitGroup
	if e.o.Heartbeat > 0 {
		beats.Go(func() { e.sendBeats(c) })
	}
	e.keepTime(e.ctx, session)
	beats.Wait() // the last thing that they say needs the session
}

// open makes a session for the keyspace, with its tables.
func (e *engine) open() (*gocql.Session, error) {
	if err := e.prepare(); err != nil {
		return nil, err
	}
	return e.session(e.target.keyspace, e.o.Timeout)
}

// opening dials for a session. The driver takes no context for making one, so that opening cuts its
// connections off when ctx ends.
type opening struct {
	dialer net.Dialer
	ctx    context.Context
	over   atomic.Bool // the session is made
}

// DialContext implements gocql.Dialer.
func (o *opening) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	if o.over.Load() {
		return o.dialer.DialContext(ctx, network, addr)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(o.ctx, cancel)()
	c, err := o.dialer.DialContext(ctx, network, addr)
	if err == nil {
		context.AfterFunc(o.ctx, func() { _ = c.Close() })
	}
	return c, err
}

// session makes a session, whose statements may take so long. That ends when the engine is closed.
func (e *engine) session(keyspace string, timeout time.Duration) (*gocql.Session, error) {
	c := e.cluster(keyspace)
	c.Timeout, c.WriteTimeout = timeout, timeout
	ctx, cut := context.WithCancel(context.Background())
	o := &opening{dialer: net.Dialer{Timeout: c.ConnectTimeout}, ctx: ctx}
	c.Dialer = o
	inTime := context.AfterFunc(e.ctx, cut)
	session, err := c.CreateSession()
	if !inTime() {
		if err == nil {
			session.Close()
		}
		return nil, e.ctx.Err()
	}
	o.over.Store(true)
	return session, err
}

// cluster is how sessions are to be.
func (e *engine) cluster(keyspace string) *gocql.ClusterConfig {
	t := e.target
	c := gocql.NewCluster(t.hosts...)
	c.Keyspace = keyspace
	c.Consistency, c.SerialConsistency = t.quorum, t.serial
	c.ConnectTimeout = max(e.o.Timeout, connectTimeout)
	c.NumConns = e.o.Connections
	// A conditional write is never repeated by the driver, nor has it two at a time.
	c.RetryPolicy, c.DefaultIdempotence = nil, false
	c.DefaultTimestamp = false // the instant of a conditional write is Cassandra's own
	c.ReconnectInterval = time.Second
	c.ReconnectionPolicy = &gocql.ConstantReconnectionPolicy{MaxRetries: 1, Interval: time.Second}
	c.Metadata.CacheMode = gocql.KeyspaceOnly
	c.WriteCoalesceWaitTime = 0
	policy := gocql.RoundRobinHostPolicy()
	if t.localDC != "" {
		policy = gocql.DCAwareRoundRobinPolicy(t.localDC)
	}
	// The same server leads all conditional writes of a partition: two that lead would outbid each
	// other.
	c.PoolConfig.HostSelectionPolicy = gocql.TokenAwareHostPolicy(policy, gocql.DoNotShuffleReplicas())
	if t.tls != nil {
		c.SslOpts = &gocql.SslOptions{Config: t.tls, EnableHostVerification: true}
	}
	if t.user != "" {
		c.Authenticator = passwordOf{t}
	}
	return c
}

// connectTimeout is the least time that a connection gets: it takes Cassandra long to check a
// password.
const connectTimeout = 5 * time.Second

// passwordOf logs in with the password of a target, which is read anew for each connection, so that
// it can be changed.
type passwordOf struct{ target *target }

// Challenge implements gocql.Authenticator.
func (p passwordOf) Challenge(req []byte) ([]byte, gocql.Authenticator, error) {
	password, err := p.target.currentPassword()
	if err != nil {
		return nil, nil, err
	}
	return gocql.PasswordAuthenticator{Username: p.target.user, Password: password}.Challenge(req)
}

// Success implements gocql.Authenticator.
func (p passwordOf) Success([]byte) error { return nil }

// prepare makes the keyspace, if that is wanted, and the tables, if they are not there.
func (e *engine) prepare() error {
	session, err := e.session("", e.o.Timeout)
	if err != nil {
		return err
	}
	defer session.Close()
	ctx, cancel := context.WithTimeout(e.ctx, schemaTimeout)
	defer cancel()
	t := e.target
	replication, err := replicationOf(ctx, session, t.keyspace)
	if err != nil {
		return err
	}
	if replication == nil {
		if t.replicas == 0 {
			return t.noKeyspace()
		}
		if err := e.create(ctx, t.createKeyspace()); err != nil {
			return fmt.Errorf("the keyspace %q cannot be made: %w", t.keyspace, err)
		}
		if replication, err = replicationOf(ctx, session, t.keyspace); err != nil {
			return err
		}
	}
	if err := t.checkReplication(replication); err != nil {
		return err
	}
	for table, create := range map[string]string{countersTable: createCounters, nodesTable: createNodes} {
		if err := e.ensureTable(ctx, session, table, create); err != nil {
			return err
		}
	}
	return nil
}

func (t *target) noKeyspace() error {
	return &store.LastingError{
		Advice: fmt.Sprintf("Cassandra has no keyspace %q: make it, or write replicas=3 in the store's URL and it is made with so many copies", t.keyspace),
		Err:    gocql.ErrKeyspaceDoesNotExist,
	}
}

// schemaTimeout bounds how long tables are waited for.
const schemaTimeout = time.Minute

// replicationOf returns the options of a keyspace's replication; nil if there is no such keyspace.
func replicationOf(ctx context.Context, session *gocql.Session, keyspace string) (map[string]string, error) {
	var replication map[string]string
	err := session.Query("SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = ?", keyspace).
		Consistency(gocql.One).ScanContext(ctx, &replication)
	if errors.Is(err, gocql.ErrNotFound) {
		return nil, nil
	}
	return replication, err
}

// ensureTable makes a table that is not there. Cassandra before 6 takes harm if two make the same
// table at the same time, so that nodes that are started together wait for differing times first.
func (e *engine) ensureTable(ctx context.Context, session *gocql.Session, table, create string) error {
	keyspace := e.target.keyspace
	for try := 0; ; try++ {
		there, err := hasTable(ctx, session, keyspace, table)
		switch {
		case err != nil:
			return err
		case there:
			return session.AwaitSchemaAgreement(ctx)
		case try > 0:
			if err := e.create(ctx, fmt.Sprintf(create, quoted(keyspace))); err != nil {
				return fmt.Errorf(
					"the table %s.%s cannot be made; make it by hand (docs/operating/stores.md) or let this user: %w", keyspace, table, err)
			}
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(rand.N(300 * time.Millisecond)):
		}
	}
}

// create makes a keyspace or a table, and waits until all servers know of it. It takes a cluster
// longer than a decision may, and a statement that was given up would soon be there twice.
func (e *engine) create(ctx context.Context, statement string) error {
	session, err := e.session("", schemaTimeout)
	if err != nil {
		return err
	}
	defer session.Close()
	if err := session.Query(statement).ExecContext(ctx); err != nil {
		return err
	}
	return session.AwaitSchemaAgreement(ctx)
}

// quoted writes a name of CQL so that it is taken as it is.
func quoted(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }
