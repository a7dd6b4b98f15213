package gather

import "github.com/weir-rl/weir/internal/observe/insight/snapshot"

// topList finds the keys that come most often, by Space-Saving (Metwally, Agrawal, El Abbadi 2005).
// With m counters, a key that makes up more than one part in m of the total is certainly among
// them. A key's count may be too large, by at most its own bound. Not safe for concurrent use.
type topList struct {
	most   int
	hashes []uint64 // apart, so that looking one up reads little memory
	keys   []topKey
}

// topKey is one counter.
type topKey struct {
	count uint64 // at most
	over  uint64 // by how much count may be too large
	// Counts since the key took the counter, without what bans refused.
	asked, refused uint64  // requests
	at             int64   // when it came last, µs
	now, before    peakUse // since the list was halved, and between then and the halving before
	known          bool
	estimated      bool   // some counted decisions stood for others that were not looked at
	text           []byte // the key for people, cut and veiled
}

// peakUse is the largest share of a limit that a key used, and which limit that was.
type peakUse struct {
	fill   float32
	window uint16
}

// raise notes another use.
func (p *peakUse) raise(fill float32, window uint16) {
	if fill >= p.fill {
		p.fill, p.window = fill, window
	}
}

// peak returns the peak over the whole time of the list.
func (k *topKey) peak() peakUse {
	p := k.now
	if k.before.fill > p.fill {
		p = k.before
	}
	return p
}

// add counts n for a key, and returns its counter. fresh reports that the key is new there, and has
// no text yet.
func (l *topList) add(hash, n uint64) (k *topKey, fresh bool) {
	if l.most == 0 {
		return nil, false
	}
	if k = l.find(hash); k != nil {
		k.count += n
		return k, false
	}
	if len(l.keys) < l.most {
		l.hashes, l.keys = append(l.hashes, hash), append(l.keys, topKey{count: n})
		return &l.keys[len(l.keys)-1], true
	}
	least := 0
	for i := range l.keys {
		if l.keys[i].count < l.keys[least].count {
			least = i
		}
	}
	k = &l.keys[least]
	l.hashes[least] = hash
	*k = topKey{count: k.count + n, over: k.count, text: k.text[:0]}
	return k, true
}

// find returns the counter of a key; nil if it has none.
func (l *topList) find(hash uint64) *topKey {
	for i, have := range l.hashes {
		if have == hash {
			return &l.keys[i]
		}
	}
	return nil
}

// halve lets the counts fade. Keys whose count reaches 0 are dropped.
func (l *topList) halve() {
	n := 0
	for i := range l.keys {
		k := l.keys[i]
		k.count, k.over, k.asked, k.refused = k.count/2, k.over/2, k.asked/2, k.refused/2
		k.now, k.before = peakUse{window: k.now.window}, k.now
		if k.count > 0 {
			l.hashes[n] = l.hashes[i]
			l.keys[i], l.keys[n] = l.keys[n], k // the texts' memory stays of use
			l.keys[n] = k
			n++
		}
	}
	l.hashes, l.keys = l.hashes[:n], l.keys[:n]
}

// resize changes the number of counters, and drops the smallest.
func (l *topList) resize(most int) {
	if l.most = most; len(l.keys) <= most {
		return
	}
	list := l.snapshot()
	l.hashes, l.keys = nil, nil
	for i := range list[:most] {
		l.hashes, l.keys = append(l.hashes, list[i].Hash), append(l.keys, topKeyOf(&list[i]))
	}
}

func topKeyOf(k *snapshot.TopKey) topKey {
	return topKey{
		count: k.Count, over: k.Over, asked: k.Asked, refused: k.Refused,
		at: k.At, now: peakUse{k.Fill, k.Window}, known: k.Known,
		estimated: k.Estimated, text: []byte(k.Text),
	}
}

// snapshot returns the keys, the most frequent first.
func (l *topList) snapshot() []snapshot.TopKey {
	list := make([]snapshot.TopKey, len(l.keys))
	for i := range l.keys {
		k := &l.keys[i]
		p := k.peak()
		list[i] = snapshot.TopKey{
			Hash: l.hashes[i], Count: k.count, Over: k.over, Asked: k.asked, Refused: k.refused,
			At: k.at, Fill: p.fill, Window: p.window, Known: k.known,
			Estimated: k.estimated, Text: string(k.text),
		}
	}
	snapshot.SortTop(list)
	return list
}
