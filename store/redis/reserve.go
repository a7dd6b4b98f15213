package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/redis/rueidis"

	weir "github.com/weir-rl/weir"
)

var _ weir.Reserver = (*Store)(nil)

// Reservations lie in two keys of each partition: "due", a sorted set of when each id is over by Redis' clock, and "notes", a hash of
// what is noted under it. The ids spread over the partitions. What a node that died has left there, any other one finds.
const (
	keyDue   = "due"
	keyNotes = "notes"
)

// What bounds the reservations in Redis.
const (
	maxHeld    = 1 << 20 // reservations of all partitions together
	maxNote    = 64 << 10
	maxHeldID  = 256
	maxExpired = 1000 // notes that one call hands out
)

var (
	errHeld     = errors.New("redis store: a reservation of that id is held already")
	errHeldMany = fmt.Errorf("redis store: some %d reservations are held, and there is no room for more until they are committed or time out", maxHeld)
)

// heldIn returns the partition of a reservation, and its keys.
func (s *Store) heldIn(id string) (*partition, []string) {
	p := s.partitions[xxhash.Sum64String(id)%uint64(len(s.partitions))]
	return p, p.heldKeys()
}

func (p *partition) heldKeys() []string { return []string{p.prefix + keyDue, p.prefix + keyNotes} }

// Hold implements weir.Reserver. An id has at most 256 bytes, and a note 64 KiB. An error that is weir.ErrNotCharged says that the
// note is certainly not held.
func (s *Store) Hold(ctx context.Context, id string, note []byte, timeout time.Duration) error {
	switch {
	case id == "" || len(id) > maxHeldID:
		return notCharged{fmt.Errorf("redis store: the id of a reservation has %d bytes; it must have 1 to %d", len(id), maxHeldID)}
	case len(note) > maxNote:
		return notCharged{fmt.Errorf("redis store: the note of a reservation has %d bytes; it may have up to %d", len(note), maxNote)}
	case timeout <= 0:
		return notCharged{fmt.Errorf("redis store: a reservation needs a time-out above 0, not %v", timeout)}
	}
	_, keys := s.heldIn(id)
	room := (maxHeld + len(s.partitions) - 1) / len(s.partitions)
	after := strconv.FormatInt(max(1, timeout.Microseconds()), 10)
	result, err := s.askHeld(ctx, functionHold, keys, s.virtualNow(), id, string(note), after, strconv.Itoa(room))
	if err != nil {
		return err
	}
	switch n, err := result.ToInt64(); {
	case err != nil:
		return fmt.Errorf("redis store: %w", err)
	case n == 0:
		return notCharged{errHeld}
	case n < 0:
		return notCharged{errHeldMany}
	}
	return nil
}

// Claim implements weir.Reserver.
func (s *Store) Claim(ctx context.Context, id string) (note []byte, ok bool, err error) {
	if id == "" || len(id) > maxHeldID {
		return nil, false, nil
	}
	_, keys := s.heldIn(id)
	result, err := s.askHeld(ctx, functionClaim, keys, id)
	if rueidis.IsRedisNil(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	if note, err = result.AsBytes(); err != nil {
		return nil, false, fmt.Errorf("redis store: %w", err)
	}
	return note, true, nil
}

// Expired implements weir.Reserver. Where some servers do not answer it hands out what the others have; the error is only
// returned if that is nothing.
func (s *Store) Expired(ctx context.Context, n int) (notes [][]byte, err error) {
	first := int(s.sweeps.Add(1) % uint64(len(s.partitions))) // so that none is always last
	for i := range s.partitions {
		if len(notes) >= n {
			break
		}
		p := s.partitions[(first+i)%len(s.partitions)]
		result, failed := s.askHeld(ctx, functionExpired, p.heldKeys(), s.virtualNow(), strconv.Itoa(min(n-len(notes), maxExpired)))
		if failed != nil {
			err = failed
			continue
		}
		list, failed := result.ToArray()
		if failed != nil {
			err = fmt.Errorf("redis store: %w", failed)
		}
		for _, each := range list {
			if note, failed := each.AsBytes(); failed == nil {
				notes = append(notes, note)
			}
		}
	}
	if len(notes) > 0 {
		return notes, nil
	}
	return nil, err
}

// askHeld calls a function of reservations.
func (s *Store) askHeld(ctx context.Context, function string, keys []string, args ...string) (rueidis.RedisResult, error) {
	clients, err := s.connected()
	if err != nil {
		return rueidis.RedisResult{}, notCharged{err}
	}
	ctx, cancel := context.WithTimeout(ctx, s.o.Timeout)
	defer cancel()
	result, err := s.call(ctx, clients.other, function, keys, args)
	switch {
	case err == nil || rueidis.IsRedisNil(err):
		return result, err
	case didNothing(err):
		err = notCharged{err}
	}
	return result, fmt.Errorf("redis store: %w", err)
}

// settlesAtOnce bounds the settlements that go as one compare-and-swap.
const settlesAtOnce = 200

// Settle implements weir.Reserver: those of a partition by compare-and-swap, together with what else is settled there at the time.
func (s *Store) Settle(ctx context.Context, settlements []weir.Settlement) error {
	of := map[*partition][]weir.Settlement{}
	for _, each := range settlements {
		if each.Counter == nil || each.Limit == nil {
			return notCharged{errors.New("redis store: a settlement needs a Counter and a Limit")}
		}
		if each.Actual != each.Reserved {
			p := s.partitionOf(each.Counter, each.Key)
			of[p] = append(of[p], each)
		}
	}
	var wg sync.WaitGroup
	errs, n := make(chan error, len(settlements)), 0
	for p, all := range of {
		for some := range slices.Chunk(all, settlesAtOnce) {
			n++
			wg.Go(func() {
				if err := p.settleCharges(ctx, some); err != nil {
					errs <- err
				}
			})
		}
	}
	wg.Wait()
	close(errs)
	var failed error // that of a share of which it is not known whether it was made, if there is one
	made := len(errs) < n
	for err := range errs {
		if failed == nil || errors.Is(failed, weir.ErrNotCharged) {
			failed = err
		}
	}
	if made && errors.Is(failed, weir.ErrNotCharged) {
		return errors.New(failed.Error()) // others were made
	}
	return failed
}

func (p *partition) settleCharges(ctx context.Context, settlements []weir.Settlement) error {
	o := &oddCall{ctx: ctx, settlements: settlements, charges: make([]weir.Charge, len(settlements))}
	for i := range settlements {
		o.charges[i] = weir.Charge{Counter: settlements[i].Counter, Limit: settlements[i].Limit, Key: settlements[i].Key}
	}
	if err := p.await(o); err != nil {
		return err
	}
	if r := p.store.refusals; r != nil {
		for i := range settlements {
			if each := &settlements[i]; each.Actual < each.Reserved {
				r.open(each.Counter.ID, each.Key)
			}
		}
	}
	return nil
}
