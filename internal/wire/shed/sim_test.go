package shed

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// processor is a server of one processor, in virtual time, with a probe that waits for its turn.
type processor struct {
	mu     sync.Mutex
	wake   chan struct{} // has one after work was added
	closed chan struct{}
	once   sync.Once
}

func newProcessor() processor {
	return processor{wake: make(chan struct{}, 1), closed: make(chan struct{})}
}

// add has f add work.
func (p *processor) add(f func()) {
	p.mu.Lock()
	f()
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// idle waits for work.
func (p *processor) idle(ctx context.Context) {
	select {
	case <-p.wake:
	case <-ctx.Done():
	}
}

// await waits for the turn of the probe, which ask asks for after d.
func (p *processor) await(d time.Duration, ask func(turn chan struct{})) error {
	select {
	case <-time.After(d):
	case <-p.closed:
		return errClosed
	}
	turn := make(chan struct{})
	p.add(func() { ask(turn) })
	select {
	case <-turn:
		return nil
	case <-p.closed:
		return errClosed
	}
}

func (p *processor) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

// station is a processor that takes what stands in line one after the other. The probe stands in
// that line as well.
type station struct {
	processor
	line []any // time.Time of a request that came then, or chan struct{} of the probe
}

func (s *station) join(now time.Time) { s.add(func() { s.line = append(s.line, now) }) }

func (s *station) wait(d time.Duration) error {
	return s.await(d, func(turn chan struct{}) { s.line = append(s.line, turn) })
}

// serve works until ctx ends, and returns how long each decided request took that came after begin,
// and how many were turned away of these.
func (s *station) serve(ctx context.Context, d *Door, begin time.Time, decide,
	refuse time.Duration) (took []time.Duration, shed int) {
	for ctx.Err() == nil {
		s.mu.Lock()
		line := s.line
		s.line = nil
		s.mu.Unlock()
		if len(line) == 0 {
			s.idle(ctx)
			continue
		}
		for _, v := range line {
			if turn, is := v.(chan struct{}); is {
				close(turn)
				time.Sleep(time.Nanosecond) // in which Line.Run takes its reading
				continue
			}
			came := v.(time.Time)
			late := d.Late(1)
			if late {
				time.Sleep(refuse)
			} else {
				time.Sleep(decide)
			}
			switch {
			case ctx.Err() != nil:
				return took, shed
			case came.Before(begin):
			case late:
				shed++
			default:
				took = append(took, time.Since(came))
			}
		}
	}
	return took, shed
}

// Where refusing costs a twenty-fifth of deciding, three times the load that a server can do leaves
// nine tenths of its decisions, and all but a hundredth of them are made in 20 ms. Below its
// capacity it turns nobody away.
func TestRush(t *testing.T) {
	const (
		decide, refuse = 100 * time.Microsecond, 4 * time.Microsecond
		warm, long     = 250 * time.Millisecond, 4 * time.Second
	)
	for _, load := range []float64{0.6, 0.9, 1.3, 3} {
		synctest.Test(t, func(t *testing.T) {
			s := &station{processor: newProcessor()}
			l := newLine(s)
			d := l.Door("rls", bound, Error)
			run(t, l)
			start := time.Now()
			ctx, cancel := context.WithDeadline(t.Context(), start.Add(long))
			defer cancel()
			random := rand.New(rand.NewPCG(1, 2))
			var coming sync.WaitGroup
			coming.Go(func() {
				mean := float64(decide) / load
				for at := time.Duration(0); at < long; at += time.Duration(random.ExpFloat64() * mean) {
					time.Sleep(time.Until(start.Add(at)))
					s.join(time.Now())
				}
			})
			took, shed := s.serve(ctx, d, start.Add(warm), decide, refuse)
			coming.Wait()
			slices.Sort(took)
			p99 := took[len(took)*99/100]
			goodput := float64(len(took)) * float64(decide) / float64(long-warm)
			t.Logf("load %v: goodput %.3f of capacity, p99 %v, %d turned away", load, goodput, p99, shed)
			if goodput < min(0.9, load*0.97) || p99 > 20*time.Millisecond {
				t.Errorf("load %v: goodput %.3f of the capacity, p99 %v", load, goodput, p99)
			}
			if load < 1 && shed > 0 {
				t.Errorf("load %v: %d were turned away", load, shed)
			}
		})
	}
}
