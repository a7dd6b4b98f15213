package simulation

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule/file"
)

// outcome is what came of a run.
type outcome struct {
	plan     *plan
	problems []string
	trace    string
	seen     counts
}

// run lets a seed come true. A mistake may be planted, and the plan forced.
func run(t *testing.T, seed uint64, m mistake, force func(*plan)) (out outcome) {
	t.Helper()
	dir := t.TempDir()
	defer func() {
		if r := recover(); r != nil { // of synctest: goroutines that nothing will wake
			out.problems = append(out.problems, fmt.Sprint("at the end: ", r))
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		w := &world{seed: seed, mistake: m, begun: time.Now(), accounts: map[account]*books{},
			orders: map[account]*order{}}
		w.plan = draw(w.random("plan"), force)
		w.network = make([]weather, w.plan.nodes)
		out.plan = w.plan
		if err := w.live(dir + "/snapshot"); err != nil {
			w.wrong("%v", err)
		}
		out.problems, out.trace, out.seen = w.problems, w.trace(), w.seen
	})
	return out
}

// live is the whole of a run.
func (w *world) live(path string) (err error) {
	if w.server, err = newServer(w, path); err != nil {
		return err
	}
	if w.first, _, err = file.Load(w.plan.source(0), file.Options{}); err != nil {
		return fmt.Errorf("%w\n%s", err, w.plan.rules(0))
	}
	var all sync.WaitGroup
	for id := range w.plan.nodes {
		w.sleep(time.Millisecond, w.random("begin", id).Int64N(int64(time.Millisecond)))
		n, err := newNode(w, id, 0, machineClock(w, id))
		if err != nil {
			return err
		}
		if err := n.load(0); err != nil {
			return err
		}
		w.nodes = append(w.nodes, n)
	}
	for i := range w.plan.steps {
		s := &w.plan.steps[i]
		time.Sleep(s.at - w.now())
		if s.what >= weathers {
			w.note("step %v", s)
		}
		all.Go(func() { w.do(s) })
		synctest.Wait()
	}
	all.Wait()
	time.Sleep(20 * time.Second) // for reports in the background
	w.calm()
	for _, n := range w.nodes {
		if err := n.end(); err != nil {
			w.wrong("node %d ends: %v", n.id, err)
		}
	}
	time.Sleep(5 * time.Second) // for units lent
	w.finish()
	return w.server.mem.Close()
}

// nodeOf returns the node that is at a place now.
func (w *world) nodeOf(id int) *node {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.nodes[id]
}

// do does a step.
func (w *world) do(s *step) {
	name := fmt.Sprintf("request %d", s.serial)
	n := w.nodeOf(s.node)
	switch s.what {
	case ask, peek, refund:
		o := w.newOp(s, n, name)
		o.decide(0)
		w.release(o)
	case lone:
		w.alone(s, name)
	case reserve:
		w.reserve(s, n, name)
	case weathers:
		w.fault(1)
		w.setWeather(s.node, func(a *weather) { *a = s.air })
		time.Sleep(s.lasts)
		w.setWeather(s.node, func(a *weather) { *a = weather{} })
		w.fault(-1)
		w.note("the network of node %d is good again", s.node)
	case halts:
		w.fault(1)
		w.server.stop()
		time.Sleep(s.lasts)
		if err := w.server.back(s.how); err != nil {
			w.wrong("the server begins: %v", err)
		}
		w.fault(-1)
		w.note("the server is back")
	case steps:
		w.disturb()
		w.server.clock.step(s.by)
	case nodeSteps:
		w.disturb()
		n.clock.step(s.by)
	case crashes, restarts:
		w.replace(s, n)
	case reloads:
		w.reload(s)
	case bans, grants, resets:
		w.operate(s, n)
	}
}

// release gives back the slots of an op, after a while.
func (w *world) release(o *op) {
	if len(o.slots) == 0 {
		return
	}
	r := w.random("release", o.name)
	w.sleep(0, r.Int64N(int64(3*time.Second)))
	for _, slot := range o.slots {
		if r.IntN(8) == 0 {
			continue // its client forgets
		}
		began := w.now()
		_, err := o.node.limits.Release(context.WithValue(nobody, opKey{}, o), slot)
		if took := w.now() - began; took > deadline {
			w.wrong("%s: a release took %v", o.name, took)
		}
		w.note("%s: released, error %v", o.name, err != nil)
	}
}

// alone has a key to itself: requests until one is refused, and the same again when it was told.
func (w *world) alone(s *step, name string) {
	n := w.nodeOf(s.node)
	for i := range 60 {
		o := w.newOp(s, n, fmt.Sprintf("%s.%d", name, i))
		o.decide(0)
		w.sleep(0, w.random("pause", o.name).Int64N(int64(20*time.Millisecond)))
		if !o.done || o.err != nil || o.gone {
			return
		}
		if o.allowed || o.retry == algo.Never || o.retry > 30_000_000 || o.local || o.banned != "" {
			continue
		}
		// It is no earlier at the server than the answer says, and a little later at the most.
		at := o.time + o.retry - w.server.clock.now()
		time.Sleep(w.server.clock.until(max(at, 0)))
		again := w.newOp(s, n, fmt.Sprintf("%s.again", name))
		again.decide(0)
		w.honest(o, again)
		return
	}
}

// reserve makes a reservation, and commits it, or not.
func (w *world) reserve(s *step, n *node, name string) {
	o := w.newOp(s, n, name)
	timeout := 3 * time.Second
	id := o.decide(timeout)
	if id == "" {
		return
	}
	o.mu.Lock()
	o.reserved = true
	o.mu.Unlock()
	time.Sleep(s.lasts)
	if s.count == 3 { // its client dies
		return
	}
	ok, err := n.limits.Reservations().Commit(context.WithValue(nobody, opKey{}, o), id, int64(s.count)*o.rq.Hits)
	w.note("%s: committed %v, error %v", name, ok, err != nil)
	if err == nil && ok && s.lasts > timeout+2*time.Second {
		w.wrong("%s: a reservation of %v was committed after %v", name, timeout, s.lasts)
	}
}

// replace ends a node, and begins another in its place.
func (w *world) replace(s *step, n *node) {
	w.disturb()
	next, err := newNode(w, s.node, n.life+1, n.clock)
	if err == nil {
		err = next.load(n.rules())
	}
	if err != nil {
		w.wrong("node %d begins: %v", s.node, err)
		return
	}
	w.mu.Lock()
	if w.nodes[s.node] != n { // another step was quicker
		n = nil
	} else {
		w.nodes[s.node] = next
	}
	w.mu.Unlock()
	switch {
	case n == nil:
		err = next.end()
	case s.what == crashes:
		err = n.crash()
	default:
		err = n.end()
	}
	if err != nil {
		w.wrong("node %d ends: %v", s.node, err)
	}
}

// reload puts new rules in force, on one node after the other.
func (w *world) reload(s *step) {
	r := w.random("reload", s.serial)
	for id := range w.plan.nodes {
		w.sleep(0, r.Int64N(int64(300*time.Millisecond)))
		w.disturb()
		n := w.nodeOf(id)
		if n.rules() > s.version {
			continue
		}
		if err := n.load(s.version); err != nil {
			w.wrong("%v", err)
		}
		w.note("node %d: rules %d", id, s.version)
		w.disturb()
	}
}
