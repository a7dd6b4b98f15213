package redis

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/internal/waiting"
)

// The queue of compare-and-swaps of a partition. What arrives while one is under way is made
// together as the next one, in the order of arrival.

// swapCall is a decision, or some settlements, to be made by compare-and-swap. It holds copies of
// everything, since its caller may give up.
type swapCall struct {
	charges []store.Charge
	ahead   []algo.Ahead // empty if nothing may be lent
	results []algo.Result
	slots   []uint64
	// one for each of charges, which are then not decided; nil for a decision
	settlements []store.Settlement
	once        bool  // fail with errConflict after the first conflict
	asked       int64 // when the states were asked for, by the monotonic clock
	now         int64
	err         error
	abandoned   atomic.Bool   // its caller gave up
	done        chan struct{} // closed when the rest is valid
}

// swapTake is Take by compare-and-swap, of keys of one partition. With once its error is
// errConflict if another node changed the states meanwhile: that has mended what Lua could not
// decide.
func (p *partition) swapTake(
	w *waiting.Waiter, charges []store.Charge, ahead []algo.Ahead, results []algo.Result, slots []uint64, once bool,
) (*swapCall, error) {
	o := &swapCall{charges: slices.Clone(charges), ahead: slices.Clone(ahead),
		results: make([]algo.Result, len(results)), slots: slices.Clone(slots), once: once}
	if err := p.submitSwap(w, o); err != nil {
		return o, err
	}
	copy(results, o.results)
	copy(ahead, o.ahead)
	for i := range charges {
		charges[i].Ask.Slot = o.charges[i].Ask.Slot
	}
	return o, nil
}

// submitSwap queues a call, and waits for it. If its caller gives up, the call is withdrawn, or
// goes on without it.
func (p *partition) submitSwap(w *waiting.Waiter, o *swapCall) error {
	for i := range o.charges {
		o.charges[i].Key = bytes.Clone(o.charges[i].Key)
	}
	o.done = make(chan struct{})
	p.mu.Lock()
	p.swapQueue = append(p.swapQueue, o)
	start := !p.swapping
	p.swapping = true
	p.mu.Unlock()
	if start && !p.store.background(p.runSwaps) {
		p.failSwaps(errClosed)
	}
	err := w.Wait(o.done, &p.detector)
	if err == nil {
		return o.err
	}
	if p.withdraw(o) {
		o.abandoned.Store(true)
		return notChargedError{err}
	}
	select {
	case <-o.done:
		return o.err
	default:
		o.abandoned.Store(true)
		return err
	}
}

// withdraw takes a call out of the queue. It reports whether it was there, so that nothing was
// done.
func (p *partition) withdraw(o *swapCall) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.swapQueue, o)
	if i < 0 {
		return false
	}
	p.swapQueue = slices.Delete(p.swapQueue, i, i+1)
	return true
}

// failSwaps fails all calls of the queue.
func (p *partition) failSwaps(err error) {
	p.mu.Lock()
	waiting := p.swapQueue
	p.swapQueue, p.swapping = nil, false
	p.mu.Unlock()
	for _, o := range waiting {
		o.finish(err)
	}
}

func (o *swapCall) finish(err error) {
	o.err = err
	close(o.done)
}

// runSwaps works off the queue.
func (p *partition) runSwaps() {
	for {
		p.mu.Lock()
		n, charges := 0, 0
		for n < min(len(p.swapQueue), maxBatch) && (n == 0 || charges+len(p.swapQueue[n].charges) <= maxKeys) {
			charges += len(p.swapQueue[n].charges)
			n++
		}
		if n == 0 {
			p.swapQueue, p.swapping = nil, false
			p.mu.Unlock()
			return
		}
		batch := slices.Clone(p.swapQueue[:n])
		p.swapQueue = slices.Delete(p.swapQueue, 0, n)
		p.mu.Unlock()
		p.swapBatch(batch)
	}
}

// swapTimes is how long a compare-and-swap may take with all its calls, in Options.Timeout, which
// each of them may take.
const swapTimes = 4

// swapBatch makes calls as one compare-and-swap, in their order.
func (p *partition) swapBatch(batch []*swapCall) {
	ctx, cancel := context.WithTimeout(p.store.ctx, swapTimes*p.store.o.Timeout)
	defer cancel()
	select {
	case p.swapLock <- struct{}{}:
		defer func() { <-p.swapLock }()
	case <-ctx.Done():
		finish(batch, notChargedError{fmt.Errorf("redis store: %w", ctx.Err())})
		return
	}
	batch = p.swapBatchLocked(ctx, batch)
	for i := range batch {
		alone, cancel := context.WithTimeout(p.store.ctx, swapTimes*p.store.o.Timeout)
		p.swapBatchLocked(alone, batch[i:i+1])
		cancel()
	}
}

// swapBatchLocked is swapBatch for a caller that holds swapLock. It returns calls that must be made
// one by one, because their keys are on two servers while a slot is migrating; the keys of one call
// may be on one.
func (p *partition) swapBatchLocked(ctx context.Context, batch []*swapCall) (rest []*swapCall) {
	for range maxSwaps {
		done, err := p.trySwap(ctx, len(batch) > 1, func(s *swapPlan) func(int64) {
			of, asked := make([][]int, len(batch)), p.store.monotonic()
			for i, o := range batch {
				of[i] = s.addCharges(o.charges)
			}
			return func(now int64) {
				for i, o := range batch {
					o.now, o.asked = now, asked
					if o.settlements != nil {
						s.settle(o.settlements, of[i], now)
					} else {
						s.decide(o.charges, o.ahead, o.results, o.slots, of[i], now)
					}
				}
			}
		})
		if isTryAgain(err) && len(batch) > 1 {
			return batch
		}
		if err != nil || done {
			finish(batch, err)
			return nil
		}
		batch = slices.DeleteFunc(batch, func(o *swapCall) bool {
			// Nobody makes a settlement whose caller gave up: it counts as made.
			if !o.once && (o.settlements != nil || !o.abandoned.Load()) {
				return false
			}
			o.finish(errConflict)
			return true
		})
		if len(batch) == 0 {
			return nil
		}
	}
	finish(batch, fmt.Errorf("%w, %d times", errConflict, maxSwaps))
	return nil
}

func finish(batch []*swapCall, err error) {
	for _, o := range batch {
		o.finish(err)
	}
}
