package postgres

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-rl/weir/store/cas"
)

// lock is a transaction that has locked rows.
type lock struct {
	e *engine
	c *pgxpool.Conn
}

// Lock implements cas.Locker, in one round trip. A holder that hangs lets go after some time: the
// server ends its transaction.
func (e *engine) Lock(ctx context.Context, keys []cas.Key) (cas.Lock, []cas.Value, int64, error) {
	if err := e.prepare(ctx); err != nil {
		return nil, nil, 0, e.notDone(err)
	}
	values := make([]cas.Value, len(keys))
	order := make([]int, len(keys))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return compare(keys[a], keys[b]) })
	r := reader{value: func(place int, v cas.Value) {
		if place < len(order) {
			values[order[place]] = v
		}
	}}
	c, err := e.pool.Acquire(ctx)
	if err != nil {
		return nil, nil, 0, e.notDone(err)
	}
	l := &lock{e, c}
	err = l.send(ctx, func(p *params) {
		p.text(e.patience())
		p.text(e.durable)
		p.text(fmt.Sprint(4 * e.timeout.Milliseconds()))
		p.byteas(len(keys), func(i int, dst []byte) ([]byte, bool) { return keyOf(dst, keys[order[i]].Name) })
		p.byteas(len(keys), func(i int, dst []byte) ([]byte, bool) { return nameOf(dst, keys[order[i]].Name) })
	}, r.row, e.text.begin, e.text.lock)
	if err != nil {
		l.abandon()
		return nil, nil, 0, notChargedError{e.judge(err)} // nothing was to be written
	}
	return l, values, r.clock, nil
}

// Unlock implements cas.Lock.
func (l *lock) Unlock(ctx context.Context, changes []cas.Change) error {
	if len(changes) == 0 {
		l.abandon()
		return nil
	}
	err := l.send(ctx, func(p *params) {
		n := len(changes)
		p.byteas(n, func(i int, dst []byte) ([]byte, bool) { return keyOf(dst, changes[i].Name) })
		p.int8s(n, func(i int) int64 { return int64(changes[i].Version) })
		p.int8s(n, func(i int) int64 { return changes[i].Until })
		p.byteas(n, func(i int, dst []byte) ([]byte, bool) { return append(dst, changes[i].Data...), false })
	}, nil, l.e.text.write, l.e.text.commit)
	if err != nil {
		l.abandon()
		return l.e.judge(err)
	}
	l.c.Release()
	return nil
}

// abandon ends the transaction, without waiting for that.
func (l *lock) abandon() {
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), l.e.timeout)
		defer cancel()
		if c := l.c.Conn(); !c.IsClosed() {
			if _, err := c.Exec(ctx, "rollback"); err != nil {
				_ = c.Close(ctx)
			}
		}
		l.c.Release() // which closes a connection that is in a transaction
	}()
}

// send sends two statements in one round trip; the one that is neither begin nor commit has the
// parameters, and row gets its reply.
func (l *lock) send(ctx context.Context,
	fill func(p *params), row func(columns [][]byte) error, of ...statement) error {
	ctx, cancel := context.WithTimeout(ctx, l.e.timeout)
	defer cancel()
	p := l.e.params.Get().(*params)
	defer l.e.params.Put(p)
	p.reset()
	fill(p)
	l.e.metrics.calls.Add(1)
	pipeline := l.c.Conn().PgConn().StartPipeline(ctx)
	for _, s := range of {
		if s == l.e.text.begin || s == l.e.text.commit {
			pipeline.SendQueryParams(s.text, nil, nil, nil, nil)
			continue
		}
		values := p.values()
		pipeline.SendQueryParams(s.text, values, p.types, binaryFormats[:len(values)], binaryFormats[:1])
	}
	err := pipeline.Sync()
	for err == nil {
		var result any
		if result, err = pipeline.GetResults(); err != nil || result == nil {
			break
		}
		if _, synced := result.(*pgconn.PipelineSync); synced {
			break
		}
		reply, ok := result.(*pgconn.ResultReader)
		if !ok {
			err = errReply
			break
		}
		for reply.NextRow() {
			if len(reply.Values()) == 3 && row != nil && err == nil {
				err = row(reply.Values())
			}
		}
		if _, failed := reply.Close(); failed != nil {
			err = failed
		}
	}
	if failed := pipeline.Close(); err == nil {
		err = failed
	}
	return err
}
