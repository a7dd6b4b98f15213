package deferred

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

//go:embed queue.sql
var queueSQL string

// queueName is part of the names of functions, so that nodes of two versions work side by side.
var queueName = fmt.Sprintf("%08x", uint32(xxhash.Sum64String(queueSQL)))

// Postgres is a Queue in PostgreSQL 15 or newer, which any number of processes share. A job is
// durable as the server's synchronous_commit says.
type Postgres struct {
	pool    *pgxpool.Pool
	schema  string
	replace *strings.Replacer
	lock    int64
	bounds  Bounds
	timeout time.Duration // of a call
	making  sync.Mutex
	made    atomic.Bool
}

// postgresTimeout bounds each call. A server that is gone without a word would keep a worker for as
// long as the system sends again what nobody confirms: a quarter of an hour.
const postgresTimeout = 10 * time.Second

var _ Queue = (*Postgres)(nil)

// NewPostgres returns the queue in a schema, in which it makes its tables. The pool remains the
// caller's.
func NewPostgres(pool *pgxpool.Pool, schema string, b Bounds) (*Postgres, error) {
	if err := b.check(); err != nil {
		return nil, err
	}
	lock := int64(xxhash.Sum64String("weir deferred " + schema))
	return &Postgres{
		pool: pool, schema: schema, lock: lock, bounds: b.filled(), timeout: postgresTimeout,
		replace: strings.NewReplacer("SCHEMA", pgx.Identifier{schema}.Sanitize(), "NAME", queueName, "LOCK",
			strconv.FormatInt(lock, 10)),
	}, nil
}

// make makes the tables and functions if they are not known to be there.
func (q *Postgres) make(ctx context.Context) error {
	q.making.Lock()
	defer q.making.Unlock()
	if q.made.Load() {
		return nil
	}
	// Nothing is asked of a role that may not create anything if all is there.
	var there bool
	err := q.pool.QueryRow(ctx, `select exists (
		select from pg_proc p join pg_namespace n on n.oid = pronamespace where nspname = $1 and proname = $2
	)`, pgx.QueryExecModeExec, q.schema, "deferred_"+queueName).Scan(&there)
	if err == nil && !there {
		err = pgx.BeginFunc(ctx, q.pool, func(tx pgx.Tx) error {
			text := fmt.Sprintf("select pg_advisory_xact_lock(%d); create schema if not exists SCHEMA; ",
				q.lock) + queueSQL
			_, err := tx.Exec(ctx, q.replace.Replace(text), pgx.QueryExecModeSimpleProtocol)
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("deferred: its tables: %w", err)
	}
	q.made.Store(true)
	return nil
}

// query asks for rows. A pooler may spread statements over connections, so none is prepared.
func (q *Postgres) query(ctx context.Context, text string, args []any, row func(r pgx.Rows) error) error {
	ctx, cancel := context.WithTimeout(ctx, q.timeout)
	defer cancel()
	for tries := 0; ; tries++ {
		if !q.made.Load() {
			if err := q.make(ctx); err != nil {
				return err
			}
		}
		rows, err := q.pool.Query(ctx, q.replace.Replace(text), append([]any{pgx.QueryExecModeExec}, args...)...)
		if err == nil {
			for rows.Next() && err == nil {
				err = row(rows)
			}
			rows.Close()
			err = errors.Join(err, rows.Err())
		}
		var answer *pgconn.PgError
		if errors.As(err, &answer) && tries == 0 &&
			(answer.Code == "42883" || answer.Code == "42P01" || answer.Code == "3F000") {
			q.made.Store(false) // another server than before
			continue
		}
		if err != nil {
			return fmt.Errorf("deferred: %w", err)
		}
		return nil
	}
}

// operation is one of the function in queue.sql.
type operation struct {
	name       string
	id         string
	line       string
	job        []byte
	a, b, c, d int64
	text       string
}

// answer is the result of an operation.
type answer struct {
	n        int64
	job      []byte
	attempts *int64
}

func (q *Postgres) run(ctx context.Context, o operation) (a answer, err error) {
	line := sha256.Sum256([]byte(o.line))
	err = q.query(ctx, "select n, job, attempts from SCHEMA.deferred_NAME($1, $2, $3, $4, $5, $6, $7, $8, $9)",
		[]any{o.name, o.id, line[:], o.job, o.a, o.b, o.c, o.d, o.text},
		func(r pgx.Rows) error { return r.Scan(&a.n, &a.job, &a.attempts) })
	return a, err
}

// Put implements Queue.
func (q *Postgres) Put(ctx context.Context, j *Job) error {
	text, err := json.Marshal(j)
	if err != nil {
		return fmt.Errorf("deferred: a job: %w", err)
	}
	a, err := q.run(ctx, operation{
		name: "put", id: j.ID, line: j.Line, job: text, a: int64(q.bounds.Jobs), b: q.bounds.Bytes,
		c: j.Queued.UnixMicro(), text: j.Queue,
	})
	return putError(a.n, err)
}

// Next implements Queue.
func (q *Postgres) Next(ctx context.Context, lease time.Duration) (*Job, time.Duration, error) {
	a, err := q.run(ctx, operation{name: "next", a: lease.Microseconds()})
	if err != nil || a.attempts == nil {
		return nil, time.Duration(a.n) * time.Microsecond, err
	}
	j := new(Job)
	if err := json.Unmarshal(a.job, j); err != nil {
		return nil, 0, fmt.Errorf("deferred: a job is damaged: %w", err)
	}
	j.Attempts = int(*a.attempts)
	return j, 0, nil
}

// Postpone implements Queue.
func (q *Postgres) Postpone(ctx context.Context, j *Job, d time.Duration) error {
	_, err := q.run(ctx, operation{name: "postpone", line: j.Line, a: d.Microseconds()})
	return err
}

// Take implements Queue.
func (q *Postgres) Take(ctx context.Context, j *Job, lease time.Duration) (bool, error) {
	a, err := q.run(ctx, operation{name: "take", id: j.ID, a: lease.Microseconds()})
	return a.n == 1, err
}

// Sent implements Queue.
func (q *Postgres) Sent(ctx context.Context, j *Job) error {
	_, err := q.run(ctx, operation{name: "sent", id: j.ID})
	return err
}

// Keep implements Queue.
func (q *Postgres) Keep(ctx context.Context, j *Job, d time.Duration) (bool, error) {
	a, err := q.run(ctx, operation{name: "keep", id: j.ID, a: d.Microseconds()})
	return a.n == 1, err
}

// Done implements Queue.
func (q *Postgres) Done(ctx context.Context, j *Job, status int) error {
	a, err := q.run(ctx, operation{name: string(Done), id: j.ID, a: int64(status), b: q.bounds.Keep.Microseconds(),
		c: maxDone, d: q.bounds.Bytes})
	return gone(a.n, err)
}

// Fail implements Queue.
func (q *Postgres) Fail(ctx context.Context, j *Job, status int, why string) error {
	a, err := q.run(ctx, operation{
		name: string(Failed), id: j.ID, a: int64(status), b: q.bounds.Keep.Microseconds(), c: int64(q.bounds.Dead),
		d: q.bounds.Bytes, text: printable(why),
	})
	return gone(a.n, err)
}

// Again implements Queue.
func (q *Postgres) Again(ctx context.Context, j *Job, d time.Duration, status int, why string) error {
	a, err := q.run(ctx, operation{name: "again", id: j.ID, a: d.Microseconds(), b: int64(status),
		text: printable(why)})
	return gone(a.n, err)
}

// printable removes what PostgreSQL's texts cannot hold.
func printable(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "")
}

// Retry implements Queue.
func (q *Postgres) Retry(ctx context.Context, id string) error {
	a, err := q.run(ctx, operation{name: "retry", id: printable(id), a: int64(q.bounds.Jobs), b: q.bounds.Bytes})
	switch {
	case err != nil:
		return err
	case a.n < 0:
		return fmt.Errorf("%w among the dead letters", ErrGone)
	case a.n == 0:
		return ErrFull
	}
	return nil
}

// Drop implements Queue.
func (q *Postgres) Drop(ctx context.Context, id string) error {
	a, err := q.run(ctx, operation{name: "drop", id: printable(id)})
	if err == nil && a.n == 0 {
		return ErrActive
	}
	return gone(a.n, err)
}

const ticketColumns = "select id, state, queue, queued, ended, attempts, status, error from SCHEMA.deferred_jobs "

func scanTicket(r pgx.Rows) (t Ticket, err error) {
	var queued, ended int64
	err = r.Scan(&t.ID, &t.State, &t.Queue, &queued, &ended, &t.Attempts, &t.Status, &t.Error)
	t.Queued = time.UnixMicro(queued).UTC()
	if ended != 0 {
		t.Ended = time.UnixMicro(ended).UTC()
	}
	return t, err
}

// Ticket implements Queue.
func (q *Postgres) Ticket(ctx context.Context, id string) (t Ticket, err error) {
	found := false
	err = q.query(ctx, ticketColumns+"where id = $1", []any{printable(id)}, func(r pgx.Rows) error {
		found = true
		t, err = scanTicket(r)
		return err
	})
	if err == nil && !found {
		err = ErrGone
	}
	return t, err
}

// List implements Queue.
func (q *Postgres) List(ctx context.Context, s State, n int) (list []Ticket, err error) {
	order := "came"
	switch s {
	case Queued, Active:
	case Done, Failed:
		order = "ended"
	default:
		return nil, fmt.Errorf("deferred: there is no state %q", s)
	}
	err = q.query(ctx, ticketColumns+"where state = $1 order by "+order+", id limit $2", []any{string(s), int64(n)},
		func(r pgx.Rows) error {
			t, err := scanTicket(r)
			list = append(list, t)
			return err
		})
	return list, err
}

// Stats implements Queue.
func (q *Postgres) Stats(ctx context.Context) (s Stats, err error) {
	var oldest *int64
	err = q.query(ctx, `select l.jobs, l.bytes, d.jobs, (select min(came) from SCHEMA.deferred_jobs where state in ('queued', 'active'))
		from SCHEMA.deferred_sums l, SCHEMA.deferred_sums d where l.kind = 'live' and d.kind = 'failed'`, nil,
		func(r pgx.Rows) error { return r.Scan(&s.Jobs, &s.Bytes, &s.Dead, &oldest) })
	if oldest != nil {
		s.Oldest = time.UnixMicro(*oldest)
	}
	return s, err
}

// Close implements Queue. The pool stays open.
func (q *Postgres) Close() error { return nil }
