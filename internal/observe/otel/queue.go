package otel

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// Bounds of a queue: how many spans may wait to be sent, and how many are sent at a time. A span
// takes about 1 KB, so a collector that is away costs a few megabytes.
const (
	maxWaiting = 2048
	maxBatch   = 512
)

// sendAfter is how long a span waits at most for others to be sent with it.
const sendAfter = time.Second

// patience is how long an export may take. The next ones wait behind it, in their queues.
const patience = 10 * time.Second

// queue sends what is put into it, in batches, one after the other. The SDK's own batch processors
// do the same, but do not say how much they dropped. Safe for concurrent use.
type queue[T any] struct {
	send    func(ctx context.Context, batch []T) error
	failed  func(err error) // takes the errors of failed sends
	waiting chan T
	dropped atomic.Uint64

	stop    func() // ends run, after it has sent what waits
	stopped chan struct{}
	ended   chan struct{}
	give    context.CancelFunc // gives up what is being sent
}

func newQueue[T any](send func(ctx context.Context, batch []T) error, failed func(err error)) *queue[T] {
	q := &queue[T]{
		send: send, failed: failed, waiting: make(chan T, maxWaiting),
		stopped: make(chan struct{}), ended: make(chan struct{}),
	}
	q.stop = sync.OnceFunc(func() { close(q.stopped) })
	var ctx context.Context
	ctx, q.give = context.WithCancel(context.Background())
	go q.run(ctx)
	return q
}

// put never waits: what does not fit is dropped, and counted.
func (q *queue[T]) put(item T) {
	select {
	case q.waiting <- item:
	default:
		q.dropped.Add(1)
	}
}

func (q *queue[T]) run(ctx context.Context) {
	defer close(q.ended)
	var batch []T
	due := time.NewTimer(sendAfter)
	due.Stop()
	send := func() {
		due.Stop()
		if len(batch) == 0 {
			return
		}
		ctx, done := context.WithTimeout(ctx, patience)
		if err := q.send(ctx, batch); err != nil {
			q.dropped.Add(uint64(len(batch)))
			q.failed(err)
		}
		done()
		batch = nil // the exporter may have kept it
	}
	take := func(item T) {
		if len(batch) == 0 {
			due.Reset(sendAfter)
		}
		if batch = append(batch, item); len(batch) == maxBatch {
			send()
		}
	}
	for {
		select {
		case item := <-q.waiting:
			take(item)
		case <-due.C:
			send()
		case <-q.stopped:
			for range len(q.waiting) {
				take(<-q.waiting)
			}
			send()
			return
		}
	}
}

// ForceFlush does nothing: nobody calls it, and Shutdown sends what waits.
func (q *queue[T]) ForceFlush(context.Context) error { return nil }

// shutdown sends what waits, and stops. What is not sent when ctx is done is lost.
func (q *queue[T]) shutdown(ctx context.Context) error {
	defer q.give()
	q.stop()
	select {
	case <-q.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// spans is a queue of spans.
type spans struct{ *queue[sdktrace.ReadOnlySpan] }

// OnStart implements sdktrace.SpanProcessor.
func (spans) OnStart(context.Context, sdktrace.ReadWriteSpan) {}

// OnEnd implements sdktrace.SpanProcessor.
func (s spans) OnEnd(span sdktrace.ReadOnlySpan) { s.put(span) }

// Shutdown implements sdktrace.SpanProcessor.
func (s spans) Shutdown(ctx context.Context) error { return s.shutdown(ctx) }
