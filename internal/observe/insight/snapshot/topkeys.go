package snapshot

import (
	"cmp"
	"slices"
)

// The kinds of lists of top keys. A rule has two lists of each: live and over 12 hours.
const (
	TopAsked = iota
	TopRefused
	TopNear
	TopKinds
)

// TopKey is a key in a list of the most frequent keys.
type TopKey struct {
	Hash           uint64
	Count, Over    uint64
	Asked, Refused uint64
	At             int64   // when it came last, µs
	Fill           float32 // the largest share of a limit that it used: Window
	Window         uint16
	Known          bool
	Estimated      bool // Count may be off in both directions, beside what Over says
	// Obeyed and Early are how often the key came back when it was told to, and earlier. Both are 0
	// if that is not known: only keys in the sample of refused keys have them.
	Obeyed, Early uint64
	Text          string
}

// obey returns the share of its episodes in which the key came back when it was told to; below 0 if
// not known.
func (k *TopKey) obey() float64 {
	if n := k.Obeyed + k.Early; n > 0 {
		return float64(k.Obeyed) / float64(n)
	}
	return -1
}

// SortTop puts the most frequent keys first.
func SortTop(list []TopKey) {
	slices.SortFunc(list,
		func(a, b TopKey) int { return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Hash, b.Hash)) })
}

// MergeTop merges the lists of several nodes, of most counters each. A key that is missing from a
// node's full list may have come there as often as its smallest counter says. That much is added to
// the key's bound (Agarwal and others 2012).
func MergeTop(most int, lists ...[]TopKey) []TopKey {
	at := map[uint64]int{}
	var merged []TopKey
	floor := make([]uint64, len(lists))
	all := uint64(0)
	for i, list := range lists {
		if len(list) >= most && most > 0 {
			floor[i] = list[len(list)-1].Count
		}
		all += floor[i]
	}
	for i, list := range lists {
		for _, k := range list {
			p, have := at[k.Hash]
			if !have {
				at[k.Hash] = len(merged)
				k.Count, k.Over = k.Count+all-floor[i], k.Over+all-floor[i]
				merged = append(merged, k)
				continue
			}
			m := &merged[p]
			m.Count, m.Over = m.Count+k.Count-floor[i], m.Over+k.Over-floor[i]
			m.Asked, m.Refused = m.Asked+k.Asked, m.Refused+k.Refused
			m.Obeyed, m.Early = m.Obeyed+k.Obeyed, m.Early+k.Early
			if k.Fill > m.Fill {
				m.Fill, m.Window = k.Fill, k.Window
			}
			m.Known, m.Estimated, m.At = m.Known || k.Known, m.Estimated || k.Estimated, max(m.At, k.At)
		}
	}
	SortTop(merged)
	return merged[:min(len(merged), max(most, 0))]
}
