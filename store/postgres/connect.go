package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-rl/weir/store"
)

// connection holds facts about a connection.
type connection struct {
	pooled   bool            // a pooler is in between
	prepared map[string]bool // statements, by name
}

const connectionKey = "weir"

// about returns the facts about a connection of the pool.
func about(c *pgconn.PgConn) *connection {
	of, ok := c.CustomData()[connectionKey].(*connection)
	if !ok {
		of = &connection{prepared: map[string]bool{}}
		c.CustomData()[connectionKey] = of
	}
	return of
}

// isolationWanted is the one isolation in which a statement that waited for a row goes on with the
// row's new version. In the others it fails.
const isolationWanted = "read committed"

// welcome looks at a new connection. The number of the process shows whether a pooler is in
// between: poolers draw the number that clients see. Nobody else bounds how long that takes: the
// pool makes connections without the time of the call that wants one.
func welcome(ctx context.Context, c *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, c.Config().ConnectTimeout)
	defer cancel()
	var isolation string
	var pid uint32
	err := c.QueryRow(ctx, "select current_setting('transaction_isolation'), pg_backend_pid()::bigint",
		pgx.QueryExecModeSimpleProtocol).Scan(&isolation, &pid)
	if err != nil {
		return err
	}
	of := about(c.PgConn())
	of.pooled = pid != c.PgConn().PID()
	if isolation == isolationWanted {
		return nil
	}
	if of.pooled {
		// A setting here may apply to other clients of the pooler, and not to this one.
		return &store.LastingError{
			Advice: fmt.Sprintf("transactions in PostgreSQL are %s, and a pooler is in between, so that this cannot be set for them alone: %s", isolation, isolationHint(c.Config().User)),
			Err:    errIsolation,
		}
	}
	_, err = c.Exec(ctx, "set session characteristics as transaction isolation level "+isolationWanted,
		pgx.QueryExecModeSimpleProtocol)
	return err
}

var errIsolation = errors.New("the isolation is not " + isolationWanted)

func isolationHint(role string) string {
	return fmt.Sprintf("give the role %s default_transaction_isolation = '%s' (ALTER ROLE … SET)",
		pgx.Identifier{role}.Sanitize(), isolationWanted)
}

// poolerTerm is how long calls bring their text after a pooler was found to spread the statements
// of a connection over several ones of its own. Then names are tried again: it may have been set up
// anew, or another server be in its place. If not, that costs a round trip.
const poolerTerm = 10 * time.Minute

// named reports whether statements are to be prepared.
func (d *database) named() bool { return store.Monotonic() >= d.unnamedUntil.Load() }

// unprepared handles statements of a connection that were missing, or were another's: over a pooler
// they are not prepared for a while. A server forgets none by itself, so without a pooler somebody
// else has made it do so on this connection, which is closed.
func (d *database) unprepared(ctx context.Context, c *pgx.Conn) {
	if about(c.PgConn()).pooled {
		d.unnamedUntil.Store(store.Monotonic() + int64(poolerTerm))
		return
	}
	_ = c.Close(ctx) // it is of no use either way
}
