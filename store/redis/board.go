package redis

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

//go:embed board.lua
var boardText string

// The functions of the board are a library of their own, loaded when they are first used.
var (
	boardLibrary = newLibrary("weir_board", boardText, boardText)

	functionPost   = boardLibrary.name + "_post"
	functionRemove = boardLibrary.name + "_remove"
	functionFacts  = boardLibrary.name + "_facts"
)

const (
	maxFacts          = 100_000 // of one kind
	factsPerCall      = 500
	boardPollInterval = time.Second // between reads without a message
	// one in so many reads asks again for the changes of the last lookBackFor
	lookBackEvery = 30
	lookBackFor   = time.Minute
)

var (
	_ store.Board     = (*Store)(nil)
	_ store.Forgetter = (*Store)(nil)
	_ store.Remote    = (*Store)(nil)
	_ store.Prompt    = (*Store)(nil)
	_ store.Deadliner = (*Store)(nil)
	_ store.Parted    = (*Store)(nil)
)

// Remote implements store.Remote: a call crosses a network.
func (s *Store) Remote() bool { return true }

// Forget implements store.Forgetter.
func (s *Store) Forget(c *rule.Counter, key []byte) {
	if s.refusals != nil && c != nil {
		s.refusals.invalidate(c.ID, key)
	}
}

// boardKeys are the keys of one kind, in one slot of a Cluster.
func (s *Store) boardKeys(kind string) []string {
	key := s.partitions[0].prefix + "board:" + kind
	return []string{key, key + ":ends", key + ":changes"}
}

// boardChannel is where nodes publish that the facts of a kind have changed.
func (s *Store) boardChannel() string { return s.o.Prefix + formatVersion + "board" }

// askBoard calls a function of the board, and loads the library if it is missing.
func (s *Store) askBoard(ctx context.Context, function, kind string, args []string) (rueidis.RedisResult, error) {
	c, err := s.connected()
	if err != nil {
		return rueidis.RedisResult{}, err
	}
	s.metrics.calls.Add(1)
	keys := s.boardKeys(kind)
	for loads := 0; ; loads++ {
		result := s.do(ctx, c.other, true, func(b rueidis.Builder) rueidis.Completed {
			return s.invoke(b, boardLibrary, "", function, keys, args)
		})
		err := result.Error()
		if !isMissing(err) || loads == 3 {
			if err != nil {
				err = fmt.Errorf("redis store: %w", err)
			}
			return result, err
		}
		if err := s.load(ctx, c.other, boardLibrary); err != nil {
			return rueidis.RedisResult{}, fmt.Errorf("redis store: %w", err)
		}
	}
}

// publishBoard has the other nodes read the board at once. Without it they would within a second.
func (s *Store) publishBoard(ctx context.Context, kind string) {
	if c, err := s.connected(); err == nil {
		_ = c.other.Do(ctx, c.other.B().Publish().Channel(s.boardChannel()).Message(kind).Build()).Error()
	}
}

// Post implements store.Board.
func (s *Store) Post(ctx context.Context, kind string, facts []store.Fact) error {
	for i := range facts {
		f := &facts[i]
		switch {
		case f.ID == "" || len(f.ID) > store.MaxFactID || len(f.Data) > store.MaxFactData:
			return fmt.Errorf("redis store: a fact has an id of %d bytes and data of %d; there may be 1 to %d, and %d",
				len(f.ID), len(f.Data), store.MaxFactID, store.MaxFactData)
		case f.TTL < time.Microsecond || f.Removed:
			return errors.New("redis store: a fact that is posted holds for some time")
		}
	}
	for some := range slices.Chunk(facts, factsPerCall) {
		args := []string{s.virtualNow(), strconv.Itoa(maxFacts), strconv.FormatUint(newSlot(), 36)}
		for i := range some {
			args = append(args, some[i].ID, strconv.FormatInt(some[i].TTL.Microseconds(), 10), string(some[i].Data))
		}
		if _, err := s.askBoard(ctx, functionPost, kind, args); err != nil {
			return err
		}
	}
	s.publishBoard(ctx, kind)
	return nil
}

// Remove implements store.Board.
func (s *Store) Remove(ctx context.Context, kind string, ids []string) error {
	for some := range slices.Chunk(ids, factsPerCall) {
		if _, err := s.askBoard(ctx, functionRemove, kind, append([]string{s.virtualNow()}, some...)); err != nil {
			return err
		}
	}
	s.publishBoard(ctx, kind)
	return nil
}

// List implements store.Board.
func (s *Store) List(ctx context.Context, kind string) ([]store.Fact, error) {
	_, _, facts, err := s.readBoard(ctx, kind, "0")
	return slices.DeleteFunc(facts, func(f store.Fact) bool { return f.Removed }), err
}

// readBoard reads the changes after the one with the number after. It returns the board's name, the
// number of the last change, and the facts.
func (s *Store) readBoard(ctx context.Context, kind, after string) (name, last string, facts []store.Fact, err error) {
	last = after
	for {
		result, err := s.askBoard(ctx, functionFacts, kind, []string{s.virtualNow(), last, strconv.Itoa(factsPerCall)})
		if err != nil {
			return "", "", nil, err
		}
		reply, err := result.ToArray()
		if err != nil {
			return "", "", nil, fmt.Errorf("redis store: %w", err)
		}
		if len(reply) < 3 || len(reply)%5 != 3 {
			return "", "", nil, fmt.Errorf("redis store: the reply of %s has %d values", functionFacts, len(reply))
		}
		var r factReader
		at := r.text(reply[0])
		if name != "" && at != name {
			return "", "", nil, errors.New("redis store: the board was emptied while it was read")
		}
		name = at
		before := last
		last = r.text(reply[1])
		looked := r.number(reply[2])
		for i := 3; i < len(reply); i += 5 {
			facts = append(facts, store.Fact{
				ID: r.text(reply[i]), TTL: time.Duration(r.number(reply[i+1])) * time.Microsecond, Age: time.Duration(r.number(reply[i+2])) * time.Microsecond,
				Removed: r.number(reply[i+3]) == 1, Data: []byte(r.text(reply[i+4])),
			})
		}
		if r.err != nil {
			return "", "", nil, fmt.Errorf("redis store: %w", r.err)
		}
		if looked < factsPerCall || last == before {
			return name, last, facts, nil
		}
	}
}

// factReader reads values of a reply, and keeps the first error.
type factReader struct{ err error }

func (r *factReader) text(m rueidis.RedisMessage) string {
	text, err := m.ToString()
	r.note(err)
	return text
}

func (r *factReader) number(m rueidis.RedisMessage) int64 {
	n, err := m.AsInt64()
	r.note(err)
	return n
}

func (r *factReader) note(err error) {
	if r.err == nil {
		r.err = err
	}
}

// Watch implements store.Board. It reads the board after each message, and every second anyway.
func (s *Store) Watch(ctx context.Context, kind string, changed func(facts []store.Fact, anew bool)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(s.ctx, cancel)
	defer stop()
	messages := make(chan struct{}, 1)
	listening := make(chan struct{})
	go func() {
		defer close(listening)
		s.listenBoard(ctx, kind, messages)
	}()
	defer func() { cancel(); <-listening }()
	tick := time.NewTicker(boardPollInterval)
	defer tick.Stop()
	name, last, known := "", "0", false
	for n := 1; ; n++ {
		asking, done := context.WithTimeout(ctx, s.o.Timeout)
		after := last
		if n%lookBackEvery == 0 {
			after = lookBack(last)
		}
		at, end, facts, err := s.readBoard(asking, kind, after)
		if err == nil && known && at != name && last != "0" {
			at, end, facts, err = s.readBoard(asking, kind, "0")
		}
		done()
		if err == nil {
			anew := !known || at != name
			name, last, known = at, end, true
			if len(facts) > 0 || anew {
				changed(facts, anew)
			}
		}
		select {
		case <-ctx.Done():
			if s.ctx.Err() != nil {
				return errClosed
			}
			return ctx.Err()
		case <-messages:
		case <-tick.C:
		}
	}
}

// lookBack returns the number of a change lookBackFor before another one. The numbers are instants:
// if a server takes over from one whose clock was ahead, the new changes have lower numbers.
func lookBack(change string) string {
	n, err := strconv.ParseInt(change, 10, 64)
	if err != nil {
		return "0"
	}
	return strconv.FormatInt(max(n-lookBackFor.Microseconds(), 0), 10)
}

// listenBoard puts a value into messages when a change is published, until ctx ends.
func (s *Store) listenBoard(ctx context.Context, kind string, messages chan<- struct{}) {
	hear := func() {
		select {
		case messages <- struct{}{}:
		default:
		}
	}
	for ctx.Err() == nil {
		if c, err := s.connected(); err == nil {
			_ = c.other.Receive(ctx, c.other.B().Subscribe().Channel(s.boardChannel()).Build(),
				func(m rueidis.PubSubMessage) {
					if m.Message == kind {
						hear()
					}
				})
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}
