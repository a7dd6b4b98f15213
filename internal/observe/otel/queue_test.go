package otel

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestQueue: what is put goes in order, in batches of bounded size, at the latest a second later.
func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		batches := make(chan []int, 8)
		q := newQueue(func(_ context.Context, batch []int) error {
			batches <- batch
			return nil
		}, func(err error) { t.Error(err) })
		q.put(1)
		q.put(2)
		time.Sleep(sendAfter - 1)
		q.put(3)
		synctest.Wait()
		if len(batches) != 0 {
			t.Errorf("%v went early", <-batches)
		}
		time.Sleep(time.Nanosecond)
		if sent := <-batches; !slices.Equal(sent, []int{1, 2, 3}) {
			t.Errorf("sent %v", sent)
		}
		for i := range maxBatch + 1 {
			q.put(i)
		}
		synctest.Wait()
		if n := len(batches); n != 1 || len(<-batches) != maxBatch {
			t.Errorf("%d batches, though one was full", n)
		}
		if err := q.shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		if sent := <-batches; !slices.Equal(sent, []int{maxBatch}) {
			t.Errorf("at the end %v was sent", sent)
		}
		if n := q.dropped.Load(); n != 0 {
			t.Errorf("%d dropped", n)
		}
	})
}

// TestQueueDrops: what does not fit while a send hangs is counted, and so is what a send had that
// failed; who puts does not wait, and later sends go on.
func TestQueueDrops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hangs atomic.Bool
		var sent, failures atomic.Int64
		hangs.Store(true)
		q := newQueue(func(ctx context.Context, batch []int) error {
			if hangs.Load() {
				<-ctx.Done()
				return ctx.Err()
			}
			sent.Add(int64(len(batch)))
			return nil
		}, func(err error) {
			if failures.Add(1); !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
		const more = 100
		q.put(0)
		time.Sleep(sendAfter)
		synctest.Wait() // the first one is under way
		begin := time.Now()
		for i := range maxWaiting + more {
			q.put(i)
		}
		if waited := time.Since(begin); waited != 0 || q.dropped.Load() != more {
			t.Errorf("put waited %v; %d dropped, want %d", waited, q.dropped.Load(), more)
		}
		hangs.Store(false)
		time.Sleep(patience)
		synctest.Wait()
		if q.dropped.Load() != more+1 || failures.Load() != 1 || sent.Load() != maxWaiting {
			t.Errorf("%d dropped, %d failures, %d sent", q.dropped.Load(), failures.Load(), sent.Load())
		}
		// The end does not wait longer than it may.
		hangs.Store(true)
		q.put(0)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := q.shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		<-q.ended
		if q.dropped.Load() != more+2 {
			t.Errorf("%d dropped, want %d", q.dropped.Load(), more+2)
		}
	})
}
