package gather

import (
	"slices"

	"github.com/weir-rl/weir/internal/observe/insight/judge"
	"github.com/weir-rl/weir/internal/observe/insight/series"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
)

// takeKey takes an event into the samples of keys. mu is held.
func (s *ruleState) takeKey(c *Collector, e *event) {
	all, refused := s.eras[currentEra].all, s.eras[currentEra].refused
	if all == nil {
		return
	}
	s.touched(c, all, e)
	isRefused := s.refuses(e)
	at := refused.find(e.hash)
	if at < 0 && isRefused && e.hash < refused.limit() {
		at = s.insert(refused, e.hash)
		t := &refused.traces[at]
		t.text, t.since = s.appendText(t.text[:0], &c.veil, e), e.at
	}
	if at < 0 {
		return
	}
	s.addKey(refused, at, e)
	if t := &refused.traces[at]; e.flags&flagFirst != 0 {
		if isRefused {
			t.remote = false
		}
		if len(t.text) == 0 {
			t.text = s.appendText(t.text[:0], &c.veil, e)
		}
		if !s.shadow() { // else nobody is told to come back, and there are no episodes
			before := t.Episodes
			// A ban ends a wait, as any request does, and begins none: how clients take bans says
			// nothing of the rule.
			t.note(e.at, isRefused || e.flags&flagStopped != 0, e.retry)
			s.ended.AddSince(&before, &t.Episodes)
		}
		s.pace(refused, at, e)
	}
}

// touched takes an event into the sample of all keys.
func (s *ruleState) touched(c *Collector, all *sample, e *event) {
	if e.flags&flagBanned != 0 {
		return
	}
	at := all.find(e.hash)
	if at < 0 {
		if e.hash >= all.limit() {
			return
		}
		at = s.insert(all, e.hash)
	}
	s.addKey(all, at, e)
	k := &all.keys[at]
	if m := uint32(c.minute); k.minute != m {
		k.minute = m
		s.minuteKeys++
	}
	if e.flags&flagFirst != 0 && s.eras[currentEra].refused.find(e.hash) < 0 {
		s.pace(all, at, e)
	}
}

// addKey adds an event to a key in a sample.
func (s *ruleState) addKey(x *sample, at int, e *event) {
	if e.flags&flagBanned != 0 {
		return
	}
	k := &x.keys[at]
	units, requests := uint64(0), uint32(0)
	if e.weights.key != noWeight {
		requests = 1 << min(e.weights.key, 31)
		units = min(uint64(e.asked)<<e.weights.key, 1<<32-1)
	}
	if e.flags&flagFirst != 0 { // once a request
		k.asked = snapshot.AddTo32(k.asked, uint32(units))
		if s.refuses(e) {
			k.refused = snapshot.AddTo32(k.refused, requests)
		}
	}
	k.known = k.known || e.flags&flagKnown != 0
	k.own = e.flags&flagOwn != 0
	k.would = k.would || e.flags&flagRuleWould != 0
	if int(e.window) >= x.stride {
		return
	}
	d := &x.demands[at*x.stride+int(e.window)]
	if e.flags&flagRefused == 0 {
		units = 0
	}
	d.Add(s.windowIndex(e), e.used, uint32(units), e.limit)
	if e.limit > 0 {
		k.fill = max(k.fill, float32(d.Latest())/float32(e.limit))
	}
}

// windowIndex returns the number of the window of an event.
func (s *ruleState) windowIndex(e *event) uint32 {
	span := int64(0)
	if int(e.window) < len(s.spans) {
		span = s.spans[e.window]
	}
	return uint32(windowIndex(e.at, span))
}

// windowIndex returns the number of the window of an instant in µs. Requests in flight, whose span
// is 0, count by the second.
func windowIndex(at, span int64) int64 {
	if span <= 0 {
		span = 1e6
	}
	return at / span
}

// insert puts a key into a sample, and tells the deciding path.
func (s *ruleState) insert(x *sample, hash uint64) int {
	at, evicted, full := x.insert(hash)
	if full {
		s.tell(evicted, 0)
	}
	s.tell(hash, 0)
	s.limits()
	return at
}

// tell puts a key into the filter of the deciding path, with its present state.
func (s *ruleState) tell(hash uint64, thin uint8) {
	f := s.gate.filter.Load()
	at, value := f.find(hash)
	if value == 0 {
		if s.filtered++; s.filtered*2 > len(f.slots) {
			s.refilter()
			return
		}
		value = filterMinute // no minute that it could be
	}
	watched := uint32(0)
	if s.eras[currentEra].refused.find(hash) >= 0 {
		watched = filterWatched
	}
	at.Store(uint32(hash>>16)&0xffff<<filterHash | value&filterMinute | filterUsed | watched | uint32(thin)&filterThin)
}

// refilter makes a new filter from the keys in the samples.
func (s *ruleState) refilter() {
	members := map[uint64]uint32{}
	for _, k := range s.eras[currentEra].all.keys {
		members[k.hash] = uint32(k.thin)
	}
	for _, k := range s.eras[currentEra].refused.keys {
		members[k.hash] = uint32(k.thin) | filterWatched
	}
	slots := 64
	for slots < 4*len(members)+16 {
		slots *= 2
	}
	f := newFilter(slots)
	for hash, value := range members {
		f.put(hash, value)
	}
	s.filtered = len(members)
	s.gate.filter.Store(f)
}

// limits passes the thresholds of the samples to the deciding path.
func (s *ruleState) limits() {
	all, refused := s.eras[currentEra].all, s.eras[currentEra].refused
	watched := uint64(0)
	if len(refused.keys) > 0 {
		watched = refused.keys[refused.largest()].hash + 1
	}
	s.gate.belowAll.Store(all.limit())
	s.gate.belowRefused.Store(refused.limit())
	s.gate.below.Store(max(all.limit(), watched))
	s.gate.beyond.Store(max(all.limit(), refused.limit(), watched))
}

// The number of events of one key in a second from which on it is thinned more, and below which it
// is thinned less.
const (
	mostOfKey  = 64
	leastOfKey = 16
)

// pace thins a key that comes too often.
func (s *ruleState) pace(x *sample, at int, e *event) {
	k := &x.keys[at]
	thin := k.thin
	if second := uint32(e.at / 1e6); second != k.second {
		if k.events < leastOfKey && thin > 0 {
			thin--
		}
		k.second, k.events = second, 0
	}
	if k.events++; k.events >= mostOfKey && thin < 20 {
		thin, k.events = thin+1, 0
	}
	if thin != k.thin {
		k.thin = thin
		s.tell(e.hash, thin)
	}
}

// Watch makes this node note the events of refused keys from the samples of other nodes. So all
// nodes follow a client that a load balancer spreads over them.
func (c *Collector) Watch(domain, rule string, keys []snapshot.RefusedKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.counted { // of others nothing is known that would be lost
		if s.domain == domain && s.name == rule {
			s.watch(keys, c.storeNow().UnixMicro())
			return
		}
	}
}

// watch puts keys that were refused on other nodes into the sample of refused keys.
func (s *ruleState) watch(keys []snapshot.RefusedKey, now int64) {
	x := s.eras[currentEra].refused
	if x == nil {
		return // not followed
	}
	for i := range keys {
		k := &keys[i]
		if x.find(k.Hash) >= 0 || k.Hash >= x.limit() {
			continue
		}
		at := s.insert(x, k.Hash)
		t := &x.traces[at]
		t.text, t.since, t.remote = append(t.text[:0], k.Text...), now, true
	}
}

// answered notes the answer to a request.
func (s *ruleState) answered(e *event) {
	well, tells := judge.AnsweredWell(int(e.status))
	if !tells {
		return
	}
	if e.weights.top != noWeight {
		s.eras[currentEra].answers += 1 << e.weights.top
		if well {
			s.eras[currentEra].well += 1 << e.weights.top
		}
	}
	if e.weights.key == noWeight {
		return
	}
	for _, x := range [...]*sample{s.eras[currentEra].all, s.eras[currentEra].refused} {
		if at := x.find(e.hash); at >= 0 {
			k := &x.keys[at]
			n := uint16(1) << min(e.weights.key, 10)
			if k.answers > 1<<15-1 {
				k.answers, k.well = k.answers/2, k.well/2
			}
			k.answers += n
			if well {
				k.well += n
			}
		}
	}
}

// turn begins an era.
func (s *ruleState) turn() {
	for kind := range s.long {
		s.long[kind].halve()
	}
	if s.trial != nil {
		s.trial.top.halve()
	}
	if s.eras[currentEra].all == nil {
		return
	}
	s.noteFullest()
	copy(s.eras[1:], s.eras[:])
	s.eras[currentEra] = s.newEra()
	s.refilter()
	s.limits()
}

// resize changes how much is kept. Samples only shrink: keys that were dropped do not come back
// before the next era.
func (s *ruleState) resize(to keptSize) {
	if s.size == to && (s.series == nil || s.eras[currentEra].all != nil) {
		return
	}
	s.size = to
	if s.series != nil && to.lean && len(s.minutes) > series.Minutes(true) {
		states := make([]series.Minute, series.Minutes(true))
		for n := max(s.series.LastMinute()-int64(len(states))+1, 0); n <= s.series.LastMinute(); n++ {
			states[n%int64(len(states))] = s.minutes[n%int64(len(s.minutes))]
		}
		s.minutes = states
		s.series.Thin()
	}
	for kind := range snapshot.TopKinds {
		s.live[kind].resize(to.top)
		s.long[kind].resize(to.top)
	}
	if s.trial != nil && s.trial.Enforce > 0 {
		s.trial.top.resize(to.top)
	}
	if s.series == nil {
		return // never met
	}
	if s.eras[currentEra].all == nil {
		s.eras[currentEra] = s.newEra()
	}
	for i := range s.eras {
		if x := s.eras[i].all; x != nil && x.k > to.all {
			x.resize(to.all)
		}
		if x := s.eras[i].refused; x != nil && x.k > to.refused {
			x.resize(to.refused)
		}
	}
	s.refilter()
	s.limits()
}

// forgetKeys forgets everything that is found by the hash of a key.
func (s *ruleState) forgetKeys() {
	for kind := range snapshot.TopKinds {
		s.live[kind] = topList{most: s.live[kind].most}
		s.long[kind] = topList{most: s.long[kind].most}
	}
	if s.trial != nil {
		s.trial.top = topList{most: s.trial.top.most}
	}
	if s.isCounted() {
		s.memory = judge.Memory{}
	}
	if s.eras[currentEra].all == nil {
		return
	}
	for i := range s.eras {
		s.eras[i].all, s.eras[i].refused = nil, nil
	}
	s.eras[currentEra].all, s.eras[currentEra].refused = s.newSamples()
	s.refilter()
	s.limits()
}

// fewestDrawn is how many decisions must be known for a share, if not all are looked at.
const fewestDrawn = 40

// endMinute notes the state of the minute that began at an instant.
func (s *ruleState) endMinute(unix int64, signal string) {
	m := series.Minute{Keys: float32(s.minuteKeys), TopShare: snapshot.UnknownShare,
		Signal: uint8(slices.Index(snapshot.Saturations, signal) + 1)}
	s.minuteKeys = 0
	if all := s.eras[currentEra].all; all != nil && len(all.keys) >= all.k {
		m.Keys /= float32((float64(all.most) + 1) / (1 << 63) / 2)
	}
	if list := s.live[snapshot.TopAsked].snapshot(); s.liveAdmitted > 0 && len(list) > 0 &&
		(s.liveDrawn >= fewestDrawn || s.liveDrawn == s.liveAdmitted) {
		sum := 0.0
		for i := range list[:min(snapshot.TopPercent(m.Keys), len(list))] {
			sum += float64(list[i].Asked - min(list[i].Refused, list[i].Asked))
		}
		m.TopShare = uint8(min(sum/s.liveAdmitted, 1) * 100)
	}
	s.minutes[unix/60%int64(len(s.minutes))] = m
}
