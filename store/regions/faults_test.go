package regions

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/store"
)

// moment is a span of time, in µs by the clock of this machine.
type moment struct{ from, to int64 }

// What goes wrong in a recorded run.

const (
	restarted  = "restarts"
	failedOver = "failovers"
)

// start starts the server of each region, and the faulty ways to the others.
func (w *world) start() {
	w.t.Helper()
	if w.virtual {
		for i := range w.names {
			s := newServer(w.t, w.plan.ahead[i])
			w.memory, w.servers = append(w.memory, s), append(w.servers, s)
		}
	} else {
		w.startRedis()
	}
	w.links = make([][]fault, len(w.names))
	for i := range w.links {
		w.links[i] = make([]fault, len(w.names))
		for j := range w.links[i] {
			// A sentinel tells clients the master's own address, so there is no proxy before it.
			if i == j || w.servers[j] == nil {
				continue
			}
			if w.virtual {
				w.links[i][j] = newLink(w.memory[j], w.within())
			} else {
				w.links[i][j] = redistest.Proxy(w.t, w.redis[j].Addr())
			}
			if w.plan.parted {
				w.links[i][j].Refuse()
			}
		}
	}
}

// startRedis starts a Redis for each region.
func (w *world) startRedis() {
	w.t.Helper()
	for i := range w.names {
		if i == 0 && w.plan.failover {
			w.sentinel = redistest.StartSentinel(w.t)
			w.redis, w.servers, w.urls = append(w.redis, nil), append(w.servers, nil), append(w.urls, w.sentinel.URL())
			continue
		}
		var options []string
		if w.plan.restarts {
			// All is written before the answer, so that the end of a process loses nothing.
			// ("everysec" puts writing off while the disk is busy.)
			options = []string{"appendonly yes", "appendfsync no"}
		}
		var s *redistest.Server
		if ahead := w.plan.ahead[i]; ahead != 0 {
			s = redistest.StartAhead(w.t, ahead, options...)
		} else {
			s = redistest.Start(w.t, options...)
		}
		w.redis, w.servers, w.urls = append(w.redis, s), append(w.servers, s), append(w.urls, s.URL())
	}
}

// fail makes faults until ctx ends.
func (w *world) fail(ctx context.Context, rnd *rand.Rand) {
	w.faults = map[string]int{}
	for begun := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(50+rnd.IntN(400)) * time.Millisecond):
		}
		i := rnd.IntN(3)
		j := (i + 1 + rnd.IntN(2)) % 3
		kinds := 8
		if w.plan.restarts {
			kinds = 9
		}
		switch kind := rnd.IntN(kinds); {
		case w.sentinel != nil && w.cut.to == 0 && time.Since(begun) > time.Second:
			w.failOver()
		case kind == 6:
			w.stopExchange(i, rnd)
		case kind == 7:
			w.hearTwice(i, rnd)
		case kind == 8:
			w.restart(j, rnd)
		case w.links[i][j] != nil:
			w.failLink(i, j, kind, rnd)
		}
	}
}

// note takes down a fault.
func (w *world) note(name, format string, args ...any) {
	w.faults[name]++
	w.say(format, args...)
}

// say writes a line into the diary.
func (w *world) say(format string, args ...any) {
	w.diary = append(w.diary, fmt.Sprint(time.Now().UnixMicro(), " ", fmt.Sprintf(format, args...)))
}

// failLink changes the link between two regions.
func (w *world) failLink(i, j, kind int, rnd *rand.Rand) {
	l, name, what := w.links[i][j], "", ""
	switch kind {
	case 0:
		l.Refuse()
		l.Cut()
		name, what = "cuts", "is cut"
	case 1:
		l.BlackHole()
		name, what = "black holes", "loses all"
	case 2:
		l.LoseReplies()
		name, what = "lost answers", "loses answers"
	case 3:
		d := time.Duration(rnd.IntN(2000)) * time.Millisecond
		l.Delay(d)
		name, what = "delays", fmt.Sprint("delays ", d)
	default:
		l.Pass()
		name, what = "ends of faults", "passes"
	}
	w.note(name, "%s to %s %s", w.names[i], w.names[j], what)
}

// stopExchange kills what a node of a region does beside deciding: what it borrows and reads is cut
// off, and what it has not told is lost. Another node comes.
func (w *world) stopExchange(region int, rnd *rand.Rand) {
	nodes := w.nodes[region]
	x := nodes[rnd.IntN(len(nodes))].s.x
	x.cancel()
	x.done.Wait()
	w.note("exchanges killed", "%s has lost a node's exchange", w.names[region])
	if len(nodes) < 5 {
		w.open(region)
	}
}

// hearTwice has two nodes of a region hear the others at a time, until the run ends.
func (w *world) hearTwice(region int, rnd *rand.Rand) {
	nodes := w.nodes[region]
	n := nodes[rnd.IntN(len(nodes))]
	if n.also != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	h := n.s.x.begin(ctx)
	n.also = func() {
		cancel()
		h.end()
	}
	w.note("two that hear", "two nodes of %s hear", w.names[region])
}

// restart kills a region's server, and starts it again with its data.
func (w *world) restart(region int, rnd *rand.Rand) {
	if w.servers[region] == nil {
		return
	}
	w.servers[region].Kill()
	time.Sleep(time.Duration(5+rnd.IntN(400)) * time.Millisecond)
	w.servers[region].Restart()
	w.note(restarted, "the server of %s has restarted with its data", w.names[region])
}

// failOver kills the master of the first region, and waits until a replica is the master.
func (w *world) failOver() {
	from := time.Now() // what was answered before is on the replicas when the master is killed
	old := w.sentinel.KillMaster()
	w.note(failedOver, "the master of %s: SIGKILL", w.names[0])
	w.sentinel.AwaitMaster(old)
	w.say("a replica is the master of %s", w.names[0])
	w.cut = moment{from.UnixMicro(), time.Now().UnixMicro()}
}

// forgotten returns how many units of a key the first region's store may have forgotten: what was
// admitted there and lent to others in the last moment of a master, and what its nodes held.
func (w *world) forgotten(key int) (units int64) {
	if w.cut.to == 0 {
		return 0
	}
	in := func(lo, hi int64) bool { return hi >= w.cut.from && lo <= w.cut.to }
	for _, n := range w.nodes[0] {
		for _, a := range n.admitted {
			if a.key == key && in(a.lo, a.hi) {
				units += a.cost
			}
		}
	}
	for _, l := range w.lent.list {
		if l.key == keyName(key) && in(l.lo, l.hi) {
			units += l.cost
		}
	}
	if c := w.plan.config; w.plan.leases {
		units += max(c.N, c.Burst) * int64(c.Lease) / 100
	}
	return units
}

// lent is what the first region lent others.
type lent struct {
	sync.Mutex
	list []loanTaken
}

type loanTaken struct {
	lo, hi int64 // µs
	cost   int64
	key    string
}

// recorder is the first region as another one sees it.
type recorder struct {
	Neighbour
	lent *lent
}

func (r *recorder) TakeAhead(
	ctx context.Context, minWait, maxWait time.Duration, charges []store.Charge, ahead []algo.Ahead,
	results []algo.Result,
) (now, asked int64, err error) {
	lo := time.Now().UnixMicro()
	now, asked, err = r.Neighbour.TakeAhead(ctx, minWait, maxWait, charges, ahead, results)
	if hi := time.Now().UnixMicro(); err == nil {
		r.lent.Lock()
		defer r.lent.Unlock()
		for i := range ahead {
			r.lent.list = append(r.lent.list, loanTaken{lo, hi, ahead[i].Got, string(charges[i].Key)})
		}
	}
	return now, asked, err
}
