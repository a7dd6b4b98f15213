package broker

import (
	"math"
	"time"

	rlqspb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
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
//	… that is larger             tokens keep the ratio that was          not enlarged in place:
//	                             left: 5 of 10 become 50 of 100          DENY_ALL comes first
//	… that is equal              lives longer, its tokens stay           renewals
//	two actions for a bucket     in order: after DENY_ALL a token        units are handed over so
//	                             bucket starts full
//	assignment_time_to_live      whole seconds; if it is unset, the      whole seconds, from 1
//	                             assignment is over at once
//	abandon_action               forgets the bucket                      bounds Envoy's memory
//	action for no known bucket   dropped                                 nothing is assigned ahead
//
// docs/guides/rlqs.md describes for users the quirks that concern the configuration of the filter.

// yearSeconds is the time in which a token bucket that is handed over as units gets one more.
const yearSeconds = 365 * 24 * 60 * 60

// maxNanos is above the nanoseconds of a second.
const maxNanos = int64(time.Second)

// Action is a message to Envoy about a bucket.
type Action struct {
	Bucket  string
	Abandon bool // forget it
	TTL     time.Duration
	New     bool // not the present assignment
	Clear   bool // the present assignment must be taken away first
	// Short says that requests of the last report were refused although the limits had room for
	// them: the demand rose above the assignment, which was made for the demand before.
	Short bool
	assignment
}

// Requests is how many requests were newly assigned as units.
func (a *Action) Requests() int64 {
	if a.New && a.kind == assignUnits && !a.Abandon {
		return a.g
	}
	return 0
}

// Append appends a to the bytes of a Response. id is AppendID's result for the bucket's id.
func (a *Action) Append(b, id []byte) []byte {
	if a.Abandon {
		return appendAction(b, id, fieldAbandon, nil)
	}
	if a.New && a.Clear {
		b = appendAssignment(b, id, a.TTL, &assignment{kind: assignNothing})
	}
	return appendAssignment(b, id, a.TTL, &a.assignment)
}

// Refuse appends the answer for a bucket that is none of the Holder's because it has too many:
// nothing is let through, and at its first report after that Envoy is to forget it.
func Refuse(b, id []byte, ttl time.Duration, first bool) []byte {
	if !first {
		return appendAction(b, id, fieldAbandon, nil)
	}
	return appendAssignment(b, id, ttl, &assignment{kind: assignNothing})
}

// AppendID appends the bytes of a bucket's id, for Append and Refuse.
func AppendID(b []byte, id *rlqspb.BucketId) ([]byte, error) {
	text, err := proto.Marshal(id)
	return appendMessage(b, fieldID, text), err
}

// Response is the message whose bytes Append made. It holds them as unknown fields: they are sent
// as they are, and building the messages of all buckets, a dozen for each, costs more than all
// other work for a report.
func Response(b []byte) *rlqspb.RateLimitQuotaResponse {
	m := &rlqspb.RateLimitQuotaResponse{}
	m.ProtoReflect().SetUnknown(b)
	return m
}

// Numbers of fields, by rlqs.proto, ratelimit_strategy.proto and token_bucket.proto of Envoy's API.
const (
	fieldActions     = 1 // of RateLimitQuotaResponse
	fieldID          = 1 // of BucketAction, and the next two
	fieldAssignment  = 2
	fieldAbandon     = 3
	fieldTTL         = 2 // of QuotaAssignmentAction, and the next one
	fieldStrategy    = 3
	fieldBlanket     = 1 // of RateLimitStrategy, and the next one
	fieldTokenBucket = 3
	fieldMax         = 1 // of TokenBucket, and the next two
	fieldFill        = 2
	fieldInterval    = 3
	fieldSeconds     = 1 // of Duration, and the next one
	fieldNanos       = 2
	fieldValue       = 1 // of UInt32Value
)

// appendStrategy appends the assignment.
func (e *assignment) appendStrategy(b []byte) []byte {
	switch e.kind {
	case assignAll:
		return appendNumber(b, fieldBlanket, uint64(typepb.RateLimitStrategy_ALLOW_ALL))
	case assignNothing:
		return appendNumber(b, fieldBlanket, uint64(typepb.RateLimitStrategy_DENY_ALL))
	case assignRate:
		return e.appendTokens(b, e.burst, e.fill, e.every)
	}
	return e.appendTokens(b, e.g, 1, yearSeconds)
}

// appendTokens appends a token bucket of size tokens, that gets fill of them in so many seconds.
func (e *assignment) appendTokens(b []byte, size, fill, seconds int64) []byte {
	var tokens, part [48]byte
	t := appendNumber(tokens[:0], fieldMax, uint64(min(size, math.MaxUint32)))
	t = appendMessage(t, fieldFill, appendNumber(part[:0], fieldValue, uint64(min(fill, math.MaxUint32))))
	interval := appendNumber(part[:0], fieldSeconds, uint64(seconds))
	t = appendMessage(t, fieldInterval, appendNumber(interval, fieldNanos, uint64(1+e.serial%(maxNanos-1))))
	return appendMessage(b, fieldTokenBucket, t)
}

func appendAssignment(b, id []byte, ttl time.Duration, e *assignment) []byte {
	var assignment, part [64]byte
	m := appendMessage(assignment[:0], fieldTTL,
		appendNumber(part[:0], fieldSeconds, uint64(max(ttl, time.Second)/time.Second)))
	m = appendMessage(m, fieldStrategy, e.appendStrategy(part[:0]))
	return appendAction(b, id, fieldAssignment, m)
}

// appendAction appends an action on a bucket.
func appendAction(b, id []byte, field protowire.Number, action []byte) []byte {
	n := len(id) + protowire.SizeTag(field) + protowire.SizeBytes(len(action))
	b = protowire.AppendTag(b, fieldActions, protowire.BytesType)
	b = append(protowire.AppendVarint(b, uint64(n)), id...)
	return appendMessage(b, field, action)
}

func appendMessage(b []byte, field protowire.Number, m []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), m)
}

func appendNumber(b []byte, field protowire.Number, n uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), n)
}
