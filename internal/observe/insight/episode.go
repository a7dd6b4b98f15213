package insight

import (
	"cmp"
	"slices"
	"time"
)

// trace is what is known of a refused key beyond its place in the sample.
type trace struct {
	text   []byte
	since  int64 // µs: from when its events are noted
	remote bool  // another node asked to watch it: it was not refused here
	episodes
	last   [lastEvents]moment // a ring
	events uint32             // that were noted, ever
}

// lastEvents is how many events of a refused key are kept.
const lastEvents = 32

// moment is an event of a refused key in 6 bytes: 24 bits for the time in hundredths of a second
// since the key's trace began, 1 for a refusal, and 23 for how much later the key was told to come
// back.
type moment [6]byte

const (
	momentUnit = 10_000 // µs
	mostSince  = 1<<24 - 1
	mostRetry  = 1<<23 - 1
)

func momentOf(since, at int64, refused bool, retry int64) (m moment) {
	v := uint64(min(max((at-since)/momentUnit, 0), mostSince))
	if refused {
		v |= 1<<24 | uint64(min(max(retry/momentUnit-at/momentUnit, 0), mostRetry))<<25
	}
	for i := range m {
		m[i] = byte(v >> (8 * i))
	}
	return m
}

// read returns the event: times in µs.
func (m moment) read(since int64) (at int64, refused bool, retry int64) {
	v := uint64(0)
	for i := range m {
		v |= uint64(m[i]) << (8 * i)
	}
	at = since + int64(v&mostSince)*momentUnit
	if refused = v>>24&1 == 1; refused {
		retry = at + int64(v>>25)*momentUnit
	}
	return at, refused, retry
}

// note adds an event.
func (t *trace) note(at int64, refused bool, retry int64) {
	if t.events == 0 && t.since == 0 {
		t.since = at
	}
	t.last[t.events%lastEvents] = momentOf(t.since, at, refused, retry)
	t.events++
	t.episodes.note(at, refused, retry)
}

// episodes follow what a client does after a refusal. An episode begins with a refusal that says
// when to come back. The first request from then on ends it, and the client has obeyed if it sent
// none earlier. A client that keeps knocking has one episode, however often it knocks.
type episodes struct {
	Episodes
	told    int64 // when it is to come back, µs; 0 while there is no episode
	giveUp  int64 // from when on it has given up
	knocked bool
}

// patience is how long to wait for a client, at least, before it counts as having given up.
const patience = int64(10 * time.Minute / time.Microsecond)

// note adds a request: whether it was refused, and when the client was told to come back; 0 if it
// was not told.
func (e *episodes) note(at int64, refused bool, retry int64) {
	e.expire(at)
	if e.told != 0 {
		if at/momentUnit < e.told/momentUnit {
			if !e.knocked {
				e.knocked = true
				e.Early++
			}
			if refused && retry > at {
				e.begin(at, retry)
			} else if !refused {
				e.told = 0
			}
			return
		}
		if !e.knocked {
			e.Obeyed++
		}
		e.told = 0
	}
	if refused && retry > at {
		e.knocked = false
		e.begin(at, retry)
	}
}

// addSince adds the episodes of a key that ended between two readings.
func (e *Episodes) addSince(before, now *Episodes) {
	e.Obeyed += now.Obeyed - before.Obeyed
	e.Early += now.Early - before.Early
	e.GaveUp += now.GaveUp - before.GaveUp
}

func (e *episodes) begin(at, retry int64) { e.told, e.giveUp = retry, at+max(patience, 10*(retry-at)) }

// expire ends an episode whose client did not come back.
func (e *episodes) expire(now int64) {
	if e.told == 0 || now < e.giveUp {
		return
	}
	if !e.knocked {
		e.GaveUp++
	}
	e.told = 0
}

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
	Episodes Episodes
	All      bool     // Events are all that were noted
	Events   []Moment // oldest first
}

// RefusedSnapshot is a sample of refused keys: by hash, smallest first.
type RefusedSnapshot struct {
	K    int
	Keys []RefusedKey
}

// refusedSnapshot copies a sample of refused keys.
func (s *sample) refusedSnapshot() RefusedSnapshot {
	if s == nil {
		return RefusedSnapshot{}
	}
	out := RefusedSnapshot{K: s.k, Keys: make([]RefusedKey, len(s.keys))}
	for i := range s.keys {
		t := &s.traces[i]
		k := RefusedKey{
			SampledKey: s.key(i), Text: string(t.text), Since: t.since, Remote: t.remote, Episodes: t.Episodes,
			All: t.events <= lastEvents,
		}
		for n := t.events - min(t.events, lastEvents); n < t.events; n++ {
			at, refused, retry := t.last[n%lastEvents].read(t.since)
			k.Events = append(k.Events, Moment{at, refused, retry})
		}
		out.Keys[i] = k
	}
	slices.SortFunc(out.Keys, func(a, b RefusedKey) int { return cmp.Compare(a.Hash, b.Hash) })
	return out
}

// distinct estimates how many keys were refused.
func (s *RefusedSnapshot) distinct() (keys, standardError float64) {
	n := 0
	for i := range s.Keys {
		if !s.Keys[i].Remote {
			n++
		}
	}
	if len(s.Keys) == 0 || n < len(s.Keys) && len(s.Keys) < s.K {
		return float64(n), 0
	}
	return distinct(len(s.Keys), s.K, s.Keys[len(s.Keys)-1].Hash)
}

// merge merges another sample: of another node or, if earlier, of the time before.
func (s *RefusedSnapshot) merge(x *RefusedSnapshot, earlier bool) {
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
		k.Episodes.add(&x.Episodes)
		k.Events = append(slices.Clone(x.Events), k.Events...)
		if n := len(k.Events) - lastEvents; n > 0 {
			k.Events, k.All = slices.Clone(k.Events[n:]), false
		}
		k.Since = min(k.Since, x.Since)
		return
	}
	if len(x.Events) == 0 && x.Episodes == (Episodes{}) {
		return
	}
	if len(k.Events) == 0 && k.Episodes == (Episodes{}) {
		k.Episodes, k.Events, k.Since, k.All = x.Episodes, x.Events, x.Since, x.All
		return
	}
	// A load balancer may spread a client: it is refused here, and comes back there. Its episodes
	// follow from the events of both nodes, from the time on since which both have them all.
	from := max(k.complete(), x.complete())
	all := append(slices.Clone(k.Events), x.Events...)
	slices.SortStableFunc(all, func(a, b Moment) int { return cmp.Compare(a.At, b.At) })
	var e episodes
	begin := len(all)
	for i, m := range all {
		if m.At < from {
			continue
		}
		begin = min(begin, i)
		e.note(m.At, m.Refused, m.Retry)
	}
	before := k.Episodes.ended() + x.Episodes.ended() + k.Episodes.LeftOut + x.Episodes.LeftOut
	k.Episodes = e.Episodes
	k.Episodes.LeftOut = before - min(before, e.Episodes.ended())
	k.Events, k.Since, k.All = all[begin:], max(k.Since, x.Since), k.All && x.All
}

// complete returns the time since which all events are there.
func (k *RefusedKey) complete() int64 {
	if k.All || len(k.Events) == 0 {
		return k.Since
	}
	return k.Events[0].At
}

func (e *Episodes) ended() uint64 { return e.Obeyed + e.Early + e.GaveUp }
