package redis

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
)

// oddCall is a decision, or some settlements, made by compare-and-swap. What it holds is its own, since its caller may give up.
type oddCall struct {
	ctx         context.Context // of its caller
	charges     []weir.Charge
	results     []algo.Result
	slots       []uint64
	settlements []weir.Settlement // of charges, which are then not decided; nil for a decision
	once        bool
	now         int64
	err         error
	done        chan struct{} // closed when the rest is valid
}

// swapTake is Take by compare-and-swap. All keys are of one partition. Those that are asked for while one is under way go
// together. once: its error is errOvertaken if others came between, who have put right what was odd.
func (p *partition) swapTake(ctx context.Context, charges []weir.Charge, results []algo.Result, slots []uint64, once bool) (int64, error) {
	o := &oddCall{ctx: ctx, charges: slices.Clone(charges), results: make([]algo.Result, len(results)), slots: slices.Clone(slots), once: once}
	if err := p.await(o); err != nil {
		return 0, err
	}
	copy(results, o.results)
	for i := range charges {
		charges[i].Ask.Slot = o.charges[i].Ask.Slot
	}
	return o.now, nil
}

// await has a call made, and waits for it.
func (p *partition) await(o *oddCall) error {
	for i := range o.charges {
		o.charges[i].Key = bytes.Clone(o.charges[i].Key)
	}
	o.done = make(chan struct{})
	p.mu.Lock()
	p.odd = append(p.odd, o)
	start := !p.settles
	p.settles = true
	p.mu.Unlock()
	if start && !p.store.background(p.settleOdd) {
		p.failOdd(errClosed)
	}
	select {
	case <-o.done:
	case <-o.ctx.Done():
		if p.withdraw(o) {
			return notCharged{o.ctx.Err()}
		}
		select {
		case <-o.done:
		default:
			return o.ctx.Err()
		}
	}
	return o.err
}

// withdraw takes back a call of which nothing was done yet.
func (p *partition) withdraw(o *oddCall) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.odd, o)
	if i < 0 {
		return false
	}
	p.odd = slices.Delete(p.odd, i, i+1)
	return true
}

// failOdd answers all that wait.
func (p *partition) failOdd(err error) {
	p.mu.Lock()
	waiting := p.odd
	p.odd, p.settles = nil, false
	p.mu.Unlock()
	for _, o := range waiting {
		o.finish(err)
	}
}

func (o *oddCall) finish(err error) {
	o.err = err
	close(o.done)
}

// settleOdd settles what waits, until nothing does.
func (p *partition) settleOdd() {
	for {
		p.mu.Lock()
		n, charges := 0, 0
		for n < min(len(p.odd), maxBatch) && (n == 0 || charges+len(p.odd[n].charges) <= maxKeys) {
			charges += len(p.odd[n].charges)
			n++
		}
		if n == 0 {
			p.odd, p.settles = nil, false
			p.mu.Unlock()
			return
		}
		batch := slices.Clone(p.odd[:n])
		p.odd = slices.Delete(p.odd, 0, n)
		p.mu.Unlock()
		p.settleTogether(batch)
	}
}

// settleTogether makes decisions as one swap, in their order.
func (p *partition) settleTogether(batch []*oddCall) {
	ctx, cancel := context.WithTimeout(p.store.ctx, p.store.o.Timeout)
	defer cancel()
	select {
	case p.swaps <- struct{}{}:
		defer func() { <-p.swaps }()
	case <-ctx.Done():
		finish(batch, notCharged{fmt.Errorf("redis store: %w", ctx.Err())})
		return
	}
	batch = p.settleHeld(ctx, batch)
	for i := range batch {
		alone, cancel := context.WithTimeout(p.store.ctx, p.store.o.Timeout)
		p.settleHeld(alone, batch[i:i+1])
		cancel()
	}
}

// settleHeld is settleTogether for whoever holds swaps. It returns decisions that are to be made one by one, since keys of several
// lie on two servers for now: those of one may be all on one.
func (p *partition) settleHeld(ctx context.Context, batch []*oddCall) (rest []*oddCall) {
	for range maxSwaps {
		done, err := p.trySwap(ctx, len(batch) > 1, func(s *scene) func(int64) {
			of := make([][]int, len(batch))
			for i, o := range batch {
				of[i] = s.addCharges(o.charges)
			}
			return func(now int64) {
				for i, o := range batch {
					o.now = now
					if o.settlements != nil {
						s.replace(o.settlements, of[i], now)
					} else {
						s.settle(o.charges, o.results, o.slots, of[i], now)
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
		batch = slices.DeleteFunc(batch, func(o *oddCall) bool {
			switch {
			case o.once:
				o.finish(errOvertaken)
			case o.ctx.Err() != nil:
				o.finish(notCharged{o.ctx.Err()})
			default:
				return false
			}
			return true
		})
		if len(batch) == 0 {
			return nil
		}
	}
	finish(batch, fmt.Errorf("%w, %d times", errOvertaken, maxSwaps))
	return nil
}

func finish(batch []*oddCall, err error) {
	for _, o := range batch {
		o.finish(err)
	}
}
