//go:build unix

package leasecheck_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/lease"
	"github.com/weir-rl/weir/store/redis"
)

// What workers record: each admission, and each answer of Redis, by which the clocks of the two are
// compared.

// by says who decided.
type by uint8

const (
	sample by = iota // no admission: an answer of Redis
	exact            // Redis, at an instant that it told
	leased           // the node, with units that it held
	local            // the node, without Redis, on its share (store/fallback)
	refund           // no admission: units that Redis was asked to take back
	bys
)

func (b by) String() string { return [...]string{"sample", "exact", "leased", "local", "refund"}[b] }

// entry is a line of a record. It is written in one go, so that a worker which is killed leaves all
// that it has told its clients.
type entry struct {
	By         by
	Limit, Key uint8
	Cost       uint8
	// by redistest.Clock, which all processes share: the decision fell in between
	Asked, Answered time.Duration
	Now             int64 // by Redis: the instant of the decision; 0 if it is not known
	Ends            int64 // by Redis: the end of the window, if Redis told; else 0
}

// record is a file of entries.
type record struct {
	mu   sync.Mutex
	file *os.File
	buf  []byte
	err  error
}

func (r *record) add(list ...entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.buf = r.buf[:0]
	for i := range list {
		r.buf, _ = binary.Append(r.buf, binary.LittleEndian, &list[i])
	}
	if _, err := r.file.Write(r.buf); err != nil && r.err == nil {
		r.err = err
	}
}

// readRecord reads a file. Its last entry may lack its end.
func readRecord(name string) (list []entry, err error) {
	data, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // killed before it began
	}
	for size := binary.Size(entry{}); err == nil && len(data) >= size; data = data[size:] {
		var e entry
		_, err = binary.Decode(data, binary.LittleEndian, &e)
		list = append(list, e)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	return list, err
}

// notes are what becomes known of a client's call on its way through the stores. They travel in the
// call's context.
type notes struct{ seen []seen }

// seen is a charge that was admitted.
type seen struct {
	counter uint64
	key     string
	by      by
	now     int64 // 0: not known
}

type notesKey struct{}

func notesOf(ctx context.Context) *notes {
	n, _ := ctx.Value(notesKey{}).(*notes)
	return n
}

func (n *notes) of(c *store.Charge) *seen {
	for i := range n.seen {
		if n.seen[i].counter == c.Counter.ID && n.seen[i].key == string(c.Key) {
			return &n.seen[i]
		}
	}
	return nil
}

// add notes those charges of a call that are not known yet.
func (n *notes) add(who by, charges []store.Charge, results []algo.Result, now int64) {
	for i := range charges {
		if c := &charges[i]; n != nil && results[i].Allowed && c.Ask.Cost > 0 && n.of(c) == nil {
			n.seen = append(n.seen, seen{c.Counter.ID, string(c.Key), who, now})
		}
	}
}

// probed is a store/redis that is watched: it records its answers.
type probed struct {
	*redis.Store
	record *record
	places map[uint64]uint8 // of limits, by the ID of the counter
}

var _ store.Lender = (*probed)(nil)

func (p *probed) Take(ctx context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	now, _, err := p.TakeWithin(ctx, 0, 0, charges, results)
	return now, err
}

func (p *probed) TakeWithin(
	ctx context.Context, minWait, maxWait time.Duration, charges []store.Charge, results []algo.Result,
) (int64, bool, error) {
	asked := redistest.Clock()
	now, remembered, err := p.Store.TakeWithin(ctx, minWait, maxWait, charges, results)
	if !remembered {
		p.note(ctx, asked, charges, results, now, err)
	}
	return now, remembered, err
}

func (p *probed) TakeAhead(
	ctx context.Context, minWait, maxWait time.Duration, charges []store.Charge, ahead []algo.Ahead,
	results []algo.Result,
) (now, asked int64, err error) {
	before := redistest.Clock()
	now, asked, err = p.Store.TakeAhead(ctx, minWait, maxWait, charges, ahead, results)
	p.note(ctx, before, charges, results, now, err)
	return now, asked, err
}

// note takes down an answer.
func (p *probed) note(
	ctx context.Context, asked time.Duration, charges []store.Charge, results []algo.Result, now int64, err error,
) {
	for i := range charges {
		if c := &charges[i]; c.Ask.Cost < 0 && !errors.Is(err, store.ErrNotCharged) {
			p.record.add(entry{
				By: refund, Limit: p.places[c.Counter.ID], Key: c.Key[len(c.Key)-1] - '0', Cost: uint8(-c.Ask.Cost),
				Asked: asked, Answered: redistest.Clock(), Now: now,
			})
		}
	}
	if err != nil || len(charges) == 0 {
		return
	}
	if together(p.Store, charges) {
		p.record.add(entry{By: sample, Asked: asked, Answered: redistest.Clock(), Now: now})
	} else {
		now = 0 // it is the instant of one partition
	}
	notesOf(ctx).add(exact, charges, results, now)
}

// together reports whether all charges are in one partition.
func together(s *redis.Store, charges []store.Charge) bool {
	for i := range charges {
		if s.PartOf(charges[i].Counter, charges[i].Key) != s.PartOf(charges[0].Counter, charges[0].Key) {
			return false
		}
	}
	return true
}

// watched is a store/lease that is watched: what it admits, and Redis has not, it has admitted
// itself.
type watched struct{ *lease.Store }

func (s *watched) Take(ctx context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	now, _, err := s.TakeWithin(ctx, 0, 0, charges, results)
	return now, err
}

func (s *watched) TakeWithin(
	ctx context.Context, minWait, maxWait time.Duration, charges []store.Charge, results []algo.Result,
) (int64, bool, error) {
	now, remembered, err := s.Store.TakeWithin(ctx, minWait, maxWait, charges, results)
	if err == nil {
		notesOf(ctx).add(leased, charges, results, 0)
	}
	return now, remembered, err
}

// offsets bound how much more Redis' clock shows than redistest.Clock, in ns. Both go at the same
// rate, as they belong to one machine.
type offsets struct {
	least, most int64
	n           int // answers
}

func (o *offsets) add(e *entry) {
	least, most := e.Now*1000-int64(e.Answered), (e.Now+1)*1000-int64(e.Asked)
	if o.n == 0 {
		o.least, o.most = least, most
	}
	o.least, o.most = max(o.least, least), min(o.most, most)
	o.n++
}

// bounds are the bounds of an instant between two readings, by Redis.
func (o *offsets) bounds(from, to time.Duration) (lo, hi int64) {
	return floor(int64(from)+o.least, 1000), floor(int64(to)+o.most, 1000)
}

func floor(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
