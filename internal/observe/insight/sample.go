package insight

import (
	"cmp"
	"math"
	"slices"
)

// sample holds the keys with the k smallest hashes among all keys that it was given. This is a
// uniform sample, and the k-th smallest hash estimates how many keys there were (Bar-Yossef and
// others 2002, Beyer and others 2007). Samples with the same seed merge: the k smallest hashes of
// the union are the sample of the union. Not safe for concurrent use.
type sample struct {
	k       int
	stride  int // limits of the rule
	keys    []sampledKey
	demands []demand // stride for each key
	traces  []trace  // one for each key, of a sample of refused keys
	index   []uint16 // place + 1 in keys, by hash; 0 is empty
	traced  bool     // it has traces
	most    uint64   // the largest hash in it, or all ones while it is not full
}

// sampledKey is what is known of one key.
type sampledKey struct {
	hash           uint64
	asked, refused uint32 // units, requests
	answers, well  uint16 // without status 429; both are halved before they overflow
	fill           float32
	minute         uint32 // in which it came last
	second         uint32 // in which events were counted
	events         uint16
	thin           uint8
	known, own     bool
}

// demand is how much a key asked of one limit, in its busiest windows. used is the usage of the
// window by the store, the same on all nodes that share the store. refused counts the units that
// were refused, and adds up over nodes.
type demand struct {
	limit uint32 // in force for the key
	// The current window, the one before in which the key came, and the two busiest others. All
	// nodes that see the key know the first two.
	windows [4]windowUse
}

type windowUse struct{ index, used, refused uint32 }

func (u *windowUse) demand() uint64 { return uint64(u.used) + uint64(u.refused) }

// add notes a decision in a window.
func (d *demand) add(index, used, refused, limit uint32) {
	d.limit = limit
	w := &d.windows[0]
	if w.index != index {
		for i := range d.windows[1:] {
			if o := &d.windows[1+i]; o.index == index && o.demand() > 0 { // the clock went back
				o.used, o.refused = max(o.used, used), addTo32(o.refused, refused)
				return
			}
		}
		least := &d.windows[2]
		if d.windows[3].demand() < least.demand() {
			least = &d.windows[3]
		}
		if d.windows[1].demand() >= least.demand() {
			*least = d.windows[1]
		}
		d.windows[1], *w = *w, windowUse{index: index}
	}
	w.used, w.refused = max(w.used, used), addTo32(w.refused, refused)
}

// peak returns the most that was asked in one window.
func (d *demand) peak() (most uint64) {
	for i := range d.windows {
		most = max(most, d.windows[i].demand())
	}
	return most
}

// merge adds what another node saw of the key in the same windows.
func (d *demand) merge(x *demand) {
	var all []windowUse
	for _, list := range [...]*[4]windowUse{&d.windows, &x.windows} {
	next:
		for _, w := range list {
			if w.demand() == 0 {
				continue
			}
			for i := range all {
				if all[i].index == w.index {
					all[i].used, all[i].refused = max(all[i].used, w.used), addTo32(all[i].refused, w.refused)
					continue next
				}
			}
			all = append(all, w)
		}
	}
	slices.SortFunc(all, func(a, b windowUse) int {
		return cmp.Or(cmp.Compare(b.demand(), a.demand()), cmp.Compare(b.index, a.index))
	})
	d.windows = [4]windowUse{}
	copy(d.windows[:], all)
	d.limit = max(d.limit, x.limit)
}

func addTo32(a, b uint32) uint32 {
	if a+b < a {
		return math.MaxUint32
	}
	return a + b
}

func newSample(k, stride int, traced bool) *sample {
	s := &sample{k: k, stride: max(stride, 1), traced: traced}
	s.rehash()
	return s
}

// limit returns the hash below which a key belongs in the sample.
func (s *sample) limit() uint64 {
	if s == nil || s.k == 0 {
		return 0
	}
	return s.most
}

// find returns the place of a key, -1 if it is not in.
func (s *sample) find(hash uint64) int {
	if s == nil || len(s.index) == 0 {
		return -1
	}
	for i := uint(hash); ; i++ {
		at := s.index[i&uint(len(s.index)-1)]
		if at == 0 {
			return -1
		}
		if s.keys[at-1].hash == hash {
			return int(at) - 1
		}
	}
}

// insert adds a key that is not in the sample, and belongs there. evicted is the key that it
// replaces.
func (s *sample) insert(hash uint64) (at int, evicted uint64, full bool) {
	if len(s.keys) < s.k {
		at = len(s.keys)
		if at == cap(s.keys) { // to no more than k, which append would
			room := min(max(16, 2*at), s.k)
			s.keys = append(make([]sampledKey, 0, room), s.keys...)
			s.demands = append(make([]demand, 0, room*s.stride), s.demands...)
			if s.traced {
				s.traces = append(make([]trace, 0, room), s.traces...)
			}
		}
		s.keys = append(s.keys, sampledKey{hash: hash})
		s.demands = append(s.demands, make([]demand, s.stride)...)
		if s.traced {
			s.traces = append(s.traces, trace{})
		}
		if len(s.keys) < s.k && 2*len(s.keys) <= len(s.index) {
			s.enter(at)
			return at, 0, false
		}
	} else {
		at = s.find(s.most)
		evicted, full = s.most, true
		clear(s.demands[at*s.stride : (at+1)*s.stride])
		if s.traced {
			s.traces[at] = trace{text: s.traces[at].text[:0]}
		}
	}
	s.keys[at] = sampledKey{hash: hash}
	s.rehash()
	return at, evicted, full
}

// largest returns the place of the key with the largest hash.
func (s *sample) largest() (at int) {
	for i := range s.keys {
		if s.keys[i].hash > s.keys[at].hash {
			at = i
		}
	}
	return at
}

// rehash rebuilds the index and the limit.
func (s *sample) rehash() {
	size := 16
	for size < 2*len(s.keys) {
		size *= 2
	}
	if len(s.index) != size {
		s.index = make([]uint16, size)
	} else {
		clear(s.index)
	}
	for at := range s.keys {
		s.enter(at)
	}
	s.most = math.MaxUint64
	if len(s.keys) >= s.k && len(s.keys) > 0 {
		s.most = s.keys[s.largest()].hash
	}
}

// resize changes k; keys with the largest hashes go.
func (s *sample) resize(k int) {
	s.k = k
	for len(s.keys) > k {
		at, last := s.largest(), len(s.keys)-1
		s.keys[at] = s.keys[last]
		copy(s.demands[at*s.stride:(at+1)*s.stride], s.demands[last*s.stride:])
		s.keys, s.demands = s.keys[:last], s.demands[:last*s.stride]
		if s.traced {
			s.traces[at] = s.traces[last]
			s.traces = s.traces[:last]
		}
	}
	s.keys, s.demands, s.traces = slices.Clip(s.keys), slices.Clip(s.demands), slices.Clip(s.traces)
	s.rehash()
}

// distinct estimates how many keys a sample was given. The sample holds n keys, at most k, and most
// is its largest hash. The standard error is relative; 0 is exact.
func distinct(n, k int, most uint64) (keys, standardError float64) {
	if n < k || k < 3 {
		return float64(n), 0
	}
	share := (float64(most) + 1) / (1 << 63) / 2
	return float64(k-1) / share, 1 / math.Sqrt(float64(k-2))
}

// enter puts a key into the index.
func (s *sample) enter(at int) {
	i := uint(s.keys[at].hash)
	for s.index[i&uint(len(s.index)-1)] != 0 {
		i++
	}
	s.index[i&uint(len(s.index)-1)] = uint16(at + 1)
}

// SampledKey is a key of a sample, in a snapshot.
type SampledKey struct {
	Hash           uint64
	Asked, Refused uint64
	Answers, Well  uint32
	Fill           float32
	Known, Own     bool
	Demands        []demand
}

// SampleSnapshot is a sample: by hash, smallest first.
type SampleSnapshot struct {
	K    int // the most that it would hold
	Keys []SampledKey
}

// snapshot copies a sample.
func (s *sample) snapshot() SampleSnapshot {
	if s == nil {
		return SampleSnapshot{}
	}
	out := SampleSnapshot{K: s.k, Keys: make([]SampledKey, len(s.keys))}
	for i := range s.keys {
		out.Keys[i] = s.key(i)
	}
	slices.SortFunc(out.Keys, func(a, b SampledKey) int { return cmp.Compare(a.Hash, b.Hash) })
	return out
}

func (s *sample) key(i int) SampledKey {
	k := &s.keys[i]
	return SampledKey{
		Hash: k.hash, Asked: uint64(k.asked), Refused: uint64(k.refused), Answers: uint32(k.answers), Well: uint32(k.well),
		Fill: k.fill, Known: k.known, Own: k.own, Demands: slices.Clone(s.demands[i*s.stride : (i+1)*s.stride]),
	}
}

// distinct estimates how many keys the sample was given.
func (s *SampleSnapshot) distinct() (keys, standardError float64) {
	if len(s.Keys) == 0 {
		return 0, 0
	}
	return distinct(len(s.Keys), s.K, s.Keys[len(s.Keys)-1].Hash)
}

// merge merges another sample, of another node or another time.
func (s *SampleSnapshot) merge(x *SampleSnapshot) {
	switch {
	case s.K == 0:
		*s = *x
		return
	case x.K == 0:
		return
	}
	k := min(s.K, x.K) // of the smaller one, more is not known
	merged := make([]SampledKey, 0, len(s.Keys)+len(x.Keys))
	a, b := s.Keys, x.Keys
	for (len(a) > 0 || len(b) > 0) && len(merged) < k {
		switch {
		case len(b) == 0 || len(a) > 0 && a[0].Hash < b[0].Hash:
			merged, a = append(merged, a[0]), a[1:]
		case len(a) == 0 || b[0].Hash < a[0].Hash:
			merged, b = append(merged, b[0]), b[1:]
		default:
			m := a[0]
			m.merge(&b[0])
			merged, a, b = append(merged, m), a[1:], b[1:]
		}
	}
	s.K, s.Keys = k, merged
}

func (k *SampledKey) merge(x *SampledKey) {
	k.Asked, k.Refused = k.Asked+x.Asked, k.Refused+x.Refused
	k.Answers, k.Well = k.Answers+x.Answers, k.Well+x.Well
	k.Known, k.Own = k.Known || x.Known, k.Own || x.Own
	k.Fill = max(k.Fill, x.Fill)
	k.Demands = slices.Clone(k.Demands)
	for i := range k.Demands {
		if i < len(x.Demands) {
			k.Demands[i].merge(&x.Demands[i])
		}
		if d := &k.Demands[i]; d.limit > 0 {
			k.Fill = max(k.Fill, float32(float64(d.peak())/float64(d.limit)))
		}
	}
}
