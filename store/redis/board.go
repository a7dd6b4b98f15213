package redis

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/redis/rueidis"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
)

//go:embed board.lua
var boardText string

// The functions of the board are a library of their own, loaded when they are used first.
var (
	boardName    = fmt.Sprintf("weir_board_%08x", uint32(xxhash.Sum64String(boardText)))
	boardLibrary = "#!lua name=" + boardName + "\n" + strings.ReplaceAll(boardText, "NAME", boardName)

	functionPost   = boardName + "_post"
	functionRemove = boardName + "_remove"
	functionFacts  = boardName + "_facts"
)

const (
	maxFacts     = 100_000 // of one kind
	factsAtATime = 500
	boardEvery   = time.Second // how often changes are asked for that no message told of
	lookBackEach = 30          // so many questions, one asks again for the changes of the time before
	lookBackFor  = time.Minute
)

var (
	_ weir.Board     = (*Store)(nil)
	_ weir.Forgetter = (*Store)(nil)
	_ weir.Remote    = (*Store)(nil)
)

// Remote implements weir.Remote: a call crosses a network.
func (s *Store) Remote() bool { return true }

// Forget implements weir.Forgetter.
func (s *Store) Forget(c *rule.Counter, key []byte) {
	if s.refusals != nil && c != nil {
		s.refusals.open(c.ID, key)
	}
}

// boardKeys are the keys of one kind, in one slot of a Cluster.
func (s *Store) boardKeys(kind string) []string {
	key := s.partitions[0].prefix + "board:" + kind
	return []string{key, key + ":ends", key + ":changes"}
}

// boardChannel is where nodes tell that the facts of a kind have changed.
func (s *Store) boardChannel() string { return s.o.Prefix + formatVersion + "board" }

// askBoard calls a function of the board. It loads the library where that is missing.
func (s *Store) askBoard(ctx context.Context, function, kind string, args []string) (rueidis.RedisResult, error) {
	c, err := s.connected()
	if err != nil {
		return rueidis.RedisResult{}, err
	}
	s.metrics.calls.Add(1)
	keys := s.boardKeys(kind)
	for loads := 0; ; loads++ {
		result := s.do(ctx, c.other, true, func(b rueidis.Builder) rueidis.Completed {
			return b.Arbitrary("FCALL").Args(function, strconv.Itoa(len(keys))).Keys(keys[0]).Args(keys[1:]...).Args(args...).Build()
		})
		err := result.Error()
		if !isMissing(err) || loads == 3 {
			if err != nil {
				err = fmt.Errorf("redis store: %w", err)
			}
			return result, err
		}
		if err := loadFunctions(ctx, c.other, boardLibrary); err != nil {
			return rueidis.RedisResult{}, fmt.Errorf("redis store: %w", err)
		}
	}
}

// tellBoard tells the other nodes at once. They would see within a second.
func (s *Store) tellBoard(ctx context.Context, kind string) {
	if c, err := s.connected(); err == nil {
		_ = c.other.Do(ctx, c.other.B().Publish().Channel(s.boardChannel()).Message(kind).Build()).Error()
	}
}

// Post implements weir.Board.
func (s *Store) Post(ctx context.Context, kind string, facts []weir.Fact) error {
	for i := range facts {
		f := &facts[i]
		switch {
		case f.ID == "" || len(f.ID) > weir.MaxFactID || len(f.Data) > weir.MaxFactData:
			return fmt.Errorf("redis store: a fact has an id of %d bytes and data of %d; there may be 1 to %d, and %d", len(f.ID), len(f.Data), weir.MaxFactID, weir.MaxFactData)
		case f.TTL < time.Microsecond || f.Removed:
			return errors.New("redis store: a fact that is posted holds for some time")
		}
	}
	for some := range slices.Chunk(facts, factsAtATime) {
		args := []string{s.virtualNow(), strconv.Itoa(maxFacts), strconv.FormatUint(newSlot(), 36)}
		for i := range some {
			args = append(args, some[i].ID, strconv.FormatInt(some[i].TTL.Microseconds(), 10), string(some[i].Data))
		}
		if _, err := s.askBoard(ctx, functionPost, kind, args); err != nil {
			return err
		}
	}
	s.tellBoard(ctx, kind)
	return nil
}

// Remove implements weir.Board.
func (s *Store) Remove(ctx context.Context, kind string, ids []string) error {
	for some := range slices.Chunk(ids, factsAtATime) {
		if _, err := s.askBoard(ctx, functionRemove, kind, append([]string{s.virtualNow()}, some...)); err != nil {
			return err
		}
	}
	s.tellBoard(ctx, kind)
	return nil
}

// List implements weir.Board.
func (s *Store) List(ctx context.Context, kind string) ([]weir.Fact, error) {
	_, _, facts, err := s.readBoard(ctx, kind, "0")
	return slices.DeleteFunc(facts, func(f weir.Fact) bool { return f.Removed }), err
}

// readBoard reads what has changed after the change of a number: the board's name, the number of the last change, and the facts.
func (s *Store) readBoard(ctx context.Context, kind, after string) (name, last string, facts []weir.Fact, err error) {
	last = after
	for {
		result, err := s.askBoard(ctx, functionFacts, kind, []string{s.virtualNow(), last, strconv.Itoa(factsAtATime)})
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
			facts = append(facts, weir.Fact{
				ID: r.text(reply[i]), TTL: time.Duration(r.number(reply[i+1])) * time.Microsecond, Age: time.Duration(r.number(reply[i+2])) * time.Microsecond,
				Removed: r.number(reply[i+3]) == 1, Data: []byte(r.text(reply[i+4])),
			})
		}
		if r.err != nil {
			return "", "", nil, fmt.Errorf("redis store: %w", r.err)
		}
		if looked < factsAtATime || last == before {
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

// Watch implements weir.Board: a message says when to look, and each second it is looked anyway.
func (s *Store) Watch(ctx context.Context, kind string, changed func(facts []weir.Fact, anew bool)) error {
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
	tick := time.NewTicker(boardEvery)
	defer tick.Stop()
	name, last, known := "", "0", false
	for n := 1; ; n++ {
		asking, done := context.WithTimeout(ctx, s.o.Timeout)
		after := last
		if n%lookBackEach == 0 {
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

// lookBack is the number of a change some time before another: the numbers are instants, and those of a server that took over
// for one whose clock was ahead begin anew below.
func lookBack(change string) string {
	n, err := strconv.ParseInt(change, 10, 64)
	if err != nil {
		return "0"
	}
	return strconv.FormatInt(max(n-lookBackFor.Microseconds(), 0), 10)
}

// listenBoard hears of changes until ctx ends.
func (s *Store) listenBoard(ctx context.Context, kind string, messages chan<- struct{}) {
	hear := func() {
		select {
		case messages <- struct{}{}:
		default:
		}
	}
	for ctx.Err() == nil {
		if c, err := s.connected(); err == nil {
			_ = c.other.Receive(ctx, c.other.B().Subscribe().Channel(s.boardChannel()).Build(), func(m rueidis.PubSubMessage) {
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
