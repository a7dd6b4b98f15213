package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"
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
	errTooManyReservations = fmt.Errorf("postgres store: some %d reservations are held, and there is no room for more until they are committed or time out", maxReservations)
)

// Hold implements store.Reserver. An id has at most 256 bytes, and a note 64 KiB. An error that is
// store.ErrNotCharged says that the note is certainly not held.
func (s *Store) Hold(ctx context.Context, id string, note []byte, timeout time.Duration) error {
	switch {
	case id == "" || len(id) > maxReservationID:
		return notChargedError{fmt.Errorf("postgres store: the id of a reservation has %d bytes; it must have 1 to %d", len(id), maxReservationID)}
	case len(note) > maxNote:
		return notChargedError{fmt.Errorf("postgres store: the note of a reservation has %d bytes; it may have up to %d", len(note), maxNote)}
	case timeout <= 0:
		return notChargedError{fmt.Errorf("postgres store: a reservation needs a time-out above 0, not %v", timeout)}
	}
	held := int64(0)
	err := s.engine.call(ctx, s.engine.text.hold, func(p *params) {
		s.virtual(p)
		p.bytea([]byte(id))
		p.bytea(note)
		p.int8(max(1, timeout.Microseconds()))
		p.int8(maxReservations)
	}, func(columns [][]byte) (err error) {
		held, err = number(columns[0])
		return err
	})
	switch {
	case err != nil:
		return err
	case held == 0:
		return notChargedError{errReserved}
	case held < 0:
		return notChargedError{errTooManyReservations}
	}
	return nil
}

// Claim implements store.Reserver.
func (s *Store) Claim(ctx context.Context, id string) (note []byte, ok bool, err error) {
	if id == "" || len(id) > maxReservationID {
		return nil, false, nil
	}
	err = s.engine.call(ctx, s.engine.text.claim, func(p *params) { p.bytea([]byte(id)) }, func(columns [][]byte) error {
		note, ok = bytes.Clone(columns[0]), true
		return nil
	})
	return note, ok && err == nil, err
}

// Expired implements store.Reserver. Nodes that ask at the same time get different notes.
func (s *Store) Expired(ctx context.Context, n int) (notes [][]byte, err error) {
	if n <= 0 {
		return nil, nil
	}
	err = s.engine.call(ctx, s.engine.text.expired, func(p *params) {
		s.virtual(p)
		p.int8(int64(min(n, maxExpiredAtOnce)))
	}, func(columns [][]byte) error {
		notes = append(notes, bytes.Clone(columns[0]))
		return nil
	})
	return notes, err
}
