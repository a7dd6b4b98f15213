package postgres

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/jackc/pgx/v5"

	"github.com/weir-rl/weir/store"
)

//go:embed sql/schema.sql
var schemaText string

//go:embed sql/swap.sql
var swapText string

//go:embed sql/share.sql
var shareText string

// functionsText holds all functions. Their names end with a hash of it, so that nodes of two
// versions work side by side.
var (
	functionsText = swapText + shareText
	functionsName = fmt.Sprintf("%08x", uint32(xxhash.Sum64String(functionsText)))
)

// schemaVersion is the version of the tables. A node works with tables of its own version, and
// makes them of an older one.
const schemaVersion = "1"

// inSchema writes the names of schema and functions into a text.
func inSchema(text, schema string) string {
	return strings.NewReplacer("SCHEMA", `"`+schema+`"`, "NAME", functionsName).Replace(text)
}

// statements are the calls of the store.
type statements struct {
	one, read, swap, lock, write, begin, commit, scan, size, sweep statement
	hold, claim, expired, post, remove, facts, beat, notify        statement
}

func statementsOf(schema string) statements {
	s := func(text string) statement { return newStatement(inSchema(text, schema)) }
	return statements{
		read:  s("select place, version, data from SCHEMA.read_NAME($1)"),
		swap:  s("select place, version, data from SCHEMA.swap_NAME($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"),
		lock:  s("select place, version, data from SCHEMA.lock_NAME($1, $2, $3, $4, $5)"),
		write: s("select SCHEMA.write_NAME($1, $2, $3, $4)"),
		scan:  s("select key, name, version, data from SCHEMA.states where key > $1 order by key limit $2"),
		size: s("select greatest((select reltuples::bigint from pg_class where oid = 'SCHEMA.states'::regclass)," +
			" (select count(*) from (select from SCHEMA.states limit 10000) few))"),
		sweep:   s("select SCHEMA.sweep_NAME($1, $2)"),
		hold:    s("select SCHEMA.hold_NAME($1, $2, $3, $4, $5)"),
		claim:   s("select note from SCHEMA.claim_NAME($1, $2, $3)"),
		expired: s("select note from SCHEMA.expired_NAME($1, $2, $3)"),
		post:    s("select SCHEMA.post_NAME($1, $2, $3, $4, $5, $6, $7)"),
		remove:  s("select SCHEMA.remove_NAME($1, $2, $3, $4)"),
		facts:   s("select board, number, id, ttl, age, removed, data from SCHEMA.facts_NAME($1, $2, $3, $4)"),
		beat:    s("select SCHEMA.beat_NAME($1, $2, $3)"),
		notify:  s("select count(pg_notify($1, x)) from unnest($2::text[]) x"),
		one:     s("select SCHEMA.one_NAME($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"),
		begin:   newStatement("begin"),
		commit:  newStatement("commit"),
	}
}

// prepare makes the schema if it is not known to be there.
func (d *database) prepare(ctx context.Context) error {
	if d.ready.Load() {
		return nil
	}
	work, err := d.begin(ctx)
	if err != nil || work == nil {
		return err
	}
	select {
	case <-work.done:
		return work.err
	case <-ctx.Done():
		return fmt.Errorf(
			"the schema %s: its table is being made another kind (%s), which takes as long as to copy it: %w", d.target.schema, paramTables, ctx.Err())
	}
}

// setup is a change of the kind of the table. It may take for longer than any call, so that it goes
// on by itself: given up and begun again by each call, it would never come to its end, and hold up
// all nodes meanwhile.
type setup struct {
	done chan struct{} // closed when err is valid
	err  error
}

// longestSetup bounds the copying of a table.
const longestSetup = time.Hour

// begin makes the schema, and returns the setup to wait for until it is ready; nil: nothing.
func (d *database) begin(ctx context.Context) (*setup, error) {
	d.setting.Lock()
	defer d.setting.Unlock()
	if d.ready.Load() || d.setup != nil {
		return d.setup, nil
	}
	c, err := d.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	kind, err := d.makeSchema(ctx, c.Conn(), c.Conn().Begin)
	if err != nil || kind == "" {
		if err != nil {
			err = fmt.Errorf("the schema %s: %w", d.target.schema, d.tooOld(c.Conn(), err))
			c.Release()
			return nil, err
		}
		c.Release()
		d.ready.Store(true)
		return nil, nil
	}
	work := &setup{done: make(chan struct{})}
	d.setup = work
	go func() {
		err := d.setKind(c.Conn(), kind)
		c.Release()
		d.setting.Lock()
		defer d.setting.Unlock()
		if d.setup = nil; err != nil {
			work.err = fmt.Errorf("the schema %s: %w", d.target.schema, err)
		} else {
			d.ready.Store(true)
		}
		close(work.done)
	}()
	return work, nil
}

// setKind makes the table logged, or unlogged. If it is so already, that does nothing.
func (d *database) setKind(c *pgx.Conn, kind string) error {
	ctx, cancel := context.WithTimeout(d.ctx, longestSetup)
	defer cancel()
	return pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
		for _, text := range []string{d.lockSchema(), "alter table SCHEMA.states set " + kind} {
			if _, err := tx.Exec(ctx, inSchema(text, d.target.schema), pgx.QueryExecModeSimpleProtocol); err != nil {
				return err
			}
		}
		return nil
	})
}

// lockSchema is the statement by which nodes that are started together take turns.
func (d *database) lockSchema() string {
	return fmt.Sprintf("select pg_advisory_xact_lock(%d)", int64(xxhash.Sum64String("weir schema "+d.target.schema)))
}

// beginner begins a transaction, for pgx.BeginFunc.
type beginner func(ctx context.Context) (pgx.Tx, error)

// Begin calls b.
func (b beginner) Begin(ctx context.Context) (pgx.Tx, error) { return b(ctx) }

// makeSchema makes missing parts over a connection, all or nothing: in a transaction that begin
// begins there. Nodes that are started together do so one after the other. kind is the kind that
// the table has yet to become, "" if it is of that kind.
func (d *database) makeSchema(ctx context.Context, c *pgx.Conn, begin beginner) (kind string, err error) {
	schema := d.target.schema
	// Nothing is asked of a role that may not create anything if all is there.
	var version string
	var functions, unlogged bool
	look := func() error {
		version, functions = "", false
		// The catalogs are asked themselves: what functions such as to_regclass have found to be
		// missing, they take for missing until the transaction ends.
		var made bool
		err := c.QueryRow(ctx, `select
			exists (select from pg_class c join pg_namespace n on n.oid = relnamespace where nspname = $1 and relname = 'meta'),
			exists (select from pg_proc p join pg_namespace n on n.oid = pronamespace where nspname = $1 and proname = $2)`,
			pgx.QueryExecModeExec, schema, "last_"+functionsName).Scan(&made, &functions)
		if err != nil || !made {
			return err
		}
		err = c.QueryRow(ctx,
			inSchema(
				"select value, (select relpersistence = 'u' from pg_class where oid = 'SCHEMA.states'::regclass) from SCHEMA.meta where name = 'version'", schema),
			pgx.QueryExecModeExec).Scan(&version, &unlogged)
		if errors.Is(err, pgx.ErrNoRows) {
			return &store.LastingError{
				Advice: fmt.Sprintf("the table %s.meta in PostgreSQL names no version, as if it were of another program: name another schema with weir_schema in the store's URL", schema),
				Err:    err,
			}
		}
		return err
	}
	other := func() string {
		switch {
		case d.target.tables == tablesUnlogged && !unlogged:
			return "unlogged"
		case d.target.tables > tablesUnlogged && unlogged:
			return "logged"
		}
		return ""
	}
	done := func() bool { return version == schemaVersion && functions }
	if err := look(); err != nil {
		return "", err
	}
	if done() {
		return other(), nil
	}
	err = pgx.BeginFunc(ctx, begin, func(tx pgx.Tx) error {
		do := func(text string) error {
			_, err := tx.Exec(ctx, inSchema(text, schema), pgx.QueryExecModeSimpleProtocol)
			return err
		}
		if err := do(d.lockSchema()); err != nil {
			return err
		}
		if err := look(); err != nil || done() {
			return err
		}
		switch version {
		case "":
			if err := do("create schema if not exists SCHEMA"); err != nil {
				return err
			}
			if err := do(schemaText); err != nil {
				return err
			}
		case schemaVersion:
		default:
			return &store.LastingError{
				Advice: fmt.Sprintf("the schema %s in PostgreSQL is of version %s, and this Weir knows %s: start one that is as new as the newest that was started", schema, version, schemaVersion),
				Err:    fmt.Errorf("its version is %s", version),
			}
		}
		if functions {
			return nil
		}
		return do(functionsText)
	})
	return other(), err
}
