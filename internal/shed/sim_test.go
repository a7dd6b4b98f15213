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

// station is a server of one processor, in virtual time: it takes what stands in line one after the
// other. It is a probe as well, which stands in that line.
type station struct {
	mu     sync.Mutex
	line   []any // time.Time of a request that came then, or chan struct{} of the probe
	wake   chan struct{}
	closed chan struct{}
	once   sync.Once
}

func (s *station) join(v any) {
	s.mu.Lock()
	s.line = append(s.line, v)
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *station) wait(d time.Duration) error {
	turn := make(chan struct{})
	select {
	case <-time.After(d):
		s.join(turn)
	case <-s.closed:
		return errClosed
	}
	select {
	case <-turn:
		return nil
	case <-s.closed:
		return errClosed
	}
}

func (s *station) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

// serve works until ctx ends, and returns how long each decided request took that came after begin,
// and how many were turned away of these.
func (s *station) serve(ctx context.Context, d *Door, begin time.Time, decide, refuse time.Duration) (took []time.Duration, shed int) {
	for ctx.Err() == nil {
		s.mu.Lock()
		line := s.line
		s.line = nil
		s.mu.Unlock()
		if len(line) == 0 {
			select {
			case <-s.wake:
			case <-ctx.Done():
			}
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
			s := &station{wake: make(chan struct{}, 1), closed: make(chan struct{})}
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
