package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/cas"
)

// The meaning of errors: for the outcome of a call, whether it may succeed over another connection,
// and whether it lasts until somebody does something about it.

// notChargedError is an error that is store.ErrNotCharged.
type notChargedError struct{ error }

func (e notChargedError) Unwrap() []error { return []error{e.error, store.ErrNotCharged} }

// brokenError is an error that is cas.ErrBroken.
type brokenError struct{ error }

func (e brokenError) Unwrap() []error { return []error{e.error, cas.ErrBroken} }

// SQLSTATEs with which a server refuses a connection for a moment, or ends one that it is making.
const (
	codeTooMany    = "53300" // too_many_connections: also while the backends of others still end
	codeStarting   = "57P03" // cannot_connect_now: it starts, or recovers from a crash
	codeTerminated = "57P01" // admin_shutdown: pg_terminate_backend
	codeCrashed    = "57P02" // crash_shutdown: another backend has crashed
)

// stateOf returns the SQLSTATE of an error, even if its connection failed afterwards; "" if the
// server has not said it.
func stateOf(err error) string {
	if answer, ok := errors.AsType[*pgconn.PgError](err); ok {
		return answer.Code
	}
	return ""
}

// isBroken reports whether a call failed since its connection broke, rather than by an answer, or
// since its time was over.
func isBroken(err error) bool {
	if err == nil || codeOf(err) != "" || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return false
	}
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return false
	}
	return !errors.Is(err, errReply)
}

// brokeOpening reports whether a connection broke that the server had taken, before it could be
// used. One that nothing takes is another matter: the server is away.
func brokeOpening(err error) bool {
	switch stateOf(err) {
	case codeTerminated, codeCrashed:
		return true
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Op != "dial" && isBroken(err)
	}
	return (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)) && isBroken(err)
}

// unsureError hides that the last attempt of a call did nothing: one before it may have.
type unsureError struct{ cause error }

func (e *unsureError) Error() string {
	return "it is not known whether the call was made: " + e.cause.Error()
}

func (e *unsureError) Is(target error) bool {
	return target != store.ErrNotCharged && errors.Is(e.cause, target)
}

func (e *unsureError) As(target any) bool { return errors.As(e.cause, target) }

// notDone is the error of a call for which there was no connection, or no schema.
func (d *database) notDone(err error) error {
	code, broken := stateOf(err), brokeOpening(err)
	err = d.explain(fmt.Errorf("postgres store: %w", err))
	if broken || code == codeTooMany || code == codeStarting {
		err = brokenError{err}
	}
	return notChargedError{err}
}

// judge returns the meaning of an error for the outcome of a call.
func (d *database) judge(err error) error {
	code := codeOf(err)
	if code == codeReadOnly {
		// A server that became a replica keeps its connections; the next ones look for another.
		d.pool.Reset()
	}
	if code == codeConflict {
		err = fmt.Errorf("%w; %s", err, isolationHint(d.target.config.ConnConfig.User))
	}
	broken, nothing := isBroken(err), pgconn.SafeToRetry(err) || code != "" && code != codeUnknown
	if err = d.explain(fmt.Errorf("postgres store: %w", err)); broken {
		err = brokenError{err}
	}
	if nothing {
		return notChargedError{err}
	}
	return err
}

// SQLSTATEs that last until somebody does something about them.
const (
	codeNoPassword   = "28P01" // invalid_password
	codeNoEntry      = "28000" // invalid_authorization_specification
	codeNoDatabase   = "3D000" // invalid_catalog_name
	codeNoPermission = "42501" // insufficient_privilege
	codeWrongType    = "42804" // datatype_mismatch
	codeNoColumn     = "42703" // undefined_column
	codeNoCharacter  = "22P05" // untranslatable_character
	codeNoEncoding   = "22021" // character_not_in_repertoire
)

// explain makes a lasting error a store.LastingError, with advice.
func (d *database) explain(err error) error {
	if _, ok := errors.AsType[*store.LastingError](err); ok {
		return err
	}
	c, schema := d.target.config.ConnConfig, d.target.schema
	advice := ""
	switch stateOf(err) {
	case codeNoPassword, codeNoEntry:
		advice = fmt.Sprintf(
			"PostgreSQL at %s does not let the role %s in: correct the password in the store's URL or its passfile, or the server's pg_hba.conf", d.target.hosts, c.User)
	case codeNoDatabase:
		advice = fmt.Sprintf("PostgreSQL at %s has no database %s: make it (createdb %s), or correct the store's URL",
			d.target.hosts, c.Database, c.Database)
	case codeNoPermission:
		advice = fmt.Sprintf(
			"the role %s may not use or make the schema %s in PostgreSQL at %s: give it the rights that docs/operating/stores.md names", c.User, schema, d.target.hosts)
	case codeWrongType, codeNoColumn:
		advice = fmt.Sprintf(
			"the schema %s in PostgreSQL at %s has tables that are not Weir's: name another schema with weir_schema in the store's URL", schema, d.target.hosts)
	case codeNoCharacter, codeNoEncoding:
		advice = fmt.Sprintf(
			"the database %s of PostgreSQL at %s cannot keep a text that Weir writes, since its encoding lacks a character: make a database with the encoding UTF8", c.Database, d.target.hosts)
	}
	if advice == "" {
		return err
	}
	return &store.LastingError{Advice: advice, Err: err}
}

// oldest is the first version of PostgreSQL that Weir works with.
const oldest = 15

// tooOld explains an error of making the schema in a server that is too old for it.
func (d *database) tooOld(c *pgx.Conn, err error) error {
	version := c.PgConn().ParameterStatus("server_version")
	major, _, _ := strings.Cut(version, ".")
	n, failed := strconv.Atoi(major)
	if code := stateOf(err); failed != nil || n >= oldest || strings.Contains(version, "bouncer") ||
		!strings.HasPrefix(code, "42") || code == codeNoPermission {
		return err
	}
	return &store.LastingError{
		Advice: fmt.Sprintf("PostgreSQL at %s is of version %s, and Weir needs %d or newer: upgrade it, or name another server in the store's URL", d.target.hosts, version, oldest),
		Err:    err,
	}
}
