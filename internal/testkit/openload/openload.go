// Package openload loads a running server, and measures how long its decisions take.
//
// The load is open: each request is due at a fixed instant, whatever happened to earlier requests,
// and its latency counts from that instant. So if the server stalls for a second, all requests that
// were due in that second show it. A closed loop, which sends the next request after an answer,
// would show only one.
//
// Begin with Run (openload.go); doors.go has the ways to ask a server.
package openload

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/internal/testkit/histogram"
)

// Options describe a load.
type Options struct {
	Rate    float64       // requests a second; 0: each caller sends the next after an answer
	For     time.Duration // how long requests become due
	Callers int           // requests that may be under way at a time
	Keys    int           // different keys
	Draw    Draw          // of keys
	Seed    uint64        // of keys and instants
}

// Draw says how the next key is drawn.
type Draw string

// The ways to draw keys.
const (
	Uniform Draw = "uniform" // each alike
	Zipf    Draw = "zipf"    // few keys are asked for often, with an exponent of 1.1
	InTurn  Draw = "turn"    // one after the other
)

// Bounds of Options.
const (
	maxRate    = 10_000_000
	maxFor     = time.Hour
	maxCallers = 4096
	maxKeys    = 10_000_000
)

// Check returns an error if the options make no sense.
func (o *Options) Check() error {
	switch {
	case o.Rate < 0 || o.Rate > maxRate:
		return fmt.Errorf("a rate of %v is not from 0 to %d a second", o.Rate, maxRate)
	case o.For <= 0 || o.For > maxFor:
		return fmt.Errorf("a time of %v is not above 0 and at most %v", o.For, maxFor)
	case o.Callers < 1 || o.Callers > maxCallers:
		return fmt.Errorf("%d callers are not from 1 to %d", o.Callers, maxCallers)
	case o.Keys < 1 || o.Keys > maxKeys:
		return fmt.Errorf("%d keys are not from 1 to %d", o.Keys, maxKeys)
	case o.Draw != Uniform && o.Draw != Zipf && o.Draw != InTurn:
		return fmt.Errorf("keys are drawn by %s, %s or %s, not %q", Uniform, Zipf, InTurn, string(o.Draw))
	}
	return nil
}

// Asker asks a server. One goroutine uses it at a time.
type Asker interface {
	// Ask sends a request with the key of that number, from 0. An error is a failure, not a
	// refusal.
	Ask(ctx context.Context, key int) (allowed bool, err error)
}

// Result is the result of a load.
type Result struct {
	Allowed, Refused, Failed int64
	// Unsent is how many requests were due but not sent, because all callers waited for answers
	// until the end. They are not in Latency, which is too good then.
	Unsent  int64
	Latency histogram.Histogram // of answered requests: since due or, without Rate, since sent
	Took    time.Duration       // from the first instant to the last answer, at most For and the patience
	Failure error               // the first one
}

// Answered is how many requests were allowed or refused.
func (r *Result) Answered() int64 { return r.Allowed + r.Refused }

// patience is how long to wait for answers after the last request was due.
const patience = 5 * time.Second

// failures is how many failures of one caller in a row end a load: there is no server then.
const failures = 100

var errGone = errors.New("the server fails again and again")

// Run loads a server. There is an Asker for each of o.Callers. done, unless nil, counts the answers
// so far. An error means that there is no result.
func Run(ctx context.Context, o *Options, askers []Asker, done *atomic.Int64) (*Result, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	if len(askers) != o.Callers {
		return nil, fmt.Errorf("openload: there are %d askers for %d callers", len(askers), o.Callers)
	}
	if done == nil {
		done = new(atomic.Int64)
	}
	l := &load{o: o, askers: askers, done: done, last: int64(o.Rate * o.For.Seconds())}
	return l.run(ctx)
}

// load is a load under way.
type load struct {
	o      *Options
	askers []Asker
	done   *atomic.Int64
	start  time.Time
	last   int64        // number of requests that become due; with a rate
	next   atomic.Int64 // number of the next request
}

func (l *load) run(ctx context.Context) (*Result, error) {
	l.start = time.Now()
	ctx, cancel := context.WithDeadline(ctx, l.start.Add(l.o.For+patience))
	defer cancel()
	results := make([]Result, len(l.askers))
	errs := make([]error, len(l.askers))
	var running sync.WaitGroup
	for i := range l.askers {
		running.Go(func() {
			if errs[i] = l.call(ctx, i, &results[i]); errors.Is(errs[i], errGone) {
				cancel()
			}
		})
	}
	running.Wait()
	sum := &Result{Took: time.Since(l.start)}
	for i := range results {
		r := &results[i]
		sum.Allowed += r.Allowed
		sum.Refused += r.Refused
		sum.Failed += r.Failed
		sum.Latency.Merge(&r.Latency)
		if sum.Failure == nil {
			sum.Failure = r.Failure
		}
	}
	if l.o.Rate > 0 {
		sum.Unsent = max(0, l.last-sum.Answered()-sum.Failed)
	}
	for _, err := range errs {
		if errors.Is(err, errGone) {
			return sum, fmt.Errorf("%w: %w", err, sum.Failure)
		}
	}
	if err := ctx.Err(); errors.Is(err, context.Canceled) {
		return sum, err
	}
	return sum, nil
}

// call is a caller: it sends the next request until there is none.
func (l *load) call(ctx context.Context, caller int, r *Result) error {
	draw := l.draw(caller)
	timer := time.NewTimer(0)
	defer timer.Stop()
	inRow := 0
	for {
		due, number := time.Now(), l.next.Add(1)-1
		if l.o.Rate > 0 {
			if number >= l.last {
				return nil
			}
			due = l.due(number)
			if wait := time.Until(due); wait > 0 {
				timer.Reset(wait)
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-timer.C:
				}
			}
		} else if due.Sub(l.start) >= l.o.For {
			return nil
		}
		if err := Over(ctx); err != nil {
			return err
		}
		allowed, err := l.askers[caller].Ask(ctx, draw(number))
		took := time.Since(due)
		switch {
		case err != nil && Over(ctx) != nil:
			return Over(ctx) // without an answer at the end
		case err != nil:
			if r.Failed++; r.Failure == nil {
				r.Failure = err
			}
			if inRow++; inRow == failures {
				return errGone
			}
			l.done.Add(1)
			continue
		case allowed:
			r.Allowed++
		default:
			r.Refused++
		}
		inRow = 0
		r.Latency.Add(took, 1)
		l.done.Add(1)
	}
}

// Over returns the error of ctx. It does so even in the moment in which the deadline has passed and
// ctx does not say so yet: a client that looks at the clock itself fails its calls then.
func Over(ctx context.Context) error {
	if end, ok := ctx.Deadline(); ok && ctx.Err() == nil && !time.Now().Before(end) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// due returns the instant at which a request is due: at random within its part of the time. So
// requests come as from many clients, and all loads have the same number of them.
func (l *load) due(number int64) time.Time {
	within := rand.New(rand.NewPCG(l.o.Seed, uint64(number))).Float64()
	return l.start.Add(time.Duration((float64(number) + within) / l.o.Rate * float64(time.Second)))
}

// draw returns a function that draws the key of the request with a number, for a caller.
func (l *load) draw(caller int) func(number int64) int {
	r := rand.New(rand.NewPCG(l.o.Seed, ^uint64(caller)))
	switch l.o.Draw {
	case Zipf:
		z := rand.NewZipf(r, 1.1, 1, uint64(l.o.Keys-1))
		return func(int64) int { return int(z.Uint64()) }
	case InTurn:
		return func(number int64) int { return int(number % int64(l.o.Keys)) }
	}
	return func(int64) int { return r.IntN(l.o.Keys) }
}
