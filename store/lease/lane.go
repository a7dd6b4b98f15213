package lease

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/leasing/lessee"
	"github.com/weir-rl/weir/store"
)

// lane asks and reports in the background, for a part of the primary. One call is under way at a
// time; later jobs go with the next one.
type lane struct {
	s *Store
	// A lower bound of the primary's clock less this node's, in ns, by the last answers.
	offset atomic.Int64
	clock  struct {
		sync.Mutex
		low, high int64 // bounds of that difference, by the sharpest of the last answers
		since     int64 // when that came, by this node's clock; 0: none has come
	}
	mu      sync.Mutex
	jobs    []job
	keys    []byte // of the jobs
	busy    bool
	failing atomic.Bool   // the last call failed
	wake    chan struct{} // holds one value if there are jobs
	own     *batch        // of tests that run no background
}

// job is a question or a report in the background.
type job struct {
	charge store.Charge
	hash   uint64
	from   int // of the key, in lane.keys
	to     int
	tell   bool
	ahead  algo.Ahead // the report; filled in when it is sent if units are wanted
}

// Bounds of a call in the background.
const (
	mostJobs = 500 // charges of a call
	patience = time.Second
)

func newLane(s *Store) *lane {
	l := &lane{s: s, wake: make(chan struct{}, 1)}
	l.offset.Store(time.Now().UnixNano() - s.at())
	return l
}

// now is this node's estimate of the primary's clock at an instant, in µs; it is never later than
// that clock.
func (l *lane) now(at int64) int64 { return (at + l.offset.Load()) / 1000 }

// The difference of the clocks may change by as much, by errors of their readings and of their
// rates.
const (
	leap      = int64(5e6)
	sharpFor  = int64(10e9)
	driftPart = 2000 // one part in so many
)

// heard takes an answer into account. It reports false if the primary's clock has leaped since the
// last ones, by more than can be explained: it may be another server.
func (l *lane) heard(a lessee.Answer) (steady bool) {
	low, high := a.Now*1000-a.At, a.Now*1000+999-a.Asked
	c := &l.clock
	c.Lock()
	defer c.Unlock()
	known := c.since != 0
	drift := max(0, a.At-c.since) / driftPart
	steady = !known || low <= c.high+leap+drift && high >= c.low-leap-drift
	switch {
	case !known, !steady, high-low <= c.high-c.low+drift, a.At-c.since > sharpFor:
		c.low, c.high, c.since = low, high, a.At
		l.offset.Store(low)
	}
	return steady
}

// want asks for units of a key, in the background.
func (l *lane) want(hash uint64, c *store.Charge) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.add(job{charge: store.Charge{Counter: c.Counter, Limit: c.Limit}, hash: hash}, c.Key)
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// add adds a job; mu is held.
func (l *lane) add(j job, key []byte) {
	j.from = len(l.keys)
	l.keys = append(l.keys, key...)
	j.to = len(l.keys)
	l.jobs = append(l.jobs, j)
}

// tell adds a key's report, whose units have left the key's books.
func (l *lane) tell(j job, key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	j.tell = true
	l.add(j, []byte(key))
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// run makes the calls of the lane.
func (l *lane) run() {
	b := new(batch)
	for {
		select {
		case <-l.wake:
			for l.send(l.s.ctx, b) {
			}
		case <-l.s.ctx.Done():
			return
		}
	}
}

// batch is the working memory of a call in the background.
type batch struct {
	call
	jobs []job
	keys []byte
}

// send makes calls for the queued wishes and reports; it reports whether there were any. One
// goroutine at a time may call it.
func (l *lane) send(ctx context.Context, b *batch) (some bool) {
	l.mu.Lock()
	b.jobs, l.jobs = l.jobs, b.jobs[:0]
	b.keys, l.keys = l.keys, b.keys[:0]
	l.busy = len(b.jobs) > 0
	l.mu.Unlock()
	for from := 0; from < len(b.jobs); from += mostJobs {
		l.sendSome(ctx, b, b.jobs[from:min(from+mostJobs, len(b.jobs))])
	}
	l.mu.Lock()
	l.busy = false
	l.mu.Unlock()
	return len(b.jobs) > 0
}

func (l *lane) sendSome(ctx context.Context, b *batch, jobs []job) {
	s := l.s
	s.inFlight.Add(1)
	defer s.inFlight.Add(-1)
	b.charges, b.ahead, b.known, b.hashes = b.charges[:0], b.ahead[:0], b.known[:0], b.hashes[:0]
	at := s.at()
	for i := range jobs {
		j := &jobs[i]
		j.charge.Key = b.keys[j.from:j.to]
		if !j.tell && !s.prepareWant(j, l, at) {
			continue
		}
		b.charges, b.ahead = append(b.charges, j.charge), append(b.ahead, j.ahead)
		b.known, b.hashes = append(b.known, true), append(b.hashes, j.hash)
	}
	if len(b.charges) == 0 {
		return
	}
	b.results = append(b.results[:0], make([]algo.Result, len(b.charges))...)
	limited, cancel := context.WithTimeout(ctx, patience)
	_, err := s.lend(limited, patience, patience, &b.call)
	cancel()
	l.failing.Store(err != nil)
	clear(b.charges)
}

// prepareWant fills in the wish of a job; false if there is none any more.
func (s *Store) prepareWant(j *job, l *lane, at int64) bool {
	sh := s.shard(j.hash)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sl := sh.find(j.hash, j.charge.Counter.ID, j.charge.Key)
	if sl == nil {
		return false
	}
	sl.Unqueue()
	if !s.under(sl, &j.charge) || !sl.Short(&sl.terms.Terms, at) || s.drained.Load() {
		return false
	}
	j.charge.Counter, j.charge.Limit = sl.terms.counter, sl.terms.Limit
	sl.Ask(&sl.terms.Terms, at, l.now(at), false, true, &j.ahead)
	sl.terms.counts.tell(&j.ahead)
	return true
}

// idle reports whether the lane has nothing to do.
func (l *lane) idle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.busy && len(l.jobs) == 0
}
