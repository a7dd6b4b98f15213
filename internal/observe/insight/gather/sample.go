package gather

import (
	"cmp"
	"math"
	"slices"

	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
)

// sample holds the keys with the k smallest hashes among all keys that it was given. This is a
// uniform sample, and the k-th smallest hash estimates how many keys there were (Bar-Yossef and
// others 2002, Beyer and others 2007). Samples with the same seed merge: the k smallest hashes of
// the union are the sample of the union. Not safe for concurrent use.
type sample struct {
	k       int
	stride  int // limits of the rule
	keys    []sampledKey
	demands []snapshot.Demand // stride for each key
	traces  []keyTrace        // one for each key, of a sample of refused keys
	index   []uint16          // place + 1 in keys, by hash; 0 is empty
	traced  bool              // it has traces
	most    uint64            // the largest hash in it, or all ones while it is not full
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
	would          bool // see snapshot.SampledKey
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
			s.demands = append(make([]snapshot.Demand, 0, room*s.stride), s.demands...)
			if s.traced {
				s.traces = append(make([]keyTrace, 0, room), s.traces...)
			}
		}
		s.keys = append(s.keys, sampledKey{hash: hash})
		s.demands = append(s.demands, make([]snapshot.Demand, s.stride)...)
		if s.traced {
			s.traces = append(s.traces, keyTrace{})
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
			s.traces[at] = keyTrace{text: s.traces[at].text[:0]}
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

// enter puts a key into the index.
func (s *sample) enter(at int) {
	i := uint(s.keys[at].hash)
	for s.index[i&uint(len(s.index)-1)] != 0 {
		i++
	}
	s.index[i&uint(len(s.index)-1)] = uint16(at + 1)
}

// snapshot copies a sample.
func (s *sample) snapshot() snapshot.Sample {
	if s == nil {
		return snapshot.Sample{}
	}
	out := snapshot.Sample{K: s.k, Keys: make([]snapshot.SampledKey, len(s.keys))}
	for i := range s.keys {
		out.Keys[i] = s.key(i)
	}
	slices.SortFunc(out.Keys, func(a, b snapshot.SampledKey) int { return cmp.Compare(a.Hash, b.Hash) })
	return out
}

func (s *sample) key(i int) snapshot.SampledKey {
	k := &s.keys[i]
	return snapshot.SampledKey{
		Hash: k.hash, Asked: uint64(k.asked), Refused: uint64(k.refused), Answers: uint32(k.answers),
		Well: uint32(k.well),
		Fill: k.fill, Known: k.known, Own: k.own, Would: k.would,
		Demands: slices.Clone(s.demands[i*s.stride : (i+1)*s.stride]),
	}
}
