package rlqs

import (
	"context"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	rlqspb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/leasing/broker"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

const (
	// inbox is how many reports may wait to be dealt with, outbox how many responses to be written.
	// A client that reads too slowly loses its stream.
	inbox, outbox = 16, 16
	// together is how many reports are dealt with together.
	together = 64
	// batch is how many states are asked for in one call. The embedded store keeps its working
	// memory up to a size that 500 would pass.
	batch = 250
	// longest is how long a store is waited for.
	longest = time.Second
	// Reports that a stream may send: at once, beside one for each bucket, and in a second.
	burstReports, reportsPerSecond = 1000, 200
)

// stream is one stream of an Envoy. Only serve's goroutine touches its fields, except buckets and
// look.
type stream struct {
	r       *Service
	ctx     context.Context
	look    chan struct{} // something changed
	buckets atomic.Int64

	domain string
	holder *broker.Holder
	known  map[string]*bucket
	out    chan *rlqspb.RateLimitQuotaResponse
	offset int64 // of the store's clock to this one, in µs
	heard  int64 // when the last report was here
	budget int64 // reports that may come
	refill int64 // when budget was brought up to date

	request  weir.Request
	decision weir.Decision
	entries  entries
	name     []byte
	response []byte // of broker.Response, to be sent next
	answered int    // bytes of the last one
	met      []broker.Charge
	charges  []store.Charge
	expanded []store.Charge
	ahead    []algo.Ahead
	results  []algo.Result
}

func newStream(ctx context.Context, r *Service) *stream {
	now := store.Monotonic()
	return &stream{
		r: r, ctx: ctx, look: make(chan struct{}, 1),
		holder: broker.NewHolder(r.o.Settings, rand.Uint64()), known: map[string]*bucket{},
		out:    make(chan *rlqspb.RateLimitQuotaResponse, outbox),
		offset: time.Now().UnixMicro() - now/1000, heard: now, budget: burstReports, refill: now,
	}
}

var (
	errSilent = status.Error(codes.Unavailable, "no report came for three intervals")
	errSlow   = status.Error(codes.ResourceExhausted, "the stream's responses are not read")
	errFlood  = status.Error(codes.ResourceExhausted, "more reports came than an Envoy sends")
	errDomain = status.Error(codes.InvalidArgument,
		"the first report of a stream must name a domain, of 256 bytes at most")
	errOther = status.Error(codes.InvalidArgument, "the domain of a stream cannot change")
)

// serve serves the stream until it ends, and returns its status. cancel ends the context of the
// goroutines that read and write.
func (s *stream) serve(g grpc.BidiStreamingServer[rlqspb.RateLimitQuotaUsageReports, rlqspb.RateLimitQuotaResponse],
	cancel func()) error {
	in, broken := make(chan *rlqspb.RateLimitQuotaUsageReports, inbox), make(chan error, 2)
	go func() {
		for {
			m, dropped, err := receive(g)
			if err != nil {
				broken <- err
				return
			}
			if dropped > 0 {
				s.r.badID("", errNotText)
			}
			select {
			case in <- m:
			case <-s.ctx.Done():
				return
			}
		}
	}()
	written := make(chan struct{})
	go func() {
		defer close(written)
		for m := range s.out {
			if err := g.Send(m); err != nil {
				broken <- err
				cancel()
				return
			}
		}
	}()
	err := s.loop(in, broken)
	cancel()
	close(s.out)
	s.tell()
	if errors.Is(err, errSlow) {
		return err // the writer ends with the stream
	}
	<-written
	return err
}

// loop handles reports and timers until the stream is to end.
func (s *stream) loop(in <-chan *rlqspb.RateLimitQuotaUsageReports, broken <-chan error) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		s.buckets.Store(int64(s.holder.Len()))
		now := store.Monotonic()
		next := s.holder.Due(now, nil)
		waits := s.holder.Len() > 0 || s.domain == "" // for a report
		if waits {
			next = min(next, s.heard+int64(s.r.o.silence))
		}
		timer.Reset(time.Duration(min(max(next-now, 0), int64(time.Hour))))
		select {
		case m := <-in:
			if err := s.reports(m, in); err != nil {
				return err
			}
		case err := <-broken:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case <-s.look:
			s.lookAll()
		case <-timer.C:
			if now = store.Monotonic(); waits && now-s.heard >= int64(s.r.o.silence) {
				return errSilent
			}
			s.lookDue(now)
		case <-s.r.drained:
			return errDraining
		case <-s.ctx.Done():
			return status.FromContextError(s.ctx.Err()).Err()
		}
		if err := s.answer(); err != nil {
			return err
		}
	}
}

// reports deals with a report, and with those that wait behind it.
func (s *stream) reports(m *rlqspb.RateLimitQuotaUsageReports, in <-chan *rlqspb.RateLimitQuotaUsageReports) error {
	for n := 1; ; n++ {
		if err := s.report(m); err != nil {
			return err
		}
		if n == together {
			return nil
		}
		select {
		case m = <-in:
		default:
			return nil
		}
	}
}

// report deals with one report.
func (s *stream) report(m *rlqspb.RateLimitQuotaUsageReports) error {
	now := store.Monotonic()
	switch {
	case s.domain == "" && (m.GetDomain() == "" || len(m.GetDomain()) > maxDomain):
		return errDomain
	case s.domain == "":
		s.domain = m.GetDomain()
	case m.GetDomain() != "" && m.GetDomain() != s.domain:
		return errOther
	}
	// Each new bucket is reported by itself.
	if ms := (now - s.refill) / int64(time.Millisecond); ms > 0 {
		s.budget = min(s.budget+ms*reportsPerSecond/1000, burstReports+int64(s.r.o.Settings.Buckets))
		s.refill += ms * int64(time.Millisecond)
	}
	if s.budget--; s.budget < 0 {
		return errFlood
	}
	s.heard = now
	s.holder.Again(int(s.r.again.Load()))
	for _, u := range m.GetBucketQuotaUsages() {
		if err := s.usage(u, now); err != nil {
			return err
		}
	}
	return nil
}

// usage handles one bucket's part of a report.
func (s *stream) usage(u *rlqspb.RateLimitQuotaUsageReports_BucketQuotaUsage, now int64) error {
	list, named, wrong := appendEntries(s.entries[:0], u.GetBucketId())
	if s.entries = list; wrong != nil {
		return s.badID(u, named, wrong)
	}
	s.name = s.entries.appendName(s.name[:0])
	b := s.known[string(s.name)]
	if b == nil {
		if s.holder.Len() >= s.r.o.Settings.Buckets {
			return s.refuse(u, causeMany)
		}
		b = &bucket{name: string(s.name), entries: slices.Clone(s.entries)}
		var err error
		if b.id, err = broker.AppendID(nil, u.GetBucketId()); err != nil {
			return status.Error(codes.InvalidArgument, err.Error())
		}
		s.known[b.name] = b
	}
	s.meets(b, now)
	usage := broker.Usage{Allowed: count(u.GetNumRequestsAllowed()), Denied: count(u.GetNumRequestsDenied())}
	// An error can only come from limits in shadow, which decide nothing; the limiter has reported
	// it.
	_ = s.r.limiter.Phases().Report(s.ctx, &s.request, &s.decision, usage.Allowed, usage.Denied)
	said := s.holder.Report(now, b.name, usage, b.terms)
	for i, n := range b.counts {
		if n == nil {
			continue
		}
		n.over.Add(uint64(said.Over) * uint64(b.terms.Charges[i].Cost))
		n.allowed.Add(uint64(usage.Allowed))
		n.denied.Add(uint64(usage.Denied))
	}
	return nil
}

// count reads a number of requests; there are not more than that.
func count(n uint64) int64 { return int64(min(n, math.MaxInt32)) }

// badID refuses a bucket whose id is not taken. The fault may come from a client of Envoy, such as
// an empty header or a long one, and others must not suffer from that: only this bucket is refused.
func (s *stream) badID(u *rlqspb.RateLimitQuotaUsageReports_BucketQuotaUsage, named bool, wrong error) error {
	if s.r.badID(s.domain, wrong); !named {
		return nil
	}
	return s.refuse(u, causeID)
}

var errNotText = errors.New("it is not UTF-8, as a client sent it")

// badID logs a fault of the id of a bucket.
func (r *Service) badID(domain string, wrong error) {
	if n := r.badIDs.Due(time.Minute); n > 0 {
		r.o.Logger.Warn("the id of a bucket is not taken: its requests are refused", "domain", domain, "why", wrong,
			"times", n)
	}
}

// refuse answers for a bucket that is none of the Holder's.
func (s *stream) refuse(u *rlqspb.RateLimitQuotaUsageReports_BucketQuotaUsage, cause int) error {
	first := u.GetTimeElapsed().AsDuration() < time.Second
	if !first {
		s.r.abandoned[cause].Add(1)
	}
	id, err := broker.AppendID(nil, u.GetBucketId())
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	s.response = broker.Refuse(s.response, id, broker.TTL, first)
	return nil
}

// lookAll looks at the buckets that are subject to something else now.
func (s *stream) lookAll() {
	now := store.Monotonic()
	for name, b := range s.known {
		if s.meets(b, now) {
			s.holder.Look(name, b.terms)
		}
	}
}

// lookDue looks at the buckets whose time has come.
func (s *stream) lookDue(now int64) {
	s.holder.Due(now, func(name string) {
		b := s.known[name]
		s.meets(b, now)
		s.holder.Look(name, b.terms)
	})
}

// storeTime is the store's clock, as far as it is known.
func (s *stream) storeTime(now int64) int64 { return now/1000 + s.offset }

// answer asks the store for the units that the handled buckets need, and puts the assignments into
// the outbox.
func (s *stream) answer() error {
	asks := s.holder.Ask(store.Monotonic())
	failed := false
	if len(asks) > 0 {
		s.pool(func(p *broker.Pool) { p.Bound(store.Monotonic(), asks) })
		failed = s.takeAhead(asks)
		s.pool(func(p *broker.Pool) { p.Got(store.Monotonic(), asks) })
	}
	now := store.Monotonic()
	for _, a := range s.holder.Granted(now, asks) {
		s.say(&a)
	}
	if failed {
		for _, a := range s.holder.Failed(now, s.withoutLender) {
			s.say(&a)
		}
	}
	if len(s.response) == 0 {
		return nil
	}
	select {
	case s.out <- broker.Response(s.response):
		s.answered, s.response = len(s.response), nil
		return nil
	default:
		return errSlow
	}
}

// pool calls f with the pool of all streams.
func (s *stream) pool(f func(p *broker.Pool)) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	f(&s.r.pool)
}

// say adds an action to the response.
func (s *stream) say(a *broker.Action) {
	b := s.known[a.Bucket]
	if s.response == nil {
		s.response = make([]byte, 0, s.answered)
	}
	s.response = a.Append(s.response, b.id)
	if a.Short {
		s.r.short.Add(1)
	}
	if a.Abandon {
		delete(s.known, a.Bucket)
		s.r.abandoned[causeIdle].Add(1)
		return
	}
	if n := a.Requests(); n > 0 {
		for i, count := range b.counts {
			if count != nil {
				count.assigned.Add(uint64(n) * uint64(b.terms.Charges[i].Cost))
			}
		}
	}
}

// takeAhead puts asks before the lender; true if it failed to answer some.
func (s *stream) takeAhead(asks []broker.Ask) (failed bool) {
	for len(asks) > 0 {
		n := min(len(asks), batch)
		failed = s.takeBatch(asks[:n]) || failed
		asks = asks[n:]
	}
	return failed
}

func (s *stream) takeBatch(asks []broker.Ask) (failed bool) {
	s.charges, s.ahead, s.results = s.charges[:0], s.ahead[:0], s.results[:0]
	for i := range asks {
		a := &asks[i]
		s.charges = append(s.charges, store.Charge{Counter: a.Counter, Limit: a.Limit, Key: a.Key, Mode: rule.Shadow})
		s.ahead, s.results = append(s.ahead, a.Ahead), append(s.results, algo.Result{})
	}
	// The report must arrive, also if the stream has ended meanwhile.
	now, asked, err := s.r.lender.TakeAhead(context.WithoutCancel(s.ctx), 0, longest, s.charges, s.ahead, s.results)
	if err != nil {
		for i := range asks {
			asks[i].Failed = true
		}
		return true
	}
	s.offset = now - asked/1000
	for i := range asks {
		a := &asks[i]
		a.Ahead, a.Result, a.Now, a.Asked = s.ahead[i], s.results[i], now, asked
	}
	return false
}

// withoutLender charges as much as a bucket wants, or less, where nobody lends: the store may be
// able to decide without its other side.
func (s *stream) withoutLender(name string, want int64) int64 {
	b := s.known[name]
	terms := b.terms
	if s.r.o.Expand != nil { // the store expands charges itself
		if terms = s.terms(b, s.asked(b), store.Monotonic()); terms.Verdict != broker.Limited {
			return 0
		}
	}
	for _, n := range []int64{want, want / 4, min(want, s.r.o.Settings.First)} {
		if n <= 0 {
			continue
		}
		charges := make([]store.Charge, len(terms.Charges))
		for i, c := range terms.Charges {
			charges[i] = store.Charge{Counter: c.Counter, Limit: c.Limit, Key: []byte(c.Key),
				Ask: algo.Ask{Cost: algo.Cost(n, c.Cost)}, OnStoreError: c.OnStoreError}
		}
		results := make([]algo.Result, len(charges))
		if _, err := s.r.store.Take(s.ctx, charges, results); err != nil {
			return 0
		}
		if !store.VerdictOf(charges, results).Denied() {
			return n
		}
	}
	return 0
}

// tell reports the final usage to the store, and gives back units that are certainly unused.
func (s *stream) tell() {
	asks := s.holder.Leave(store.Monotonic())
	s.takeAhead(asks)
}
