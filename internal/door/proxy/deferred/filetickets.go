package deferred

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/bbolt"
)

// The ends of the jobs of a File, and their tickets.

// Done implements Queue.
func (f *File) Done(_ context.Context, j *Job, status int) error {
	f.mu.Lock()
	e := f.jobs[j.ID]
	if e == nil || e.state != Active {
		f.mu.Unlock()
		return ErrGone
	}
	attempts := e.attempts
	f.mu.Unlock()
	err := f.end(j, Ticket{State: Done, Status: status, Attempts: attempts})
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.jobs[j.ID] != e || e.state == Failed {
		return ErrGone
	}
	f.leave(e)
	delete(f.jobs, e.id)
	f.count(e, -1)
	return nil
}

// Again implements Queue.
func (f *File) Again(_ context.Context, j *Job, d time.Duration, status int, why string) error {
	f.mu.Lock()
	e := f.jobs[j.ID]
	if e == nil || e.state != Active {
		f.mu.Unlock()
		return ErrGone
	}
	now := time.Now()
	e.state, e.until = Queued, now.Add(d)
	f.outs.Fix(e.index)
	f.release(e, now)
	t := Ticket{ID: j.ID, Queue: j.Queue, State: Queued, Queued: j.Queued, Attempts: e.attempts, Status: status,
		Error: why}
	f.mu.Unlock()
	return f.writeTicket(t)
}

func (f *File) writeTicket(t Ticket) error {
	raw, _ := json.Marshal(t)
	return f.db.Batch(func(tx *bbolt.Tx) error { return tx.Bucket(bucketTickets).Put([]byte(t.ID), raw) })
}

// Fail implements Queue.
func (f *File) Fail(_ context.Context, j *Job, status int, why string) error {
	f.mu.Lock()
	e := f.jobs[j.ID]
	if e == nil || e.state == Failed {
		f.mu.Unlock()
		return ErrGone
	}
	attempts := e.attempts
	f.mu.Unlock()
	if err := f.end(j, Ticket{State: Failed, Status: status, Error: why, Attempts: attempts}); err != nil {
		return err
	}
	f.mu.Lock()
	if f.jobs[j.ID] != e || e.state == Failed {
		f.mu.Unlock()
		return ErrGone
	}
	f.leave(e)
	e.state = Failed
	f.deadBytes += e.size
	f.count(e, -1)
	f.dead++
	f.mu.Unlock()
	for f.deadOver() {
		if err := f.dropOldest(); err != nil {
			return err
		}
	}
	return nil
}

// end writes the ticket of a finished job, and forgets tickets whose time is over.
func (f *File) end(j *Job, t Ticket) error {
	now := time.Now()
	t.ID, t.Queue, t.Queued, t.Ended = j.ID, j.Queue, j.Queued, now
	raw, _ := json.Marshal(t)
	var forgotten []string
	err := f.db.Batch(func(tx *bbolt.Tx) error {
		forgotten = forgotten[:0]
		jobs, tickets, ended := tx.Bucket(bucketJobs), tx.Bucket(bucketTickets), tx.Bucket(bucketEnded)
		if t.State == Done {
			if err := jobs.Delete([]byte(j.ID)); err != nil {
				return err
			}
		}
		if err := tickets.Put([]byte(j.ID), raw); err != nil {
			return err
		}
		if err := ended.Put(append(binary.BigEndian.AppendUint64(nil, uint64(now.UnixNano())), j.ID...),
			nil); err != nil {
			return err
		}
		c, limit := ended.Cursor(), uint64(now.Add(-f.bounds.Keep).UnixNano())
		for k, _ := c.First(); k != nil && binary.BigEndian.Uint64(k) < limit && len(forgotten) < 16; k, _ = c.First() {
			id := k[8:]
			// A dead letter that was retried ended at another time, or has not ended.
			var old Ticket
			if json.Unmarshal(tickets.Get(id), &old) == nil && !old.Ended.IsZero() &&
				uint64(old.Ended.UnixNano()) == binary.BigEndian.Uint64(k) {
				forgotten = append(forgotten, string(id))
				if err := errors.Join(tickets.Delete(id), jobs.Delete(id)); err != nil {
					return err
				}
			}
			if err := ended.Delete(k); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("deferred: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range forgotten {
		if e := f.jobs[id]; e != nil && e.state == Failed {
			delete(f.jobs, id)
			f.dead--
			f.deadBytes -= e.size
		}
	}
	return nil
}

// deadOver reports whether the dead letters are too many, or too large.
func (f *File) deadOver() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.dead > 0 && (f.dead > f.bounds.Dead || f.deadBytes > f.bounds.Bytes)
}

// dropOldest makes room among the dead letters.
func (f *File) dropOldest() error {
	list, err := f.List(context.Background(), Failed, 1)
	if err != nil || len(list) == 0 {
		return err
	}
	return f.Drop(context.Background(), list[0].ID)
}

// Ticket implements Queue.
func (f *File) Ticket(_ context.Context, id string) (t Ticket, err error) {
	err = f.db.View(func(tx *bbolt.Tx) error {
		raw := tx.Bucket(bucketTickets).Get([]byte(id))
		if raw == nil {
			return ErrGone
		}
		return json.Unmarshal(raw, &t)
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.jobs[id]; e != nil && err == nil {
		t.State, t.Attempts = e.state, e.attempts
	}
	return t, err
}

// List implements Queue.
func (f *File) List(ctx context.Context, s State, n int) ([]Ticket, error) {
	var ids []string
	if s == Done {
		err := f.db.View(func(tx *bbolt.Tx) error {
			c, tickets := tx.Bucket(bucketEnded).Cursor(), tx.Bucket(bucketTickets)
			for k, _ := c.First(); k != nil && len(ids) < n; k, _ = c.Next() {
				var t Ticket
				if json.Unmarshal(tickets.Get(k[8:]), &t) == nil && t.State == Done {
					ids = append(ids, string(k[8:]))
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	} else {
		f.mu.Lock()
		var all []*entry
		for _, e := range f.jobs {
			if e.state == s {
				all = append(all, e)
			}
		}
		f.mu.Unlock()
		slices.SortFunc(all, bySeq)
		for _, e := range all[:min(n, len(all))] {
			ids = append(ids, e.id)
		}
	}
	list := make([]Ticket, 0, len(ids))
	for _, id := range ids {
		if t, err := f.Ticket(ctx, id); err == nil {
			list = append(list, t)
		}
	}
	return list, nil
}

// Retry implements Queue.
func (f *File) Retry(ctx context.Context, id string) error {
	t, err := f.Ticket(ctx, id)
	if err != nil {
		return err
	}
	f.mu.Lock()
	e := f.jobs[id]
	if e == nil || e.state != Failed {
		f.mu.Unlock()
		return fmt.Errorf("%w among the dead letters", ErrGone)
	}
	if err := f.bounds.fit(e.size, f.live, sum{}); err != nil { // by hand: no share
		f.mu.Unlock()
		return err
	}
	f.dead--
	f.deadBytes -= e.size
	f.count(e, 1)
	e.state, e.attempts = Queued, 0
	f.append(e, time.Now())
	f.mu.Unlock()
	return f.writeTicket(Ticket{ID: id, Queue: t.Queue, State: Queued, Queued: t.Queued})
}

// Drop implements Queue.
func (f *File) Drop(_ context.Context, id string) error {
	f.mu.Lock()
	e := f.jobs[id]
	switch {
	case e == nil:
		f.mu.Unlock()
		return ErrGone
	case e.state == Active:
		f.mu.Unlock()
		return ErrActive
	case e.state == Failed:
		f.dead--
		f.deadBytes -= e.size
	default:
		f.leave(e)
		f.count(e, -1)
	}
	delete(f.jobs, id)
	f.mu.Unlock()
	return f.db.Batch(func(tx *bbolt.Tx) error {
		return errors.Join(tx.Bucket(bucketJobs).Delete([]byte(id)), tx.Bucket(bucketTickets).Delete([]byte(id)))
	})
}

// Stats implements Queue.
func (f *File) Stats(context.Context) (Stats, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := Stats{Jobs: f.live.jobs, Dead: f.dead, Bytes: f.live.bytes}
	for _, l := range f.lines {
		if at := l.jobs[0].queued; s.Oldest.IsZero() || at.Before(s.Oldest) {
			s.Oldest = at
		}
	}
	return s, nil
}
