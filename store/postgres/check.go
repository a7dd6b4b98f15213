package postgres

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Check asks whether a store that is opened with these options could decide: it connects, makes
// missing parts of the schema, and writes, in one transaction that it then takes back. A fault that
// does not pass by itself is a store.LastingError.
func Check(ctx context.Context, o Options) error {
	t, err := parseURL(o.URL)
	if err != nil {
		return err
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	d, err := openDatabase(t, 1, o.Timeout)
	if err != nil {
		return err
	}
	defer d.close()
	return d.check(ctx)
}

func (d *database) check(ctx context.Context) error {
	c, err := d.pool.Acquire(ctx)
	if err != nil {
		return d.notDone(err)
	}
	defer c.Release()
	tx, err := c.Begin(ctx)
	if err != nil {
		return d.judge(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := d.makeSchema(ctx, tx.Conn(), tx.Begin); err != nil {
		return d.notDone(fmt.Errorf("the schema %s: %w", d.target.schema, d.tooOld(c.Conn(), err)))
	}
	name := binary.BigEndian.AppendUint64(nil, 0)
	_, err = tx.Exec(ctx, inSchema("select SCHEMA.one_NAME(0, '1000', 'off', 0::int2, $1, null, 0, 1, 1, '')",
		d.target.schema),
		pgx.QueryExecModeExec, append(name, "check"...))
	if err != nil {
		return d.judge(err)
	}
	return nil
}
