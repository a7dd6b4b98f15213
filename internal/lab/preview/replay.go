package preview

import (
	"context"
	"errors"
	"slices"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/lab/sim"
	"github.com/weir-rl/weir/internal/observe/insight/gather"
	"github.com/weir-rl/weir/internal/observe/insight/judge"
	"github.com/weir-rl/weir/internal/observe/record"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/fallback"
)

// side replays requests through one set of rules.
type side struct {
	set    *rule.Set
	engine *sim.Engine
	q      weir.Request
	d      weir.Decision
	met    []uint64 // by rule.Rule.Index
	denied []uint64
	// limits whose keys cut across clients, if not all clients are in the sample
	scaled map[*rule.Counter]bool
	scale  int64
	shares map[*algo.Limit]*algo.Limit
	total  uint64 // refused
}

// engineBytes bounds the counters of one side.
const engineBytes = 256 << 20

func newSide(set *rule.Set, sampled int) (*side, error) {
	s := &side{set: set, met: make([]uint64, len(set.Rules())), denied: make([]uint64, len(set.Rules())),
		scale: int64(sampled)}
	o := sim.EngineOptions{MaxBytes: engineBytes}
	if sampled > 1 {
		s.scaled, s.shares = map[*rule.Counter]bool{}, map[*algo.Limit]*algo.Limit{}
		for _, r := range set.Rules() {
			if cutsAcross(r) {
				for _, w := range r.Windows {
					s.scaled[w.Counter] = true
				}
			}
		}
		o.Limit = s.share
	}
	var err error
	s.engine, err = sim.NewEngineWith(set, o)
	return s, err
}

// share scales a limit that all clients share down to the clients in the sample.
func (s *side) share(c *store.Charge) *algo.Limit {
	if c.Limit == nil || !s.scaled[c.Counter] {
		return c.Limit
	}
	l := s.shares[c.Limit]
	if l == nil {
		if len(s.shares) > 10_000 { // requests may bring limits
			clear(s.shares)
		}
		l = fallback.ShareOf(c.Limit, s.scale)
		s.shares[c.Limit] = l
	}
	return l
}

// clientKeys are attributes that name a client, or that many clients may share but of which each
// client has one.
var clientKeys = []string{"user", "ip", "user_id", "remote_address"}

// cutsAcross reports whether the keys of a rule gather requests of several clients.
func cutsAcross(r *rule.Rule) bool {
	named := func(name string) bool { return slices.Contains(clientKeys, name) }
	for _, key := range r.Per {
		if slices.ContainsFunc(key, named) {
			return false
		}
	}
	return r.Lyft == nil ||
		!slices.ContainsFunc(r.Lyft.Path, func(e rule.Entry) bool { return named(e.Key) && e.Value == "" })
}

// decide decides a request. counted says whether it counts, or only warms up.
func (s *side) decide(e *record.Request, counted bool) (allowed bool, err error) {
	s.engine.SetTime(e.Time)
	e.Fill(&s.q)
	if err := s.engine.Decide(&s.q, &s.d); err != nil {
		return false, err
	}
	for i := range s.d.Limits {
		if slot := s.d.Limits[i].Slot; slot != "" {
			// The record does not say when a slot was given back, so such a limit refuses nothing
			// here.
			if _, err := s.engine.Release(slot); err != nil {
				return false, err
			}
		}
	}
	if !counted || e.Hits < 0 {
		return s.d.Allowed, nil
	}
	last := -1
	lastDenied := -1
	for i := range s.d.Limits {
		l := &s.d.Limits[i]
		n := l.Window.Rule.Index
		if n >= len(s.met) { // a limit that the request brought
			continue
		}
		if n != last {
			s.met[n]++
			last = n
		}
		if n != lastDenied && s.d.Refuses(l) {
			s.denied[n]++
			lastDenied = n
		}
	}
	if !s.d.Allowed {
		s.total++
	}
	return s.d.Allowed, nil
}

func (s *side) close() { s.engine.Close() }

// client is the state of one client in the replay.
type client struct {
	requests, now, then uint32
	conduct             gather.Conduct // under the rules in force
	key                 string         // of clients that the change affects
}

// replay is the state of one preview.
type replay struct {
	now, then  *side
	clients    map[uint64]*client
	known      []string
	start      int64 // earlier requests are left out
	from       int64 // requests count from then on
	to         int64
	requests   uint64
	happened   uint64 // refusals, as they were recorded
	banned     uint64 // of them, by a ban
	onlyNow    uint64
	onlyThen   uint64
	cut        uint64
	users      uint64
	identified uint64 // requests that say who the client is
	series     series
	stopped    bool // it took too long
	done       uint64
	meter      *meter
	each       eachFunc // for tests
}

// run replays the requests of m.
func (r *replay) run(ctx context.Context, m *record.Reader, progress func(done uint64)) error {
	for n := 1; ; n++ {
		e, err := m.Next()
		if err != nil {
			return err
		}
		if e == nil {
			return nil
		}
		if e.Time < r.start {
			continue // from a chunk that begins earlier
		}
		if e.Answer() {
			r.answer(e)
		} else if err := r.step(e); err != nil {
			return err
		}
		if n%pauseEvery != 0 {
			continue
		}
		if n%4096 == 0 {
			progress(r.done)
		}
		switch err := r.meter.pause(ctx); {
		case errors.Is(err, errTooLong):
			r.stopped = true
			return nil
		case err != nil:
			return err
		}
	}
}

func (r *replay) client(hash uint64) *client {
	c := r.clients[hash]
	if c == nil {
		c = &client{}
		r.clients[hash] = c
	}
	return c
}

func (r *replay) answer(e *record.Request) {
	if e.Time < r.from {
		return
	}
	r.client(e.Client).conduct.Answered(int(e.Hits))
}

func (r *replay) step(e *record.Request) error {
	r.done++
	counted := e.Time >= r.from
	now, err := r.now.decide(e, counted)
	if err != nil {
		return err
	}
	then, err := r.then.decide(e, counted)
	if err != nil {
		return err
	}
	if r.each != nil {
		r.each(e, &r.now.d, &r.then.d)
	}
	if !counted || e.Hits < 0 {
		return nil
	}
	r.requests++
	r.to = max(r.to, e.Time)
	if !e.Allowed() {
		r.happened++
		if e.Banned() {
			r.banned++
		}
	}
	if e.Cut() {
		r.cut++
	}
	if e.HasUser() {
		r.users++
	}
	known := r.identifies(e)
	if known {
		r.identified++
	}
	r.series.add(e.Time, now, then)
	if e.Anonymous() {
		r.only(now, then)
		return nil
	}
	c := r.client(e.Client)
	c.requests++
	c.conduct.Known = c.conduct.Known || known
	c.conduct.Decided(&r.now.q, &r.now.d)
	if !now {
		c.now++
	}
	if !then {
		c.then++
	}
	if r.only(now, then) && c.key == "" {
		c.key = e.ClientText()
	}
	return nil
}

// only counts a request, and reports whether the two sides differ on it.
func (r *replay) only(now, then bool) bool {
	switch {
	case now && !then:
		r.onlyThen++
	case !now && then:
		r.onlyNow++
	default:
		return false
	}
	return true
}

// identifies reports whether a request has an attribute that says who the client is.
func (r *replay) identifies(e *record.Request) bool {
	for _, name := range r.known {
		if v, ok := e.Attribute(name); ok && v != "" {
			return true
		}
	}
	return false
}

// good returns a function that reports whether a client behaves well. It is insight's judgement of
// a key, so that a preview counts the same clients as verdicts do.
func (r *replay) good() func(c *client) bool {
	f := judge.Facts{Met: r.requests, Known: r.identified}
	for _, c := range r.clients {
		if k := c.conduct.Facts(); k.OK >= 0 {
			f.Sample = append(f.Sample, k) // one shows that there are answers
			break
		}
	}
	if !f.TellsGood() {
		return func(*client) bool { return false }
	}
	identity := f.HasIdentity()
	return func(c *client) bool {
		k := c.conduct.Facts()
		return k.Good(identity)
	}
}
