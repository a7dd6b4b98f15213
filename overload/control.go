package overload

import (
	"math"
	"time"
)

// The control looks at requests in windows, and after each sets the limit anew:
//
//	limit' = limit × tolerance × baseline / latency + headroom
//
// where latency is the geometric mean of the times that the requests of the window took, and
// baseline is the time of a request that need not wait. By Little's law the server really works on
// limit × baseline / latency requests; those under way beyond that wait somewhere. This is the
// gradient of Netflix' concurrency-limits (Gradient2Limit) with three differences:
//
//   - The baseline is no average of the past, which under lasting overload drifts up to the
//     overloaded latency. It is measured: now and then a probe lets only half as many requests in
//     for a moment, as BBR does for its shortest round trip (Cardwell and others, "BBR:
//     Congestion-Based Congestion Control", ACM Queue 14/5, 2016) and Envoy's adaptive concurrency
//     filter for its minRTT. Critical requests keep their whole limit meanwhile.
//   - A window begins to measure when nearly all requests from before the last step have ended, and
//     goes on until the mean is known, so that each step sees the effect of the one before it, and
//     no noise.
//   - The limit rises only if it is needed: if requests were refused, or nearly.
const (
	tolerance     = 1.05 // latency over baseline at which the limit stays, apart from the headroom
	leastHeadroom = 0.5  // else a quarter of the limit's root
	leastFactor   = 0.25 // of one step
	firstGrowth   = 2    // of one step while no request waits, and none ever did
	growth        = 1.25 // the same far below the limit at which some did
	farBelow      = 0.75
	unnoticed     = 0.03 // logarithm of latency over baseline up to which no request waits
	needed        = 0.75 // a limit is needed if so much of it was in use at any time
	filled        = 0.4  // and has been tried if so much of it was in use on average
	spare         = 4    // times the most that was under way is the most that a limit is worth
	dropsCount    = 0.1  // share of failed requests from which they lower the limit

	leastWindow = 50 * time.Millisecond
	// or ten latencies: the longest that a window waits for samples
	mostWindow    = 500 * time.Millisecond
	enoughSamples = 16
	enoughError   = 0.03 // standard error of a mean logarithm: about 3 % of the latency
	fairError     = 0.1
	mostDoubt     = 0.1 // a standard error above that earns no benefit of the doubt
	mostSlower    = 2.3 // one request counts for no more than ten times the baseline

	stuckFor   = 2 // windows
	probeEvery = 10 * time.Second
	probeRest  = 20 // times as long as a probe took, and
	probeAfter = 50 // latencies, pass at least before the next

	// A priority keeps as much room free for those above it that fewer than one in so many of them
	// finds none.
	reserveFor    = 200
	mostCaution   = 8
	forgetCaution = time.Minute
)

var logTolerance = math.Log(tolerance)

// sample is a mean of logarithms of latencies.
type sample struct {
	n                  int
	sum, squares, load float64 // load sums how many requests were under way when each began
}

func (s *sample) add(v, load float64) {
	s.n++
	s.sum += v
	s.squares += v * v
	s.load += load
}

func (s *sample) mean() float64     { return s.sum / float64(s.n) }
func (s *sample) meanLoad() float64 { return s.load / float64(s.n) }

// err is the standard error of the mean.
func (s *sample) err() float64 {
	if s.n < 2 {
		return 1
	}
	n := float64(s.n)
	return math.Sqrt(max(0, s.squares/n-s.mean()*s.mean()) / (n - 1))
}

// counts are totals since the limiter was made, by priority; peak and under are not.
type counts struct {
	arrived, refused [classes]uint64
	peak             int // the most that were under way at a time in the window
	under            int // how many are
}

// control is the state of the calculation. It has no clock. Times are in ns, latencies natural
// logarithms of ns.
type control struct {
	fixed             bool
	min, max, initial float64

	limit    float64
	previous float64 // limit of the window before
	knee     float64 // limit at which requests have last been found to wait for each other
	latency  float64 // of the last window; 0: not known
	baseline float64 // 0: not known
	doubt    float64 // its standard error
	baseLoad float64 // how many were under way when it was so

	stuck int // windows in which a far lower limit than at the last probe did not help

	window
	probe

	reserve [len(Priorities)]float64 // room that each keeps free for those above it
	// of each and those above it: share of the server's throughput
	demand [classes]float64
	// factor for the room that is kept for critical requests, from 1
	caution float64
}

// window holds the observations since the last step.
type window struct {
	opened  int64
	settled int64  // when nearly all requests from before it had ended; 0 if not yet
	old     int    // how many of them there were
	oldDone int    // and have ended
	late    sample // requests that ended before it settled, but began after the last cut
	fresh   sample // requests that ended since
	ended   int
	dropped int
	busy    float64 // sum of how long those that ended took
	last    counts  // when it was opened
	lastCut int64   // when a limit was last lowered
}

// probe is a measurement of the baseline with fewer requests under way.
type probe struct {
	level  float64 // how many requests it lets in; 0 if there is none
	began  int64
	before sample  // observed without it
	limit  float64 // at this limit
	higher sample  // observed at the level above this one, if there was one
	next   int64   // when the next may begin
	from   float64 // limit after the last one
}

func newControl(o Options, fixed bool) control {
	initial := float64(o.Initial)
	return control{
		fixed: fixed, min: float64(o.Min), max: float64(o.Max), initial: initial,
		limit: initial, previous: initial, knee: math.Inf(1), caution: 1,
	}
}

// record notes a request that began at start with load requests under way, and ended now, when
// under others are; due says that the window is to be closed.
func (c *control) record(now, start int64, load, under int, o outcome) (due bool) {
	took := max(1, float64(now-start))
	c.ended++
	c.busy += took
	if start < c.opened {
		c.oldDone++
	}
	v := math.Log(took)
	if c.baseline != 0 {
		v = min(v, c.baseline+mostSlower)
	}
	switch {
	case o == dropped:
		c.dropped++
	case o == cancelled && (c.baseline == 0 || v < c.baseline+logTolerance):
		// It would have taken longer than it did; nothing says how long.
	case c.settled != 0:
		c.fresh.add(v, float64(load))
	case start >= c.lastCut:
		c.late.add(v, float64(load))
	}
	elapsed := time.Duration(now - c.opened)
	if c.settled == 0 && (c.old-c.oldDone <= under/10 || elapsed > c.longest()) {
		c.settled = now
	}
	measured := time.Duration(now - c.settled)
	switch {
	case elapsed < leastWindow:
		return false
	case c.fixed:
		return elapsed >= 2*leastWindow
	case c.settled == 0:
		return c.flooded(&c.late)
	case c.fresh.n+c.dropped < enoughSamples:
		return measured >= 10*c.longest() && c.fresh.n > 0
	}
	err, hasty := c.fresh.err(), c.level > 0 // a probe must not last
	return err <= enoughError || (err <= fairError || hasty) && measured >= c.longest() || measured >= 4*c.longest() ||
		c.dropped > c.fresh.n || c.flooded(&c.fresh) || c.flooded(&c.late)
}

// longest is how long a window takes at most if there are requests enough.
func (c *control) longest() time.Duration { return max(mostWindow, 10*duration(c.latency)) }

// flooded reports that s took so long that there is no need to know more.
func (c *control) flooded(s *sample) bool {
	return c.baseline != 0 && c.level == 0 && s.n >= enoughSamples && s.mean()-2*s.err() > c.baseline+math.Ln2
}

// close ends the window, takes a step, and opens the next.
func (c *control) close(now int64, k counts) {
	elapsed := float64(now - c.opened)
	c.follow(elapsed, k)
	c.setReserve()
	if !c.fixed {
		refused := false
		for i := range k.refused {
			refused = refused || k.refused[i] > c.last.refused[i]
		}
		s := c.fresh
		if s.n < enoughSamples && c.flooded(&c.late) {
			s = c.late
		}
		c.step(now, elapsed, s, refused, float64(k.peak))
	}
	c.window = window{opened: now, old: k.under, last: k, lastCut: c.lastCut}
}

// step sets the limit by s.
func (c *control) step(now int64, elapsed float64, s sample, refused bool, peak float64) {
	limited := refused || peak >= needed*c.limit
	c.previous = c.limit
	probing := c.level > 0
	if s.n > 0 {
		c.latency = s.mean()
		if probing {
			if s = c.learnFromProbe(now, s); s.n == 0 {
				return
			}
		} else {
			c.learn(s, limited, elapsed)
		}
	}
	most := max(c.initial, spare*peak)
	switch {
	case limited && float64(c.dropped) > dropsCount*float64(c.ended):
		c.limit = min(c.limit, max(c.initial, peak)) * (1 - float64(c.dropped)/float64(c.ended)/2)
	case c.baseline != 0 && s.n > 0 && (limited || c.crowded(s)):
		c.limit = min(c.stepFrom(s), most)
	case !limited && c.limit > most:
		c.limit -= (c.limit - most) / 20
	}
	c.limit = min(max(c.limit, c.min), c.max)
	if c.limit < c.previous {
		c.lastCut = now
	}
	if probing {
		c.from = c.limit
	} else if refused && s.n > 0 && c.baseline != 0 {
		c.considerProbe(now, s)
	}
}

// crowded reports that s waited somewhere, though the limit is far.
func (c *control) crowded(s sample) bool {
	return s.meanLoad() > 1.5*c.baseLoad && s.mean()-s.err() > c.baseline+math.Log(1.5)
}

// stepFrom is the law at the top of this file.
func (c *control) stepFrom(s sample) float64 {
	slower := s.mean() - min(s.err(), mostDoubt) - c.baseline - c.doubt
	factor := max(leastFactor, math.Exp(logTolerance-max(0, slower)))
	switch {
	case s.mean()-2*s.err()-c.baseline-c.doubt > unnoticed: // for certain
		c.knee = c.limit
	case slower > unnoticed:
	case s.meanLoad() < filled*c.limit:
		return c.limit // they say nothing of a limit that is in use
	case math.IsInf(c.knee, 1):
		factor = firstGrowth
	case c.limit*growth < c.knee*farBelow:
		factor = growth
	}
	return c.limit*factor + max(leastHeadroom, math.Sqrt(c.limit)/4)
}

// learn takes s for the baseline if it may show it.
func (c *control) learn(s sample, limited bool, elapsed float64) {
	m := s.mean()
	switch {
	case c.opened == 0:
		// The first to end are those that took the shortest: nothing is known yet.
	case c.baseline == 0:
		c.setBaseline(s)
	case m+s.err() < c.baseline:
		c.baseline += (m + s.err() - c.baseline) / 2
		c.baseLoad = s.meanLoad()
	case m <= c.baseline+unnoticed:
		c.baseLoad = max(c.baseLoad, s.meanLoad())
	case limited && c.limit < 2:
		c.baseline += (m - c.baseline) / 2 // fewer cannot be under way
	case s.meanLoad() <= 1.1*c.baseLoad:
		// Slower, with no more under way: the server itself has become so.
		c.raiseBaseline(c.baseline + (m-c.baseline)*(1-math.Exp(-elapsed/float64(probeEvery))))
	}
}

// raiseBaseline forgets the knee that was found with a far lower baseline.
func (c *control) raiseBaseline(to float64) {
	if c.baseline != 0 && to > c.baseline+0.1 {
		c.knee = math.Inf(1)
	}
	c.baseline = to
}

func (c *control) setBaseline(s sample) {
	c.raiseBaseline(s.mean())
	c.doubt, c.baseLoad = min(s.err(), mostDoubt), s.meanLoad()
}

// learnFromProbe takes s, seen during a probe, for the baseline. It returns the sample by which the
// limit is to be set: none while the probe goes on, then the one from before it.
func (c *control) learnFromProbe(now int64, s sample) sample {
	m := s.mean()
	if s.meanLoad() <= 0.8*c.before.meanLoad() { // else too many were admitted all the same
		above := c.before
		if c.higher.n > 0 {
			above = c.higher
		}
		if math.Abs(m-c.baseline) > 0.05 && m < above.mean()-0.1 && c.level >= 2 {
			c.level /= 2 // latency still follows the load: there is less to find
			c.higher = s
			return sample{}
		}
		c.setBaseline(s)
	}
	c.level, c.limit = 0, c.probe.limit
	c.next = now + max(int64(probeEvery), probeRest*(now-c.began), int64(probeAfter*math.Exp(c.baseline)))
	return c.before
}

// considerProbe begins a probe if it is time for one.
func (c *control) considerProbe(now int64, s sample) {
	slow := s.mean() > c.baseline+unnoticed
	tried := min(c.limit, c.previous)
	if tried < 2 || !slow && (c.from != 0 || s.meanLoad() < filled*tried) {
		c.stuck = 0
		// nothing is to be found; but the first baseline may have been seen in the middle of a rush
		return
	}
	// Where the limit has fallen far, and the latency does not, it is not for waiting that requests
	// take long.
	c.stuck++
	if c.limit > c.from/2 || s.mean()-s.err() <= c.baseline+logTolerance {
		c.stuck = 0
	}
	if now >= c.next || c.stuck >= stuckFor {
		c.stuck = 0
		c.probe = probe{level: tried / 2, began: now, before: s, limit: c.previous, next: c.next, from: c.limit}
	}
}

// follow learns how much each priority asks for.
func (c *control) follow(elapsed float64, k counts) {
	if c.ended == 0 || elapsed <= 0 {
		return
	}
	// The throughput that the server is able to reach: the measured one or, if that is low for lack
	// of requests, half of the one that the limit stands for.
	able := max(float64(c.ended)/elapsed, c.limit/2/(c.busy/float64(c.ended)))
	weight := 1 - math.Exp(-elapsed/float64(time.Second))
	sum := 0.0
	for i := classes - 1; i > 0; i-- {
		sum += float64(k.arrived[i]-c.last.arrived[i]) / elapsed / able
		c.demand[i] += (sum - c.demand[i]) * weight
	}
	critical := Critical.index()
	if (k.refused[critical]-c.last.refused[critical])*reserveFor > k.arrived[critical]-c.last.arrived[critical] {
		c.caution = min(c.caution*1.25, mostCaution)
	} else {
		c.caution = 1 + (c.caution-1)*math.Exp(-elapsed/float64(forgetCaution))
	}
}

// setReserve works out how much room stays free for more important requests. If those ask for the
// share ρ of the server's throughput, then r places that only they may take are all taken for a
// share of about ρ^r of the time. That is so if they come independently; where critical ones are
// refused all the same, the room grows.
func (c *control) setReserve() {
	for i := range len(c.reserve) - 1 {
		c.reserve[i] = 0
		if share := c.demand[i+1]; share > 1e-4 {
			c.reserve[i] = -math.Log(reserveFor) / math.Log(min(share, 0.95))
		}
	}
	c.reserve[Default.index()] *= c.caution
}

// rooms returns how many may be under way for a request to be admitted, by priority: each leaves
// half at least to the one below it. Critical requests feel a cut one window later, when the others
// have made room.
func (c *control) rooms() (r [len(Priorities)]int) {
	sheddable, normal, critical := Sheddable.index(), Default.index(), Critical.index()
	top := int(c.limit)
	r[critical] = int(max(c.previous, c.limit))
	if c.level > 0 {
		top = int(c.level)
	}
	r[normal] = max(1, (top+1)/2, top-int(math.Ceil(c.reserve[normal])))
	r[sheddable] = max(1, (r[normal]+1)/2, r[normal]-int(math.Ceil(c.reserve[sheddable])))
	return r
}

// duration of a logarithm of ns; 0 for one that is not known.
func duration(log float64) time.Duration {
	if log == 0 {
		return 0
	}
	return time.Duration(math.Exp(min(log, 43))) // 43: what fits
}
