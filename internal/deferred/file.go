package deferred

import (
	"container/heap"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// A file holds three buckets: jobs (a job with its place in order, JSON) of all that are not done, tickets (JSON) of all, and ended
// (time and ID) in the order in which they are to be forgotten. What is only of this process, the lines and what is out of them,
// is in memory: when the file is opened, all jobs are in their lines.

var (
	bucketJobs    = []byte("jobs")
	bucketTickets = []byte("tickets")
	bucketEnded   = []byte("ended")
	bucketMeta    = []byte("meta")
	keyFormat     = []byte("format")
)

const fileFormat = "1"

// File is a Queue in a file of this process alone. Make one with OpenFile.
type File struct {
	db     *bbolt.DB
	bounds Bounds

	mu        sync.Mutex
	seq       uint64
	jobs      map[string]*entry
	lines     map[string]*line
	due       lineHeap
	out       map[string]*entry
	outs      entryHeap
	dead      int
	bytes     int64 // of the live ones
	deadBytes int64
	live      int
}

// entry is a job in memory: its content stays in the file.
type entry struct {
	id, line string
	seq      uint64
	size     int64
	attempts int
	queued   time.Time
	state    State
	until    time.Time // of one that is out: end of its lease
	index    int       // in outs; below 0: not there
}

// line is the jobs of one key, in order.
type line struct {
	name  string
	jobs  []*entry
	due   time.Time
	index int // in due
}

// record is a job in the file.
type record struct {
	Seq uint64 `json:"seq"`
	Job *Job   `json:"job"`
}

var _ Queue = (*File)(nil)

// OpenFile opens or makes the file at path. Its folder must exist. The file is locked: a second process waits for a second and
// then fails.
func OpenFile(path string, b Bounds) (*File, error) {
	if err := b.check(); err != nil {
		return nil, err
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second, FreelistType: bbolt.FreelistMapType})
	if err != nil {
		if errors.Is(err, bolterrors.ErrTimeout) {
			err = errors.New("another process has it open; give each server a file of its own")
		}
		return nil, fmt.Errorf("deferred: %s: %w", filepath.Base(path), err)
	}
	f := &File{db: db, bounds: b.filled(), jobs: map[string]*entry{}, lines: map[string]*line{}, out: map[string]*entry{}}
	if err := f.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("deferred: %s: %w", filepath.Base(path), err), db.Close())
	}
	return f, nil
}

func (f *File) load() error {
	err := f.db.Update(func(tx *bbolt.Tx) error {
		for _, name := range [][]byte{bucketJobs, bucketTickets, bucketEnded, bucketMeta} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		meta := tx.Bucket(bucketMeta)
		switch format := meta.Get(keyFormat); {
		case format == nil:
			return meta.Put(keyFormat, []byte(fileFormat))
		case string(format) != fileFormat:
			return fmt.Errorf("it has format %q, of a newer version of this program; this one reads %q", format, fileFormat)
		}
		return nil
	})
	if err != nil {
		return err
	}
	var all []*entry
	err = f.db.View(func(tx *bbolt.Tx) error {
		tickets := tx.Bucket(bucketTickets)
		return tx.Bucket(bucketJobs).ForEach(func(id, raw []byte) error {
			var r record
			var t Ticket
			if err := json.Unmarshal(raw, &r); err != nil || r.Job == nil {
				return fmt.Errorf("job %q is damaged: %v", id, err)
			}
			if err := json.Unmarshal(tickets.Get(id), &t); err != nil {
				return fmt.Errorf("the ticket of job %q is damaged: %v", id, err)
			}
			all = append(all, &entry{id: string(id), line: r.Job.Line, seq: r.Seq, size: int64(len(raw)), attempts: t.Attempts, queued: r.Job.Queued, state: t.State, index: -1})
			return nil
		})
	})
	if err != nil {
		return err
	}
	sortBySeq(all)
	now := time.Now()
	for _, e := range all {
		f.seq = max(f.seq, e.seq)
		f.jobs[e.id] = e
		if e.state == Failed {
			f.dead++
			f.deadBytes += e.size
			continue
		}
		e.state = Queued
		f.count(e, 1)
		f.append(e, now)
	}
	return nil
}

// count adds a live job to the bounds' sums, or takes it off.
func (f *File) count(e *entry, sign int) {
	f.live += sign
	f.bytes += int64(sign) * e.size
}

// append puts e at the end of its line. mu is held.
func (f *File) append(e *entry, now time.Time) {
	l := f.lines[e.line]
	if l == nil {
		l = &line{name: e.line, due: now}
		f.lines[e.line] = l
		heap.Push(&f.due, l)
	}
	l.jobs = append(l.jobs, e)
}

// remove takes e out of its line; false if it is not there. mu is held.
func (f *File) remove(e *entry, due time.Time) bool {
	l := f.lines[e.line]
	if l == nil {
		return false
	}
	for i, other := range l.jobs {
		if other != e {
			continue
		}
		if i == 0 {
			l.jobs[0] = nil
			l.jobs = l.jobs[1:]
		} else {
			l.jobs = append(l.jobs[:i], l.jobs[i+1:]...)
		}
		if len(l.jobs) == 0 {
			heap.Remove(&f.due, l.index)
			delete(f.lines, l.name)
		} else if i == 0 {
			l.due = due
			heap.Fix(&f.due, l.index)
		}
		return true
	}
	return false
}

// Put implements Queue. Calls at the same time are written together.
func (f *File) Put(_ context.Context, j *Job) error {
	f.mu.Lock()
	f.seq++
	e := &entry{id: j.ID, line: j.Line, seq: f.seq, attempts: 0, queued: j.Queued, state: Queued, index: -1}
	raw, err := json.Marshal(record{Seq: e.seq, Job: j})
	if err != nil {
		f.mu.Unlock()
		return fmt.Errorf("deferred: a job: %w", err)
	}
	if e.size = int64(len(raw)); f.live+1 > f.bounds.Jobs || f.bytes+e.size > f.bounds.Bytes {
		f.mu.Unlock()
		return ErrFull
	}
	f.count(e, 1) // the room is taken before it is written
	f.mu.Unlock()
	ticket, _ := json.Marshal(Ticket{ID: j.ID, Queue: j.Queue, State: Queued, Queued: j.Queued})
	err = f.db.Batch(func(tx *bbolt.Tx) error {
		if err := tx.Bucket(bucketJobs).Put([]byte(j.ID), raw); err != nil {
			return err
		}
		return tx.Bucket(bucketTickets).Put([]byte(j.ID), ticket)
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		f.count(e, -1)
		return fmt.Errorf("deferred: %w", err)
	}
	f.jobs[e.id] = e
	f.append(e, time.Now())
	return nil
}

// Next implements Queue.
func (f *File) Next(_ context.Context, lease time.Duration) (*Job, time.Duration, error) {
	f.mu.Lock()
	now := time.Now()
	for len(f.outs) > 0 && !f.outs[0].until.After(now) {
		e := heap.Pop(&f.outs).(*entry)
		delete(f.out, e.id)
		e.state = Queued
		f.append(e, now)
	}
	wait := maxIdle
	if len(f.outs) > 0 {
		wait = min(wait, f.outs[0].until.Sub(now))
	}
	if len(f.due) == 0 {
		f.mu.Unlock()
		return nil, wait, nil
	}
	l := f.due[0]
	if d := l.due.Sub(now); d > 0 {
		f.mu.Unlock()
		return nil, min(wait, d), nil
	}
	l.due = now.Add(lease)
	heap.Fix(&f.due, l.index)
	e := l.jobs[0]
	id, attempts := e.id, e.attempts
	f.mu.Unlock()
	var r record
	err := f.db.View(func(tx *bbolt.Tx) error {
		raw := tx.Bucket(bucketJobs).Get([]byte(id))
		if raw == nil {
			return ErrGone
		}
		return json.Unmarshal(raw, &r)
	})
	if errors.Is(err, ErrGone) { // dropped in this moment
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.jobs[id] == e {
			f.leave(e)
			delete(f.jobs, id)
			f.count(e, -1)
		}
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("deferred: job %s: %w", id, err)
	}
	r.Job.Attempts = attempts
	return r.Job, 0, nil
}

// Postpone implements Queue.
func (f *File) Postpone(_ context.Context, j *Job, d time.Duration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if l := f.lines[j.Line]; l != nil {
		l.due = time.Now().Add(d)
		heap.Fix(&f.due, l.index)
	}
	return nil
}

// Take implements Queue. Nothing is written: a job that was taken by a process that died is in its line again.
func (f *File) Take(_ context.Context, j *Job, lease time.Duration) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	e := f.jobs[j.ID]
	if e == nil || !f.remove(e, now) {
		return false, nil
	}
	e.state, e.until = Active, now.Add(lease)
	e.attempts++
	f.out[e.id] = e
	heap.Push(&f.outs, e)
	return true, nil
}

// Keep implements Queue.
func (f *File) Keep(_ context.Context, j *Job, d time.Duration) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.out[j.ID]
	if e == nil {
		return false, nil
	}
	e.until = time.Now().Add(d)
	heap.Fix(&f.outs, e.index)
	return true, nil
}

// leave takes e from wherever it is. mu is held.
func (f *File) leave(e *entry) {
	if f.out[e.id] != nil {
		delete(f.out, e.id)
		heap.Remove(&f.outs, e.index)
		return
	}
	f.remove(e, time.Now())
}

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
	e.state, e.until = Queued, time.Now().Add(d)
	heap.Fix(&f.outs, e.index)
	t := Ticket{ID: j.ID, Queue: j.Queue, State: Queued, Queued: j.Queued, Attempts: e.attempts, Status: status, Error: why}
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

// end writes the ticket of a job that has come to an end, and forgets tickets whose time is over.
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
		if err := ended.Put(append(binary.BigEndian.AppendUint64(nil, uint64(now.UnixNano())), j.ID...), nil); err != nil {
			return err
		}
		c, limit := ended.Cursor(), uint64(now.Add(-f.bounds.Keep).UnixNano())
		for k, _ := c.First(); k != nil && binary.BigEndian.Uint64(k) < limit && len(forgotten) < 16; k, _ = c.First() {
			id := k[8:]
			// A dead letter that was retried has another end, or none.
			var old Ticket
			if json.Unmarshal(tickets.Get(id), &old) == nil && !old.Ended.IsZero() && uint64(old.Ended.UnixNano()) == binary.BigEndian.Uint64(k) {
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
		sortBySeq(all)
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
	if f.live+1 > f.bounds.Jobs || f.bytes+e.size > f.bounds.Bytes {
		f.mu.Unlock()
		return ErrFull
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
	s := Stats{Jobs: f.live, Dead: f.dead, Bytes: f.bytes}
	for _, l := range f.lines {
		if at := l.jobs[0].queued; s.Oldest.IsZero() || at.Before(s.Oldest) {
			s.Oldest = at
		}
	}
	return s, nil
}

// Close implements Queue.
func (f *File) Close() error { return f.db.Close() }
