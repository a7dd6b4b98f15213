package postgres

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/weir-rl/weir/store"
)

// Bounds of the reservations.
const (
	maxReservations  = 1 << 20 // about so many are held, by the server's own estimate
	maxNote          = 64 << 10
	maxReservationID = 256
	maxExpiredAtOnce = 1000 // notes that one call hands out
)

var (
	errReserved            = errors.New("postgres store: a reservation of that id is held already")
	errTooManyReservations = fmt.Errorf(
		"postgres store: some %d reservations are held, and there is no room for more until they are committed or time out", maxReservations)
)

// Hold implements store.Reserver. An id has at most 256 bytes, and does not begin with a zero byte;
// a note has at most 64 KiB. An error that is store.ErrNotCharged says that the note is certainly
// not held.
func (s *Store) Hold(ctx context.Context, id string, note []byte, timeout time.Duration) error {
	switch {
	case !isReservation(id):
		return notChargedError{fmt.Errorf(
			"postgres store: the id of a reservation has %d bytes; it must have 1 to %d, of which the first is not 0", len(id), maxReservationID)}
	case len(note) > maxNote:
		return notChargedError{fmt.Errorf(
			"postgres store: the note of a reservation has %d bytes; it may have up to %d", len(note), maxNote)}
	case timeout <= 0:
		return notChargedError{fmt.Errorf("postgres store: a reservation needs a time-out above 0, not %v", timeout)}
	}
	held, again := int64(0), false
	err := s.engine.callAgain(ctx, s.engine.text.hold, func(p *params) {
		s.virtual(p)
		p.bytea([]byte(id))
		p.bytea(note)
		p.int8(max(1, timeout.Microseconds()))
		p.int8(maxReservations)
	}, func(columns [][]byte) (err error) {
		held, err = number(columns[0])
		return err
	}, func() { again = true })
	switch {
	case err != nil:
		return err
	case held == 0 && !again: // an id is new, so that it is this one that is held, if it was sent twice
		return notChargedError{errReserved}
	case held < 0:
		return notChargedError{errTooManyReservations}
	}
	return nil
}

func isReservation(id string) bool {
	return id != "" && id[0] != 0 && len(id) <= maxReservationID
}

// tokens belong to reservations that were asked for and that may have been taken, or not. They are
// asked for with the same tokens again.
type tokens struct {
	mu      sync.Mutex
	claims  map[string]token // by id
	expired []token
}

// token belongs to one call at a time.
type token struct {
	text []byte
	at   int64 // when the call failed, by store.Monotonic
}

const (
	tokenSize = 16
	tokenLife = time.Minute // for so long PostgreSQL knows it
	// That are remembered. Of the others, a claim that is repeated finds nothing.
	maxClaims  = 10_000
	maxExpired = 100
)

func (k *token) isOver(now int64) bool { return now-k.at > int64(tokenLife) }

func newToken() []byte {
	text := make([]byte, tokenSize)
	_, _ = rand.Read(text) // never fails
	return text
}

// claim returns the token for a reservation. used says that a claim with it may have been made.
func (t *tokens) claim(id string) (text []byte, used bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if k, ok := t.claims[id]; ok {
		delete(t.claims, id)
		return k.text, true
	}
	return newToken(), false
}

// claimed notes how a claim has ended.
func (t *tokens) claimed(id string, text []byte, used bool, err error) {
	if err == nil || !used && errors.Is(err, store.ErrNotCharged) {
		return
	}
	now := store.Monotonic()
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.claims) >= maxClaims {
		maps.DeleteFunc(t.claims, func(_ string, k token) bool { return k.isOver(now) })
	}
	if len(t.claims) < maxClaims {
		if t.claims == nil {
			t.claims = map[string]token{}
		}
		t.claims[id] = token{text, now}
	}
}

// expire returns the token for a call of Expired. used says that a call with it may have been made.
func (t *tokens) expire() (text []byte, used bool) {
	now := store.Monotonic()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expired = slices.DeleteFunc(t.expired, func(k token) bool { return k.isOver(now) })
	if last := len(t.expired) - 1; last >= 0 {
		k := t.expired[last]
		t.expired = t.expired[:last]
		return k.text, true
	}
	return newToken(), false
}

// failed notes that a call of Expired may have taken some notes.
func (t *tokens) failed(text []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.expired) < maxExpired {
		t.expired = append(t.expired, token{text, store.Monotonic()})
	}
}

// Claim implements store.Reserver. If it fails, it can be called again on this node: a note that
// was taken, and did not come, then comes within a minute.
func (s *Store) Claim(ctx context.Context, id string) (note []byte, ok bool, err error) {
	if !isReservation(id) {
		return nil, false, nil
	}
	token, used := s.tokens.claim(id)
	err = s.engine.callAgain(ctx, s.engine.text.claim, func(p *params) {
		s.virtual(p)
		p.bytea([]byte(id))
		p.bytea(token)
	}, func(columns [][]byte) error {
		note, ok = bytes.Clone(columns[0]), true
		return nil
	}, func() { note, ok = nil, false })
	s.tokens.claimed(id, token, used, err)
	if err != nil {
		return nil, false, err
	}
	return note, ok, nil
}

// Expired implements store.Reserver. Nodes that ask at the same time get different notes. Notes
// that were taken, and did not come, come with the next call on this node within a minute.
func (s *Store) Expired(ctx context.Context, n int) (notes [][]byte, err error) {
	if n <= 0 {
		return nil, nil
	}
	token, used := s.tokens.expire()
	err = s.engine.callAgain(ctx, s.engine.text.expired, func(p *params) {
		s.virtual(p)
		p.int8(int64(min(n, maxExpiredAtOnce)))
		p.bytea(token)
	}, func(columns [][]byte) error {
		notes = append(notes, bytes.Clone(columns[0]))
		return nil
	}, func() { notes = nil })
	if err == nil {
		return notes, nil
	}
	if used || !errors.Is(err, store.ErrNotCharged) {
		s.tokens.failed(token)
	}
	return nil, err
}
