package snapshot

import (
	"cmp"
	"slices"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/judge"
)

// Moment is an event of a refused key, in a snapshot. Times are in µs.
type Moment struct {
	At      int64
	Refused bool
	Retry   int64
}

// RefusedKey is a key of the sample of refused ones, in a snapshot.
type RefusedKey struct {
	SampledKey
	Text     string
	Since    int64 // µs: from when its events were noted
	Remote   bool  // refused on other nodes only
	Episodes insight.Episodes
	All      bool     // Events are all that were noted
	Events   []Moment // oldest first
}

// RefusedSample is a sample of refused keys: by hash, smallest first.
type RefusedSample struct {
	K    int
	Keys []RefusedKey
}

// Distinct estimates how many keys were refused.
func (s *RefusedSample) Distinct() (keys, standardError float64) {
	n := 0
	for i := range s.Keys {
		if !s.Keys[i].Remote {
			n++
		}
	}
	if len(s.Keys) == 0 || n < len(s.Keys) && len(s.Keys) < s.K {
		return float64(n), 0
	}
	return distinctKeys(len(s.Keys), s.K, s.Keys[len(s.Keys)-1].Hash)
}

// Shrink leaves a sample of at most k keys, as Sample.Shrink does.
func (s *RefusedSample) Shrink(k int) {
	s.K = min(s.K, k)
	s.Keys = s.Keys[:min(len(s.Keys), k)]
}

// Merge merges another sample: of another node or, if earlier, of the time before.
func (s *RefusedSample) Merge(x *RefusedSample, earlier bool) {
	switch {
	case s.K == 0:
		*s = *x
		return
	case x.K == 0:
		return
	}
	k := min(s.K, x.K)
	merged := make([]RefusedKey, 0, len(s.Keys)+len(x.Keys))
	a, b := s.Keys, x.Keys
	for (len(a) > 0 || len(b) > 0) && len(merged) < k {
		switch {
		case len(b) == 0 || len(a) > 0 && a[0].Hash < b[0].Hash:
			merged, a = append(merged, a[0]), a[1:]
		case len(a) == 0 || b[0].Hash < a[0].Hash:
			merged, b = append(merged, b[0]), b[1:]
		default:
			m := a[0]
			m.merge(&b[0], earlier)
			merged, a, b = append(merged, m), a[1:], b[1:]
		}
	}
	s.K, s.Keys = k, merged
}

func (k *RefusedKey) merge(x *RefusedKey, earlier bool) {
	k.SampledKey.merge(&x.SampledKey)
	if k.Text == "" {
		k.Text = x.Text
	}
	k.Remote = k.Remote && x.Remote
	if earlier {
		k.Episodes.Add(&x.Episodes)
		k.Events = append(slices.Clone(x.Events), k.Events...)
		if n := len(k.Events) - LastEvents; n > 0 {
			k.Events, k.All = slices.Clone(k.Events[n:]), false
		}
		k.Since = min(k.Since, x.Since)
		return
	}
	if len(x.Events) == 0 && x.Episodes == (insight.Episodes{}) {
		return
	}
	if len(k.Events) == 0 && k.Episodes == (insight.Episodes{}) {
		k.Episodes, k.Events, k.Since, k.All = x.Episodes, x.Events, x.Since, x.All
		return
	}
	// A load balancer may spread a client: it is refused here, and comes back there. Its episodes
	// follow from the events of both nodes, from the time on since which both have them all.
	from := max(k.complete(), x.complete())
	all := append(slices.Clone(k.Events), x.Events...)
	slices.SortStableFunc(all, func(a, b Moment) int { return cmp.Compare(a.At, b.At) })
	var e judge.Returns
	begin := len(all)
	for i, m := range all {
		if m.At < from {
			continue
		}
		begin = min(begin, i)
		e.Note(m.At, m.Refused, m.Retry)
	}
	before := k.Episodes.Ended() + x.Episodes.Ended() + k.Episodes.LeftOut + x.Episodes.LeftOut
	k.Episodes = e.Episodes
	k.Episodes.LeftOut = before - min(before, e.Episodes.Ended())
	k.Events, k.Since, k.All = all[begin:], max(k.Since, x.Since), k.All && x.All
}

// complete returns the time since which all events are there.
func (k *RefusedKey) complete() int64 {
	if k.All || len(k.Events) == 0 {
		return k.Since
	}
	return k.Events[0].At
}
