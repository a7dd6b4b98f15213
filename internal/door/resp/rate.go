package resp

import (
	"encoding/binary"
	"math"
	"math/bits"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// The limits of CL.THROTTLE and THROTTLE come with each command. Both are GCRA, which is algo's
// token bucket: max_burst + 1 (or max_burst) tokens, count of which come back each period. The
// state of a key is how many tokens are missing, so that other numbers read it as well; only a
// bucket's window must stay the same, since it is the scale of that number. So the rates are
// brought to few windows: all up to 55 a second that divide it to one of 210 days, quicker ones to
// an hour.
const (
	// seconds: a multiple of 1, 2, 7, 14, 30 days, and of every divisor of an hour
	slowWindow = 210 * 24 * 3600
	fastWindow = 3600
	maxWindow  = int64(algo.MaxWindow / time.Microsecond)
)

// params are the numbers of a command.
type params struct {
	verb          verb  // whose state it is
	size          int64 // tokens of the bucket; at least 0
	count, period int64 // at least 1; period in seconds
}

// hash spreads params over a small table.
func (p *params) hash() uint64 {
	h := uint64(p.size)*0x9E3779B97F4A7C15 ^ uint64(p.count)*0xC2B2AE3D27D4EB4F ^ uint64(
		p.period)*0x165667B19E3779F9 ^ uint64(p.verb)
	return h ^ h>>32 ^ h>>16
}

// gcra is a limit that a command brought. Immutable.
type gcra struct {
	params  params
	limit   *algo.Limit
	counter *rule.Counter
	more    int64 // tokens that were asked for beyond the size of a bucket
}

// maxLimits bounds how many limits are kept. They are compiled again when more were seen.
const maxLimits = 4096

// limits are the limits that commands brought. Safe for concurrent use. The zero value is empty.
type limits struct {
	mu       sync.RWMutex
	m        map[params]*gcra
	counters map[counterKey]*rule.Counter
}

type counterKey struct {
	verb   verb
	window time.Duration
}

func (l *limits) get(p params) *gcra {
	l.mu.RLock()
	g := l.m[p]
	l.mu.RUnlock()
	if g != nil {
		return g
	}
	g = compile(p)
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.m[p]; known != nil {
		return known
	}
	if l.m == nil || len(l.m) >= maxLimits {
		l.m, l.counters = map[params]*gcra{}, map[counterKey]*rule.Counter{}
	}
	k := counterKey{p.verb, g.limit.Config().Window}
	if g.counter = l.counters[k]; g.counter == nil {
		g.counter = counterOf(k, g.limit)
		l.counters[k] = g.counter
	}
	l.m[p] = g
	return g
}

// counterOf makes the identity of the states of a command under a window.
func counterOf(k counterKey, l *algo.Limit) *rule.Counter {
	name := verbNames[k.verb]
	id := append([]byte("resp\x00"+name), 0)
	id = binary.AppendVarint(id, int64(k.window))
	return &rule.Counter{ID: xxhash.Sum64(id), Domain: "_resp", Rule: name, Window: name, Limit: l, Index: -1}
}

// compile makes the limit of p. It always succeeds: numbers beyond a bucket's bounds become the
// nearest that are within.
func compile(p params) *gcra {
	n, window := rate(p.count, p.period)
	size := min(p.size, algo.MaxN)
	for {
		c := algo.Config{Algorithm: algo.TokenBucket, N: n, Window: window, Burst: size}
		if size == 0 {
			c.Burst = algo.NoBurst
		}
		l, err := algo.New(c)
		if err == nil {
			return &gcra{params: p, limit: l, more: p.size - size}
		}
		size /= 2 // too many tokens for exact arithmetic at this rate
	}
}

// rate returns a number of tokens and the window in which they come back: exactly count in period
// seconds, unless that is more than algo.MaxN in a microsecond, or less than one in 366 days, or a
// fraction with longer numbers than a bucket has.
func rate(count, period int64) (n int64, window time.Duration) {
	for _, w := range [...]int64{slowWindow, fastWindow} {
		hi, lo := bits.Mul64(uint64(count), uint64(w))
		if hi != 0 || lo%uint64(period) != 0 || lo/uint64(period) > algo.MaxN {
			continue
		}
		return int64(lo / uint64(period)), time.Duration(w) * time.Second
	}
	if excess := bits.Len64(uint64(period) / (math.MaxInt64 / 1_000_000)); excess > 0 {
		period, count = period>>excess, max(1, count>>excess)
	}
	w := period * 1e6
	if w/count >= maxWindow {
		return 1, algo.MaxWindow
	}
	n = min(count, algo.MaxN, mulDiv(count, maxWindow, w))
	return n, time.Duration(min(max(1, mulDiv(n, w, count)), maxWindow)) * time.Microsecond
}

// mulDiv is a × b / c, rounded down, for numbers of at least 0; too large results become the
// largest number.
func mulDiv(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi >= uint64(c) {
		return math.MaxInt64
	}
	q, _ := bits.Div64(hi, lo, uint64(c))
	return int64(min(q, math.MaxInt64))
}

func saturatingAdd(a, b int64) int64 {
	if b > 0 && a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// interval returns n × the time in which one token comes back, in µs, rounded down; n is at least
// 0.
func (p *params) interval(n int64) int64 {
	if hi, lo := bits.Mul64(uint64(n), uint64(p.period)); hi == 0 && lo <= math.MaxInt64 {
		return mulDiv(int64(lo), 1e6, p.count)
	}
	return math.MaxInt64
}
