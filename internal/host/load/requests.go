package load

import (
	"errors"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// requests counts the requests under way and times their answers, in shards, so that processors do
// not wait for each other.
type requests struct {
	shards shards
	// The values of the last sample; used by Run alone.
	seen     [len(shards{})]uint64
	at       time.Time
	baseline float64 // logarithm of ns; 0 if not known
}

type shards [16]shard

type shard struct {
	inFlight atomic.Int64
	// answers holds, in one number so that both are always of the same answers, how many there
	// were, and above countBits the sum of the logarithms of their latencies in ns, times logUnit.
	// It may overflow: only differences count.
	answers atomic.Uint64
	_       [48]byte
}

const (
	countBits = 24
	logUnit   = 1 << 12
)

func (l *requests) shard() *shard { return &l.shards[rand.Uint32()%uint32(len(l.shards))] }

// Enter counts a request that is passed on.
func (r *Registry) Enter() { r.requests.shard().inFlight.Add(1) }

// Answered notes how long the answer to a request took to begin.
func (r *Registry) Answered(latency time.Duration) {
	r.requests.shard().answers.Add(uint64(math.Log(float64(max(latency, 1)))*logUnit)<<countBits | 1)
}

// Leave counts a request that is over. It must be called once for each Enter.
func (r *Registry) Leave() { r.requests.shard().inFlight.Add(-1) }

// InFlight returns how many requests are on their way through.
func (r *Registry) InFlight() int {
	n := int64(0)
	for i := range r.requests.shards {
		n += r.requests.shards[i].inFlight.Load()
	}
	return int(max(n, 0))
}

// inFlight is the source of in_flight.
func (r *Registry) inFlight(time.Time) (percent float64, ok bool, err error) {
	capacity := 0
	if r.o.Capacity != nil {
		capacity = r.o.Capacity()
	}
	if capacity <= 0 {
		return 0, false, errors.New(
			"in_flight: it is not known how many requests are 100 %; set proxy.concurrency or proxy.capacity")
	}
	return 100 * float64(r.InFlight()) / float64(capacity), true, nil
}

// The baseline of upstream_latency follows a lower latency quickly, and a higher one hardly.
const (
	baselineFalls = 2 * time.Second
	baselineRises = 10 * time.Minute
)

// latency is the source of upstream_latency: 100 % × (1 − baseline / latency), of the geometric
// mean since the sample before. Twice the baseline is 50 percent, four times is 75.
func (r *Registry) latency(now time.Time) (percent float64, ok bool, err error) {
	l := &r.requests
	n, logs := uint64(0), uint64(0)
	for i := range l.shards {
		now := l.shards[i].answers.Load()
		since := now - l.seen[i]
		l.seen[i] = now
		n += since & (1<<countBits - 1)
		logs += since >> countBits
	}
	first, passed := l.at.IsZero(), now.Sub(l.at)
	l.at = now
	if first || n == 0 {
		return 0, false, nil
	}
	mean := float64(logs) / logUnit / float64(n)
	follow := baselineRises
	switch {
	case l.baseline == 0:
		l.baseline = mean
	case mean < l.baseline:
		follow = baselineFalls
	}
	l.baseline += (mean - l.baseline) * -math.Expm1(-float64(passed)/float64(follow))
	return 100 * max(0, -math.Expm1(l.baseline-mean)), true, nil
}
