package gather

import (
	"cmp"
	"slices"

	"github.com/weir-rl/weir/internal/observe/insight/judge"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
)

// keyTrace is what is known of a refused key beyond its place in the sample.
type keyTrace struct {
	text   []byte
	since  int64 // µs: from when its events are noted
	remote bool  // another node asked to watch it: it was not refused here
	judge.Returns
	last   [snapshot.LastEvents]packedMoment // a ring
	events uint32                            // that were noted, ever
}

// packedMoment is an event of a refused key in 6 bytes: 24 bits for the time in hundredths of a
// second since the key's trace began, 1 for a refusal, and 23 for how much later the key was told
// to come back.
type packedMoment [6]byte

const (
	mostSince = 1<<24 - 1
	mostRetry = 1<<23 - 1
)

func momentOf(since, at int64, refused bool, retry int64) (m packedMoment) {
	v := uint64(min(max((at-since)/judge.MomentUnit, 0), mostSince))
	if refused {
		v |= 1<<24 | uint64(min(max(retry/judge.MomentUnit-at/judge.MomentUnit, 0), mostRetry))<<25
	}
	for i := range m {
		m[i] = byte(v >> (8 * i))
	}
	return m
}

// read returns the event: times in µs.
func (m packedMoment) read(since int64) (at int64, refused bool, retry int64) {
	v := uint64(0)
	for i := range m {
		v |= uint64(m[i]) << (8 * i)
	}
	at = since + int64(v&mostSince)*judge.MomentUnit
	if refused = v>>24&1 == 1; refused {
		retry = at + int64(v>>25)*judge.MomentUnit
	}
	return at, refused, retry
}

// note adds an event.
func (t *keyTrace) note(at int64, refused bool, retry int64) {
	if t.events == 0 && t.since == 0 {
		t.since = at
	}
	t.last[t.events%snapshot.LastEvents] = momentOf(t.since, at, refused, retry)
	t.events++
	t.Returns.Note(at, refused, retry)
}

// refusedSnapshot copies a sample of refused keys.
func (s *sample) refusedSnapshot() snapshot.RefusedSample {
	if s == nil {
		return snapshot.RefusedSample{}
	}
	out := snapshot.RefusedSample{K: s.k, Keys: make([]snapshot.RefusedKey, len(s.keys))}
	for i := range s.keys {
		t := &s.traces[i]
		k := snapshot.RefusedKey{
			SampledKey: s.key(i), Text: string(t.text), Since: t.since, Remote: t.remote, Episodes: t.Episodes,
			All: t.events <= snapshot.LastEvents,
		}
		for n := t.events - min(t.events, snapshot.LastEvents); n < t.events; n++ {
			at, refused, retry := t.last[n%snapshot.LastEvents].read(t.since)
			k.Events = append(k.Events, snapshot.Moment{At: at, Refused: refused, Retry: retry})
		}
		out.Keys[i] = k
	}
	slices.SortFunc(out.Keys, func(a, b snapshot.RefusedKey) int { return cmp.Compare(a.Hash, b.Hash) })
	return out
}
