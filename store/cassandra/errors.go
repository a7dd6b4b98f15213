package cassandra

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/cas"
)

// brokenError is an error that is cas.ErrBroken.
type brokenError struct{ cause error }

func (e brokenError) Error() string   { return e.cause.Error() }
func (e brokenError) Unwrap() []error { return []error{e.cause, cas.ErrBroken} }

// isBroken reports whether a call failed since its connection broke, or since there is none: the
// driver makes new ones by itself.
func isBroken(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return false
	}
	if errors.Is(err, gocql.ErrNoConnections) || errors.Is(err, gocql.ErrConnectionClosed) || errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) {
		return true
	}
	op, ok := errors.AsType[*net.OpError](err)
	return ok && !op.Timeout()
}

// explain says in an error whether it lasts until somebody does something about it, and whether a
// connection broke.
func (e *engine) explain(err error) error {
	if _, ok := errors.AsType[*store.LastingError](err); ok {
		return err
	}
	advice, t := "", e.target
	if _, ok := errors.AsType[*gocql.RequestErrUnauthorized](err); ok {
		advice = fmt.Sprintf(
			"Cassandra does not let the user %s read and change the tables of the keyspace %s: grant it SELECT and MODIFY on them, as docs/operating/stores.md says", t.user, t.keyspace)
	}
	// When a session is made, the driver hands on the text of a refused log-in alone.
	refused, ok := errors.AsType[gocql.RequestError](err)
	if ok && refused.Code() == gocql.ErrCodeCredentials || strings.Contains(err.Error(), "username and/or password") {
		advice = fmt.Sprintf(
			"Cassandra does not let the user %s in: correct the user and the password in the store's URL, or its password_file", t.user)
	}
	if errors.Is(err, gocql.ErrTimeoutNoResponse) { // the driver's own timer, which ends with the call's
		err = fmt.Errorf("%w: %w", err, context.DeadlineExceeded)
	}
	broken := isBroken(err)
	if err = fmt.Errorf("cassandra: %w", err); advice != "" {
		err = &store.LastingError{Advice: advice, Err: err}
	}
	if broken {
		return brokenError{err}
	}
	return err
}
