package capacity

import (
	"time"

	"github.com/weir-rl/weir/algo"
)

// server is a store with one thread: calls wait for it in the order in which they come.
type server struct {
	free int64 // when it is done with all calls so far
	busy time.Duration
}

// begun is the time of the stores' clock when a scenario begins, in µs since the Unix epoch. No
// window begins then.
const begun = 1_800_000_017_345_678

// storeNow returns the time by the stores' clock.
func (w *world) storeNow() int64 { return begun + w.now/1000 }

// arrived puts a call in line at its store.
func (w *world) arrived(c *call) {
	s := &w.stores[int(w.links[c.link].partition)%len(w.stores)]
	takes := w.s.Serve.Of(1, float64(len(c.batch.ops)), float64(c.batch.decisions))
	at := max(w.now, s.free)
	s.free = at + int64(takes)
	c.ends = s.free
	if w.measuring() {
		s.busy += takes
	}
	if at == w.now {
		w.serve(c)
		return
	}
	w.agenda.add(event{at: at, what: serves, call: c})
}

// serve decides a call, at the instant at which its store begins with it.
func (w *world) serve(c *call) {
	c.now = w.storeNow()
	for i := range c.batch.ops {
		op := &c.batch.ops[i]
		k := w.places[op.place].key
		key := &w.keys[k]
		ask := algo.Ask{Cost: 1, MaxDelay: -1}
		op.admitted = 0
		if op.alone {
			if op.peek {
				ask.Cost = 0
			}
			if op.result = w.s.Limit.TakeAhead(&key.state, &key.lease, c.now, ask, &op.ahead); op.result.Allowed &&
				!op.peek {
				op.admitted = 1
				w.judge(k)
			}
			continue
		}
		for range op.n {
			if op.result = w.s.Limit.TakeWith(&key.state, &key.lease, c.now, ask); !op.result.Allowed {
				break
			}
			op.admitted++
			w.judge(k)
		}
	}
	w.agenda.add(event{at: c.ends + w.oneWay(), what: answers, call: c})
}
