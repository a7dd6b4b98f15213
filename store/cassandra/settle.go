package cassandra

import (
	"context"
	"errors"
	"fmt"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/weir-rl/weir/store/cas"
)

// fate is the outcome of a conditional batch as far as an error shows it.
type fate int

const (
	unknown   fate = iota // it may be made, now or later
	over                  // it was made or not, and will not be made later
	notMade               // certainly it was not made
	cancelled             // not known, and there is no time to ask
)

// fateOf returns the fate that an error shows.
func fateOf(ctx context.Context, err error) fate {
	var (
		unavailable  *gocql.RequestErrUnavailable
		overloaded   *gocql.RequestErrOverloaded
		starting     *gocql.RequestErrBootstrapping
		invalid      *gocql.RequestErrInvalid
		syntax       *gocql.RequestErrSyntax
		unauthorized *gocql.RequestErrUnauthorized
		config       *gocql.RequestErrConfig
		refused      gocql.RequestError
	)
	switch {
	case errors.Is(err, gocql.ErrNoConnections), errors.Is(err, gocql.ErrNoStreams),
		errors.As(err, &unavailable), errors.As(err, &overloaded), errors.As(err, &starting),
		errors.As(err, &invalid), errors.As(err, &syntax), errors.As(err, &unauthorized), errors.As(err, &config):
		return notMade
	case ctx.Err() != nil:
		return cancelled
	case errors.As(err, &refused):
		// The coordinator has given up, so it proposes this batch no more; a read that is serial
		// completes what others have accepted of it, or sees to it that it never is.
		return over
	}
	return unknown // the coordinator may still be at it
}

// settle finds the outcome of a batch that ended with an error.
func (e *engine) settle(ctx context.Context, c *connection, g *cas.Group, err error) {
	cause := e.explain(err)
	f := fateOf(ctx, err)
	switch f {
	case notMade:
		g.Err = notChargedError{cause}
		return
	case cancelled:
		g.Err = cause
		return
	}
	rows, failed := e.read(ctx, c, keysOf(g))
	if failed != nil {
		g.Err = errors.Join(cause, fmt.Errorf("cassandra: and its outcome cannot be read: %w", failed))
		return
	}
	switch made, known := verdict(g.Changes, rows, f == over); {
	case !known:
		g.Err = cause
	case made:
		g.Done = true
	default:
		g.Values = valuesOf(rows)
	}
}

// verdict concludes from the present rows whether changes were made. final says that they will not
// be made later. A group is made as a whole, so that one of its changes decides for all.
func verdict(changes []cas.Change, rows []row, final bool) (made, known bool) {
	still, gone, before := true, true, false
	for i := range changes {
		c, r := &changes[i], &rows[i]
		if c.Keep {
			continue
		}
		switch {
		case c.Version != 0 && r.Version != 0 && (r.Version == c.Version || r.was == c.Version):
			return true, true // it lies there, or what lies there has replaced it
		case c.Was != 0 && r.Version != 0 && r.was == c.Was:
			return false, true // another one has replaced the version that this one was to replace
		case c.Was != 0 && r.Version == c.Was:
			before = true // a version does not come back
		}
		still = still && r.Version == c.Was
		gone = gone && c.Version == 0 && r.Version == 0
	}
	switch {
	case gone:
		return true, true // the rows to delete are gone
	case final && (before || still):
		return false, true
	}
	return false, false
}
