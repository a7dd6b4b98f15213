package rls

import (
	"fmt"
	"math"
	"strconv"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/rule"
)

// toProto makes the message of the answer. The parts of each kind lie in one slice, so that a
// request of many descriptors costs a handful of allocations.
func (c *call) toProto() *rlspb.RateLimitResponse {
	n, counted := len(c.statuses), 0
	for i := range c.statuses {
		if c.statuses[i].current {
			counted++
		}
	}
	m := &rlspb.RateLimitResponse{OverallCode: c.overall,
		Statuses: make([]*rlspb.RateLimitResponse_DescriptorStatus, n)}
	statuses := make([]rlspb.RateLimitResponse_DescriptorStatus, n)
	limits := make([]rlspb.RateLimitResponse_RateLimit, counted)
	durations := make([]durationpb.Duration, counted)
	for i := range c.statuses {
		s, d := &c.statuses[i], &statuses[i]
		m.Statuses[i] = d
		d.Code, d.LimitRemaining = s.code, s.remaining
		if s.current {
			counted--
			d.CurrentLimit, d.DurationUntilReset = &limits[counted], &durations[counted]
			d.CurrentLimit.Name, d.CurrentLimit.RequestsPerUnit, d.CurrentLimit.Unit = s.name, s.limit, s.unit
			d.DurationUntilReset.Seconds = s.reset
		}
	}
	if c.service.o.ResponseHeaders {
		m.ResponseHeadersToAdd = c.marks(c.headers())
	}
	if c.service.o.DynamicMetadata {
		m.DynamicMetadata = c.metadata()
	}
	return m
}

// headers are the rate-limit headers of the descriptor with the fewest remaining, the first of them
// on a tie; but a descriptor that refuses, the last of them, comes before: so envoyproxy/ratelimit
// has it. Native limits, which have no status, are spoken of where a smaller share is left of one
// of them, or it refuses for longer.
func (c *call) headers() []*corepb.HeaderValue {
	var best *descriptorStatus
	for i := range c.statuses {
		if s := &c.statuses[i]; s.current && (best == nil || s.remaining < best.remaining) {
			best = s
		}
	}
	refused := false
	for i := range c.statuses {
		if s := &c.statuses[i]; s.current && s.code == rlspb.RateLimitResponse_OVER_LIMIT && !s.quota {
			best, refused = s, true
		}
	}
	if native, ok := c.native(); ok {
		switch {
		case best == nil, c.overall != rlspb.RateLimitResponse_OVER_LIMIT && native.nearer(best),
			c.overall == rlspb.RateLimitResponse_OVER_LIMIT && (!refused || native.reset > best.reset):
			best = &native
		}
	}
	if best == nil {
		return nil
	}
	header := func(name string, v int64) *corepb.HeaderValue {
		return &corepb.HeaderValue{Key: name, Value: strconv.FormatInt(v, 10)}
	}
	o := &c.service.o
	return []*corepb.HeaderValue{
		header(o.LimitHeader, int64(best.limit)),
		header(o.RemainingHeader, int64(best.remaining)),
		header(o.ResetHeader, best.reset),
	}
}

// nearer reports whether a smaller share is left of s than of other. The two may count different
// things.
func (s *descriptorStatus) nearer(other *descriptorStatus) bool {
	if s.remaining == 0 || other.remaining == 0 { // of a limit of 0 nothing is ever left
		return s.remaining < other.remaining
	}
	return uint64(s.remaining)*uint64(other.capacity) < uint64(other.remaining)*uint64(s.capacity)
}

// native is the status of the native limit that is nearest to refusing (weir.Decision.Nearest), or
// of the one that refuses longest; false if none has a say.
func (c *call) native() (s descriptorStatus, ok bool) {
	d, at := &c.decision, 0
	for i := range d.Limits {
		l := &d.Limits[i]
		if l.Descriptor >= 0 || l.Mode == rule.Shadow || !d.Allowed && !d.Refuses(l) {
			continue
		}
		if one := c.status(i); !ok || d.Allowed && d.Nearer(i, at) || !d.Allowed && one.reset > s.reset {
			s, at, ok = one, i, true
		}
	}
	return s, ok
}

// marks appends the headers that envoyproxy/ratelimit does not know: whether the request passed in
// a soft margin, which limits are near to refusing, and of a refusal its id and when to come back.
func (c *call) marks(headers []*corepb.HeaderValue) []*corepb.HeaderValue {
	d := &c.decision
	add := func(name, value string) {
		if value != "" {
			headers = append(headers, &corepb.HeaderValue{Key: name, Value: value})
		}
	}
	if d.SoftExceeded() {
		add("X-RateLimit-Soft", "exceeded")
	}
	add("X-RateLimit-Warning", string(answer.AppendWarning(nil, d)))
	if !d.Allowed {
		add("X-RateLimit-Decision", d.ID.String())
	}
	if c.overall == rlspb.RateLimitResponse_OVER_LIMIT && d.RetryAfter != algo.Never {
		add("Retry-After", strconv.FormatInt(c.retryAfter(), 10))
	}
	return headers
}

// retryAfter is when to come back after a refusal, in seconds, at least 1.
func (c *call) retryAfter() int64 {
	d := &c.decision
	after := d.RetryAfter
	for i := range d.Limits {
		// A peek that is refused has no time at which it would pass: see untilReset.
		if l := &d.Limits[i]; l.RetryAfter == 0 && d.Refuses(l) {
			after = max(after, l.ResetAfter)
		}
	}
	return max(1, answer.CeilSeconds(after))
}

// metadata describes the request, and has the metadata of the rules that let descriptors pass.
func (c *call) metadata() *structpb.Struct {
	descriptors := make([]*structpb.Value, len(c.descriptors))
	merged := &structpb.Struct{}
	for i := range c.descriptors {
		d, raw := &c.descriptors[i], &c.raw[i]
		entries := make([]*structpb.Value, len(d.Entries))
		for j, e := range d.Entries {
			entries[j] = structpb.NewStringValue(e.Key + "=" + e.Value)
		}
		fields := map[string]*structpb.Value{"entries": structpb.NewListValue(&structpb.ListValue{Values: entries})}
		if d.Override != nil {
			fields["limit"] = structpb.NewStringValue(fmt.Sprintf("requests_per_unit:%d unit:%s", d.Override.Requests,
				d.Override.Unit))
		}
		if raw.hasHits {
			fields["hitsAddend"] = structpb.NewNumberValue(float64(raw.hits))
		}
		descriptors[i] = structpb.NewStructValue(&structpb.Struct{Fields: fields})

		matches := c.decision.Matches.Descriptors
		if i < len(matches) && matches[i].Rule != nil && matches[i].Rule.Lyft != nil &&
			c.statuses[i].code == rlspb.RateLimitResponse_OK {
			mergeMetadata(merged, matches[i].Rule.Lyft.Metadata)
		}
	}
	m := &structpb.Struct{Fields: map[string]*structpb.Value{
		"domain":      structpb.NewStringValue(c.domain),
		"descriptors": structpb.NewListValue(&structpb.ListValue{Values: descriptors}),
	}}
	if c.hits != 0 {
		m.Fields["hitsAddend"] = structpb.NewNumberValue(float64(c.hits))
	}
	if len(merged.Fields) > 0 {
		m.Fields["metadata"] = structpb.NewStructValue(merged)
	}
	return m
}

// mergeMetadata copies into dst the fields of src that it lacks; mappings that both have are
// merged. src is only read.
func mergeMetadata(dst *structpb.Struct, src map[string]any) {
	for k, v := range src {
		have, ok := dst.GetFields()[k]
		if !ok {
			if dst.Fields == nil {
				dst.Fields = make(map[string]*structpb.Value, len(src))
			}
			dst.Fields[k] = metadataValue(v)
			continue
		}
		if nested, ok := v.(map[string]any); ok && have.GetStructValue() != nil {
			mergeMetadata(have.GetStructValue(), nested)
		}
	}
}

// metadataValue converts a value from a rule file's YAML. Kinds that a Struct lacks become text.
func metadataValue(v any) *structpb.Value {
	switch v := v.(type) {
	case map[string]any:
		s := &structpb.Struct{}
		mergeMetadata(s, v)
		return structpb.NewStructValue(s)
	case []any:
		l := &structpb.ListValue{Values: make([]*structpb.Value, len(v))}
		for i := range v {
			l.Values[i] = metadataValue(v[i])
		}
		return structpb.NewListValue(l)
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) { // no JSON could say it
			return structpb.NewStringValue(fmt.Sprint(v))
		}
	}
	value, err := structpb.NewValue(v)
	if err != nil {
		return structpb.NewStringValue(fmt.Sprint(v))
	}
	return value
}
