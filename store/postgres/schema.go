package postgres

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"

	"github.com/cespare/xxhash/v2"
	"github.com/jackc/pgx/v5"
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
		claim:   s("delete from SCHEMA.reservations where id = $1 returning note"),
		expired: s("select note from SCHEMA.expired_NAME($1, $2)"),
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
	d.setting.Lock()
	defer d.setting.Unlock()
	if d.ready.Load() {
		return nil
	}
	c, err := d.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer c.Release()
	if err := d.makeSchema(ctx, c.Conn()); err != nil {
		return fmt.Errorf("the schema %s: %w", d.target.schema, err)
	}
	d.ready.Store(true)
	return nil
}

// makeSchema makes what is missing, all or nothing. Nodes that are started together do so one after
// the other.
func (d *database) makeSchema(ctx context.Context, c *pgx.Conn) error {
	schema := d.target.schema
	// Nothing is asked of a role that may not create anything if all is there.
	var version string
	var functions, unlogged bool
	look := func(q interface {
		QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	}) error {
		version, functions = "", false
		// The catalogs are asked themselves: what functions such as to_regclass have found to be
		// missing, they take for missing until the transaction ends.
		var made bool
		err := q.QueryRow(ctx, `select
			exists (select from pg_class c join pg_namespace n on n.oid = relnamespace where nspname = $1 and relname = 'meta'),
			exists (select from pg_proc p join pg_namespace n on n.oid = pronamespace where nspname = $1 and proname = $2)`,
			pgx.QueryExecModeExec, schema, "last_"+functionsName).Scan(&made, &functions)
		if err != nil || !made {
			return err
		}
		err = q.QueryRow(ctx, inSchema("select value, (select relpersistence = 'u' from pg_class where oid = 'SCHEMA.states'::regclass) from SCHEMA.meta where name = 'version'", schema),
			pgx.QueryExecModeExec).Scan(&version, &unlogged)
		if errors.Is(err, pgx.ErrNoRows) {
			return errors.New("its table meta names no version: is it of another program?")
		}
		return err
	}
	done := func() bool {
		return version == schemaVersion && functions && (d.target.tables == tablesAsTheyAre || unlogged == (d.target.tables == tablesUnlogged))
	}
	if err := look(c); err != nil {
		return err
	}
	if done() {
		return nil
	}
	return pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
		do := func(text string) error {
			_, err := tx.Exec(ctx, inSchema(text, schema), pgx.QueryExecModeSimpleProtocol)
			return err
		}
		if err := do(fmt.Sprintf("select pg_advisory_xact_lock(%d)", int64(xxhash.Sum64String("weir schema "+schema)))); err != nil {
			return err
		}
		if err := look(tx); err != nil || done() {
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
			return fmt.Errorf("its version is %s, and this Weir knows %s: start one that is as new as the newest that was started", version, schemaVersion)
		}
		if !functions {
			if err := do(functionsText); err != nil {
				return err
			}
		}
		switch {
		case d.target.tables == tablesUnlogged && !unlogged:
			return do("alter table SCHEMA.states set unlogged")
		case d.target.tables > tablesUnlogged && unlogged:
			return do("alter table SCHEMA.states set logged")
		}
		return nil
	})
}
