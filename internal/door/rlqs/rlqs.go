// Package rlqs is the door for Envoy's rate_limit_quota filter: the rate limit quota service over
// gRPC. It decides no requests: an Envoy reports how many requests its buckets let through, and
// gets assignments of how many they may let through from now on. The units come from the limits
// that a request like the bucket meets, which lend them ahead (store.Lender), so that all doors
// spend one budget.
//
// Begin with Service, made by New; the server of internal/door/rls serves it. Three goroutines
// read, handle and write a stream (stream.go). internal/leasing/broker computes which units to ask
// for and to assign; terms.go asks the limiter which limits a bucket meets. docs/guides/rlqs.md is
// for users.
package rlqs

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	rlqspb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/leasing/broker"
	"github.com/weir-rl/weir/internal/util/sparselog"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// Door is weir.Request.Door of requests that this door reports.
const Door = "rlqs"

// Options tune New. The zero value is right for most.
type Options struct {
	// Settings say how much is assigned; what is zero in it is as in broker.Defaults.
	Settings broker.Settings
	// Signals returns something that changes when a signal of elastic rules does; nil means that
	// there are none.
	Signals func() uint64
	// Logger logs why buckets cannot be served; nil means nobody.
	Logger *slog.Logger
	// Lender lends; nil means the store, or the one it wraps. It is for a store that decides by
	// itself while the one that lends is away, and so does not show it (store/fallback).
	Lender store.Lender
	// Expand appends to dst the charges that the Lender is to be asked for in place of charges,
	// each with the key of its original; nil means the same ones. It is for a store that makes
	// others of them itself (store/regions), and so does not show the Lender as one of its own. It
	// returns the same limits each time, or the assignments are looked at anew.
	Expand func(charges, dst []store.Charge) []store.Charge

	// Tests wait less.
	silence, look time.Duration
}

// Service implements envoy.service.rate_limit_quota.v3.RateLimitQuotaService. Safe for concurrent
// use. Make one with New.
//
// Any client of this door can take all that the limits lend. Keep its port away from clients.
type Service struct {
	limiter *weir.Limiter
	store   store.Store
	lender  store.Lender // nil if the store lends nothing
	o       Options

	mu       sync.Mutex
	streams  map[*stream]struct{}
	pool     broker.Pool
	drained  chan struct{} // closed by Drain
	once     sync.Once
	lendless sync.Once
	badIDs   sparselog.Line
	again    atomic.Int64       // looksPerSecond, of one stream
	watched  bool               // watch runs
	noted    map[noted]struct{} // logged before, under the rules of generation
	of       uint64             // generation

	stats
}

// looksPerSecond is how many used up buckets are looked at in a second without a report, over all
// streams (broker.Holder.Again): at most some hundredths of a core.
const looksPerSecond = 2000

type noted struct{ domain, rule string }

// stats are what Stats reads.
type stats struct {
	refused   atomic.Uint64 // streams that were turned away or closed, through the client's fault
	short     atomic.Uint64
	abandoned [causes]atomic.Uint64
	limits    sync.Map // weir.RuleName → *limitCount
}

// Causes of abandoning a bucket.
const (
	causeIdle = iota
	causeMany
	causeID
	causes
)

// limitCount counts for one limit.
type limitCount struct{ assigned, over, allowed, denied atomic.Uint64 }

var _ rlqspb.RateLimitQuotaServiceServer = (*Service)(nil)

// New returns the service of l, over the store of l.
func New(l *weir.Limiter, s store.Store, o Options) *Service {
	defaults := broker.Defaults()
	o.Settings.First = cmp.Or(o.Settings.First, defaults.First)
	o.Settings.Buckets = cmp.Or(o.Settings.Buckets, defaults.Buckets)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.silence == 0 {
		o.silence = 3*broker.Interval + broker.Delay
	}
	if o.look == 0 {
		o.look = time.Second / 2
	}
	r := &Service{limiter: l, store: s, o: o, streams: map[*stream]struct{}{}, drained: make(chan struct{}),
		noted: map[noted]struct{}{}}
	if r.lender = o.Lender; r.lender == nil {
		r.lender, _ = store.As[store.Lender](s)
	}
	return r
}

// Register registers the service.
func (r *Service) Register(g grpc.ServiceRegistrar) {
	rlqspb.RegisterRateLimitQuotaServiceServer(g, r)
}

// Drain closes all streams, and refuses others: their Envoys open new ones elsewhere within a few
// seconds, and their assignments last longer than that. It does not wait for them: each call of
// StreamRateLimitQuotas returns when the store has the final report on its Envoy.
func (r *Service) Drain() { r.once.Do(func() { close(r.drained) }) }

var (
	errDraining = status.Error(codes.Unavailable,
		"this Weir is going away; open the stream again, which another one answers")
	errNoLender = status.Error(codes.Unimplemented,
		"the store of this Weir lends no units ahead, and quota cannot be assigned without that; "+
			"the embedded store and Redis do")
)

// enter adds a stream; false if the server drains.
func (r *Service) enter(s *stream) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.drained:
		return false
	default:
	}
	r.streams[s] = struct{}{}
	r.again.Store(int64(max(looksPerSecond/len(r.streams), 1)))
	if !r.watched {
		r.watched = true
		go r.watch()
	}
	return true
}

// leave removes a stream.
func (r *Service) leave(s *stream) {
	r.mu.Lock()
	delete(r.streams, s)
	r.again.Store(int64(looksPerSecond / max(len(r.streams), 1)))
	r.pool.Leave(s.holder)
	r.mu.Unlock()
}

// watch has all buckets looked at when something changes that they may depend on and that no report
// shows: rules, bans, grants, signals. It ends with the last stream.
func (r *Service) watch() {
	t := time.NewTicker(r.o.look)
	defer t.Stop()
	// Not the present version: the first stream may have looked at its buckets before this
	// goroutine began, and it would miss a change between the two.
	var last version
	for {
		select {
		case <-r.drained:
			return
		case <-t.C:
		}
		v := r.version()
		r.mu.Lock()
		if len(r.streams) == 0 {
			r.watched = false
			r.mu.Unlock()
			return
		}
		if v != last {
			r.lookLocked()
		}
		r.mu.Unlock()
		last = v
	}
}

// Look has the buckets of all streams looked at soon, without waiting for a report.
func (r *Service) Look() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lookLocked()
}

func (r *Service) lookLocked() {
	for s := range r.streams {
		select {
		case s.look <- struct{}{}:
		default: // it is about to look anyway
		}
	}
}

// version holds the state that the terms of buckets depend on, beside their reports.
type version struct {
	rules, signals, bans uint64
	inForce, grants      int
	grant                int64
}

func (r *Service) version() (v version) {
	_, v.rules = r.limiter.Rules()
	if r.o.Signals != nil {
		v.signals = r.o.Signals()
	}
	s := r.limiter.Bans().Stats()
	v.bans, v.grants = s.Set, s.Grants
	for _, n := range s.InForce {
		v.inForce += n
	}
	if v.grants > 0 {
		for _, g := range r.limiter.Grants().List() {
			v.grant += g.Since.UnixNano() ^ g.Until.UnixNano()
		}
	}
	return v
}

// note logs something about a limit once for a set of rules.
func (r *Service) note(c *rule.Counter, message string) {
	_, generation := r.limiter.Rules()
	r.mu.Lock()
	if r.of != generation {
		r.of = generation
		clear(r.noted)
	}
	key := noted{c.Domain, c.Rule}
	_, known := r.noted[key]
	if known = known || len(r.noted) >= maxNoted; !known {
		r.noted[key] = struct{}{}
	}
	r.mu.Unlock()
	if !known {
		r.o.Logger.Warn("quota cannot be assigned by a limit: the buckets that meet it are refused", "domain", c.Domain,
			"limit", c.Rule, "why", message)
	}
}

// maxNoted bounds the memory of logged faults.
const maxNoted = 1000

// limit returns the counts of a limit.
func (r *Service) limit(c *rule.Counter) *limitCount {
	name := weir.RuleName{Domain: c.Domain, Name: c.Rule}
	if n, ok := r.limits.Load(name); ok {
		return n.(*limitCount)
	}
	n, _ := r.limits.LoadOrStore(name, new(limitCount))
	return n.(*limitCount)
}

// Stats is a reading of the service's counters.
type Stats struct {
	Streams, Buckets int
	Refused          uint64 // streams that were turned away, or closed through the client's fault
	// reports with refusals of a bucket whose limits had room for more than was assigned
	Short uint64
	// buckets that Envoy had to forget, because they were idle, or too many or had an id that is
	// not taken
	AbandonedIdle, AbandonedMany, AbandonedID uint64
	Limits                                    map[weir.RuleName]LimitStats
}

// LimitStats are the counts of one limit, in units where nothing else is said.
type LimitStats struct {
	Assigned        uint64
	Over            uint64 // let through beyond the units paid
	Allowed, Denied uint64 // requests that were reported
}

// Stats returns a reading.
func (r *Service) Stats() Stats {
	s := Stats{Refused: r.refused.Load(), Short: r.short.Load(), Limits: map[weir.RuleName]LimitStats{}}
	s.AbandonedIdle, s.AbandonedMany, s.AbandonedID = r.abandoned[causeIdle].Load(), r.abandoned[causeMany].Load(),
		r.abandoned[causeID].Load()
	r.mu.Lock()
	s.Streams = len(r.streams)
	for st := range r.streams {
		s.Buckets += int(st.buckets.Load())
	}
	r.mu.Unlock()
	r.limits.Range(func(name, n any) bool {
		c := n.(*limitCount)
		s.Limits[name.(weir.RuleName)] = LimitStats{Assigned: c.assigned.Load(), Over: c.over.Load(),
			Allowed: c.allowed.Load(), Denied: c.denied.Load()}
		return true
	})
	return s
}

// StreamRateLimitQuotas implements rlqspb.RateLimitQuotaServiceServer.
func (r *Service) StreamRateLimitQuotas(g grpc.BidiStreamingServer[rlqspb.RateLimitQuotaUsageReports,
	rlqspb.RateLimitQuotaResponse]) error {
	if r.lender == nil {
		r.lendless.Do(func() {
			r.o.Logger.Warn("an Envoy asks for quotas, which the store cannot lend: all its streams are refused",
				"why", status.Convert(errNoLender).Message())
		})
		return errNoLender
	}
	ctx, cancel := context.WithCancel(g.Context())
	defer cancel()
	s := newStream(ctx, r)
	if !r.enter(s) {
		return errDraining
	}
	defer r.leave(s)
	err := s.serve(g, cancel)
	if c := status.Code(err); c == codes.InvalidArgument || c == codes.ResourceExhausted {
		r.refused.Add(1)
	}
	return err
}
