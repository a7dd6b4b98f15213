package cassandra

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/cas"
)

// engine is a cas.Engine: a partition for each Place, a row for each value.
type engine struct {
	o      Options
	target *target
	log    *slog.Logger
	clock  clock
	name   string        // of this node
	nodes  atomic.Int64  // that are alive; 0: not known
	room   chan struct{} // holds a token for each statement under way
	// never is unlike any value: the condition data != never always holds, and makes a refusal
	// return the value.
	never []byte

	connection atomic.Pointer[connection]
	failure    atomic.Pointer[error] // why there is none
	stop       context.CancelFunc
	ctx        context.Context
	work       sync.WaitGroup
}

var _ cas.Engine = (*engine)(nil)

// notChargedError is an error after which certainly nothing was written.
type notChargedError struct{ cause error }

func (e notChargedError) Error() string        { return e.cause.Error() }
func (e notChargedError) Unwrap() error        { return e.cause }
func (e notChargedError) Is(target error) bool { return target == store.ErrNotCharged }

func newEngine(o Options, t *target) *engine {
	e := bareEngine(o, t)
	e.work.Go(e.connect)
	return e
}

// bareEngine returns an engine that does not connect.
func bareEngine(o Options, t *target) *engine {
	e := &engine{
		o: o, target: t, log: o.Logger, name: strconv.FormatUint(rand.Uint64(), 36),
		room: make(chan struct{}, o.InFlight), never: make([]byte, 16),
	}
	for i := range e.never {
		e.never[i] = byte(rand.Uint32())
	}
	e.ctx, e.stop = context.WithCancel(context.Background())
	return e
}

// Spans implements cas.Engine: a conditional batch is for one partition.
func (e *engine) Spans() bool { return false }

// Close implements cas.Engine.
func (e *engine) Close() error {
	e.stop()
	e.work.Wait()
	return nil
}

// row is a value as it lies in Cassandra.
type row struct {
	cas.Value
	was uint64 // the version that it has replaced
}

// Read implements cas.Engine.
func (e *engine) Read(ctx context.Context, keys []cas.Key) (values []cas.Value, clock int64, err error) {
	c, err := e.connected(ctx)
	if err != nil {
		return nil, 0, err
	}
	rows, err := e.read(ctx, c, keys)
	if err != nil {
		return nil, 0, notChargedError{e.explain(err)}
	}
	return valuesOf(rows), e.now(), nil
}

func valuesOf(rows []row) []cas.Value {
	values := make([]cas.Value, len(rows))
	for i := range rows {
		values[i] = rows[i].Value
	}
	return values
}

// read reads rows of one partition, with all that conditional writes have done to it.
func (e *engine) read(ctx context.Context, c *connection, keys []cas.Key) ([]row, error) {
	rows := make([]row, len(keys))
	if len(keys) == 0 {
		return rows, nil
	}
	names := make([][]byte, len(keys))
	for i := range keys {
		names[i] = keys[i].Name
	}
	if err := e.enter(ctx); err != nil {
		return nil, err
	}
	defer e.leave()
	iter := c.session.Query(c.selectRows, int64(keys[0].Place),
		names).Consistency(e.target.serial).PageSize(0).IterContext(ctx)
	return rows, scanRows(iter, func(name []byte) *row {
		for i := range keys {
			if bytes.Equal(keys[i].Name, name) {
				return &rows[i]
			}
		}
		return nil
	})
}

// scanRows reads an answer's rows, each into the place that find returns.
func scanRows(iter *gocql.Iter, find func(name []byte) *row) error {
	for {
		name, r, ok := scanRow(iter)
		if !ok {
			return iter.Close()
		}
		if into := find(name); into != nil {
			*into = r
		}
	}
}

// scanRow reads one row, whatever columns there are of it.
func scanRow(iter *gocql.Iter) (name []byte, r row, ok bool) {
	var version, was int64
	columns := iter.Columns()
	into := make([]any, len(columns))
	for i := range columns {
		switch columns[i].Name {
		case "name":
			into[i] = &name
		case "version":
			into[i] = &version
		case "was":
			into[i] = &was
		case "data":
			into[i] = &r.Data
		}
	}
	ok = iter.Scan(into...)
	r.Version, r.was = uint64(version), uint64(was)
	return name, r, ok
}

// enter waits for room for one more statement.
func (e *engine) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case e.room <- struct{}{}:
		return nil
	default:
	}
	select {
	case e.room <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (e *engine) leave() { <-e.room }

// Swap implements cas.Engine: each group is a conditional batch of its own; they are under way
// together.
func (e *engine) Swap(ctx context.Context, now int64, groups []cas.Group) (clock int64, err error) {
	c, err := e.connected(ctx)
	if err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil {
		return 0, notChargedError{err}
	}
	do := e.swap
	if off := now - e.now(); now != 0 && (off > cas.MaxSkew || off < -cas.MaxSkew) {
		do = e.look
	}
	var all sync.WaitGroup
	for i := range groups {
		g := &groups[i]
		if g.Done, g.Values, g.Err = false, nil, nil; len(groups) == 1 {
			do(ctx, c, g)
			break
		}
		all.Go(func() { do(ctx, c, g) })
	}
	all.Wait()
	if err := unheard(groups); err != nil {
		return 0, err
	}
	return e.now(), nil
}

// unheard returns the error of a group if nothing was heard of Cassandra meanwhile: each one's
// connection broke, or its time was over. One whose time was over comes first: Cassandra was
// silent.
func unheard(groups []cas.Group) (unheard error) {
	for i := range groups {
		err := groups[i].Err
		late := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, gocql.ErrTimeoutNoResponse)
		if !late && !errors.Is(err, cas.ErrBroken) {
			return nil
		}
		if late || unheard == nil {
			unheard = err
		}
	}
	return unheard
}

// look only reads the values of a group.
func (e *engine) look(ctx context.Context, c *connection, g *cas.Group) {
	rows, err := e.read(ctx, c, keysOf(g))
	if err != nil {
		g.Err = notChargedError{e.explain(err)}
		return
	}
	g.Values = valuesOf(rows)
}

func keysOf(g *cas.Group) []cas.Key {
	keys := make([]cas.Key, len(g.Changes))
	for i := range g.Changes {
		keys[i] = g.Changes[i].Key
	}
	return keys
}

// compare reads the values of a group; if they are as expected, the group is done.
func (e *engine) compare(ctx context.Context, c *connection, g *cas.Group) {
	e.look(ctx, c, g)
	if g.Err != nil {
		return
	}
	for i := range g.Changes {
		if g.Changes[i].Was != g.Values[i].Version {
			return
		}
	}
	g.Done, g.Values = true, nil
}

// swap makes a group's changes, on conditions.
func (e *engine) swap(ctx context.Context, c *connection, g *cas.Group) {
	if !slices.ContainsFunc(g.Changes, func(c cas.Change) bool { return !c.Keep }) {
		e.compare(ctx, c, g)
		return
	}
	if err := e.enter(ctx); err != nil {
		g.Err = notChargedError{err}
		return
	}
	rows, err := e.batch(ctx, c, g)
	e.leave()
	if err != nil {
		e.settle(ctx, c, g, err)
		return
	}
	if !g.Done {
		g.Values = valuesOf(rows)
	}
}

// batch sends a group's changes as one conditional batch. If it is not Done, rows are what lies
// there.
func (e *engine) batch(ctx context.Context, c *connection, g *cas.Group) (rows []row, err error) {
	b := c.session.Batch(gocql.LoggedBatch)
	now := e.now()
	for i := range g.Changes {
		w := &g.Changes[i]
		place, was := int64(w.Place), versionOf(w.Was)
		switch {
		case w.Keep:
			b.Query(c.keepRow, place, w.Name, was, e.never)
		case w.Version == 0:
			b.Query(c.deleteRow, place, w.Name, was, e.never)
		default:
			b.Query(c.updateRow, e.lifetime(w.Until, now), int64(w.Version), int64(w.Was), w.Data, place, w.Name, was,
				e.never)
		}
	}
	iter := b.IterContext(ctx)
	rows = make([]row, len(g.Changes))
	// [applied] is the only column if it is true, or if nothing lies there.
	if len(iter.Columns()) == 1 {
		iter.Scan(&g.Done)
		return rows, iter.Close()
	}
	return rows, scanRows(iter, func(name []byte) *row {
		for i := range g.Changes {
			if bytes.Equal(g.Changes[i].Name, name) {
				return &rows[i]
			}
		}
		return nil
	})
}

// versionOf returns a version as a condition has it: no value has none.
func versionOf(version uint64) any {
	if version == 0 {
		return nil
	}
	return int64(version)
}

// Bounds of lifetimes in Cassandra.
const (
	// expiryMargin is by how much a value outlives its time. Cassandra counts a lifetime in whole
	// seconds, and each of its servers by a clock of its own.
	expiryMargin = 10 * time.Second
	// longest is the longest lifetime that is asked for; a value that is to live longer is kept for
	// ever. Cassandra takes up to 20 years, and before 5.0 none that ends after 2038.
	longest = 5 * 365 * 24 * time.Hour
)

// lifetime returns the TTL of a value in seconds; 0 means for ever.
func (e *engine) lifetime(until, now int64) int {
	life := (until - now) / time.Second.Microseconds()
	if life > int64(longest/time.Second) {
		return 0
	}
	return int(max(life, 0) + 1 + int64(expiryMargin/time.Second))
}

// now returns the engine's clock, in µs.
func (e *engine) now() int64 { return e.clock.now() }
