package ruledb

import (
	"context"
	_ "embed"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-rl/weir/internal/rulesource"
	"github.com/weir-rl/weir/rule/file"
)

//go:embed schema.sql
var schemaSQL string

//go:embed grants.sql
var grantsSQL string

// initLock is the advisory lock that two programs which prepare a database take.
const initLock = 0x7765697272756c65 // "weirrule"

// Init prepares a database, in one transaction. Doing so twice is harmless. Where the roles
// weir_node and weir_editor are missing and the user may not make them, all else is done, and
// withoutRoles is true.
func Init(ctx context.Context, a *Address) (withoutRoles bool, err error) {
	c, err := a.dial(ctx)
	if err != nil {
		return false, err
	}
	defer func() { _ = c.Close(ctx) }()
	err = pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
		withoutRoles, err = prepare(ctx, tx)
		return err
	})
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && e.Code == "42501" {
		return false, fmt.Errorf(
			"%s; whoever prepares the database must own it, or have the right to create a schema in it", e.Message)
	}
	return withoutRoles, plain(err)
}

func prepare(ctx context.Context, tx pgx.Tx) (withoutRoles bool, err error) {
	if _, err := tx.Exec(ctx, "select pg_advisory_xact_lock($1)", int64(initLock)); err != nil {
		return false, err
	}
	var encoding string
	var there bool
	if err := tx.QueryRow(ctx,
		"select current_setting('server_encoding'), to_regclass('weir_rules.meta') is not null").Scan(&encoding,
		&there); err != nil {
		return false, err
	}
	if encoding != "UTF8" {
		return false, fmt.Errorf("the encoding of the database is %s; rules need UTF8", encoding)
	}
	if there {
		var schema int
		if err := tx.QueryRow(ctx, "select schema from weir_rules.meta").Scan(&schema); err != nil {
			return false, err
		}
		if schema > schemaVersion {
			return false, fmt.Errorf("the tables of rules have the form %d, and this version of weir knows the form %d",
				schema, schemaVersion)
		}
	}
	if _, err := tx.Conn().PgConn().Exec(ctx, schemaSQL).ReadAll(); err != nil {
		return false, err
	}
	if withoutRoles, err = roles(ctx, tx); withoutRoles || err != nil {
		return withoutRoles, err
	}
	_, err = tx.Conn().PgConn().Exec(ctx, grantsSQL).ReadAll()
	return false, err
}

// roles makes the roles, which are of the whole server and may be there already.
func roles(ctx context.Context, tx pgx.Tx) (without bool, err error) {
	for _, role := range []string{"weir_node", "weir_editor"} {
		var there, may bool
		if err := tx.QueryRow(ctx, `select exists (select from pg_roles where rolname = $1),
			(select rolsuper or rolcreaterole from pg_roles where rolname = current_user)`, role).Scan(&there, &may); err != nil {
			return false, err
		}
		if there {
			continue
		}
		if !may {
			return true, nil
		}
		if _, err := tx.Exec(ctx, "create role "+role+" nologin"); err != nil {
			return false, err
		}
	}
	return false, nil
}

// Change is a version that is to be in force.
type Change struct {
	Base   int64 // the version that it follows; 0 for none
	Files  []file.Source
	Author string
	Note   string
	Origin string
	// Remark is the audit's note beside Origin, such as that failed tests were passed over.
	Remark string
}

// ConflictError is the error of a change that follows another version than the one in force.
type ConflictError struct {
	Base, Head int64 // the version it follows, and the one in force; 0 for none
}

func (e *ConflictError) Error() string {
	switch {
	case e.Head == 0:
		return fmt.Sprintf("the change follows version %d, and the space holds none", e.Base)
	case e.Base == 0:
		return fmt.Sprintf("the space holds rules already: version %d is in force", e.Head)
	}
	return fmt.Sprintf("the change follows version %d, and version %d is in force", e.Base, e.Head)
}

// Push makes a version of a change and moves the head to it, if c.Base is in force; else nothing
// changes, and the error is a ConflictError.
//
// If the connection breaks before the answer comes, the version may be there all the same: the
// error says so, and Head shows it.
func (d *DB) Push(ctx context.Context, c Change) (version int64, err error) {
	raw, err := encode(c.Files)
	if err := errors.Join(err, CheckText("author", c.Author), CheckText("note", c.Note)); err != nil {
		return 0, err
	}
	digest := rulesource.Digest(c.Files)
	what := c.Origin
	if c.Remark != "" {
		what += ": " + c.Remark
	}
	var head int64
	err = d.c.QueryRow(ctx,
		"select pushed, found_head from weir_rules.push($1, $2, $3::text::jsonb, $4, $5, $6, $7, $8)",
		d.address.Space, c.Base, string(raw), digest[:], c.Author, c.Note, c.Origin, what).Scan(&version, &head)
	switch {
	case err != nil:
		if _, said := errors.AsType[*pgconn.PgError](err); !said {
			return 0, fmt.Errorf("the answer was lost, and the version may be there; see weir rules history: %w", err)
		}
		return 0, plain(err)
	case version == 0:
		return 0, &ConflictError{Base: c.Base, Head: head}
	}
	return version, nil
}

// Prune drops the files of all versions but the last keep and the one in force. The record of each
// change, with its time and author, stays.
func (d *DB) Prune(ctx context.Context, keep int, author, note string) (dropped int64, err error) {
	if err := errors.Join(CheckText("author", author), CheckText("note", note)); err != nil {
		return 0, err
	}
	err = d.c.QueryRow(ctx, "select weir_rules.prune($1, $2, $3, $4)", d.address.Space, int64(keep), author,
		note).Scan(&dropped)
	return dropped, plain(err)
}

// BackTo returns the change from head back to the files of an earlier version.
func (d *DB) BackTo(ctx context.Context, head *Version, to int64) (Change, error) {
	v, err := d.Version(ctx, to)
	if err != nil {
		return Change{}, err
	}
	if v.Digest == head.Digest {
		return Change{}, &UnusableError{What: fmt.Sprintf("version %d has the files that are in force", to)}
	}
	return Change{Base: head.Number, Files: v.Files, Origin: Rollback, Remark: fmt.Sprintf("version %d again", to)}, nil
}
