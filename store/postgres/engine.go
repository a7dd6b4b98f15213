package postgres

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/weir-rl/weir/store/cas"
)

// engine implements cas.Engine and cas.Locker.
type engine struct {
	*database
	durable string // synchronous_commit of transactions that write states
}

var (
	_ cas.Engine = (*engine)(nil)
	_ cas.Locker = (*engine)(nil)
)

func newEngine(d *database) *engine {
	e := &engine{database: d, durable: "off"}
	if d.target.tables == tablesSynced {
		e.durable = "on"
	}
	return e
}

// Spans implements cas.Engine: a transaction holds any keys.
func (e *engine) Spans() bool { return true }

// Close implements cas.Engine.
func (e *engine) Close() error {
	e.close()
	return nil
}

// Bounds of a key in an index: a longer name is cut, and its hash added. Such keys are longer than
// all others, so no name is another one's key.
const (
	maxKey = 512
	cutKey = maxKey + 1
)

func appendKey(dst, name []byte) []byte {
	if len(name) <= maxKey {
		return append(dst, name...)
	}
	sum := sha256.Sum256(name)
	dst = append(dst, name[:cutKey-len(sum)]...)
	return append(dst, sum[:]...)
}

// keyOf appends the key of a name; nameOf the name itself where that is not its key.
func keyOf(dst, name []byte) ([]byte, bool) { return appendKey(dst, name), false }

func nameOf(dst, name []byte) ([]byte, bool) {
	if len(name) <= maxKey {
		return dst, true
	}
	return append(dst, name...), false
}

// reader reads the rows of read, swap and lock.
type reader struct {
	clock int64
	only  bool // the row of the instant says that all values follow, since nothing was done
	value func(place int, v cas.Value)
}

func (r *reader) row(columns [][]byte) error {
	if len(columns) != 3 {
		return errReply
	}
	place, err := number(columns[0])
	if err != nil {
		return err
	}
	version, err := number(columns[1])
	if err != nil {
		return err
	}
	if place == 0 {
		r.clock, r.only = version, columns[2] == nil
		return nil
	}
	v := cas.Value{Version: uint64(version)}
	if version != 0 {
		v.Data = bytes.Clone(columns[2])
	}
	r.value(int(place)-1, v)
	return nil
}

// Read implements cas.Engine.
func (e *engine) Read(ctx context.Context, keys []cas.Key) ([]cas.Value, int64, error) {
	values := make([]cas.Value, len(keys))
	r := reader{value: func(place int, v cas.Value) {
		if place < len(values) {
			values[place] = v
		}
	}}
	err := e.callAgain(ctx, e.text.read, func(p *params) {
		p.byteas(len(keys), func(i int, dst []byte) ([]byte, bool) { return keyOf(dst, keys[i].Name) })
	}, r.row, func() { clear(values) })
	if err != nil {
		return nil, 0, err
	}
	return values, r.clock, nil
}

// Kinds of changes, as swap.sql has them.
const (
	kindAlone = iota
	kindSeveral
	kindKeep
	kindCompared
)

// placed is a change of a Swap, where it stands.
type placed struct {
	*cas.Change
	group, at int // its group, and its index there
	kind      int16
}

// kindOf returns the kind of a group's changes that write.
func kindOf(g *cas.Group) int16 {
	for i := range g.Changes {
		if !g.Changes[i].Keep {
			if len(g.Changes) == 1 {
				return kindAlone
			}
			return kindSeveral
		}
	}
	return kindCompared
}

// inOrder returns the changes of groups in the one order in which all callers lock keys.
func inOrder(groups []cas.Group) []placed {
	n := 0
	for i := range groups {
		n += len(groups[i].Changes)
	}
	all := make([]placed, 0, n)
	for i := range groups {
		g := &groups[i]
		kind := kindOf(g)
		for j := range g.Changes {
			c := placed{&g.Changes[j], i, j, kind}
			if kind == kindSeveral && c.Keep {
				c.kind = kindKeep
			}
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b placed) int { return compare(a.Key, b.Key) })
	return all
}

func compare(a, b cas.Key) int {
	if c := cmp.Compare(a.Place, b.Place); c != 0 {
		return c
	}
	return bytes.Compare(a.Name, b.Name)
}

// patience is how long a call waits for a key that another one has locked.
func (e *engine) patience() string { return fmt.Sprint(max(e.timeout.Milliseconds()/2, 1)) }

// Swap implements cas.Engine.
func (e *engine) Swap(ctx context.Context, now int64, groups []cas.Group) (int64, error) {
	if len(groups) == 1 && len(groups[0].Changes) == 1 {
		return e.swapOne(ctx, now, &groups[0])
	}
	all := inOrder(groups)
	for i := range groups {
		groups[i].Done, groups[i].Values, groups[i].Err = true, nil, nil
	}
	valueOf := func(place int, v cas.Value) {
		if place >= len(all) {
			return
		}
		g := &groups[all[place].group]
		if g.Done = false; g.Values == nil {
			g.Values = make([]cas.Value, len(g.Changes))
		}
		g.Values[all[place].at] = v
	}
	r := reader{value: valueOf}
	err := e.call(ctx, e.text.swap, func(p *params) {
		p.int8(now)
		p.text(e.patience())
		p.text(e.durable)
		n := len(all)
		p.byteas(n, func(i int, dst []byte) ([]byte, bool) { return keyOf(dst, all[i].Name) })
		p.byteas(n, func(i int, dst []byte) ([]byte, bool) { return nameOf(dst, all[i].Name) })
		p.int2s(n, func(i int) int16 { return all[i].kind })
		p.int4s(n, func(i int) int32 { return int32(all[i].group) })
		p.int8s(n, func(i int) int64 { return int64(all[i].Was) })
		p.int8s(n, func(i int) int64 { return int64(all[i].Version) })
		p.int8s(n, func(i int) int64 { return all[i].Until })
		p.byteas(n, func(i int, dst []byte) ([]byte, bool) { return append(dst, all[i].Data...), false })
	}, r.row)
	if err != nil {
		for i := range groups {
			groups[i].Done, groups[i].Values = false, nil
		}
		return 0, err
	}
	if r.only {
		for i := range groups {
			if g := &groups[i]; g.Values == nil {
				g.Done, g.Values = false, make([]cas.Value, len(g.Changes))
			}
		}
	}
	return r.clock, nil
}

// swapOne is Swap of one change, for which there is a shorter way through the server.
func (e *engine) swapOne(ctx context.Context, now int64, g *cas.Group) (clock int64, err error) {
	g.Done, g.Values, g.Err = false, nil, nil
	c := &g.Changes[0]
	err = e.call(ctx, e.text.one, func(p *params) {
		p.int8(now)
		p.text(e.patience())
		p.text(e.durable)
		p.int2(kindOf(g))
		p.buf = appendKey(p.buf, c.Name)
		p.end(oidBytea)
		if len(c.Name) > maxKey {
			p.bytea(c.Name)
		} else {
			p.null(oidBytea)
		}
		p.int8(int64(c.Was))
		p.int8(int64(c.Version))
		p.int8(c.Until)
		p.bytea(c.Data)
	}, func(columns [][]byte) error {
		at, done, v, err := readOne(columns[0])
		clock, g.Done = at, done
		if err == nil && !done {
			g.Values = []cas.Value{v}
		}
		return err
	})
	return clock, err
}

// Scan implements cas.Engine: in the order of keys. A position is the last key, in hexadecimal.
func (e *engine) Scan(ctx context.Context, from string, limit int,
	visit func(name []byte, v cas.Value)) (next string, of int, err error) {
	after, err := hex.DecodeString(from)
	if err != nil {
		return "", 0, notChargedError{fmt.Errorf("postgres store: %q is no position of a scan", from)}
	}
	limit = max(limit, 1)
	n := 0
	var last []byte
	err = e.call(ctx, e.text.scan, func(p *params) {
		p.bytea(after)
		p.int8(int64(limit))
	}, func(columns [][]byte) error {
		if len(columns) != 4 {
			return errReply
		}
		version, err := number(columns[2])
		if err != nil {
			return err
		}
		n++
		last = append(last[:0], columns[0]...)
		name := columns[0]
		if columns[1] != nil {
			name = columns[1]
		}
		if version != 0 {
			visit(name, cas.Value{Version: uint64(version), Data: columns[3]})
		}
		return nil
	})
	if err != nil {
		return "", 0, err
	}
	of, err = e.count(ctx, e.text.size)
	if n == limit {
		next = hex.EncodeToString(last)
	}
	return next, of, err
}

// count returns the one number of a reply.
func (d *database) count(ctx context.Context, s statement) (n int, err error) {
	err = d.call(ctx, s, func(*params) {}, func(columns [][]byte) error {
		v, err := number(columns[0])
		n = int(v)
		return err
	})
	return n, err
}

// sweepEvery is the pause between two steps of the search for states that are over, by all nodes
// together.
const sweepEvery = time.Second

// sweep deletes some of the states that are over.
func (e *engine) sweep(ctx context.Context) error {
	return e.call(ctx, e.text.sweep, func(p *params) {
		p.int8((sweepEvery * 9 / 10).Microseconds())
		p.text(e.durable)
	}, func(columns [][]byte) error {
		n, err := number(columns[0])
		if n > 0 {
			e.metrics.swept.Add(uint64(n))
		}
		return err
	})
}
