package broker

import (
	"math"

	rlqspb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
)

// modelEnvoy is a rate_limit_quota filter that does what Envoy 1.40.0 does, and not what its API
// says. Its no_assignment_behavior and its expired fallback are DENY_ALL.
type modelEnvoy struct {
	buckets map[string]*modelBucket
	tick    int64 // when it reports next
}

type modelBucket struct {
	assigned *typepb.RateLimitStrategy // nil: none
	limits   []int                     // that the assignment was made under
	ends     int64
	tokens   float64
	filled   int64 // when tokens was brought up to date
	allowed  int64 // not reported
	denied   int64
	since    int64
}

// modelReport is what a report says of one bucket.
type modelReport struct {
	name            string
	allowed, denied int64
}

func newModelEnvoy(now int64) *modelEnvoy {
	return &modelEnvoy{buckets: map[string]*modelBucket{}, tick: now + int64(Interval)}
}

// rate is the refill of a token bucket, in tokens a ns: whole seconds, and without bound below one.
func (b *modelBucket) rate() float64 {
	t := b.assigned.GetTokenBucket()
	if t == nil {
		return 0
	}
	if t.FillInterval.Seconds == 0 {
		return math.Inf(1)
	}
	return float64(t.TokensPerFill.GetValue()) / float64(t.FillInterval.Seconds) / float64(secondNs)
}

func (b *modelBucket) refill(now int64) {
	if t := b.assigned.GetTokenBucket(); t != nil && now > b.filled {
		b.tokens = min(float64(t.MaxTokens), b.tokens+float64(now-b.filled)*b.rate())
		b.filled = now
	}
}

// request is a request of a bucket. report is what is to be sent at once, nil for nothing.
func (e *modelEnvoy) request(now int64, name string) (ok bool, report *modelReport) {
	b := e.buckets[name]
	if b == nil {
		b = &modelBucket{since: now}
		e.buckets[name] = b
		b.denied++
		report = &modelReport{name, 0, 1}
		b.denied = 0
		return false, report
	}
	switch {
	case b.assigned == nil || now >= b.ends:
	case b.assigned.GetTokenBucket() != nil:
		if b.refill(now); b.tokens >= 1 {
			b.tokens--
			ok = true
		}
	default:
		ok = b.assigned.GetBlanketRule() == typepb.RateLimitStrategy_ALLOW_ALL
	}
	if ok {
		b.allowed++
	} else {
		b.denied++
	}
	return ok, nil
}

// possible is how many requests a bucket may still let through until it is told something else, or
// its assignment ends.
func (b *modelBucket) possible(now int64) float64 {
	t := b.assigned.GetTokenBucket()
	if t == nil || now >= b.ends {
		return 0
	}
	b.refill(now)
	return math.Floor(b.tokens + float64(b.ends-now)*b.rate())
}

// report returns the report of all buckets.
func (e *modelEnvoy) report() (list []modelReport) {
	for name, b := range e.buckets {
		list = append(list, modelReport{name, b.allowed, b.denied})
		b.allowed, b.denied = 0, 0
	}
	return list
}

// apply does what one action says.
func (e *modelEnvoy) apply(now int64, name string, a *rlqspb.RateLimitQuotaResponse_BucketAction, limits []int) {
	b := e.buckets[name]
	if b == nil {
		return
	}
	b.limits = limits
	if a.GetAbandonAction() != nil {
		delete(e.buckets, name)
		return
	}
	q := a.GetQuotaAssignmentAction()
	s := q.RateLimitStrategy
	if s.GetRequestsPerTimeUnit() != nil {
		return // passed over: the assignment before stays
	}
	was := b.assigned
	b.refill(now)
	live := was != nil && now < b.ends
	b.ends = now + q.AssignmentTimeToLive.GetSeconds()*secondNs // unset is 0
	t := s.GetTokenBucket()
	if t == nil {
		b.assigned = s
		return
	}
	switch o := was.GetTokenBucket(); {
	case o == nil || !live:
		b.assigned, b.tokens, b.filled = s, float64(t.MaxTokens), now
	case o.MaxTokens == t.MaxTokens && o.TokensPerFill.GetValue() == t.TokensPerFill.GetValue() &&
		o.FillInterval.Nanos == t.FillInterval.Nanos:
		// Equal: a change of the seconds alone is not seen.
	default:
		b.tokens = b.tokens / float64(o.MaxTokens) * float64(t.MaxTokens)
		b.assigned, b.filled = s, now
	}
}

// settings of the tests.
func testSettings() Settings { return Settings{First: 5, Buckets: 100} }
