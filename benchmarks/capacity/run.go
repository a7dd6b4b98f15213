package capacity

import (
	"math/rand/v2"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/leasing/lessee"
	"github.com/weir-rl/weir/internal/testkit/histogram"
)

// world is a scenario under way.
type world struct {
	s      Scenario
	rng    *rand.Rand
	source *source
	agenda agenda
	now    int64 // ns since the scenario began
	end    int64 // no request comes after that

	nodes  []node
	down   int // nodes
	links  []link
	stores []server

	keyOf   table // by stratum and number
	keys    []key
	placeOf table // by key and node
	places  []place

	terms   *lessee.Terms // of a limit that lends; else nil
	entries []entry
	unused  []int32 // entries
	late    int64

	batches uint64
	spare   []*batch
	events  int64

	guarantee guarantee
	ideal     *algo.Limit
	over      int64
	tallies   []Tally
	latency   histogram.Histogram
}

// key is a simulated key. It stands for others of its stratum.
type key struct {
	name         uint64
	stratum      int32
	partition    int32
	state, lease algo.State
	ideal        algo.State // as if each request were decided when it comes
	judge        judge
}

// Run runs a scenario. It is deterministic except for Result.Took. An error means that the scenario
// makes no sense.
func Run(s Scenario) (*Result, error) {
	w, err := newWorld(s)
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	w.run()
	return w.result(time.Since(begin)), nil
}

func newWorld(s Scenario) (*world, error) {
	s.Partitions, s.Stores = max(s.Partitions, 1), max(s.Stores, 1)
	if s.RoundTrip == 0 {
		s.RoundTrip = time.Millisecond
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	exact := s.Limit.Config()
	exact.Lease, exact.LeaseFor = 0, 0
	ideal, err := algo.New(exact)
	if err != nil {
		return nil, err
	}
	rng := rand.New(rand.NewPCG(s.Seed, 0))
	w := &world{
		s: s, rng: rng, source: newSource(rng, s.Strata), end: int64(s.Warm + s.Length),
		nodes: make([]node, s.Nodes), links: make([]link, s.Nodes*s.Partitions), stores: make([]server, s.Stores),
		guarantee: newGuarantee(s.Limit), ideal: ideal, tallies: make([]Tally, len(s.Strata)),
		terms: lessee.TermsOf(s.Limit),
	}
	for i := range w.nodes {
		w.nodes[i].offset = rng.Int64N(int64(time.Hour))
		w.nodes[i].drift = s.ClockError * (2*rng.Float64() - 1)
		w.nodes[i].store = begun*1000 - w.clock(int32(i)) // it has asked for the time
	}
	for i := range w.links {
		w.links[i].node, w.links[i].partition = int32(i/s.Partitions), int32(i%s.Partitions)
	}
	return w, nil
}

func (w *world) run() {
	if w.s.Churn > 0 {
		w.agenda.add(event{at: int64(w.s.Churn), what: dies})
	}
	after, stratum, number := w.source.next()
	next := after
	for {
		switch {
		case next < float64(w.end) && (len(w.agenda.heap) == 0 || int64(next) < w.agenda.heap[0].at):
			w.now = int64(next)
			w.request(stratum, number)
			after, stratum, number = w.source.next()
			next += after
		case len(w.agenda.heap) == 0:
			return
		default:
			e := w.agenda.pop()
			w.now = e.at
			w.happen(&e)
		}
		w.events++
	}
}

func (w *world) happen(e *event) {
	switch e.what {
	case serves:
		w.serve(e.call)
	case arrives:
		w.arrived(e.call)
	case answers:
		w.answer(e.call)
	case visits:
		w.visit(e.who, e.life)
	case starts:
		w.start(e.who)
	case dies:
		if w.die(); w.now+int64(w.s.Churn) < w.end {
			w.agenda.add(event{at: w.now + int64(w.s.Churn), what: dies})
		}
	}
}

// measuring reports whether present events are counted.
func (w *world) measuring() bool { return w.now >= int64(w.s.Warm) && w.now < w.end }

// request simulates a request that comes now.
func (w *world) request(stratum int, number int64) {
	if ramp := int64(w.s.Ramp); w.now < ramp && w.rng.Int64N(ramp) >= w.now {
		return
	}
	k := w.keyFor(stratum, number)
	ideal := w.ideal.Take(&w.keys[k].ideal, w.storeNow(), algo.Ask{Cost: 1, MaxDelay: -1})
	if ideal.Allowed && w.measuring() {
		w.tallies[stratum].Ideal++
	}
	n := w.nodeFor(k)
	h := w.placeFor(k, n)
	allowed, here := w.decide(h)
	if !here {
		return
	}
	if allowed {
		w.judge(k)
	}
	w.decided(h, w.now, allowed, true)
}

// decided counts a decision on a request that came at an instant.
func (w *world) decided(number int32, at int64, allowed, here bool) {
	if at < int64(w.s.Warm) {
		return
	}
	t := w.tally(number)
	weight := w.s.Strata[w.keys[w.places[number].key].stratum].weight()
	n := &w.nodes[w.places[number].node]
	t.Decisions++
	n.offered += weight
	if allowed {
		t.Admitted++
		n.admitted += weight
	}
	if here && allowed {
		t.Here++
	}
	if here && !allowed {
		t.RefusedHere++
	}
	w.latency.Add(time.Duration(w.now-at), weight)
}

// judge checks an admission of a key, which is decided now, against the guarantee.
func (w *world) judge(k int32) {
	if !w.guarantee.admit(&w.keys[k].judge, w.storeNow()) {
		w.over++
	}
}

func (w *world) tally(place int32) *Tally { return &w.tallies[w.keys[w.places[place].key].stratum] }

// keyFor returns a key of a stratum, which is made for its first request.
func (w *world) keyFor(stratum int, number int64) int32 {
	name := uint64(stratum)<<32 | uint64(number)
	k, fresh := w.keyOf.find(name, int32(len(w.keys)))
	if fresh {
		partition := int32(mix(name, ^w.s.Seed) % uint64(w.s.Partitions))
		w.keys = append(w.keys, key{name: name, stratum: int32(stratum), partition: partition})
	}
	return k
}

// placeFor returns the state of a key on a node: nothing, if the node was restarted since.
func (w *world) placeFor(k, n int32) int32 {
	h, fresh := w.placeOf.find(uint64(k)<<20|uint64(n), int32(len(w.places)))
	life := w.nodes[n].life
	switch {
	case fresh:
		w.places = append(w.places, place{key: k, node: n, life: life})
	case w.places[h].life != life:
		w.places[h] = place{key: k, node: n, life: life}
	}
	return h
}
