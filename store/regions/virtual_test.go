package regions

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

// inVirtualTime runs a test in a bubble of testing/synctest. A bubble begins in 2000, before this
// process, and its monotonic clock below 0; so the test begins in 2100.
func inVirtualTime(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)))
		test(t)
	})
}

// until is patience.Until in virtual time: an hour of that is enough for all.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Hour); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it never came about that %s", what)
		}
	}
}

// fault is a way from one region to the store of another, through which calls can fail:
// redistest.FaultProxy for a Redis, and link in virtual time.
type fault interface {
	Pass()
	Refuse()
	Cut()
	Delay(d time.Duration)
	BlackHole()
	LoseReplies()
}

var (
	_ fault = (*redistest.FaultProxy)(nil)
	_ fault = (*link)(nil)
)

// server is the store of a region in virtual time, which the nodes of the region share. A call
// takes a millisecond. Without its server a call fails, and one that is under way when the server
// ends may have been made.
type server struct {
	store  *memory.Store
	down   atomic.Bool
	killed atomic.Int64
}

var _ Neighbour = (*server)(nil)

func newServer(t testing.TB, ahead time.Duration) *server {
	t.Helper()
	s, err := memory.New(memory.Options{Clock: func() int64 { return time.Now().UnixMicro() + ahead.Microseconds() }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return &server{store: s}
}

// Kill ends the server, and Restart starts it with its data.
func (s *server) Kill() {
	s.down.Store(true)
	s.killed.Add(1)
}

func (s *server) Restart() { s.down.Store(false) }

var errRefused = fmt.Errorf("nobody listens: %w", store.ErrNotCharged)

func (s *server) call(do func() error) error {
	killed := s.killed.Load()
	time.Sleep(time.Millisecond / 2)
	if s.down.Load() || s.killed.Load() != killed {
		return errRefused
	}
	err := do()
	time.Sleep(time.Millisecond / 2)
	if s.killed.Load() != killed {
		return errBroken
	}
	return err
}

func (s *server) Take(ctx context.Context, charges []store.Charge, results []algo.Result) (now int64, err error) {
	err = s.call(func() (err error) { now, err = s.store.Take(ctx, charges, results); return err })
	return now, err
}

func (s *server) TakeAhead(
	ctx context.Context, minWait, maxWait time.Duration, charges []store.Charge, ahead []algo.Ahead,
	results []algo.Result,
) (now, asked int64, err error) {
	sent := store.Monotonic()
	err = s.call(func() (err error) {
		now, _, err = s.store.TakeAhead(ctx, minWait, maxWait, charges, ahead, results)
		return err
	})
	return now, sent, err
}

func (s *server) Release(ctx context.Context, c *rule.Counter, key []byte, slot uint64) (ok bool, err error) {
	err = s.call(func() (err error) { ok, err = s.store.Release(ctx, c, key, slot); return err })
	return ok, err
}

func (s *server) Parts() int { return s.store.Parts() }

func (s *server) PartOf(c *rule.Counter, key []byte) int { return s.store.PartOf(c, key) }

func (s *server) Tell(ctx context.Context, part int, told []store.Told) error {
	return s.call(func() error { return s.store.Tell(ctx, part, told) })
}

func (s *server) Told(
	ctx context.Context, part int, after string, limit int, wait time.Duration,
) (told []store.Told, next string, gap bool, now int64, err error) {
	err = s.call(func() (err error) {
		told, next, gap, now, err = s.store.Told(ctx, part, after, limit, wait)
		return err
	})
	return told, next, gap, now, err
}

func (s *server) Position(ctx context.Context, part int, log string) (position string, err error) {
	err = s.call(func() (err error) { position, err = s.store.Position(ctx, part, log); return err })
	return position, err
}

func (s *server) Change(
	ctx context.Context, part int, log, from, to string, changes []store.Change, done []store.Changed,
) (now int64, err error) {
	err = s.call(func() (err error) {
		now, err = s.store.Change(ctx, part, log, from, to, changes, done)
		return err
	})
	return now, err
}

func (s *server) Lead(ctx context.Context, task, holder string, term time.Duration) (leads bool, err error) {
	err = s.call(func() (err error) { leads, err = s.store.Lead(ctx, task, holder, term); return err })
	return leads, err
}

// Close does nothing: the server outlives its clients.
func (s *server) Close() error { return nil }

// link is the way from a region to the server of another one in virtual time. It fails as a
// redistest.FaultProxy does. Nothing is asked of another region but what it told and what it lends.
type link struct {
	*server
	timeout time.Duration // of a call

	mu     sync.Mutex
	broken chan struct{} // closed when the calls that are under way break
	state  linkState
}

type linkState struct {
	refuses, losesCalls, losesAnswers bool
	delay                             time.Duration // each way
}

func newLink(to *server, timeout time.Duration) *link {
	return &link{server: to, timeout: timeout, broken: make(chan struct{})}
}

func (l *link) change(f func(s *linkState)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(&l.state)
}

func (l *link) Pass() {
	l.mu.Lock()
	lost := l.state.losesAnswers
	l.state = linkState{}
	l.mu.Unlock()
	if lost {
		l.Cut()
	}
}

func (l *link) Refuse()               { l.change(func(s *linkState) { s.refuses = true }) }
func (l *link) Delay(d time.Duration) { l.change(func(s *linkState) { s.delay = d }) }
func (l *link) LoseReplies() {
	l.change(func(s *linkState) { s.losesCalls, s.losesAnswers = false, true })
}
func (l *link) BlackHole() {
	l.change(func(s *linkState) { s.losesCalls, s.losesAnswers = true, true })
}

func (l *link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.broken)
	l.broken = make(chan struct{})
}

func (l *link) now() (linkState, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state, l.broken
}

// call makes a call over the link that may take so long.
func (l *link) call(ctx context.Context, within time.Duration, do func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	at, broken := l.now()
	if at.refuses {
		return errRefused
	}
	// travel waits until bytes have come to the other side, and reports whether they do.
	travel := func(lost bool, delay time.Duration) bool {
		arrives := make(<-chan time.Time)
		if !lost {
			arrives = time.After(delay)
		}
		select {
		case <-arrives:
			return true
		case <-broken:
		case <-ctx.Done():
		}
		return false
	}
	if !travel(at.losesCalls, at.delay) {
		return errBroken
	}
	err := do(ctx)
	if errors.Is(err, store.ErrNotCharged) {
		return err
	}
	if at, _ = l.now(); !travel(at.losesAnswers, at.delay) {
		return errBroken
	}
	return err
}

func (l *link) TakeAhead(
	ctx context.Context, minWait, maxWait time.Duration, charges []store.Charge, ahead []algo.Ahead,
	results []algo.Result,
) (now, asked int64, err error) {
	asked = store.Monotonic()
	within := maxWait
	if within <= 0 {
		within = l.timeout
	}
	// The caller may use what is its own again when the call is over, made or not.
	there := append([]algo.Ahead(nil), ahead...)
	err = l.call(ctx, within, func(ctx context.Context) (err error) {
		now, _, err = l.server.TakeAhead(ctx, minWait, maxWait, charges, there, results)
		return err
	})
	if err == nil {
		copy(ahead, there)
	}
	return now, asked, err
}

func (l *link) Told(
	ctx context.Context, part int, after string, limit int, wait time.Duration,
) (told []store.Told, next string, gap bool, now int64, err error) {
	err = l.call(ctx, wait+l.timeout, func(ctx context.Context) (err error) {
		told, next, gap, now, err = l.server.Told(ctx, part, after, limit, wait)
		return err
	})
	return told, next, gap, now, err
}
