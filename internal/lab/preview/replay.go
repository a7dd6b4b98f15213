package preview

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/lab/sim"
	"github.com/weir-rl/weir/internal/observe/insight/gather"
	"github.com/weir-rl/weir/internal/observe/insight/judge"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/fallback"
)

// shape is shared by many requests: the domain, and the names of their attributes.
type shape struct {
	domain string
	names  []string
}

// shapes holds each shape once.
type shapes struct{ m map[string]*shape }

// of returns the shape for a text; nil if the text is none.
func (s *shapes) of(text string) *shape {
	if found := s.m[text]; found != nil {
		return found
	}
	if !strings.HasSuffix(text, "\x00") {
		return nil
	}
	text = strings.Clone(text) // it shares the memory of a chunk
	parts := strings.Split(text[:len(text)-1], "\x00")
	found := &shape{domain: parts[0], names: parts[1:]}
	if s.m == nil {
		s.m = map[string]*shape{}
	}
	s.m[text] = found
	return found
}

// attributes are the attributes of a recorded request.
type attributes struct{ *request }

// Attribute implements rule.Attributes.
func (a attributes) Attribute(name string) (string, bool) {
	for i, n := range a.shape.names {
		if n == name {
			return a.values[i], true
		}
	}
	return "", false
}

// All implements rule.Attributes.
func (a attributes) All() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for i, n := range a.shape.names {
			if !yield(n, a.values[i]) {
				return
			}
		}
	}
}

// readings returns the further readings of a recorded request (Recorder.appendAlso); nil for none.
func (e *request) readings() (all []rule.Attributes) {
	r := reader{b: []byte(e.also), ok: true}
	for len(r.b) > 0 {
		other := *e
		other.values = slices.Clone(e.values)
		for range r.byte() {
			i, v := r.byte(), string(r.take(r.uvarint()))
			if int(i) < len(other.values) {
				other.values[i] = v
			}
		}
		all = append(all, attributes{&other})
	}
	return all
}

// stream reads the chunks of a stratum of one node.
type stream struct {
	chunks []chunk
	raw    []byte
	d      decoder
	e      request
	ok     bool
}

// merged reads streams in order of time.
type merged struct {
	streams []*stream
	shapes  shapes
	z       *zstd.Decoder
	last    *stream
}

func newMerged(lists [][]chunk) (*merged, error) {
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(16<<20))
	if err != nil {
		return nil, err
	}
	m := &merged{z: z}
	for _, chunks := range lists {
		s := &stream{chunks: chunks}
		if err := m.advance(s); err != nil {
			return nil, err
		}
		m.streams = append(m.streams, s)
	}
	return m, nil
}

// advance reads the next entry of a stream.
func (m *merged) advance(s *stream) (err error) {
	for {
		if s.ok, err = s.d.next(&s.e, &m.shapes); s.ok || err != nil || len(s.chunks) == 0 {
			return err
		}
		c := &s.chunks[0]
		if c.Size < 0 { // an open one
			s.raw = c.Data
		} else if s.raw, err = m.z.DecodeAll(c.Data, s.raw[:0]); err != nil {
			return errors.Join(errBroken, err)
		}
		s.chunks = s.chunks[1:]
		s.d.open(s.raw)
	}
}

// next returns the next entry, valid until the next call; nil if there is none.
func (m *merged) next() (*request, error) {
	if m.last != nil {
		if err := m.advance(m.last); err != nil {
			return nil, err
		}
	}
	m.last = nil
	for _, s := range m.streams {
		if s.ok && (m.last == nil || s.e.time < m.last.e.time ||
			s.e.time == m.last.e.time && s.e.turn < m.last.e.turn) {
			m.last = s
		}
	}
	if m.last == nil {
		return nil, nil
	}
	return &m.last.e, nil
}

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
	named := func(name string) bool {
		for _, k := range clientKeys {
			if k == name {
				return true
			}
		}
		return false
	}
	for _, key := range r.Per {
		for _, name := range key {
			if named(name) {
				return false
			}
		}
	}
	if r.Lyft != nil {
		for _, e := range r.Lyft.Path {
			if named(e.Key) && e.Value == "" {
				return false
			}
		}
	}
	return true
}

// decide decides a request. counted says whether it counts, or only warms up.
func (s *side) decide(e *request, counted bool) (allowed bool, err error) {
	s.engine.SetTime(e.time)
	s.q = weir.Request{Domain: e.shape.domain, Attributes: attributes{e}, Also: e.readings(), Hits: e.hits}
	setDelay(&s.q, e.delay)
	if e.descriptors != "" {
		s.q.Descriptors = readDescriptors([]byte(e.descriptors))
		if len(e.shape.names) == 0 {
			s.q.Attributes = nil
		}
	}
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
	if !counted || e.hits < 0 {
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
func (r *replay) run(ctx context.Context, m *merged, progress func(done uint64)) error {
	for n := 1; ; n++ {
		e, err := m.next()
		if err != nil {
			return err
		}
		if e == nil {
			return nil
		}
		if e.time < r.start {
			continue // from a chunk that begins earlier
		}
		if e.flags&flagAnswer != 0 {
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

func (r *replay) answer(e *request) {
	if e.time < r.from {
		return
	}
	r.client(e.client).conduct.Answered(int(e.hits))
}

func (r *replay) step(e *request) error {
	r.done++
	counted := e.time >= r.from
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
	if !counted || e.hits < 0 {
		return nil
	}
	r.requests++
	r.to = max(r.to, e.time)
	if e.flags&flagAllowed == 0 {
		r.happened++
		if e.flags&flagBanned != 0 {
			r.banned++
		}
	}
	if e.flags&flagCut != 0 {
		r.cut++
	}
	if e.kind == byUser {
		r.users++
	}
	known := r.identifies(e)
	if known {
		r.identified++
	}
	r.series.add(e.time, now, then)
	if e.kind == byNobody {
		r.only(now, then)
		return nil
	}
	c := r.client(e.client)
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
		c.key = e.clientText()
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
func (r *replay) identifies(e *request) bool {
	for _, name := range r.known {
		if v, ok := (attributes{e}).Attribute(name); ok && v != "" {
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

// clientText names the client of a request for people. It returns a copy.
func (e *request) clientText() string {
	for _, name := range [...]string{"user", "ip"} {
		if v, ok := (attributes{e}).Attribute(name); ok && v != "" {
			return name + "=" + strings.ToValidUTF8(v, "?")
		}
	}
	if e.descriptors != "" {
		var parts []string
		for _, d := range readDescriptors([]byte(e.descriptors)) {
			for _, entry := range d.Entries {
				parts = append(parts, entry.Key+"="+entry.Value)
			}
		}
		return strings.ToValidUTF8(strings.Join(parts, ", "), "?")
	}
	return ""
}
