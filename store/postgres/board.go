package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weir-rl/weir/store"
)

const (
	maxFacts          = 100_000 // of one kind
	factsPerCall      = 500
	boardPollInterval = time.Second // between reads without a message
	// one in so many reads asks again for the changes of the last lookBackFor
	lookBackEvery = 30
	lookBackFor   = time.Minute
)

// Post implements store.Board.
func (s *Store) Post(ctx context.Context, kind string, facts []store.Fact) error {
	for i := range facts {
		f := &facts[i]
		switch {
		case f.ID == "" || len(f.ID) > store.MaxFactID || len(f.Data) > store.MaxFactData:
			return fmt.Errorf(
				"postgres store: a fact has an id of %d bytes and data of %d; there may be 1 to %d, and %d", len(
					f.ID), len(f.Data), store.MaxFactID, store.MaxFactData)
		case f.TTL < time.Microsecond || f.Removed:
			return errors.New("postgres store: a fact that is posted holds for some time")
		}
	}
	for some := range slices.Chunk(facts, factsPerCall) {
		err := s.engine.callAgain(ctx, s.engine.text.post, func(p *params) {
			s.virtual(p)
			p.text(kind)
			p.int8(maxFacts)
			p.text(s.listener.channel)
			p.byteas(len(some), func(i int, dst []byte) ([]byte, bool) { return append(dst, some[i].ID...), false })
			p.int8s(len(some), func(i int) int64 { return some[i].TTL.Microseconds() })
			p.byteas(len(some), func(i int, dst []byte) ([]byte, bool) { return append(dst, some[i].Data...), false })
		}, nil, func() {})
		if err != nil {
			return err
		}
	}
	return nil
}

// Remove implements store.Board.
func (s *Store) Remove(ctx context.Context, kind string, ids []string) error {
	for some := range slices.Chunk(ids, factsPerCall) {
		err := s.engine.callAgain(ctx, s.engine.text.remove, func(p *params) {
			s.virtual(p)
			p.text(kind)
			p.text(s.listener.channel)
			p.byteas(len(some), func(i int, dst []byte) ([]byte, bool) { return append(dst, some[i]...), false })
		}, nil, func() {})
		if err != nil {
			return err
		}
	}
	return nil
}

// List implements store.Board.
func (s *Store) List(ctx context.Context, kind string) ([]store.Fact, error) {
	r, err := s.readBoard(ctx, kind, 0)
	return slices.DeleteFunc(r.facts, func(f store.Fact) bool { return f.Removed }), err
}

// boardReading is the result of a read of the board.
type boardReading struct {
	name  string // of the board
	last  int64  // number of the last change
	facts []store.Fact
}

// readBoard reads the changes after the one with a number.
func (s *Store) readBoard(ctx context.Context, kind string, after int64) (r boardReading, err error) {
	r.last = after
	for first := true; ; first = false {
		n, end, name := 0, int64(0), ""
		before, from := len(r.facts), r.last
		err := s.engine.callAgain(ctx, s.engine.text.facts, func(p *params) {
			s.virtual(p)
			p.text(kind)
			p.int8(r.last)
			p.int8(factsPerCall)
		}, func(columns [][]byte) error {
			if len(columns) != 7 {
				return errReply
			}
			change, err := number(columns[1])
			if err != nil {
				return err
			}
			if columns[2] == nil {
				name, end = string(columns[0]), change
				return nil
			}
			ttl, err := number(columns[3])
			if err != nil {
				return err
			}
			age, err := number(columns[4])
			if err != nil || len(columns[5]) != 1 {
				return errReply
			}
			n++
			r.last = max(r.last, change)
			r.facts = append(r.facts, store.Fact{
				ID: string(columns[2]), TTL: time.Duration(ttl) * time.Microsecond, Age: time.Duration(age) * time.Microsecond,
				Removed: columns[5][0] == 1, Data: bytes.Clone(columns[6]),
			})
			return nil
		}, func() { n, r.facts, r.last = 0, r.facts[:before], from })
		if err != nil {
			return boardReading{}, err
		}
		if !first && name != r.name {
			return boardReading{}, errors.New("postgres store: the board was emptied while it was read")
		}
		if r.name = name; n < factsPerCall {
			r.last = end
			return r, nil
		}
	}
}

// Watch implements store.Board. It reads the board after each message, and every second anyway.
func (s *Store) Watch(ctx context.Context, kind string, changed func(facts []store.Fact, anew bool)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(s.ctx, cancel)
	defer stop()
	w, leave := s.listener.watch(kind)
	defer leave()
	tick := time.NewTicker(boardPollInterval)
	defer tick.Stop()
	var last boardReading
	known := false
	for n := 1; ; n++ {
		after := last.last
		if n%lookBackEvery == 0 {
			// The numbers are instants: if a server takes over from one whose clock was ahead, the
			// new changes have lower numbers.
			after = max(0, after-lookBackFor.Microseconds())
		}
		now, err := s.readBoard(ctx, kind, after)
		if err == nil && known && now.name != last.name && after != 0 {
			now, err = s.readBoard(ctx, kind, 0)
		}
		if err == nil {
			// A kind without a name has had no facts yet.
			anew := !known || last.name != "" && now.name != last.name
			if known = true; len(now.facts) > 0 || anew {
				changed(now.facts, anew)
			}
			now.facts = nil
			last = now
		}
		select {
		case <-ctx.Done():
			if s.ctx.Err() != nil {
				return errClosed
			}
			return ctx.Err()
		case <-w.wake:
		case <-tick.C:
		}
	}
}
