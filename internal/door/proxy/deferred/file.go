package deferred

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/weir-rl/weir/internal/util/pq"
)

// A file holds three buckets: jobs (JSON with its place in order) for each job that is not done,
// tickets (JSON) for all jobs, and ended (time and ID) in the order in which tickets are to be
// forgotten. The lines, and the jobs out of them, are state of this process and only in memory:
// when the file is opened, all jobs are in their lines.

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
	due       pq.Heap[*line] // by due
	out       map[string]*entry
	outs      pq.Heap[*entry]   // by until
	busy      map[string]*entry // by line: the job of it that is being sent
	dead      int
	deadBytes int64
	live      sum
	held      map[string]sum // by line: of the live ones
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
	index    int       // in outs, while it is there
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

func bySeq(a, b *entry) int { return cmp.Compare(a.seq, b.seq) }

var _ Queue = (*File)(nil)

// ErrTaken is the error of OpenFile if another process has the file open.
var ErrTaken = errors.New("another process has it open; give each server a file of its own")

// OpenFile opens or makes the file at path. Its folder must exist. The file is locked: a second
// process waits for a second and then fails.
func OpenFile(path string, b Bounds) (*File, error) {
	if err := b.check(); err != nil {
		return nil, err
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second, FreelistType: bbolt.FreelistMapType})
	if err != nil {
		if errors.Is(err, bolterrors.ErrTimeout) {
			err = ErrTaken
		}
		return nil, fmt.Errorf("deferred: %s: %w", filepath.Base(path), err)
	}
	f := &File{
		db: db, bounds: b.filled(),
		jobs: map[string]*entry{}, lines: map[string]*line{}, out: map[string]*entry{}, busy: map[string]*entry{},
		held: map[string]sum{},
		due:  pq.New(func(a, b *line) bool { return a.due.Before(b.due) }, func(l *line, at int) { l.index = at }),
		outs: pq.New(func(a, b *entry) bool { return a.until.Before(b.until) },
			func(e *entry, at int) { e.index = at }),
	}
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
			return fmt.Errorf("it has format %q, of a newer version of this program; this one reads %q", format,
				fileFormat)
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
			all = append(all, &entry{id: string(id), line: r.Job.Line, seq: r.Seq, size: int64(len(raw)),
				attempts: t.Attempts, queued: r.Job.Queued, state: t.State})
			return nil
		})
	})
	if err != nil {
		return err
	}
	slices.SortFunc(all, bySeq)
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
	f.live.add(sign, e.size)
	held := f.held[e.line]
	if held.add(sign, e.size); held.jobs == 0 {
		delete(f.held, e.line)
	} else {
		f.held[e.line] = held
	}
}

// append puts e at the end of its line. mu is held.
func (f *File) append(e *entry, now time.Time) {
	l := f.lines[e.line]
	if l == nil {
		l = &line{name: e.line, due: f.free(e.line, now)}
		f.lines[e.line] = l
		f.due.Push(l)
	}
	l.jobs = append(l.jobs, e)
}

// free is from when on the head of a line may be asked for: at once, unless a job of the line is
// being sent. mu is held.
func (f *File) free(name string, now time.Time) time.Time {
	if e := f.busy[name]; e != nil && e.until.After(now) {
		return e.until
	}
	return now
}

// release makes the next job of a line due, if e is the one being sent. mu is held.
func (f *File) release(e *entry, now time.Time) {
	if f.busy[e.line] != e {
		return
	}
	delete(f.busy, e.line)
	f.setDue(e.line, now)
}

// setDue sets when a line is due, if there is one. mu is held.
func (f *File) setDue(name string, due time.Time) {
	if l := f.lines[name]; l != nil {
		l.due = due
		f.due.Fix(l.index)
	}
}

// remove takes e out of its line; false if it is not there. mu is held.
func (f *File) remove(e *entry, now time.Time) bool {
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
			f.due.Remove(l.index)
			delete(f.lines, l.name)
		} else if i == 0 {
			f.setDue(l.name, f.free(l.name, now))
		}
		return true
	}
	return false
}

// Put implements Queue. Calls at the same time are written together.
func (f *File) Put(_ context.Context, j *Job) error {
	f.mu.Lock()
	f.seq++
	e := &entry{id: j.ID, line: j.Line, seq: f.seq, attempts: 0, queued: j.Queued, state: Queued}
	raw, err := json.Marshal(record{Seq: e.seq, Job: j})
	if err != nil {
		f.mu.Unlock()
		return fmt.Errorf("deferred: a job: %w", err)
	}
	e.size = int64(len(raw))
	if err := f.bounds.fit(e.size, f.live, f.held[e.line]); err != nil {
		f.mu.Unlock()
		return err
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
	for f.outs.Len() > 0 && !f.outs.Min().until.After(now) {
		e := f.outs.Pop()
		delete(f.out, e.id)
		e.state = Queued
		f.release(e, now)
		f.append(e, now)
	}
	wait := maxIdle
	if f.outs.Len() > 0 {
		wait = min(wait, f.outs.Min().until.Sub(now))
	}
	if f.due.Len() == 0 {
		f.mu.Unlock()
		return nil, wait, nil
	}
	l := f.due.Min()
	if d := l.due.Sub(now); d > 0 {
		f.mu.Unlock()
		return nil, min(wait, d), nil
	}
	l.due = now.Add(lease)
	f.due.Fix(l.index)
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
	now := time.Now()
	due := now.Add(d)
	if free := f.free(j.Line, now); free.After(due) {
		due = free
	}
	f.setDue(j.Line, due)
	return nil
}

// Take implements Queue. Nothing is written: a job that was taken by a process that died is in its
// line again.
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
	f.outs.Push(e)
	f.busy[e.line] = e
	f.setDue(e.line, e.until)
	return true, nil
}

// Sent implements Queue.
func (f *File) Sent(_ context.Context, j *Job) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.out[j.ID]; e != nil {
		f.release(e, time.Now())
	}
	return nil
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
	f.outs.Fix(e.index)
	if f.busy[e.line] == e {
		f.setDue(e.line, e.until)
	}
	return true, nil
}

// leave removes e from its line or from the jobs being sent. mu is held.
func (f *File) leave(e *entry) {
	if f.out[e.id] != nil {
		delete(f.out, e.id)
		f.outs.Remove(e.index)
		f.release(e, time.Now())
		return
	}
	f.remove(e, time.Now())
}

// Close implements Queue.
func (f *File) Close() error { return f.db.Close() }
