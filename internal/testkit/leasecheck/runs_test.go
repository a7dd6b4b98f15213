//go:build unix

package leasecheck_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/store/redis"
)

// A recorded run: workers on one Redis, faults drawn from a seed, and afterwards a check of the
// admissions. scripts/soak lease makes many.

// workers are how many there are at a time.
const workers = 4

// plan is a run, as it is drawn from a seed.
type plan struct {
	Seed    uint64
	Mode    mode
	Limits  []limitSpec
	Calls   []callSpec
	Moods   bool
	Length  time.Duration
	Faults  faults
	Longest time.Duration // how long a worker sleeps
}

// faults are a choice of possible faults.
type faults uint16

const (
	processes faults = 1 << iota // workers are killed and stopped
	network                      // answers are late or lost
	orders                       // reloads and resets
	restarts                     // Redis forgets all
	failovers                    // the master dies, and a replica takes its place
	sleep                        // a worker is stopped for 2 to 30 s
	// No faults, but what else there may be:
	refunds    // clients give units back
	costsAfter // clients say what a request has cost
	calendars  // windows are days, of which one begins
	schedules  // numbers change with the time of day
)

// variants are the limits to draw from; draw fills in the numbers.
var variants = []algo.Config{
	{Algorithm: algo.FixedWindow},
	{Algorithm: algo.FixedWindow, FirstRequest: true},
	{Algorithm: algo.SlidingLog},
	{Algorithm: algo.SlidingWindow, Buckets: 1},
	{Algorithm: algo.SlidingWindow, Buckets: 10},
	{Algorithm: algo.TokenBucket},
}

// drawPlan draws a run. Windows are so short that much comes free within a run.
func drawPlan(seed uint64, m mode, f faults) *plan {
	rnd := rand.New(rand.NewPCG(seed, 1))
	p := &plan{Seed: seed, Mode: m, Faults: f}
	p.Length = time.Duration(2000+rnd.IntN(2000)) * time.Millisecond
	if f&failovers != 0 {
		p.Length += 5 * time.Second
	}
	if f&sleep != 0 {
		p.Longest = time.Duration(2000*math.Pow(15, rnd.Float64())) * time.Millisecond
		p.Length += p.Longest
	}
	p.Moods = rnd.IntN(2) == 0
	group := uint64(0)
	if rnd.IntN(2) == 0 {
		group = rnd.Uint64() // all of one rule
	}
	for range 1 + rnd.IntN(3) {
		c := variants[rnd.IntN(len(variants))]
		if f&calendars != 0 {
			c = algo.Config{Algorithm: algo.FixedWindow, Calendar: algo.Day}
		}
		c.Window = []time.Duration{200, 300, 500, 1000, 1500}[rnd.IntN(5)] * time.Millisecond
		rate := 100 + rnd.Int64N(600) // a second
		c.N = max(20, rate*c.Window.Milliseconds()/1000)
		if c.Algorithm == algo.TokenBucket && rnd.IntN(2) == 0 {
			c.Burst = max(10, c.N/4)
		}
		if rnd.IntN(8) == 0 {
			c.Soft = 10
		}
		if rnd.IntN(8) > 0 {
			c.Lease = []int{5, 10, 20, 50, 90}[rnd.IntN(5)]
			if rnd.IntN(2) == 0 {
				c.LeaseFor = []time.Duration{10, 30, 100}[rnd.IntN(3)] * time.Millisecond
			}
		}
		if f&calendars != 0 {
			c.N, c.Window = 5*c.N, 24*time.Hour
			if c.Lease > 0 && c.LeaseFor == 0 {
				c.LeaseFor = 200 * time.Millisecond // not a share of the day
			}
		}
		p.Limits = append(p.Limits, limitSpec{ID: rnd.Uint64(), Group: group, Config: c})
	}
	for range 1 + rnd.IntN(4) {
		call := callSpec{Limits: rnd.Perm(len(p.Limits)), Cost: 1}
		if rnd.IntN(3) > 0 {
			call.Limits = call.Limits[:1]
		}
		if rnd.IntN(3) == 0 {
			call.Key = 1
		}
		if rnd.IntN(4) == 0 {
			call.Cost = 1 + rnd.Int64N(4)
		}
		p.Calls = append(p.Calls, call)
	}
	return p
}

// begin gives times of day to what depends on them: a day begins in the middle of the run, and of
// each second from now on less is allowed in the first half.
func (p *plan) begin(now time.Time) {
	middle := now.UTC().Add(p.Length / 2)
	midnight := middle.Truncate(24 * time.Hour)
	for i := range p.Limits {
		l := &p.Limits[i]
		if p.Faults&calendars != 0 {
			l.Zone = -int(middle.Sub(midnight).Seconds())
		}
		if p.Faults&schedules != 0 {
			today := now.UTC().Truncate(24 * time.Hour)
			for at := now.UTC().Sub(today).Truncate(time.Second); len(l.Phases) < 60; at += time.Second {
				l.Phases = append(l.Phases, at%(24*time.Hour))
			}
		}
	}
}

// conductor leads a run.
type conductor struct {
	t        testing.TB
	plan     *plan
	rnd      *rand.Rand
	folder   string
	server   *redistest.Server   // nil: there is a sentinel
	sentinel *redistest.Sentinel // nil: there is a server
	url      string
	proxies  []*redistest.FaultProxy // by worker; none with a sentinel
	fleet    []*process
	percent  int64
	direct   *redis.Store // past all faults
	records  []string
	due      []task
	cuts     map[place][]cut
	diary    []event
	refunds  []entry
	slept    bool
	begun    time.Duration
}

// place names what is counted together.
type place struct{ limit, key int }

// cut is a moment of which it is not known when it was exactly, by redistest.Clock.
type cut struct {
	from, to time.Duration
	forgot   bool // also what was lent; else it was a reset
}

// task is the end of a fault.
type task struct {
	at time.Duration
	do func()
}

// event is a line about an event.
type event struct {
	at   time.Duration
	text string
}

// run makes a run, and checks it. It returns what it found.
func run(t testing.TB, p *plan) *findings {
	t.Helper()
	c := &conductor{
		t: t, plan: p, rnd: rand.New(rand.NewPCG(p.Seed, 2)), folder: t.TempDir(),
		fleet: make([]*process, workers), cuts: map[place][]cut{}, percent: 100,
	}
	c.open()
	c.begun = redistest.Clock()
	p.begin(time.Now())
	for i := range c.fleet {
		c.launch(i)
	}
	settle(c.fleet)
	end := redistest.Clock() + p.Length
	next := redistest.Clock() + c.rest()
	for now := redistest.Clock(); now < end; now = redistest.Clock() {
		c.endFaults(now)
		if now >= next {
			c.fault()
			next = redistest.Clock() + c.rest()
		}
		time.Sleep(2 * time.Millisecond) // the pace of the faults; nothing waits for it
	}
	c.endFaults(1 << 62)
	for _, w := range c.fleet {
		a := w.end()
		if a.Admitted == 0 && a.Refused == 0 {
			c.note("a worker was of no use: %d of its calls failed", a.Failed)
		}
	}
	if err := c.direct.Close(); err != nil {
		t.Error(err)
	}
	return c.check()
}

func (c *conductor) open() {
	if c.plan.Faults&failovers != 0 {
		c.sentinel = redistest.StartSentinel(c.t)
		c.url = c.sentinel.URL()
	} else {
		c.server = redistest.Start(c.t)
		c.url = c.server.URL()
		for range workers {
			c.proxies = append(c.proxies, redistest.Proxy(c.t, c.server.Addr()))
		}
	}
	var err error
	if c.direct, err = redis.Open(redis.Options{URL: c.url, Timeout: 30 * time.Second}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *conductor) launch(i int) {
	s := setup{
		URL: c.url, Mode: c.plan.Mode, Limits: c.plan.Limits, Calls: c.plan.Calls, Nodes: workers,
		Clients: 4, Pause: 8 * time.Millisecond, Moods: c.plan.Moods,
		Refunds: c.plan.Faults&refunds != 0, CostsAfter: c.plan.Faults&costsAfter != 0,
		Seed: c.rnd.Uint64(), Drain: time.Second, Record: filepath.Join(c.folder, fmt.Sprint(len(c.records))),
	}
	if c.proxies != nil {
		s.URL = strings.Replace(c.url, c.server.Addr(), c.proxies[i].Addr(), 1)
	}
	c.records = append(c.records, s.Record)
	c.fleet[i] = launch(c.t, &s)
}

func (c *conductor) rest() time.Duration {
	return time.Duration(c.rnd.ExpFloat64() * float64(150*time.Millisecond))
}

func (c *conductor) note(format string, args ...any) {
	c.diary = append(c.diary, event{redistest.Clock(), fmt.Sprintf(format, args...)})
}

// after does something after a while, or at the end of the run.
func (c *conductor) after(d time.Duration, do func()) {
	c.due = append(c.due, task{redistest.Clock() + d, do})
}

// endFaults does what is due.
func (c *conductor) endFaults(now time.Duration) {
	for i := 0; i < len(c.due); {
		if c.due[i].at > now {
			i++
			continue
		}
		do := c.due[i].do
		c.due = append(c.due[:i], c.due[i+1:]...)
		do()
	}
}

// between draws a time, short ones more often than long ones.
func (c *conductor) between(least, most time.Duration) time.Duration {
	x := c.rnd.Float64()
	return least + time.Duration(x*x*float64(most-least))
}

// fault makes one fault.
func (c *conductor) fault() {
	kinds := make([]func(), 0, 8)
	f := c.plan.Faults
	i := c.rnd.IntN(workers)
	if f&sleep != 0 && !c.slept {
		c.slept = true
		c.stopFor(i, c.plan.Longest)
		return
	}
	if f&(restarts|failovers) != 0 && len(c.cuts) == 0 && redistest.Clock() > c.begun+time.Second {
		// At least once; there is one failover, as it takes long.
		if c.sentinel != nil {
			c.failover()
		} else {
			c.restart()
		}
		return
	}
	if f&processes != 0 {
		kinds = append(kinds, func() { c.killWorker(i) }, func() { c.stopWorker(i) }, func() { c.stopWorker(i) })
	}
	if f&network != 0 && c.proxies != nil {
		kinds = append(kinds, func() { c.delay(i) }, func() { c.lose(i) }, func() {
			c.note("worker %d: connections are cut", i)
			c.proxies[i].Cut()
		})
	}
	if f&orders != 0 {
		kinds = append(kinds, c.reload, c.reset)
	}
	if f&restarts != 0 {
		kinds = append(kinds, c.restart)
	}
	if len(kinds) > 0 {
		kinds[c.rnd.IntN(len(kinds))]()
	}
}

func (c *conductor) killWorker(i int) {
	if c.fleet[i].stopped {
		return
	}
	c.note("worker %d: SIGKILL", i)
	c.fleet[i].kill()
	c.launch(i)
}

func (c *conductor) stopWorker(i int) {
	c.stopFor(i, c.between(100*time.Millisecond, 1500*time.Millisecond))
}

func (c *conductor) stopFor(i int, d time.Duration) {
	p := c.fleet[i]
	if p.stopped {
		return
	}
	c.note("worker %d: SIGSTOP for %v", i, d.Round(time.Millisecond))
	p.pause()
	c.after(d, p.resume)
}

func (c *conductor) delay(i int) {
	d := c.between(0, 200*time.Millisecond)
	c.note("worker %d: all bytes are %v late", i, d.Round(time.Millisecond))
	c.proxies[i].Delay(d)
	c.after(c.between(50*time.Millisecond, 600*time.Millisecond), func() {
		c.note("worker %d: the network is well", i)
		c.proxies[i].Pass()
	})
}

func (c *conductor) lose(i int) {
	c.note("worker %d: answers are lost", i)
	c.proxies[i].LoseReplies()
	c.after(c.between(20*time.Millisecond, 300*time.Millisecond), func() {
		c.note("worker %d: the network is well", i)
		c.proxies[i].Pass()
	})
}

// reload gives all workers other numbers, never more than the limits are said to have; one after
// the other, as they hear of it.
func (c *conductor) reload() {
	c.percent = []int64{60, 80, 100, 100}[c.rnd.IntN(4)]
	c.note("reload: %d %% of all limits", c.percent)
	for _, p := range c.fleet {
		p.tell(order{Percent: c.percent})
	}
}

func (c *conductor) reset() {
	at := place{c.rnd.IntN(len(c.plan.Limits)), c.rnd.IntN(2)}
	counter, err := c.plan.Limits[at.limit].counter(100)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	from := redistest.Clock()
	_, err = c.direct.Reset(ctx, counter, []byte(keyName(at.key)))
	to := redistest.Clock()
	if err != nil {
		to += redis.DefaultTimeout // it may be done yet
	}
	c.note("reset of limit %d, key %d: %v", at.limit, at.key, err)
	c.cuts[at] = append(c.cuts[at], cut{from: from, to: to})
}

// restart kills Redis, which forgets all.
func (c *conductor) restart() {
	from := redistest.Clock()
	c.note("Redis: SIGKILL")
	c.server.Kill()
	down := c.between(5*time.Millisecond, 400*time.Millisecond)
	time.Sleep(down)
	to := redistest.Clock()
	c.server.Restart()
	c.note("Redis is back, and empty")
	c.forgot(cut{from: from, to: to, forgot: true})
}

// failover kills the master. What it had not told the replicas is lost.
func (c *conductor) failover() {
	from := redistest.Clock()
	c.note("the master: SIGKILL")
	old := c.sentinel.KillMaster()
	to := redistest.Clock()
	c.sentinel.AwaitMaster(old)
	c.note("a replica is the master")
	c.forgot(cut{from: from, to: to, forgot: true})
}

func (c *conductor) forgot(all cut) {
	for limit := range c.plan.Limits {
		for key := range 2 {
			at := place{limit, key}
			c.cuts[at] = append(c.cuts[at], all)
		}
	}
}

// number reads a number from the environment.
func number(name string, otherwise uint64) uint64 {
	if text := os.Getenv(name); text != "" {
		n, err := strconv.ParseUint(text, 0, 64)
		if err != nil {
			panic(fmt.Sprintf("%s=%q is no number", name, text))
		}
		return n
	}
	return otherwise
}
