package spoe

import "sync"

// workers decide calls apart from the connections that they came over, so that a decision that
// waits for a store over a network does not hold up those behind it. They keep their grown stacks;
// a fresh goroutine would grow its own for every call.
type workers struct {
	most int
	work chan *call

	mu      sync.Mutex
	running int
}

func (w *workers) init(most int) {
	w.most = most
	if most > 0 {
		w.work = make(chan *call)
	}
}

// try hands c to a worker, and reports false if all are busy.
func (w *workers) try(c *call) bool {
	select {
	case w.work <- c:
		return true
	default:
	}
	w.mu.Lock()
	start := w.running < w.most
	if start {
		w.running++
	}
	w.mu.Unlock()
	if start {
		go w.run(c)
	}
	return start
}

// do hands c to a worker, and waits for one.
func (w *workers) do(c *call) { w.work <- c }

func (w *workers) run(c *call) {
	for ok := true; ok; c, ok = <-w.work {
		c.conn.decide(c)
	}
}

// stop ends the workers. Nothing is to be done any more.
func (w *workers) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.work != nil && w.most > 0 {
		w.most = 0
		close(w.work)
	}
}
