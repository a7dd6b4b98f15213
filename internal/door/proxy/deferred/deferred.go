// Package deferred is a durable queue of requests that were refused for now. A worker forwards them
// later, as fast as the limits allow, at least once each.
//
// Requests stand in lines, one for each key of a limit, in the order in which they came, and leave
// them one after the other. Lines take turns, so that one client's many requests do not hold up
// another's. A Queue keeps them where they outlast the process: in a file (OpenFile), or in Redis
// (NewRedis) or PostgreSQL (NewPostgres), where the workers of all nodes share them. A Worker
// forwards them.
//
// Begin with Queue (deferred.go), the contract of all of these, and Worker.Run (worker.go).
package deferred

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// Job is a request that waits to be forwarded. Its contents may be secret (cookies, bodies): they
// are for the queue's storage only.
type Job struct {
	ID         string              `json:"id"`    // of the ticket; not to be guessed
	Queue      string              `json:"queue"` // the name that the rule gives
	Line       string              `json:"line"`  // the limit and key that refused it
	Queued     time.Time           `json:"queued"`
	Domain     string              `json:"domain,omitempty"`
	Attributes map[string]string   `json:"attributes"` // with which the limits are asked again
	Method     string              `json:"method"`
	URI        string              `json:"uri"` // path and query, as they came
	Host       string              `json:"host,omitempty"`
	Proto      string              `json:"proto,omitempty"` // http or https, as the client asked
	RemoteAddr string              `json:"remote_addr,omitempty"`
	Header     map[string][]string `json:"header,omitempty"`
	Body       []byte              `json:"body,omitempty"`

	Attempts int `json:"-"` // how often it was sent before
}

// State is where a job is.
type State string

// The states. Failed jobs are dead letters, until they are retried or dropped.
const (
	Queued State = "queued" // in its line, or waiting for another attempt
	Active State = "active" // being forwarded
	Done   State = "done"   // the upstream has answered; Ticket.Status has the status
	Failed State = "failed" // given up
)

// Ticket is the part of a job that any holder of its ID may see.
type Ticket struct {
	ID       string    `json:"id"`
	Queue    string    `json:"queue"`
	State    State     `json:"state"`
	Queued   time.Time `json:"queued"`
	Ended    time.Time `json:"ended,omitzero"`
	Attempts int       `json:"attempts"`
	Status   int       `json:"status,omitempty"` // of the upstream's last answer
	Error    string    `json:"error,omitempty"`  // why the last attempt failed
}

// Bounds of a queue. The zero value of each means its default.
type Bounds struct {
	Jobs  int   // jobs that are not done, dead letters aside; 0 means 100,000
	Bytes int64 // of them; 0 means 1 GiB
	// dead letters, of as many bytes again; the oldest make room for new ones; 0 means 10,000, more
	// than anybody looks through
	Dead int
	// how long the ticket of a done job, and a dead letter, is kept; 0 means a day
	Keep time.Duration
}

func (b Bounds) filled() Bounds {
	if b.Jobs == 0 {
		b.Jobs = 100_000
	}
	if b.Bytes == 0 {
		b.Bytes = 1 << 30
	}
	if b.Dead == 0 {
		b.Dead = 10_000
	}
	if b.Keep == 0 {
		b.Keep = 24 * time.Hour
	}
	return b
}

func (b Bounds) check() error {
	if b.Jobs < 0 || b.Bytes < 0 || b.Dead < 0 || b.Keep < 0 {
		return fmt.Errorf("deferred: the bounds %+v must not be negative; 0 means the default", b)
	}
	return nil
}

// Errors of a Queue.
var (
	ErrFull = errors.New("deferred: the queue is full")
	// ErrShare is an ErrFull of one line alone.
	ErrShare  = fmt.Errorf("%w for this line, which leaves the rest to others", ErrFull)
	ErrGone   = errors.New("deferred: there is no such job")
	ErrActive = errors.New("deferred: the job is being forwarded just now; try again")
)

// fit says whether a job of a size fits beside all jobs that are not done, and beside the ones of
// its line: nil, ErrFull or ErrShare. The other queues say the same in their languages.
func (b *Bounds) fit(size int64, all, line sum) error {
	jobs, bytes := b.Jobs-all.jobs-1, b.Bytes-all.bytes-size
	switch {
	case jobs < 0 || bytes < 0:
		return ErrFull
	case line.jobs > jobs || line.bytes > bytes:
		return ErrShare
	}
	return nil
}

// sum is a number of jobs, and their bytes.
type sum struct {
	jobs  int
	bytes int64
}

func (s *sum) add(sign int, size int64) {
	s.jobs += sign
	s.bytes += int64(sign) * size
}

// Stats are a reading of a queue.
type Stats struct {
	Jobs, Dead int
	Bytes      int64
	Oldest     time.Time // when the oldest job came; zero if there is none
}

// Queue keeps jobs. Implementations are safe for concurrent use, and for the workers of several
// processes if they say so. A job is in one line, or out (admitted, but not done), or dead, or
// done. One that is out for longer than its lease goes back to the end of its line: its worker has
// died, or its next attempt is due.
type Queue interface {
	// Put adds a job at the end of its line. When it returns nil the job is durable. The error is
	// ErrFull at the bounds, and ErrShare where the line has as many jobs or bytes as would be left
	// to all others: so one line alone fills half of the queue, and the next one half of the rest.
	Put(ctx context.Context, j *Job) error
	// Next returns the head of a line that is due, and reserves the line for the lease. If none is
	// due, j is nil, and wait is the longest time until one is.
	Next(ctx context.Context, lease time.Duration) (j *Job, wait time.Duration, err error)
	// Postpone makes the line of a head that Next returned due again after d, or, if that is later,
	// when the job of the line that is being sent has been sent.
	Postpone(ctx context.Context, j *Job, d time.Duration) error
	// Take takes the head out of its line; ok is false if another worker has it. The line is due
	// again after a call of Sent, Done, Again or Fail for the job, or when the lease ends: so the
	// jobs of a line are sent one after the other.
	Take(ctx context.Context, j *Job, lease time.Duration) (ok bool, err error)
	// Sent lets the next job of a line go: an attempt to send a job that is out has ended, though
	// not yet the job.
	Sent(ctx context.Context, j *Job) error
	// Keep makes the lease of a job that is out last for d from now; ok is false if it is not out
	// any more.
	Keep(ctx context.Context, j *Job, d time.Duration) (ok bool, err error)
	// Done ends a job that is out.
	Done(ctx context.Context, j *Job, status int) error
	// Again puts a job that is out back into its line after d; why is for its ticket.
	Again(ctx context.Context, j *Job, d time.Duration, status int, why string) error
	// Fail makes a job, in its line or out, a dead letter.
	Fail(ctx context.Context, j *Job, status int, why string) error

	// Ticket returns the ticket of a job; the error is ErrGone if there is none.
	Ticket(ctx context.Context, id string) (Ticket, error)
	// List returns up to n tickets in a state, the oldest first.
	List(ctx context.Context, s State, n int) ([]Ticket, error)
	// Retry puts a dead letter back at the end of its line, as if it had never been sent.
	Retry(ctx context.Context, id string) error
	// Drop forgets a job that is not being forwarded.
	Drop(ctx context.Context, id string) error
	Stats(ctx context.Context) (Stats, error)
	Close() error
}

// NewID returns an ID of 128 random bits.
func NewID() string {
	var raw [16]byte
	_, _ = rand.Read(raw[:]) // never fails
	return hex.EncodeToString(raw[:])
}

// ValidID reports whether id has the form of NewID.
func ValidID(id string) bool {
	raw, err := hex.DecodeString(id)
	return err == nil && len(raw) == 16 && id == hex.EncodeToString(raw)
}
