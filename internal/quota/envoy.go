package quota

import (
	"math"
	"time"

	rlqspb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// All that this server says to Envoy is built in this file, because the filter does not do what its
// API says. The quirks, of Envoy 1.40.0, and what follows:
//
//	API                          Envoy                                   here
//	-------------------------    -------------------------------------   ------------------------------
//	requests_per_time_unit       is passed over: the assignment          never sent
//	                             before stays in force
//	fill_interval                whole seconds; below 1 s the refill     whole seconds, from 1
//	                             is without bound
//	a changed token_bucket       compared by max_tokens,                 a serial number in the nanos,
//	                             tokens_per_fill and the nanos of        which are cut off in the rate
//	                             fill_interval, not by its seconds
//	… that is larger             tokens keep the ratio of what was       never enlarged in place:
//	                             left: 5 of 10 become 50 of 100          DENY_ALL comes first
//	… that is equal              lives longer, its tokens stay           renewals
//	two actions for a bucket     in order: after DENY_ALL a token        units are handed over so
//	                             bucket starts full
//	assignment_time_to_live      whole seconds; if it is unset, the      whole seconds, from 1
//	                             assignment is over at once
//	abandon_action               forgets the bucket                      bounds Envoy's memory
//	action for no known bucket   dropped                                 nothing is assigned ahead
//
// docs/rlqs.md tells users of those that concern the configuration of the filter.

// year is the time in which a token bucket that is handed over as units gets one more.
const year = 365 * 24 * 60 * 60

// maxNanos is above the nanoseconds of a second.
const maxNanos = int64(time.Second)

// Action is what to tell Envoy of a bucket.
type Action struct {
	Bucket  string
	Abandon bool // forget it
	TTL     time.Duration
	New     bool // not what it has already
	Clear   bool // what it has must be taken away first
	// Short says that requests of the last report were refused although the limits had room for
	// them: the demand was more than what was assigned by the demand before.
	Short bool
	entry
}

// Requests is how many requests were newly assigned as units.
func (a *Action) Requests() int64 {
	if a.New && a.kind == units && !a.Abandon {
		return a.g
	}
	return 0
}

// Append appends what a says of the bucket id, for the response to Envoy.
func (a *Action) Append(list []*rlqspb.RateLimitQuotaResponse_BucketAction, id *rlqspb.BucketId) []*rlqspb.RateLimitQuotaResponse_BucketAction {
	if a.Abandon {
		return append(list, abandon(id))
	}
	if a.New && a.Clear {
		list = append(list, assignment(id, a.TTL, blanket(typepb.RateLimitStrategy_DENY_ALL)))
	}
	return append(list, assignment(id, a.TTL, a.strategy()))
}

// Refuse appends the answer for a bucket that is none of the Holder's because it has too many:
// nothing is let through, and at its first report after that Envoy is to forget it.
func Refuse(
	list []*rlqspb.RateLimitQuotaResponse_BucketAction, id *rlqspb.BucketId, ttl time.Duration, first bool,
) []*rlqspb.RateLimitQuotaResponse_BucketAction {
	if !first {
		return append(list, abandon(id))
	}
	return append(list, assignment(id, ttl, blanket(typepb.RateLimitStrategy_DENY_ALL)))
}

// strategy is what is assigned.
func (e *entry) strategy() *typepb.RateLimitStrategy {
	switch e.kind {
	case allow:
		return blanket(typepb.RateLimitStrategy_ALLOW_ALL)
	case deny:
		return blanket(typepb.RateLimitStrategy_DENY_ALL)
	case paced:
		return e.tokens(e.burst, e.fill, e.every)
	}
	return e.tokens(e.g, 1, year)
}

// tokens is a token bucket of size tokens, that gets fill of them in so many seconds.
func (e *entry) tokens(size, fill, seconds int64) *typepb.RateLimitStrategy {
	interval := &durationpb.Duration{Seconds: seconds, Nanos: int32(1 + e.serial%(maxNanos-1))}
	return &typepb.RateLimitStrategy{Strategy: &typepb.RateLimitStrategy_TokenBucket{TokenBucket: &typepb.TokenBucket{
		MaxTokens:     uint32(min(size, math.MaxUint32)),
		TokensPerFill: wrapperspb.UInt32(uint32(min(fill, math.MaxUint32))),
		FillInterval:  interval,
	}}}
}

func blanket(r typepb.RateLimitStrategy_BlanketRule) *typepb.RateLimitStrategy {
	return &typepb.RateLimitStrategy{Strategy: &typepb.RateLimitStrategy_BlanketRule_{BlanketRule: r}}
}

func assignment(id *rlqspb.BucketId, ttl time.Duration, s *typepb.RateLimitStrategy) *rlqspb.RateLimitQuotaResponse_BucketAction {
	return &rlqspb.RateLimitQuotaResponse_BucketAction{
		BucketId: id,
		BucketAction: &rlqspb.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction_{
			QuotaAssignmentAction: &rlqspb.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction{
				AssignmentTimeToLive: durationpb.New(max(ttl.Truncate(time.Second), time.Second)),
				RateLimitStrategy:    s,
			},
		},
	}
}

func abandon(id *rlqspb.BucketId) *rlqspb.RateLimitQuotaResponse_BucketAction {
	return &rlqspb.RateLimitQuotaResponse_BucketAction{
		BucketId:     id,
		BucketAction: &rlqspb.RateLimitQuotaResponse_BucketAction_AbandonAction_{AbandonAction: &rlqspb.RateLimitQuotaResponse_BucketAction_AbandonAction{}},
	}
}
