package deferred

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/internal/util/sparselog"
)

// Options configure NewWorker. Ask and Send are required; the zero value of all else is right for
// most.
type Options struct {
	// Ask asks the limits whether a job may be forwarded now. If so, leave is called when the job
	// is not, or has been; it may be nil. If not, retry is when to ask again, or below 0 for never.
	Ask func(ctx context.Context, j *Job) (ok bool, leave func(), retry time.Duration, err error)
	// Send forwards a job and returns the status of the answer; 0 with an error if there is none.
	Send func(ctx context.Context, j *Job) (status int, err error)
	// Parallel bounds the jobs that are being forwarded at a time; 0 means 64.
	Parallel int
	// Attempts is how often a job is sent before it is given up; 0 means 8.
	Attempts int
	// Backoff is the pause after the first failed attempt, which doubles with each; 0 means 1 s, at
	// most 5 min. A random half of it is left out, so that jobs that failed together do not return
	// together.
	Backoff time.Duration
	// MaxAge is how old a job may become before it is given up; 0 means a day.
	MaxAge time.Duration
	// Timeout bounds one attempt; 0 means 5 min.
	Timeout time.Duration
	// Lease is how long a worker that died keeps its jobs from others; one that lives renews it. 0
	// means 5 s.
	Lease time.Duration
	// Grace is how long jobs under way may take when Run is to end; 0 means 5 s.
	Grace time.Duration
	// Logf logs messages for an operator; nil means no logging.
	Logf func(format string, args ...any)
}

const maxBackoff = 5 * time.Minute

// Worker forwards the jobs of a queue. Make one with NewWorker.
type Worker struct {
	q     Queue
	o     Options
	wake  chan struct{}
	stats struct{ sent, done, again, failed, postponed, full, share atomic.Uint64 }
	lines struct{ again, failed sparselog.Line } // of the log: clients decide how many jobs there are
}

// WorkerStats count the work of a worker, and requests for which the queue had no room: Full, and
// Share where it had none for their lines.
type WorkerStats struct{ Sent, Done, Again, Failed, Postponed, Full, Share uint64 }

// NewWorker returns a worker. Run runs it.
func NewWorker(q Queue, o Options) *Worker {
	if o.Parallel == 0 {
		o.Parallel = 64
	}
	if o.Attempts == 0 {
		o.Attempts = 8
	}
	if o.Backoff == 0 {
		o.Backoff = time.Second
	}
	if o.MaxAge == 0 {
		o.MaxAge = 24 * time.Hour
	}
	if o.Lease == 0 {
		o.Lease = 5 * time.Second
	}
	if o.Grace == 0 {
		o.Grace = 5 * time.Second
	}
	if o.Timeout == 0 {
		o.Timeout = 5 * time.Minute
	}
	if o.Logf == nil {
		o.Logf = func(string, ...any) {}
	}
	return &Worker{q: q, o: o, wake: make(chan struct{}, 1)}
}

// Wake makes the worker look at once, after a Put.
func (w *Worker) Wake() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Stats returns the counts so far.
func (w *Worker) Stats() WorkerStats {
	s := &w.stats
	return WorkerStats{s.sent.Load(), s.done.Load(), s.again.Load(), s.failed.Load(), s.postponed.Load(), s.full.Load(),
		s.share.Load()}
}

// NoRoom counts a request that was refused since Put returned err, an ErrFull.
func (w *Worker) NoRoom(err error) {
	if errors.Is(err, ErrShare) {
		w.stats.share.Add(1)
	} else {
		w.stats.full.Add(1)
	}
}

const (
	// lineLease is how long a line is kept from other workers while the limits are asked.
	lineLease = 10 * time.Second
	// maxIdle is the longest pause between two looks, since a job may also come from another
	// process.
	maxIdle = time.Second
)

// Run forwards jobs until ctx ends, and returns when those under way have ended.
func (w *Worker) Run(ctx context.Context) {
	var sending sync.WaitGroup
	defer sending.Wait()
	room := make(chan struct{}, w.o.Parallel)
	for failing := false; ; {
		select {
		case room <- struct{}{}: // a job that is taken can be sent at once
		case <-ctx.Done():
			return
		}
		j, leave, wait, err := w.next(ctx)
		if j != nil {
			failing = false
			sending.Go(func() {
				defer func() { <-room }()
				defer leave()
				w.send(ctx, j)
			})
			continue
		}
		<-room
		if err != nil && ctx.Err() == nil {
			if !failing {
				w.o.Logf("%v; trying again", err)
			}
			failing, wait = true, maxIdle
		} else {
			failing = false
		}
		if wait <= 0 {
			continue
		}
		timer := time.NewTimer(min(wait, maxIdle))
		select {
		case <-timer.C:
		case <-w.wake:
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// next takes a job that may be forwarded now out of its line. If there is none, wait is the time
// until there may be one.
func (w *Worker) next(ctx context.Context) (j *Job, leave func(), wait time.Duration, err error) {
	if j, wait, err = w.q.Next(ctx, lineLease); err != nil || j == nil {
		return nil, nil, wait, err
	}
	if time.Since(j.Queued) > w.o.MaxAge {
		return nil, nil, 0, w.fail(ctx, j, 0, "it became too old")
	}
	ok, leave, retry, err := w.o.Ask(ctx, j)
	if leave == nil {
		leave = func() {}
	}
	switch {
	case err != nil:
		_ = w.q.Postpone(ctx, j, maxIdle) // else it is due again when the lease of its line ends
		return nil, nil, maxIdle, err
	case !ok && retry < 0:
		return nil, nil, 0, w.fail(ctx, j, 0, "the limits never admit it")
	case !ok:
		w.stats.postponed.Add(1)
		return nil, nil, 0, w.q.Postpone(ctx, j, max(retry, time.Microsecond))
	}
	if ok, err = w.q.Take(ctx, j, w.o.Lease); err != nil || !ok {
		leave()
		return nil, nil, 0, err
	}
	return j, leave, 0, nil
}

// keep renews the lease of a job until ctx ends.
func (w *Worker) keep(ctx context.Context, j *Job) {
	renew := time.NewTicker(w.o.Lease / 3)
	defer renew.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-renew.C:
			_, _ = w.q.Keep(ctx, j, w.o.Lease) // one that is lost is sent twice, as is promised
		}
	}
}

// send makes one attempt. When ctx ends it has some time left; then it goes back into its line.
func (w *Worker) send(ctx context.Context, j *Job) {
	parent := ctx
	ctx = context.WithoutCancel(ctx)
	limited, cancel := context.WithTimeout(ctx, w.o.Timeout)
	stop := context.AfterFunc(parent, func() { time.AfterFunc(w.o.Grace, cancel) })
	defer stop()
	var keeping sync.WaitGroup
	keeping.Go(func() { w.keep(limited, j) })
	w.stats.sent.Add(1)
	status, err := w.o.Send(limited, j)
	cancel()
	keeping.Wait()
	why := ""
	if err != nil {
		why = err.Error()
	}
	// Not named cancel: a callback at the end of parent may call that one at any time.
	finish, finished := context.WithTimeout(ctx, 10*time.Second)
	defer finished()
	// The next job of the line need not wait until the end of this one is on disk. If this fails,
	// it waits for that.
	_ = w.q.Sent(finish, j)
	w.Wake()
	defer w.Wake()
	switch {
	case err == nil && !temporary(status):
		w.stats.done.Add(1)
		err = w.q.Done(finish, j, status)
	case err != nil && parent.Err() != nil:
		w.stats.again.Add(1)
		err = w.q.Again(finish, j, backoff(w.o.Backoff, 0), status, "the server was stopped")
	case j.Attempts+1 >= w.o.Attempts:
		err = w.fail(finish, j, status, why)
	default:
		w.stats.again.Add(1)
		err = w.q.Again(finish, j, backoff(w.o.Backoff, j.Attempts), status, why)
	}
	if err != nil {
		if n := w.lines.again.Due(time.Minute); n > 0 {
			w.o.Logf("deferred: job %s will be sent once more (%d such since the last line): %s", j.ID, n,
				sparselog.Excerpt(err.Error()))
		}
	}
}

func (w *Worker) fail(ctx context.Context, j *Job, status int, why string) error {
	w.stats.failed.Add(1)
	if n := w.lines.failed.Due(time.Minute); n > 0 { // /api/v1/deferred lists all
		w.o.Logf("deferred: job %s of %s is given up after %d attempts (status %d, %s; %d such since the last line)",
			j.ID, j.Queue, j.Attempts, status, sparselog.Excerpt(why), n)
	}
	return w.q.Fail(ctx, j, status, why)
}

// temporary reports whether an answer is worth another attempt.
func temporary(status int) bool {
	return status == 408 || status == 425 || status == 429 || status >= 500 && status != 501 && status != 505
}

// backoff is the pause after some attempts that failed: half of it random.
func backoff(first time.Duration, before int) time.Duration {
	d := min(first, maxBackoff)
	for range before {
		if d = min(2*d, maxBackoff); d == maxBackoff {
			break
		}
	}
	return d/2 + rand.N(d/2+1)
}
