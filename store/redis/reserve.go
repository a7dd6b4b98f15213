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

	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/internal/waiting"
)

var _ store.Reserver = (*Store)(nil)

// Reservations are kept in two keys of each partition: "due", a sorted set of ids by the instant at
// which they time out by Redis' clock, and "notes", a hash of their notes. The ids are spread over
// the partitions. Any node finds the notes of a node that died.
const (
	keyDue   = "due"
	keyNotes = "notes"
)

// Bounds of the reservations in Redis.
const (
	maxReservations  = 1 << 20 // reservations of all partitions together
	maxNote          = 64 << 10
	maxReservationID = 256
	maxExpiredAtOnce = 1000 // notes that one call hands out
)

var (
	errReserved            = errors.New("redis store: a reservation of that id is held already")
	errTooManyReservations = fmt.Errorf(
		"redis store: some %d reservations are held, and there is no room for more until they are committed or time out", maxReservations)
)

// reservationKeys returns the partition of a reservation, and its keys.
func (s *Store) reservationKeys(id string) (*partition, []string) {
	p := s.partitions[xxhash.Sum64String(id)%uint64(len(s.partitions))]
	return p, p.reservationKeys()
}

func (p *partition) reservationKeys() []string {
	return []string{p.prefix + keyDue, p.prefix + keyNotes}
}

// Hold implements store.Reserver. An id has at most 256 bytes, and a note 64 KiB. An error that is
// store.ErrNotCharged says that the note is certainly not held.
func (s *Store) Hold(ctx context.Context, id string, note []byte, timeout time.Duration) error {
	switch {
	case id == "" || len(id) > maxReservationID:
		return notChargedError{fmt.Errorf("redis store: the id of a reservation has %d bytes; it must have 1 to %d",
			len(id), maxReservationID)}
	case len(note) > maxNote:
		return notChargedError{fmt.Errorf("redis store: the note of a reservation has %d bytes; it may have up to %d",
			len(note), maxNote)}
	case timeout <= 0:
		return notChargedError{fmt.Errorf("redis store: a reservation needs a time-out above 0, not %v", timeout)}
	}
	p, keys := s.reservationKeys(id)
	room := (maxReservations + len(s.partitions) - 1) / len(s.partitions)
	after := strconv.FormatInt(max(1, timeout.Microseconds()), 10)
	result, failed, err := s.callReservations(ctx, p, nil, lua().hold, keys, s.virtualNow(), id, string(note), after,
		strconv.Itoa(room))
	failed.forget()
	if err != nil {
		return err
	}
	switch n, err := result.ToInt64(); {
	case err != nil:
		return fmt.Errorf("redis store: %w", err)
	case n == 0:
		return notChargedError{errReserved}
	case n < 0:
		return notChargedError{errTooManyReservations}
	}
	return nil
}

// claims are those that failed, and may have been made.
type claims struct {
	mu sync.Mutex
	of map[string]*unsure // by id
}

// Of so many claims it is remembered how they failed, and of each for a minute at least. Of the
// others, one that is repeated finds nothing.
const (
	maxClaims = 10_000
	claimLife = time.Minute
)

// take returns how a claim of the id failed; nil if none did.
func (c *claims) take(id string) *unsure {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := c.of[id]
	delete(c.of, id)
	return u
}

// put notes how a claim has failed.
func (c *claims) put(id string, u *unsure, now int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.of) >= maxClaims {
		for id, old := range c.of {
			if now-old.at > int64(claimLife) {
				old.forget()
				delete(c.of, id)
			}
		}
	}
	if c.of[id] != nil || len(c.of) >= maxClaims {
		u.forget()
		return
	}
	if c.of == nil {
		c.of = map[string]*unsure{}
	}
	c.of[id] = u
}

// Claim implements store.Reserver. If it fails, it can be called again on this node: a note that
// was taken, and did not come, then comes, for as long as Redis keeps the answers of a lane.
func (s *Store) Claim(ctx context.Context, id string) (note []byte, ok bool, err error) {
	if id == "" || len(id) > maxReservationID {
		return nil, false, nil
	}
	p, keys := s.reservationKeys(id)
	result, failed, err := s.callReservations(ctx, p, s.claims.take(id), lua().claim, keys, s.virtualNow(), id)
	if failed != nil {
		s.claims.put(id, failed, failed.at)
	}
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

// Expired implements store.Reserver. If some servers do not answer, it returns the notes of the
// others; it fails only if there are none. Notes that were taken, and whose reply was lost, come
// with the next call on this node, as in Claim.
func (s *Store) Expired(ctx context.Context, n int) (notes [][]byte, err error) {
	// in turn, so that no partition is always last
	first := int(s.sweeps.Add(1) % uint64(len(s.partitions)))
	for i := range s.partitions {
		if len(notes) >= n {
			break
		}
		p := s.partitions[(first+i)%len(s.partitions)]
		result, unsure, failed := s.callReservations(
			ctx, p, p.expiring.Swap(nil), lua().expired, p.reservationKeys(), s.virtualNow(),
			strconv.Itoa(min(n-len(notes), maxExpiredAtOnce)))
		if unsure != nil {
			p.expiring.Swap(unsure).forget()
		}
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

// callReservations calls a function of reservations of a partition, which is made once: was is how
// a call of the same failed before, or nil. failed, unless nil, is to be passed on like that.
func (s *Store) callReservations(
	ctx context.Context, p *partition, was *unsure, function string, keys []string, args ...string,
) (result rueidis.RedisResult, failed *unsure, err error) {
	clients, err := s.connected()
	if err != nil {
		return result, was, notChargedError{err}
	}
	result, failed, err = s.onceAgain(ctx, clients.other, p, was, function, keys, args)
	switch {
	case err == nil || rueidis.IsRedisNil(err):
		return result, nil, err
	case didNothing(err):
		err = notChargedError{err}
	}
	return result, failed, fmt.Errorf("redis store: %w", s.target.lasting(err))
}

// maxSettlements bounds the settlements of one compare-and-swap.
const maxSettlements = 200

// Settle implements store.Reserver, by compare-and-swap in each partition.
func (s *Store) Settle(ctx context.Context, settlements []store.Settlement) error {
	of := map[*partition][]store.Settlement{}
	for _, each := range settlements {
		if each.Counter == nil || each.Limit == nil {
			return notChargedError{errors.New("redis store: a settlement needs a Counter and a Limit")}
		}
		if each.Actual != each.Reserved {
			p := s.partitionOf(each.Counter, each.Key)
			of[p] = append(of[p], each)
		}
	}
	var wg sync.WaitGroup
	errs, n := make(chan error, len(settlements)), 0
	for p, all := range of {
		for some := range slices.Chunk(all, maxSettlements) {
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
	// An error that leaves it open whether settlements were made comes before others.
	var failed error
	made := len(errs) < n
	for err := range errs {
		if failed == nil || errors.Is(failed, store.ErrNotCharged) {
			failed = err
		}
	}
	if made && errors.Is(failed, store.ErrNotCharged) {
		return errors.New(failed.Error()) // not ErrNotCharged: other settlements were made
	}
	return failed
}

// settleCharges makes settlements of the partition's keys.
func (p *partition) settleCharges(ctx context.Context, settlements []store.Settlement) error {
	c := &swapCall{settlements: settlements, charges: make([]store.Charge, len(settlements))}
	for i := range settlements {
		c.charges[i] = store.Charge{Counter: settlements[i].Counter, Limit: settlements[i].Limit,
			Key: settlements[i].Key}
	}
	if err := p.submitSwap(&waiting.Waiter{Ctx: ctx}, c); err != nil {
		return err
	}
	if r := p.store.refusals; r != nil {
		for i := range settlements {
			if each := &settlements[i]; each.Actual < each.Reserved {
				r.invalidate(each.Counter.ID, each.Key)
			}
		}
	}
	return nil
}
