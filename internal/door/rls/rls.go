// Package rls is the gRPC door of weir: Envoy's rate limit service, health, reflection, and /json,
// which offers the same service over HTTP.
//
// Begin with Service, made by New, which decides, and Server, made by NewServer, which serves it. A
// call goes through unary.go (at once or not), wire.go (bytes to call), rls.go (call to decision to
// statuses), and wire.go again; proto.go is the slower way through generated messages, for answers
// with headers or metadata.
package rls

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math"
	"sync"
	"time"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/rule"
)

// Options tune New. The zero value answers as envoyproxy/ratelimit does with its defaults.
type Options struct {
	// ResponseHeaders adds the three rate-limit headers to each answer that has a current_limit.
	ResponseHeaders bool
	// LimitHeader, RemainingHeader and ResetHeader name them; "" means RateLimit-Limit,
	// RateLimit-Remaining and RateLimit-Reset.
	LimitHeader, RemainingHeader, ResetHeader string
	// DynamicMetadata adds the request's descriptors and the metadata of the rules that let them
	// pass.
	DynamicMetadata bool
	// Stopwatch times decisions; nil means that nobody does.
	Stopwatch weir.Stopwatch
	// Tracer follows decisions in traces; nil means that nobody does.
	Tracer door.Tracer
	// Logger logs defects in weir itself that failed a call; nil means nobody.
	Logger *slog.Logger
}

// Service answers envoy.service.ratelimit.v3.RateLimitService from a Limiter, as
// envoyproxy/ratelimit does, without its defects. Safe for concurrent use. Make one with New, and
// serve it with NewServer.
//
// Clients of this door are trusted as a proxy is: they may refund (is_negative_hits), ask for any
// number of hits, and bring limits of their own. Keep its port away from others.
type Service struct {
	limiter *weir.Limiter
	o       Options
	pool    sync.Pool // of *call
}

var _ rlspb.RateLimitServiceServer = (*Service)(nil)

// New returns the service over l.
func New(l *weir.Limiter, o Options) *Service {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.LimitHeader = cmp.Or(o.LimitHeader, "RateLimit-Limit")
	o.RemainingHeader = cmp.Or(o.RemainingHeader, "RateLimit-Remaining")
	o.ResetHeader = cmp.Or(o.ResetHeader, "RateLimit-Reset")
	r := &Service{limiter: l, o: o}
	r.pool.New = func() any { return &call{service: r} }
	return r
}

// The texts equal envoyproxy/ratelimit's.
var (
	errDomain      = status.Error(codes.InvalidArgument, "rate limit domain must not be empty")
	errDescriptors = status.Error(codes.InvalidArgument, "rate limit descriptor list must not be empty")
)

// Bounds of one request, so that a few bytes on the wire cannot ask for much memory.
const (
	maxDescriptors = 16_384
	maxEntries     = 65_536
)

// call is one call: the request, the decision, and the answer. Calls are pooled with all that they
// hold.
type call struct {
	service *Service

	// The request.
	domain      string
	hits        uint32
	descriptors []rule.Descriptor
	raw         []rawDescriptor // beside descriptors
	entries     []rule.Entry    // holds the entries of descriptors
	overrides   []rule.DescriptorLimit
	bad         error // the message could not be read

	attributes attributes
	// the fields of the request's trace, where somebody follows it
	traceparent, tracestate string
	request                 weir.Request
	decision                weir.Decision
	start                   int64           // of the stopwatch
	span                    context.Context // of a call that has to wait, where it is followed; else nil

	// The answer.
	overall  rlspb.RateLimitResponse_Code
	statuses []descriptorStatus
}

// rawDescriptor is what of a descriptor is resolved once the whole message is read.
type rawDescriptor struct {
	requests, unit uint32
	hits           uint64
	override       bool
	hasHits        bool
	negative       bool
}

// descriptorStatus is the answer for one descriptor.
type descriptorStatus struct {
	code      rlspb.RateLimitResponse_Code
	unit      rlspb.RateLimitResponse_RateLimit_Unit
	limit     uint32 // requests_per_unit
	remaining uint32
	capacity  uint32 // the whole of remaining: requests_per_unit, or a bucket's burst
	reset     int64  // duration_until_reset in seconds
	name      string
	current   bool // a limit counted it: current_limit and duration_until_reset are given
	quota     bool // of a rule in quota mode
}

// acquire returns an empty call.
func (r *Service) acquire() *call { return r.pool.Get().(*call) }

// release takes c back. A call that has grown large is left to the garbage collector.
func (r *Service) release(c *call) {
	if cap(c.descriptors) > 256 || cap(c.entries) > 1024 || cap(c.decision.Limits) > 1024 {
		return
	}
	clear(c.descriptors)
	clear(c.entries)
	clear(c.statuses)
	c.reset()
	r.pool.Put(c)
}

func (c *call) reset() {
	c.domain, c.hits, c.bad = "", 0, nil
	c.descriptors, c.raw, c.entries, c.overrides = c.descriptors[:0], c.raw[:0], c.entries[:0], c.overrides[:0]
	c.statuses = c.statuses[:0]
	c.overall = rlspb.RateLimitResponse_UNKNOWN
	c.request, c.traceparent, c.tracestate, c.span = weir.Request{}, "", "", nil
	c.attributes = attributes{index: c.attributes.index}
	clear(c.attributes.index)
}

// ShouldRateLimit implements rlspb.RateLimitServiceServer.
func (r *Service) ShouldRateLimit(ctx context.Context,
	request *rlspb.RateLimitRequest) (*rlspb.RateLimitResponse, error) {
	var fields header
	if r.o.Tracer != nil {
		fields = metadataOf{ctx}
	}
	return r.answer(ctx, request, fields)
}

// answer answers a request. If somebody follows traces, it reads the trace's fields from fields.
func (r *Service) answer(ctx context.Context, request *rlspb.RateLimitRequest,
	fields header) (*rlspb.RateLimitResponse, error) {
	start := door.Begin(r.o.Stopwatch)
	c := r.acquire()
	defer r.release(c)
	c.fromProto(request)
	if r.o.Tracer != nil {
		c.traceparent, c.tracestate = fields.Header("traceparent"), fields.Header("tracestate")
	}
	if err := r.decide(ctx, c); err != nil {
		door.End(r.o.Stopwatch, start, nil, nil)
		return nil, err
	}
	response := c.toProto()
	door.End(r.o.Stopwatch, start, &c.request, &c.decision)
	return response, nil
}

// metadataOf is the header of a request that gRPC's own server took.
type metadataOf struct{ context.Context }

// Header implements header.
func (m metadataOf) Header(name string) string {
	if values := metadata.ValueFromIncomingContext(m, name); len(values) > 0 {
		return values[0]
	}
	return ""
}

// decide answers c. Its errors are gRPC statuses.
func (r *Service) decide(ctx context.Context, c *call) error {
	ctx, err := r.begin(ctx, c)
	if err != nil {
		return err
	}
	return r.decided(ctx, c, r.limiter.Decide(ctx, &c.request, &c.decision))
}

// begin makes the request of c, and the span of its decision in ctx if it is followed.
func (r *Service) begin(ctx context.Context, c *call) (context.Context, error) {
	switch {
	case c.bad != nil:
		return ctx, c.bad
	case c.domain == "":
		return ctx, errDomain
	case len(c.descriptors) == 0:
		return ctx, errDescriptors
	}
	hits := int64(c.hits)
	if hits == 0 {
		hits = 1
	}
	if err := c.resolve(hits); err != nil {
		return ctx, err
	}
	c.attributes.descriptors = c.descriptors
	c.request = weir.Request{Domain: c.domain, Attributes: &c.attributes, Descriptors: c.descriptors, Hits: hits,
		Door: "rls"}
	if r.o.Tracer != nil {
		ctx, c.request.Trace = r.o.Tracer.Follow(ctx, c.traceparent, c.tracestate)
	}
	return ctx, nil
}

// decided makes the answer of c, which was decided, or failed with err.
func (r *Service) decided(ctx context.Context, c *call, err error) error {
	door.Followed(r.o.Tracer, c.request.Trace, err)
	switch failed := err != nil || c.decision.WithoutStore != nil; {
	case failed && ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	case err != nil:
		return c.refuseWithoutStore(err)
	}
	c.answer()
	return nil
}

// resolve works out each descriptor's own hits and limit. Hits beyond the bounds of a cost are
// beyond every capacity as well, so they are cut to that and decide the same.
func (c *call) resolve(hits int64) error {
	for i := range c.descriptors {
		raw, d := &c.raw[i], &c.descriptors[i]
		d.Hits, d.HasHits = hits, raw.hasHits || raw.negative
		if raw.hasHits {
			d.Hits = int64(min(raw.hits, algo.MaxCost))
		}
		if raw.negative {
			d.Hits = -d.Hits
		}
		if raw.override {
			if raw.unit < 1 || int(raw.unit) >= len(units) {
				return status.Errorf(codes.InvalidArgument,
					"descriptors[%d].limit.unit: %d is no unit; use 1 (SECOND) to 6 (YEAR), or 7 (WEEK)", i,
					int32(raw.unit))
			}
			c.overrides = append(c.overrides, rule.DescriptorLimit{Requests: raw.requests, Unit: units[raw.unit].name})
			d.Override = &c.overrides[len(c.overrides)-1]
		}
	}
	return nil
}

// units are the units by their number in the protocol.
var units = [...]struct {
	name     string
	window   time.Duration
	calendar algo.Calendar
}{
	rlspb.RateLimitResponse_RateLimit_SECOND: {"SECOND", time.Second, algo.NoCalendar},
	rlspb.RateLimitResponse_RateLimit_MINUTE: {"MINUTE", time.Minute, algo.NoCalendar},
	rlspb.RateLimitResponse_RateLimit_HOUR:   {"HOUR", time.Hour, algo.NoCalendar},
	rlspb.RateLimitResponse_RateLimit_DAY:    {"DAY", 24 * time.Hour, algo.Day},
	rlspb.RateLimitResponse_RateLimit_MONTH:  {"MONTH", 30 * 24 * time.Hour, algo.Month},
	rlspb.RateLimitResponse_RateLimit_YEAR:   {"YEAR", 365 * 24 * time.Hour, algo.Year},
	rlspb.RateLimitResponse_RateLimit_WEEK:   {"WEEK", 7 * 24 * time.Hour, algo.Week},
}

// unitOf names the window of a limit; UNKNOWN if the protocol has no name for it.
func unitOf(limit *algo.Config) rlspb.RateLimitResponse_RateLimit_Unit {
	for i := range units {
		u := &units[i]
		if limit.Calendar != algo.NoCalendar && u.calendar == limit.Calendar ||
			limit.Calendar == algo.NoCalendar && u.window == limit.Window && limit.Window != 0 {
			return rlspb.RateLimitResponse_RateLimit_Unit(i)
		}
	}
	return rlspb.RateLimitResponse_RateLimit_UNKNOWN
}

// answer turns the decision into overall code and statuses.
func (c *call) answer() {
	d := &c.decision
	c.overall = rlspb.RateLimitResponse_OK
	if !d.Allowed {
		c.overall = rlspb.RateLimitResponse_OVER_LIMIT
	}
	c.blankStatuses()
	if !d.Allowed && d.UnknownDomain() { // no descriptor passes
		for i := range c.statuses {
			c.statuses[i].code = rlspb.RateLimitResponse_OVER_LIMIT
		}
	}
	for i := range d.Limits {
		l := &d.Limits[i]
		if l.Descriptor < 0 {
			continue
		}
		s := c.status(i)
		if known := &c.statuses[l.Descriptor]; !known.current || s.tighter(known) {
			*known = s
		}
	}
}

// status is the status of the i-th limit of the decision.
func (c *call) status(i int) descriptorStatus {
	d := &c.decision
	l := &d.Limits[i]
	limit := d.InForce(i).Config()
	s := descriptorStatus{
		code:      rlspb.RateLimitResponse_OK,
		unit:      unitOf(&limit),
		limit:     uint32(min(limit.N, math.MaxUint32)),
		remaining: uint32(min(max(l.Remaining, 0), math.MaxUint32)),
		capacity:  uint32(min(l.Limit, math.MaxUint32)),
		reset:     untilReset(l, &limit, d.Time),
		current:   true,
		quota:     l.Mode == rule.Quota,
	}
	if !l.Allowed && l.Mode != rule.Shadow {
		s.code = rlspb.RateLimitResponse_OVER_LIMIT
	}
	if l.Descriptor >= 0 && c.descriptors[l.Descriptor].Override != nil {
		s.limit = c.descriptors[l.Descriptor].Override.Requests
	} else if lyft := l.Window.Rule.Lyft; lyft != nil {
		s.name = lyft.LimitName
		if limit.N == algo.MaxN { // the file may say more than can be counted
			s.limit = max(s.limit, lyft.RequestsPerUnit)
		}
	}
	if uncounted := int64(s.limit) - limit.N; uncounted > 0 && s.code == rlspb.RateLimitResponse_OK && l.Allowed {
		s.remaining = uint32(min(l.Remaining+uncounted, math.MaxUint32))
	}
	return s
}

// tighter reports whether the answer should name s rather than other, two limits of one descriptor.
func (s *descriptorStatus) tighter(other *descriptorStatus) bool {
	if s.code != other.code {
		return s.code == rlspb.RateLimitResponse_OVER_LIMIT
	}
	return s.remaining < other.remaining
}

// blankStatuses makes a status for each descriptor as if no rule counted it.
func (c *call) blankStatuses() {
	c.statuses = c.statuses[:0]
	matches := c.decision.Matches.Descriptors
	for i := range c.descriptors {
		s := descriptorStatus{code: rlspb.RateLimitResponse_OK}
		if i < len(matches) && matches[i].Unlimited {
			s.remaining = math.MaxUint32
		}
		c.statuses = append(c.statuses, s)
	}
}

// untilReset is duration_until_reset in seconds, rounded up: of a fixed window the time to its end,
// else until a refused request may come again, or until all is as fresh after a pass. A refusal for
// good gives the length of the window, the soonest at which asking again could be of use. A peek
// that is refused knows no time at which it would not be, but that all is as fresh after it.
func untilReset(l *weir.LimitResult, limit *algo.Config, now int64) int64 {
	after := l.ResetAfter
	switch {
	case limit.Algorithm.ResetsAtOnce():
		if after <= 0 { // nothing is counted in it
			after = windowEnd(limit, now) - now
		}
	case !l.Allowed && l.RetryAfter == algo.Never:
		return l.Window.Seconds
	case !l.Allowed && l.RetryAfter > 0:
		after = l.RetryAfter
	}
	return answer.CeilSeconds(max(after, 0))
}

// windowEnd is when the fixed window that holds now ends, in µs.
func windowEnd(limit *algo.Config, now int64) int64 {
	if limit.Calendar == algo.NoCalendar {
		w := limit.Window.Microseconds()
		if limit.FirstRequest {
			return now + w
		}
		return now + w - (now%w+w)%w
	}
	location := limit.Location
	if location == nil {
		location = time.UTC
	}
	t := time.UnixMicro(now).In(location)
	year, month, day := t.Date()
	switch limit.Calendar {
	case algo.Day:
		day++
	case algo.Week:
		day += 7 - (int(t.Weekday())+6)%7
	case algo.Month:
		month, day = month+1, 1
	case algo.Year:
		year, month, day = year+1, time.January, 1
	}
	return time.Date(year, month, day, 0, 0, 0, 0, location).UnixMicro()
}

// refuseWithoutStore answers when the store failed and the rules do not admit without it: with a
// refusal if one of them wants that, else with an error.
func (c *call) refuseWithoutStore(failure error) error {
	if errors.Is(failure, weir.ErrNoRules) {
		return status.Error(codes.Unavailable, failure.Error())
	}
	deny := false
	c.blankStatuses()
	for i := range c.decision.Matches.Hits {
		h := &c.decision.Matches.Hits[i]
		if h.Mode == rule.Shadow || h.Window.Rule.OnStoreError != rule.DenyAll {
			continue
		}
		deny = true
		if h.Descriptor >= 0 {
			c.statuses[h.Descriptor].code = rlspb.RateLimitResponse_OVER_LIMIT
		}
	}
	if !deny {
		return status.Errorf(codes.Unavailable, "the store failed: %v", failure)
	}
	c.overall = rlspb.RateLimitResponse_OVER_LIMIT
	return nil
}

// header gives access to the header fields of a request.
type header interface {
	// Header returns the first value of a field; "" if it is absent.
	Header(name string) string
}
