package regions

import (
	"encoding/binary"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// ledger is the use that this node has not reported to the other regions yet. A key is reported
// when it has used a share of its limit since its last report, and some time later if it has used
// so much that the others need to know of the rest. The use of quiet keys stays here, and is
// forgotten when it counts no more. Safe for concurrent use. Times are by the store's clock, in
// µs, unless they are said to be monotonic.
type ledger struct {
	shards [ledgerShards]ledgerShard
	turn   int // the shard to sweep next
}

const (
	ledgerShards = 32
	// maxUntold bounds the keys of a ledger, which take about 150 bytes each. Use beyond it is
	// reported at once.
	maxUntold = 1 << 18
	// restAfter is how long the rest of a busy key may wait.
	restAfter = int64(time.Second)
)

type ledgerShard struct {
	mu   sync.Mutex
	keys map[string]*untoldUses // by the Counter's ID and the key
	out  []tellingUses
	_    [32]byte // one on a line of the cache
}

// untoldUses is the unreported use of a key.
type untoldUses struct {
	counter *rule.Counter
	part    int32
	busy    bool  // others need to know of the rest
	units   int64 // below 0: more was given back than used
	since   int64 // when the first of them came, monotonic
	at      int64 // of the last use
	until   int64 // from when on they do not count any more
}

// tellingUses is an entry to write in a part of the log.
type tellingUses struct {
	counter *rule.Counter
	part    int32
	until   int64 // as in untoldUses
	told    store.Told
}

// unitUse is units that were charged, or given back if they are below 0.
type unitUse struct {
	heard *rule.Counter // the state of the others to which they are charged
	limit *algo.Limit
	key   []byte
	part  int32
	units int64
	most  int64 // report when there are so many
	busy  bool  // the rest of the key is to be reported
	// settled: nothing was asked, so that it is not known whether the key is busy; it stays as it
	// was
	settled   bool
	now, mono int64
}

// appendName appends the name of a counter's key in the maps of this package.
func appendName(dst []byte, id uint64, key []byte) []byte {
	return append(binary.BigEndian.AppendUint64(dst, id), key...)
}

func (g *ledger) shard(id uint64, key []byte) *ledgerShard {
	return &g.shards[(xxhash.Sum64(key)^id)%ledgerShards]
}

// add takes down a use. It reports whether a report is due now.
func (g *ledger) add(u *unitUse) (due bool) {
	var buf [128]byte
	name := appendName(buf[:0], u.heard.ID, u.key)
	s := g.shard(u.heard.ID, u.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.keys[string(name)]
	if k == nil {
		k = &untoldUses{counter: u.heard, part: u.part}
		if !s.keep(name, k) {
			k.units, k.at = u.units, u.now
			_, k.until = windowSpan(u.limit, u.now)
			s.say(k, u.key)
			return true
		}
	}
	if u.now >= k.until {
		k.units = 0 // they are of a window that is over
	}
	if k.units == 0 {
		k.since = u.mono
	}
	if u.now >= k.until || !u.limit.ResetsAtOnce() {
		_, k.until = windowSpan(u.limit, u.now)
	}
	k.units += u.units
	if k.at = u.now; !u.settled {
		k.busy = u.busy
	}
	if k.units < u.most && k.units > -u.most {
		return false
	}
	s.say(k, u.key)
	return true
}

// keep adds a key; it returns false if there is no room for it.
func (s *ledgerShard) keep(name []byte, k *untoldUses) bool {
	if len(s.keys) >= maxUntold/ledgerShards {
		return false
	}
	if s.keys == nil {
		s.keys = map[string]*untoldUses{}
	}
	s.keys[string(name)] = k
	return true
}

// say puts the unreported use of a key among the entries to write.
func (s *ledgerShard) say(k *untoldUses, key []byte) {
	s.out = append(s.out, tellingUses{k.counter, k.part, k.until,
		store.Told{Counter: k.counter.ID, Key: append([]byte(nil), key...), Units: k.units, At: k.at}})
	k.units = 0
}

// sweep looks through one of the shards, all of them in turn: it forgets use that does not count
// any more, and has the rests of busy keys reported.
func (g *ledger) sweep(now, mono int64) {
	s := &g.shards[g.turn%ledgerShards]
	g.turn++
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, k := range s.keys {
		switch {
		case now >= k.until, k.units == 0 && mono-k.since > restAfter:
			delete(s.keys, name)
		case k.units != 0 && k.busy && mono-k.since >= restAfter:
			s.say(k, []byte(name[8:]))
		}
	}
}

// rest has everything reported that is left, for a node that stops.
func (g *ledger) rest() {
	for i := range g.shards {
		s := &g.shards[i]
		s.mu.Lock()
		for name, k := range s.keys {
			if k.units != 0 {
				s.say(k, []byte(name[8:]))
			}
		}
		s.keys = nil
		s.mu.Unlock()
	}
}

// take returns the entries to write, by part. Uses of one key that come together are one.
func (g *ledger) take() map[int][]tellingUses {
	var parts map[int][]tellingUses
	for i := range g.shards {
		s := &g.shards[i]
		s.mu.Lock()
		out := s.out
		s.out = nil
		s.mu.Unlock()
		for _, x := range out {
			if parts == nil {
				parts = map[int][]tellingUses{}
			}
			parts[int(x.part)] = append(parts[int(x.part)], x)
		}
	}
	return parts
}

// back takes back sayings that certainly were not told: they are told with further use of the key,
// or a second later. So the use that waits for a store that is away is bounded as the keys are. It
// returns how many of the sayings there is no room for.
func (g *ledger) back(list []tellingUses, mono int64) (dropped int) {
	for i := range list {
		if !g.backOne(&list[i], mono) {
			dropped++
		}
	}
	return dropped
}

func (g *ledger) backOne(x *tellingUses, mono int64) bool {
	name := appendName(nil, x.told.Counter, x.told.Key)
	s := g.shard(x.told.Counter, x.told.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.keys[string(name)]
	switch {
	case k == nil:
		return s.keep(name, &untoldUses{
			counter: x.counter, part: x.part, busy: true, units: x.told.Units, since: mono, at: x.told.At, until: x.until,
		})
	case k.at < x.until: // else another window has begun, in which it does not count
		if k.units == 0 {
			k.since = mono
		}
		k.units += x.told.Units
		k.busy = true
	}
	return true
}

// len is the number of keys.
func (g *ledger) len() (n int) {
	for i := range g.shards {
		s := &g.shards[i]
		s.mu.Lock()
		n += len(s.keys)
		s.mu.Unlock()
	}
	return n
}

// windowSpan returns since when and until when a charge at an instant can count.
func windowSpan(l *algo.Limit, at int64) (since, until int64) {
	in, _ := l.At(at)
	if in == nil {
		return at, at
	}
	c := in.Config()
	switch {
	case c.Algorithm.ResetsAtOnce() && !c.FirstRequest:
		since, until, _ = in.Span(at)
		return since, until
	case c.Algorithm.Refills() && c.N > 0:
		return at, at + int64(float64(max(c.Burst, c.N))*float64(c.Window.Microseconds())/float64(c.N)) + 1
	case c.Algorithm.Approximates(): // a unit counts until its counter is out of the window
		return at, at + 2*c.Window.Microseconds()
	}
	return at, at + c.Window.Microseconds()
}
