package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// database is a pool of connections that call functions of the schema.
type database struct {
	target  *target
	timeout time.Duration
	pool    *pgxpool.Pool
	text    statements
	params  sync.Pool // *params

	unnamedUntil atomic.Int64 // see poolerTerm; by the monotonic clock, in ns
	ready        atomic.Bool  // the schema is there
	setting      sync.Mutex
	setup        *setup // a change of the table that is under way; nil: none. Guarded by setting

	ctx     context.Context // ends with close
	stop    context.CancelFunc
	metrics metrics
}

// statement is the text of a call, and the name under which a connection may have prepared it.
type statement struct{ name, text string }

func newStatement(text string) statement {
	return statement{fmt.Sprintf("weir_%016x", xxhash.Sum64String(text)), text}
}

func openDatabase(t *target, connections int, timeout time.Duration) (*database, error) {
	d := &database{target: t, timeout: timeout}
	d.ctx, d.stop = context.WithCancel(context.Background())
	d.params.New = func() any { return &params{} }
	d.text = statementsOf(t.schema)
	c := t.config.Copy()
	if !t.poolSize {
		c.MaxConns = int32(connections)
	}
	// A firewall on the way may have forgotten a connection that was idle for long.
	if c.MaxConnIdleTime == 0 {
		c.MaxConnIdleTime = 5 * time.Minute
	}
	c.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error { return t.url.Renew(c) }
	c.AfterConnect = welcome
	var err error
	if d.pool, err = pgxpool.NewWithConfig(context.Background(), c); err != nil {
		d.stop()
		return nil, fmt.Errorf("postgres store: %w", err)
	}
	return d, nil
}

// close waits until all connections are given back.
func (d *database) close() {
	d.stop()
	d.pool.Close()
}

// SQLSTATEs.
const (
	codeReadOnly        = "25006" // read_only_sql_transaction: a replica
	codeNoStatement     = "26000" // invalid_sql_statement_name
	codeStatementExists = "42P05" // duplicate_prepared_statement
	codePlanChanged     = "0A000" // "cached plan must not change result type"
	codeNoTable         = "42P01"
	codeNoSchema        = "3F000"
	codeNoFunction      = "42883"
	codeUnknown         = "40003" // statement_completion_unknown
	codeConflict        = "40001" // serialization_failure
)

// codeOf returns the SQLSTATE of an error that is the server's answer and no end of the connection;
// else "".
func codeOf(err error) string {
	var answer *pgconn.PgError
	if errors.As(err, &answer) && answer.SeverityUnlocalized == "ERROR" {
		return answer.Code
	}
	return ""
}

// call calls a function: it sends a statement with parameters that fill has written, and calls row
// with each row of the reply, in binary; columns are valid during that call. An error that is
// store.ErrNotCharged says that nothing was done: a server that answers with an error has rolled
// the statement back. One that is cas.ErrBroken says that a connection broke.
func (d *database) call(ctx context.Context, s statement,
	fill func(p *params), row func(columns [][]byte) error) error {
	return d.callAgain(ctx, s, fill, row, nil)
}

// callAgain is call for a statement that may run twice: if a connection breaks, the statement is
// sent again over another one. again is called before that, and forgets the rows that have come;
// nil: what may have been done is not sent again.
func (d *database) callAgain(
	ctx context.Context, s statement, fill func(p *params), row func(columns [][]byte) error, again func(),
) error {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	p := d.params.Get().(*params)
	defer d.params.Put(p)
	p.reset()
	fill(p)
	unsure := false // an attempt may have been made
	end := func(err error) error {
		if d.metrics.failures.Add(1); unsure {
			return &unsureError{err}
		}
		return err
	}
	for mends, breaks := 0, 0; ; {
		if err := d.prepare(ctx); err != nil {
			return end(d.notDone(err))
		}
		c, err := d.pool.Acquire(ctx)
		if err != nil {
			if again != nil && brokeOpening(err) && breaks <= int(d.pool.Config().MaxConns) && ctx.Err() == nil {
				breaks++
				continue
			}
			return end(d.notDone(err))
		}
		d.metrics.calls.Add(1)
		err = d.send(ctx, c.Conn().PgConn(), s, p, row)
		mended := mends < 2 && d.mend(ctx, c.Conn(), codeOf(err))
		c.Release()
		if err == nil {
			return nil
		}
		if mended {
			mends++
			continue
		}
		// All connections that the pool keeps may be broken.
		if isBroken(err) && breaks <= int(d.pool.Config().MaxConns) && ctx.Err() == nil {
			if breaks++; pgconn.SafeToRetry(err) {
				continue
			}
			if again != nil {
				unsure = true
				again()
				continue
			}
		}
		return end(d.judge(err))
	}
}

// mend does what makes a call succeed that failed with this SQLSTATE on a connection; it reports
// whether there is such a thing.
func (d *database) mend(ctx context.Context, c *pgx.Conn, code string) bool {
	switch code {
	case codeNoStatement, codeStatementExists:
		d.unprepared(ctx, c)
		return true
	case codePlanChanged:
		// A table or a function was changed, for all connections.
		d.unprepared(ctx, c)
		d.pool.Reset()
		return true
	case codeNoTable, codeNoSchema, codeNoFunction:
		d.ready.Store(false) // a new server, which lacks the data that the old one lost
		return true
	}
	return false
}

// send makes one round trip, and one more if the connection has yet to prepare the statement.
func (d *database) send(ctx context.Context, c *pgconn.PgConn, s statement, p *params,
	row func(columns [][]byte) error) error {
	values := p.values()
	formats := binaryFormats[:len(values)]
	var reply *pgconn.ResultReader
	if !d.named() {
		reply = c.ExecParams(ctx, s.text, values, p.types, formats, binaryFormats[:1])
	} else {
		if of := about(c); !of.prepared[s.name] {
			if _, err := c.Prepare(ctx, s.name, s.text, p.types); err != nil {
				return err
			}
			of.prepared[s.name] = true
		}
		reply = c.ExecPrepared(ctx, s.name, values, formats, binaryFormats[:1])
	}
	var failed error
	for reply.NextRow() {
		if failed == nil && row != nil {
			failed = row(reply.Values())
		}
	}
	if _, err := reply.Close(); err != nil {
		return err
	}
	return failed
}
