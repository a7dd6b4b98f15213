package cassandra

import (
	"context"
	"errors"
	"fmt"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/weir-rl/weir/store/cas"
)

// Check asks whether a store that is opened with these options could decide: it connects, looks at
// the keyspace, and if the tables are there writes a value that Cassandra forgets after a while. It
// makes neither the keyspace nor the tables. A fault that does not pass by itself is a
// store.LastingError.
func Check(ctx context.Context, o Options) error {
	o.Heartbeat = 0
	t, err := o.complete()
	if err != nil {
		return err
	}
	e := bareEngine(o, t)
	defer e.stop()
	defer context.AfterFunc(ctx, e.stop)()
	return e.explain(e.check(ctx))
}

func (e *engine) check(ctx context.Context) error {
	session, err := e.session("", e.o.Timeout)
	if err != nil {
		return err
	}
	defer session.Close()
	t := e.target
	replication, err := replicationOf(ctx, session, t.keyspace)
	switch {
	case err != nil:
		return err
	case replication == nil && t.replicas == 0:
		return t.noKeyspace()
	case replication == nil:
		return nil // the first node makes it
	}
	if err := t.checkReplication(replication); err != nil {
		return err
	}
	there, err := hasTable(ctx, session, t.keyspace, countersTable)
	if err != nil || !there {
		return err
	}
	own, err := e.session(t.keyspace, e.o.Timeout)
	if err != nil {
		return err
	}
	defer own.Close()
	g := cas.Group{Changes: []cas.Change{{Key: cas.Key{Name: fmt.Append(nil, "check ", e.name)}, Version: 1, Until: 1}}}
	e.swap(ctx, newConnection(own), &g)
	return g.Err
}

// hasTable reports whether there is a table.
func hasTable(ctx context.Context, session *gocql.Session, keyspace, table string) (bool, error) {
	var name string
	err := session.Query("SELECT table_name FROM system_schema.tables WHERE keyspace_name = ? AND table_name = ?",
		keyspace, table).
		Consistency(gocql.One).ScanContext(ctx, &name)
	if errors.Is(err, gocql.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}
