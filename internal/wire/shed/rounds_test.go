package shed

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/internal/testkit/effort"
)

// rounds is a processor with connections, as the scheduler of Go runs one: it looks which
// connections can be read, and then has the goroutine of each read all that has come there, and
// decide it, before it looks again, or 10 ms later.
type rounds struct {
	processor
	conns [][]time.Time // what has come, and is not read
	ready []int         // connections that can be read, in the order in which they became so; -1 is the probe
	turn  chan struct{}
}

func (s *rounds) join(conn int, now time.Time) {
	s.add(func() {
		if !slices.Contains(s.ready, conn) && len(s.conns[conn]) == 0 {
			s.ready = append(s.ready, conn)
		}
		s.conns[conn] = append(s.conns[conn], now)
	})
}

func (s *rounds) wait(d time.Duration) error {
	return s.await(d, func(turn chan struct{}) { s.turn, s.ready = turn, append(s.ready, -1) })
}

type outcome struct {
	took, settled, refused []time.Duration
}

// worker is one that takes a request of the queue.
type worker struct{}

func (s *rounds) serve(ctx context.Context, d *Door, begin time.Time, decide, refuse, read time.Duration,
	away bool) (o outcome) {
	batches := make([]Batch, len(s.conns))
	queue := NewQueue[time.Time](d)
	poll := func() (l []any) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, i := range s.ready {
			l = append(l, i)
		}
		s.ready = nil
		return l
	}
	note := func(came time.Time, late bool) {
		took := time.Since(came)
		if late {
			o.refused = append(o.refused, took)
			return
		}
		o.took = append(o.took, took)
		if came.After(begin) {
			o.settled = append(o.settled, took)
		}
	}
	for ctx.Err() == nil {
		list := poll()
		if len(list) == 0 {
			s.idle(ctx)
			continue
		}
		polled := time.Now()
		for n := 0; n < len(list); n++ {
			if time.Since(polled) > 10*time.Millisecond {
				// the scheduler looks there every 61 turns
				at := len(list)
				if away {
					at = min(n+61, at)
				}
				list = slices.Insert(list, at, poll()...)
				polled = time.Now()
			}
			if _, is := list[n].(worker); is {
				came, late := queue.Take()
				if late {
					time.Sleep(refuse)
				} else {
					time.Sleep(decide)
				}
				note(came, late)
				continue
			}
			i := list[n].(int)
			if i < 0 {
				close(s.turn)
				time.Sleep(time.Nanosecond)
				continue
			}
			for {
				time.Sleep(read)
				s.mu.Lock()
				batch := s.conns[i]
				if len(batch) > 980 {
					batch = batch[:980:980]
				}
				s.conns[i] = s.conns[i][len(batch):]
				s.mu.Unlock()
				if len(batch) == 0 {
					break
				}
				b := &batches[i]
				now := time.Now()
				lates := make([]bool, len(batch))
				for k := range batch {
					lates[k] = b.Late(d)
					if lates[k] {
						time.Sleep(refuse)
					} else if !away {
						time.Sleep(decide)
					} else {
						queue.Put(b.Since(now), batch[k])
						list = append(list, worker{})
					}
				}
				b.End(d)
				if ctx.Err() != nil {
					return o
				}
				for k, came := range batch {
					if lates[k] || !away {
						note(came, lates[k])
					}
				}
			}
		}
	}
	return o
}

func quantile(l []time.Duration, q float64) time.Duration {
	if len(l) == 0 {
		return 0
	}
	slices.Sort(l)
	return l[int(float64(len(l))*q)]
}

// As TestRush, on connections, with requests decided at once and away from them: what a connection
// has read before it was its turn, and what waits in a Queue, is in no order of arrival. A few
// connections with many requests each, as gRPC has them, or many with one.
func TestRounds(t *testing.T) {
	const long, decide = 3 * time.Second, 30 * time.Microsecond
	for _, c := range []struct {
		name         string
		conns        int
		refuse, read time.Duration
		away         bool
		quick        float64 // the load of a quick run
	}{
		{"calls", 16, time.Microsecond / 2, 5 * time.Microsecond, false, 1.3},
		{"calls, decided away", 16, time.Microsecond / 2, 5 * time.Microsecond, true, 1.3},
		{"requests", 600, time.Microsecond / 2, time.Microsecond / 2, false, 0.9},
	} {
		for _, load := range effort.Of([]float64{c.quick}, []float64{0.6, 0.9, 1.3, 3}) {
			synctest.Test(t, func(t *testing.T) {
				s := &rounds{processor: newProcessor(), conns: make([][]time.Time, c.conns)}
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
						if wait := time.Until(start.Add(at)); wait > 20*time.Microsecond {
							time.Sleep(wait)
						}
						s.join(random.IntN(c.conns), time.Now())
					}
				})
				o := s.serve(ctx, d, start.Add(500*time.Millisecond), decide, c.refuse, c.read, c.away)
				coming.Wait()
				all := len(o.took)
				p99, settled := quantile(o.took, 0.99), quantile(o.settled, 0.99)
				inTime, _ := slices.BinarySearch(o.took, 20*time.Millisecond)
				goodput := float64(inTime) * float64(decide) / float64(long)
				t.Logf(
					"%s, load %v: goodput %.3f of capacity, p99 %v, after the beginning %v, %d decided, %d turned away", c.name, load, goodput, p99, settled, all, len(o.refused))
				if goodput < min(0.9, load*0.97) || settled > 20*time.Millisecond {
					t.Errorf("%s, load %v: goodput %.3f of the capacity, p99 %v, after the beginning %v", c.name, load,
						goodput, p99, settled)
				}
				if load < 1 && len(o.refused) > 0 {
					t.Errorf("%s, load %v: %d were turned away", c.name, load, len(o.refused))
				}
			})
		}
	}
}
