package overload

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// server is a server with workers and a queue before them; contention makes a request take longer,
// the more are waiting.
type server struct {
	mu         sync.Mutex
	workers    int
	busy       int
	queue      []chan struct{}
	contention float64 // share of the time added for each that waits, per worker
	takes      func() time.Duration
}

func (s *server) serve() {
	s.mu.Lock()
	if s.busy >= s.workers {
		turn := make(chan struct{})
		s.queue = append(s.queue, turn)
		s.mu.Unlock()
		<-turn
		s.mu.Lock()
	} else {
		s.busy++
	}
	d := s.takes()
	d += time.Duration(float64(d) * s.contention * float64(len(s.queue)) / float64(s.workers))
	s.mu.Unlock()
	time.Sleep(d)
	s.mu.Lock()
	if len(s.queue) > 0 && s.busy <= s.workers {
		close(s.queue[0])
		s.queue = s.queue[1:]
	} else {
		s.busy--
	}
	s.mu.Unlock()
}

// resize changes how many workers there are.
func (s *server) resize(workers int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.workers = workers
	for s.busy < workers && len(s.queue) > 0 {
		s.busy++
		close(s.queue[0])
		s.queue = s.queue[1:]
	}
}

// stream is a part of the load: Poisson arrivals.
type stream struct {
	priority Priority
	rate     func(t time.Duration) float64 // requests a second
}

func steady(rate float64) func(time.Duration) float64 {
	return func(time.Duration) float64 { return rate }
}

// seen is the outcome of a request.
type seen struct {
	priority Priority
	at       time.Duration
	took     time.Duration // 0: refused
}

// gate is what admits: the returned function is called when the request is over; nil refuses.
type gate func(p Priority) (done func())

func of(l *Limiter) gate {
	return func(p Priority) func() {
		permit, ok := l.Acquire(p)
		if !ok {
			return nil
		}
		return permit.Done
	}
}

// run sends the streams to s through g, and returns all that happened. It must run in a bubble of
// synctest.
func run(seed uint64, s *server, g gate, length time.Duration, streams ...stream) []seen {
	var (
		mu   sync.Mutex
		out  []seen
		wg   sync.WaitGroup
		zero = time.Now()
	)
	for i, st := range streams {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		wg.Go(func() {
			for {
				rate := st.rate(time.Since(zero))
				time.Sleep(time.Duration(random.ExpFloat64() / rate * float64(time.Second)))
				at := time.Since(zero)
				if at >= length {
					return
				}
				wg.Go(func() {
					r := seen{priority: st.priority, at: at}
					if done := g(st.priority); done != nil {
						s.serve()
						done()
						r.took = time.Since(zero) - at
					}
					mu.Lock()
					out = append(out, r)
					mu.Unlock()
				})
			}
		})
	}
	wg.Wait()
	return out
}

// between returns what arrived from a to b.
func between(all []seen, a, b time.Duration) []seen {
	return slices.DeleteFunc(slices.Clone(all), func(s seen) bool { return s.at < a || s.at >= b })
}

// quantile of how long the admitted took.
func quantile(all []seen, q float64) time.Duration {
	var d []time.Duration
	for _, s := range all {
		if s.took > 0 {
			d = append(d, s.took)
		}
	}
	slices.Sort(d)
	if len(d) == 0 {
		return 0
	}
	return d[min(len(d)-1, int(q*float64(len(d))))]
}

// admittedOf counts the requests of a priority, and how many of them were admitted.
func admittedOf(all []seen, p Priority) (admitted, total int) {
	for _, s := range all {
		if s.priority == p {
			total++
			if s.took > 0 {
				admitted++
			}
		}
	}
	return
}

func constant(d time.Duration) func() time.Duration { return func() time.Duration { return d } }

func exponential(mean time.Duration, seed uint64) func() time.Duration {
	r := rand.New(rand.NewPCG(seed, 77))
	return func() time.Duration { return time.Duration(r.ExpFloat64()*float64(mean)) + time.Microsecond }
}

func lognormal(median time.Duration, sigma float64, seed uint64) func() time.Duration {
	r := rand.New(rand.NewPCG(seed, 78))
	return func() time.Duration { return time.Duration(float64(median) * math.Exp(sigma*r.NormFloat64())) }
}
