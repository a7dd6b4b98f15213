package orders

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/weir-rl/weir/store"
)

// Bounds of publishing.
const (
	publishBatch    = 256         // facts in one call
	publishRetry    = time.Second // how long after a failure it is tried again
	publishPatience = 2 * time.Second
	maxPending      = 200_000 // orders that wait to be published
)

// sharing tells other nodes this node's orders, which are facts on the board of a store. Each node
// acts by its own knowledge. An order that could not be published stays pending until it can be;
// then the state at that instant is published.
type sharing struct {
	kinds []shared

	// holds one value while orders are published, so that this happens in the order of the changes.
	// It is no mutex, since it is held for as long as the board takes: a caller may give up.
	publishing chan struct{}

	mu        sync.Mutex
	following bool
	pending   map[factName]struct{}
	wake      chan struct{} // of one value
	// read is closed when the facts of all kinds have been read once; nil until it is needed.
	read      chan struct{}
	readKinds map[string]bool // those that have been
}

// shared is a kind of orders, as sharing sees it.
type shared interface {
	// kindName is the name of the kind on the board.
	kindName() string
	// fact returns the order on a key as a fact; ok is false if there is none.
	fact(id string) (f store.Fact, ok bool)
	// learn puts facts of the board in force. If all is true, there are no others.
	learn(facts []store.Fact, all bool)
}

type factName struct{ kind, id string }

// reading returns s.read. mu must be held.
func (s *sharing) reading() chan struct{} {
	if s.read == nil {
		s.read = make(chan struct{})
	}
	return s.read
}

// hasRead notes that the facts of some kinds are known.
func (s *sharing) hasRead(kinds ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.readKinds) == len(s.kinds) {
		return
	}
	if s.readKinds == nil {
		s.readKinds = map[string]bool{}
	}
	for _, kind := range kinds {
		s.readKinds[kind] = true
	}
	if len(s.readKinds) == len(s.kinds) {
		close(s.reading())
	}
}

func (s *sharing) hasReadAll() {
	for _, k := range s.kinds {
		s.hasRead(k.kindName())
	}
}

// Followed returns a channel that is closed when Follow has read the board for the first time, or
// has found that the store has none.
func (o *Orders) Followed() <-chan struct{} {
	s := &o.sharing
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reading()
}

// Follow publishes this node's orders and puts other nodes' orders in force until ctx ends; then it
// returns nil. The error is store.ErrNoBoard, or that Follow runs already.
func (o *Orders) Follow(ctx context.Context) error {
	board, ok := store.As[store.Board](o.store)
	s := &o.sharing
	if !ok {
		s.hasReadAll()
		return store.ErrNoBoard
	}
	s.mu.Lock()
	if s.following {
		s.mu.Unlock()
		return errors.New("weir: Follow runs already")
	}
	s.following, s.pending, s.wake = true, map[factName]struct{}{}, make(chan struct{}, 1)
	wake := s.wake
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.following, s.pending = false, nil
		s.mu.Unlock()
	}()
	ctx, cancel := context.WithCancel(ctx)
	failed := make(chan error, len(s.kinds))
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	for _, k := range s.kinds {
		watching.Go(func() { failed <- board.Watch(ctx, k.kindName(), k.learn) })
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			if ctx.Err() != nil {
				return nil
			}
			if errors.Is(err, store.ErrNoBoard) {
				s.hasReadAll()
			}
			return err
		case <-wake:
		}
		for !s.publishPending(ctx, board) {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(publishRetry):
			}
		}
	}
}

// enqueue makes an order wait to be published.
func (s *sharing) enqueue(name factName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.following || len(s.pending) >= maxPending {
		return
	}
	s.pending[name] = struct{}{}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// withdraw takes an order out of the queue, since other nodes know better.
func (s *sharing) withdraw(name factName) {
	s.mu.Lock()
	delete(s.pending, name)
	s.mu.Unlock()
}

func (s *sharing) isPending(name factName) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, pending := s.pending[name]
	return pending
}

// take takes up to n orders out of the queue.
func (s *sharing) take(n int) []factName {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []factName
	for name := range s.pending {
		if len(names) == n {
			break
		}
		names = append(names, name)
		delete(s.pending, name)
	}
	return names
}

// publishPending publishes the pending orders. It returns false if that failed; the rest is still
// pending then.
func (s *sharing) publishPending(ctx context.Context, board store.Board) bool {
	for {
		var names []factName
		err := s.inTurn(ctx, func() error {
			names = s.take(publishBatch)
			err := s.post(ctx, board, names)
			if err != nil {
				for _, name := range names {
					s.enqueue(name)
				}
			}
			return err
		})
		if err != nil {
			return false
		}
		if len(names) < publishBatch {
			return true
		}
	}
}

// publish publishes an order at once. A store without a board has no other nodes. The error is
// ErrNotShared; the order is pending then.
func (o *Orders) publish(ctx context.Context, name factName) error {
	board, ok := store.As[store.Board](o.store)
	if !ok {
		return nil
	}
	s := &o.sharing
	err := s.inTurn(ctx, func() error { return s.post(ctx, board, []factName{name}) })
	switch {
	case errors.Is(err, store.ErrNoBoard):
		return nil
	case err != nil:
		s.enqueue(name)
		return fmt.Errorf("%w: %w", ErrNotShared, err)
	}
	return nil
}

// inTurn calls publish once nobody else publishes. It fails if ctx ends before.
func (s *sharing) inTurn(ctx context.Context, publish func() error) error {
	select {
	case s.publishing <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-s.publishing }()
	return publish()
}

// post puts on the board how things stand with some keys. It is called inTurn.
func (s *sharing) post(ctx context.Context, board store.Board, names []factName) error {
	ctx, cancel := context.WithTimeout(ctx, publishPatience)
	defer cancel()
	for _, k := range s.kinds {
		var facts []store.Fact
		var gone []string
		for _, name := range names {
			if name.kind != k.kindName() {
				continue
			}
			if fact, ok := k.fact(name.id); ok {
				facts = append(facts, fact)
			} else {
				gone = append(gone, name.id)
			}
		}
		if len(facts) > 0 {
			if err := board.Post(ctx, k.kindName(), facts); err != nil {
				return err
			}
		}
		if len(gone) > 0 {
			if err := board.Remove(ctx, k.kindName(), gone); err != nil {
				return err
			}
		}
	}
	return nil
}
