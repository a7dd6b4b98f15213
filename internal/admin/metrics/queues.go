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
func NewQueues(o QueueOptions) prometheus.Collector {
	later := source[*deferredReading]{rows: deferredRows}
	if o.Deferred != nil {
		later.read = func() *deferredReading { return readDeferred(o) }
	}
	return group{
		source[httplimit.Stats]{o.Held, heldRows}, source[httplimit.AbandonedStats]{o.Abandoned, abandonedRows},
		source[QueueOptions]{func() QueueOptions { return o }, bodyRows},
		source[upstream.PlaceStats]{o.Upstream, upstreamRows},
		counted("weir_upstream_resent_total",
			"Requests that were sent to the proxy's upstream once more, since it closed a kept connection before any byte of an answer.", o.Resent),
		source[weir.ReservationStats]{o.Reservations, reservationRows}, later,
	}
}

var heldRows = []row[httplimit.Stats]{
	gauge("weir_held_requests", "Requests that the proxy holds until a limit admits them.",
		func(s httplimit.Stats) int { return s.Held }),
	gauge("weir_held_lines", "Lines in which they stand: one for each key of a limit.",
		func(s httplimit.Stats) int { return s.Lines }),
	gauge("weir_held_longest_line", "Requests in the longest of these lines.",
		func(s httplimit.Stats) int { return s.Longest }),
	counters("weir_held_events_total", "event",
		"Requests that were held (held); of these, those that were refused when their wait was over (expired) and whose clients hung up (hung_up); and those for which there was no room to wait (turned_away).",
		func(s httplimit.Stats, n count) {
			n(s.Total, "held")
			n(s.Expired, "expired")
			n(s.HungUp, "hung_up")
			n(s.TurnedAway, "turned_away")
		}),
}

var abandonedRows = []row[httplimit.AbandonedStats]{
	gauge("weir_abandoned_requests",
		"Requests whose clients hung up, and that keep their places until the upstream has answered.",
		func(s httplimit.AbandonedStats) int { return s.Now }),
	counters("weir_abandoned_total", "event",
		"Requests whose clients hung up, and that kept their places (kept) or were cut, since their address had half of the places (cut); and requests that were turned away for that (refused), also since bodies that do not come had them.",
		func(s httplimit.AbandonedStats, n count) {
			n(s.Kept, "kept")
			n(s.Cut, "cut")
			n(s.Refused, "refused")
		}),
}

var bodyRows = []row[QueueOptions]{
	counters("weir_proxy_bodies_cut_total", "reason",
		"Bodies through the proxy that were given up: of requests, since they came too slowly (slow), not at all for too long (stalled), or not at once while such had half of the places for their address, and none was free (crowded); and of answers that were not read then (unread).",
		func(o QueueOptions, n count) {
			if o.Bodies != nil {
				slow, stalled, crowded, unread := o.Bodies()
				n(slow, "slow")
				n(stalled, "stalled")
				n(crowded, "crowded")
				n(unread, "unread")
			}
		}),
}

var upstreamRows = []row[upstream.PlaceStats]{
	gauges("weir_upstream_requests", "state",
		"Requests that are under way to the proxy's upstream, each on a connection of its own (under_way), and those that wait for a place among these (waiting).",
		func(s upstream.PlaceStats, v value) {
			v(float64(s.Used), "under_way")
			v(float64(s.Waiting), "waiting")
		}),
	gauge("weir_upstream_places", "How many requests may be under way to the proxy's upstream.",
		func(s upstream.PlaceStats) int { return s.Max }),
	counter("weir_upstream_full_total", "Requests that found no place in time, and got a 503.",
		func(s upstream.PlaceStats) uint64 { return s.Refused }),
}

var reservationRows = []row[weir.ReservationStats]{
	counters("weir_reservations_total", "event",
		"Reservations of costs known only afterwards, by what became of them: made, committed, expired.",
		func(s weir.ReservationStats, n count) {
			n(s.Made, "made")
			n(s.Committed, "committed")
			n(s.Expired, "expired")
		}),
	counter("weir_cost_unknown_total",
		"Costs that cost_after could not tell from the response, so that the estimate stayed charged.",
		func(s weir.ReservationStats) uint64 { return s.Unknown }),
}

// deferredReading is of the queue and of this node's worker.
type deferredReading struct {
	queue  deferred.Stats
	worker deferred.WorkerStats
}

// deferredPatience bounds the wait for the queue, which may lie in Redis.
const deferredPatience = time.Second

// readDeferred returns nil while the queue cannot be reached: then nothing is sent.
func readDeferred(o QueueOptions) *deferredReading {
	ctx, cancel := context.WithTimeout(context.Background(), deferredPatience)
	defer cancel()
	queue, err := o.Deferred(ctx)
	if err != nil {
		return nil
	}
	return &deferredReading{queue, o.Worker()}
}

var deferredRows = []row[*deferredReading]{
	gauges("weir_deferred_jobs", "state", "Deferred requests that wait, and dead letters.",
		func(s *deferredReading, v value) {
			if s != nil {
				v(float64(s.queue.Jobs), "waiting")
				v(float64(s.queue.Dead), "dead")
			}
		}),
	gauges("weir_deferred_bytes", "", "Bytes of the deferred requests that wait.",
		func(s *deferredReading, v value) {
			if s != nil {
				v(float64(s.queue.Bytes))
			}
		}),
	counters("weir_deferred_total", "event",
		"What this node's worker did with deferred requests: sent, done, again (to be sent once more), failed (given up), postponed (the limits did not admit it yet, or no place at the upstream was free); and requests refused since the queue was full (full), or full for their line (share).",
		func(s *deferredReading, n count) {
			if s != nil {
				n(s.worker.Sent, "sent")
				n(s.worker.Done, "done")
				n(s.worker.Again, "again")
				n(s.worker.Failed, "failed")
				n(s.worker.Postponed, "postponed")
				n(s.worker.Full, "full")
				n(s.worker.Share, "share")
			}
		}),
}
