package snapshot

import (
	"cmp"
	"math"
	"slices"
)

// SampledKey is a key of a sample, in a snapshot.
type SampledKey struct {
	Hash           uint64
	Asked, Refused uint64
	Answers, Well  uint32
	Fill           float32
	Known, Own     bool
	Would          bool // a rule that is not enforced for the key would have refused it
	Demands        []Demand
}

// Sample is a sample: by hash, smallest first.
type Sample struct {
	K    int // the most that it would hold
	Keys []SampledKey
}

// Distinct estimates how many keys the sample was given.
func (s *Sample) Distinct() (keys, standardError float64) {
	if len(s.Keys) == 0 {
		return 0, 0
	}
	return distinctKeys(len(s.Keys), s.K, s.Keys[len(s.Keys)-1].Hash)
}

// Shrink leaves a sample of at most k keys: those with the smallest hashes.
func (s *Sample) Shrink(k int) {
	s.K = min(s.K, k)
	s.Keys = s.Keys[:min(len(s.Keys), k)]
}

// Merge merges another sample, of another node or another time.
func (s *Sample) Merge(x *Sample) {
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
	k.Known, k.Own, k.Would = k.Known || x.Known, k.Own || x.Own, k.Would || x.Would
	k.Fill = max(k.Fill, x.Fill)
	k.Demands = slices.Clone(k.Demands)
	for i := range k.Demands {
		if i < len(x.Demands) {
			k.Demands[i].merge(&x.Demands[i])
		}
		if d := &k.Demands[i]; d.limit > 0 {
			k.Fill = max(k.Fill, float32(float64(d.Peak())/float64(d.limit)))
		}
	}
}

// distinctKeys estimates how many keys a sample was given. The sample holds n keys, at most k, and
// most is its largest hash. The standard error is relative; 0 is exact.
func distinctKeys(n, k int, most uint64) (keys, standardError float64) {
	if n < k || k < 3 {
		return float64(n), 0
	}
	share := (float64(most) + 1) / (1 << 63) / 2
	return float64(k-1) / share, 1 / math.Sqrt(float64(k-2))
}

// Demand is how much a key asked of one limit, in its busiest windows. used is the usage of the
// window by the store, the same on all nodes that share the store. refused counts the units that
// were refused, and adds up over nodes.
type Demand struct {
	limit uint32 // in force for the key
	// The current window, the one before in which the key came, and the two busiest others. All
	// nodes that see the key know the first two.
	windows [4]windowUse
}

type windowUse struct{ index, used, refused uint32 }

func (u *windowUse) demand() uint64 { return uint64(u.used) + uint64(u.refused) }

// Add notes a decision in a window.
func (d *Demand) Add(index, used, refused, limit uint32) {
	d.limit = limit
	w := &d.windows[0]
	if w.index != index {
		for i := range d.windows[1:] {
			if o := &d.windows[1+i]; o.index == index && o.demand() > 0 { // the clock went back
				o.used, o.refused = max(o.used, used), AddTo32(o.refused, refused)
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
	w.used, w.refused = max(w.used, used), AddTo32(w.refused, refused)
}

// Latest returns what was asked in the current window.
func (d *Demand) Latest() uint64 { return d.windows[0].demand() }

// Peak returns the most that was asked in one window.
func (d *Demand) Peak() (most uint64) {
	for i := range d.windows {
		most = max(most, d.windows[i].demand())
	}
	return most
}

// merge adds what another node saw of the key in the same windows.
func (d *Demand) merge(x *Demand) {
	var all []windowUse
	for _, list := range [...]*[4]windowUse{&d.windows, &x.windows} {
	next:
		for _, w := range list {
			if w.demand() == 0 {
				continue
			}
			for i := range all {
				if all[i].index == w.index {
					all[i].used, all[i].refused = max(all[i].used, w.used), AddTo32(all[i].refused, w.refused)
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

// AddTo32 adds, up to the largest number.
func AddTo32(a, b uint32) uint32 {
	if a+b < a {
		return math.MaxUint32
	}
	return a + b
}
