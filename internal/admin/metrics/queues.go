package metrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/door/proxy/deferred"
	"github.com/weir-rl/weir/internal/wire/upstream"
)

// QueueOptions say what NewQueues reads. A nil field means that there is no such metric.
type QueueOptions struct {
	Held         func() httplimit.Stats
	Abandoned    func() httplimit.AbandonedStats
	Bodies       func() (slow, stalled, crowded, unread uint64) // that the proxy gave up
	Upstream     func() upstream.PlaceStats
	Resent       func() uint64 // requests that were sent to the upstream a second time
	Reservations func() weir.ReservationStats
	// Deferred reads the queue of deferred requests, and Worker the counts of this node's worker.
	// Both are set or neither is.
	Deferred func(context.Context) (deferred.Stats, error)
	Worker   func() deferred.WorkerStats
}

// NewQueues returns a collector of the proxy's queues, of reservations and of deferred requests,
// for Metrics.Registry.
func NewQueues(o QueueOptions) prometheus.Collector { return queueCollector{o} }

type queueCollector struct{ o QueueOptions }

var (
	descHeld         = prometheus.NewDesc("weir_held_requests", "Requests that the proxy holds until a limit admits them.", nil, nil)
	descHeldLines    = prometheus.NewDesc("weir_held_lines", "Lines in which they stand: one for each key of a limit.", nil, nil)
	descHeldLongest  = prometheus.NewDesc("weir_held_longest_line", "Requests in the longest of these lines.", nil, nil)
	descHeldTotal    = prometheus.NewDesc("weir_held_events_total", "Requests that were held (held); of these, those that were refused when their wait was over (expired) and whose clients hung up (hung_up); and those for which there was no room to wait (turned_away).", []string{"event"}, nil)
	descBodies       = prometheus.NewDesc("weir_proxy_bodies_cut_total", "Bodies through the proxy that were given up: of requests, since they came too slowly (slow), not at all for too long (stalled), or not at once while such had half of the places for their address, and none was free (crowded); and of answers that were not read then (unread).", []string{"reason"}, nil)
	descAbandoned    = prometheus.NewDesc("weir_abandoned_requests", "Requests whose clients hung up, and that keep their places until the upstream has answered.", nil, nil)
	descAbandonedSum = prometheus.NewDesc("weir_abandoned_total", "Requests whose clients hung up, and that kept their places (kept) or were cut, since their address had half of the places (cut); and requests that were turned away for that (refused), also since bodies that do not come had them.", []string{"event"}, nil)
	descUpstream     = prometheus.NewDesc("weir_upstream_requests", "Requests that are under way to the proxy's upstream, each on a connection of its own (under_way), and those that wait for a place among these (waiting).", []string{"state"}, nil)
	descUpstreamMost = prometheus.NewDesc("weir_upstream_places", "How many requests may be under way to the proxy's upstream.", nil, nil)
	descUpstreamFull = prometheus.NewDesc("weir_upstream_full_total", "Requests that found no place in time, and got a 503.", nil, nil)
	descResent       = prometheus.NewDesc("weir_upstream_resent_total", "Requests that were sent to the proxy's upstream once more, since it closed a kept connection before any byte of an answer.", nil, nil)
	descReservations = prometheus.NewDesc("weir_reservations_total", "Reservations of costs known only afterwards, by what became of them: made, committed, expired.", []string{"event"}, nil)
	descCostUnknown  = prometheus.NewDesc("weir_cost_unknown_total", "Costs that cost_after could not tell from the response, so that the estimate stayed charged.", nil, nil)
	descDeferred     = prometheus.NewDesc("weir_deferred_jobs", "Deferred requests that wait, and dead letters.", []string{"state"}, nil)
	descDeferredSize = prometheus.NewDesc("weir_deferred_bytes", "Bytes of the deferred requests that wait.", nil, nil)
	descDeferredDone = prometheus.NewDesc("weir_deferred_total", "What this node's worker did with deferred requests: sent, done, again (to be sent once more), failed (given up), postponed (the limits did not admit it yet, or no place at the upstream was free); and requests refused since the queue was full (full), or full for their line (share).", []string{"event"}, nil)
)

var descsQueues = []*prometheus.Desc{descHeld, descHeldLines, descHeldLongest, descHeldTotal, descBodies, descAbandoned, descAbandonedSum, descUpstream, descUpstreamMost, descUpstreamFull, descResent, descReservations, descCostUnknown, descDeferred, descDeferredSize, descDeferredDone}

// Describe implements prometheus.Collector.
func (c queueCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range descsQueues {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c queueCollector) Collect(ch chan<- prometheus.Metric) {
	counter, gauge := counterTo(ch), gaugeTo(ch)
	if c.o.Held != nil {
		h := c.o.Held()
		gauge(descHeld, float64(h.Held))
		gauge(descHeldLines, float64(h.Lines))
		gauge(descHeldLongest, float64(h.Longest))
		counter(descHeldTotal, h.Total, "held")
		counter(descHeldTotal, h.Expired, "expired")
		counter(descHeldTotal, h.HungUp, "hung_up")
		counter(descHeldTotal, h.TurnedAway, "turned_away")
	}
	if c.o.Abandoned != nil {
		a := c.o.Abandoned()
		gauge(descAbandoned, float64(a.Now))
		counter(descAbandonedSum, a.Kept, "kept")
		counter(descAbandonedSum, a.Cut, "cut")
		counter(descAbandonedSum, a.Refused, "refused")
	}
	if c.o.Bodies != nil {
		slow, stalled, crowded, unread := c.o.Bodies()
		counter(descBodies, slow, "slow")
		counter(descBodies, stalled, "stalled")
		counter(descBodies, crowded, "crowded")
		counter(descBodies, unread, "unread")
	}
	if c.o.Upstream != nil {
		u := c.o.Upstream()
		gauge(descUpstream, float64(u.Used), "under_way")
		gauge(descUpstream, float64(u.Waiting), "waiting")
		gauge(descUpstreamMost, float64(u.Max))
		counter(descUpstreamFull, u.Refused)
	}
	if c.o.Resent != nil {
		counter(descResent, c.o.Resent())
	}
	if c.o.Reservations != nil {
		r := c.o.Reservations()
		counter(descReservations, r.Made, "made")
		counter(descReservations, r.Committed, "committed")
		counter(descReservations, r.Expired, "expired")
		counter(descCostUnknown, r.Unknown)
	}
	if c.o.Deferred != nil {
		c.collectDeferred(ch)
	}
}

// deferredPatience bounds the wait for the queue, which may lie in Redis.
const deferredPatience = time.Second

// collectDeferred sends nothing while the queue cannot be reached.
func (c queueCollector) collectDeferred(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), deferredPatience)
	defer cancel()
	queue, err := c.o.Deferred(ctx)
	if err != nil {
		return
	}
	counter, gauge := counterTo(ch), gaugeTo(ch)
	gauge(descDeferred, float64(queue.Jobs), "waiting")
	gauge(descDeferred, float64(queue.Dead), "dead")
	gauge(descDeferredSize, float64(queue.Bytes))
	worker := c.o.Worker()
	counter(descDeferredDone, worker.Sent, "sent")
	counter(descDeferredDone, worker.Done, "done")
	counter(descDeferredDone, worker.Again, "again")
	counter(descDeferredDone, worker.Failed, "failed")
	counter(descDeferredDone, worker.Postponed, "postponed")
	counter(descDeferredDone, worker.Full, "full")
	counter(descDeferredDone, worker.Share, "share")
}
