package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir/store/fallback"
	"github.com/weir-rl/weir/store/redis"
)

// Fallback has the readings of a fallback.Store.
type Fallback interface {
	Stats() fallback.Stats
	State() (state fallback.State, since time.Time, cause error)
	Entered() [fallback.States]uint64
	Share() int
	Away() (away, parts int)
	Excess() []fallback.Excess
}

var breakerNames = [fallback.States]string{
	fallback.Closed: "closed", fallback.Open: "open", fallback.HalfOpen: "half_open",
}

var (
	descRedisCalls         = prometheus.NewDesc("weir_redis_calls_total", "Round trips to Redis that charged or read keys.", nil, nil)
	descRedisBatches       = prometheus.NewDesc("weir_redis_batch_decisions", "Decisions that one round trip carried.", nil, nil)
	descRedisDecisions     = prometheus.NewDesc("weir_redis_decisions_total", "Decisions that Redis made.", nil, nil)
	descRedisMerged        = prometheus.NewDesc("weir_redis_merged_decisions_total", "Decisions of weir_redis_decisions_total that went to Redis as one with an equal one before them.", nil, nil)
	descRedisRemembered    = prometheus.NewDesc("weir_redis_remembered_refusals_total", "Refusals that this node answered from memory, without asking Redis.", nil, nil)
	descRedisSwaps         = prometheus.NewDesc("weir_redis_swaps_total", "Attempts to make a decision by compare-and-swap, as is done after a leap of the clock or a change of a window.", nil, nil)
	descRedisLoads         = prometheus.NewDesc("weir_redis_loads_total", "Times that the functions were loaded into Redis again, since they were gone.", nil, nil)
	descRedisFailures      = prometheus.NewDesc("weir_redis_failures_total", "Round trips that failed, or whose outcome is not known.", nil, nil)
	descRedisAgain         = prometheus.NewDesc("weir_redis_again_total", "Calls that were sent to Redis again, since their answer was lost.", nil, nil)
	descRedisRedials       = prometheus.NewDesc("weir_redis_redials_total", "Times that all connections to Redis were dialled anew, since a replica answered.", nil, nil)
	descRedisGivenBack     = prometheus.NewDesc("weir_redis_given_back_total", "Charges that were given back, since a limit in another partition of the Cluster refused.", nil, nil)
	descRedisDisagreements = prometheus.NewDesc("weir_redis_disagreements_total", "Batches of which Redis and this node did not admit the same: above 0 there is a defect in weir.", nil, nil)
	descRedisNodes         = prometheus.NewDesc("weir_redis_nodes", "Nodes alive, this one included, as Redis last said; 0 if that is not known.", nil, nil)

	descBreaker         = prometheus.NewDesc("weir_store_breaker_state", "1 for the state in which the circuit breaker is, 0 for the others. Closed: the store decides.", []string{"state"}, nil)
	descTransitions     = prometheus.NewDesc("weir_store_breaker_transitions_total", "How often the circuit breaker came to each state.", []string{"state"}, nil)
	descTrips           = prometheus.NewDesc("weir_store_breaker_trips_total", "How often the store went away: the circuit breaker opened, having been closed.", nil, nil)
	descWithout         = prometheus.NewDesc("weir_store_fallback_decisions_total", "Decisions without the store: on this node's share (local_allowed, local_denied), or since the rules want so (uncounted, refused).", []string{"outcome"}, nil)
	descDeadlineMisses  = prometheus.NewDesc("weir_store_deadline_misses_total", "Answers of the store that did not come in time.", nil, nil)
	descUnanswered      = prometheus.NewDesc("weir_store_unanswered_decisions_total", "Decisions that this node made by itself while the store counted as there: it did not answer in time, or failed the call.", nil, nil)
	descUnansweredUnits = prometheus.NewDesc("weir_store_unanswered_units_total", "Units that such decisions admitted.", nil, nil)
	descUnits           = prometheus.NewDesc("weir_store_fallback_units_total", "Units admitted without the store: charged to it (settled), not charged since its limit was exhausted (excess), perhaps charged, since its answer never came, or they could not be kept (lost), not charged as their window was over (lapsed), refunded before they were charged (returned).", []string{"outcome"}, nil)
	descOpen            = prometheus.NewDesc("weir_store_fallback_open_units", "Units admitted without the store that are to be charged to it yet, or of which its answer is still to come.", nil, nil)
	descExcess          = prometheus.NewDesc("weir_store_excess_units_total", "Units that were admitted without the store beyond the limits of a rule.", []string{"domain", "rule"}, nil)
	descParts           = prometheus.NewDesc("weir_store_parts", "Parts of the store that can be away one by one: the partitions of a Cluster, else 1.", nil, nil)
	descAway            = prometheus.NewDesc("weir_store_parts_away", "Parts of the store that are away.", nil, nil)
	descShare           = prometheus.NewDesc("weir_store_share_nodes", "Nodes among which limits are shared while the store is away.", nil, nil)
)

var descsShared = []*prometheus.Desc{
	descRedisCalls, descRedisBatches, descRedisDecisions, descRedisMerged, descRedisRemembered, descRedisSwaps, descRedisLoads, descRedisFailures,
	descRedisAgain, descRedisRedials, descRedisGivenBack, descRedisDisagreements, descRedisNodes,
	descBreaker, descTransitions, descTrips, descWithout, descDeadlineMisses, descUnanswered, descUnansweredUnits, descUnits, descShare,
	descOpen, descExcess, descParts, descAway,
}

// collectRedis sends a reading of Redis as metrics.
func collectRedis(ch chan<- prometheus.Metric, r *redis.Stats) {
	counter := counterTo(ch)
	counter(descRedisCalls, r.Calls)
	// Upper bounds are 1, 2, 4, …; the counts of a histogram are cumulative.
	buckets, n := make(map[float64]uint64, len(r.Batches)), uint64(0)
	for i, v := range r.Batches {
		n += v
		buckets[float64(uint64(1)<<i)] = n
	}
	ch <- prometheus.MustNewConstHistogram(descRedisBatches, n, float64(r.Decisions), buckets)
	counter(descRedisDecisions, r.Decisions)
	counter(descRedisMerged, r.Merged)
	counter(descRedisRemembered, r.Remembered)
	counter(descRedisSwaps, r.Swaps)
	counter(descRedisLoads, r.Loads)
	counter(descRedisFailures, r.Failures)
	counter(descRedisAgain, r.Again)
	counter(descRedisRedials, r.Redials)
	counter(descRedisGivenBack, r.GivenBack)
	counter(descRedisDisagreements, r.Disagreements)
	gaugeTo(ch)(descRedisNodes, float64(r.Nodes))
}

// collectFallback sends a reading of store as metrics.
func collectFallback(ch chan<- prometheus.Metric, store Fallback) {
	counter, gauge := counterTo(ch), gaugeTo(ch)
	f := store.Stats()
	now, _, _ := store.State()
	entered := store.Entered()
	away, parts := store.Away()
	for i, name := range breakerNames {
		in := 0.0
		if fallback.State(i) == now {
			in = 1
		}
		gauge(descBreaker, in, name)
		counter(descTransitions, entered[i], name)
	}
	counter(descTrips, f.Trips)
	counter(descWithout, f.LocalAllowed, "local_allowed")
	counter(descWithout, f.LocalDenied, "local_denied")
	counter(descWithout, f.Uncounted, "uncounted")
	counter(descWithout, f.Refused, "refused")
	counter(descDeadlineMisses, f.DeadlineMisses)
	counter(descUnanswered, f.Unanswered)
	counter(descUnansweredUnits, f.UnansweredUnits)
	counter(descUnits, f.Settled, "settled")
	counter(descUnits, f.Excess, "excess")
	counter(descUnits, f.Lost, "lost")
	counter(descUnits, f.Lapsed, "lapsed")
	counter(descUnits, f.Returned, "returned")
	gauge(descOpen, float64(f.Open))
	for _, e := range store.Excess() {
		counter(descExcess, e.Units, label(e.Domain), label(e.Rule))
	}
	gauge(descParts, float64(parts))
	gauge(descAway, float64(away))
	gauge(descShare, float64(store.Share()))
}

func counterTo(ch chan<- prometheus.Metric) func(d *prometheus.Desc, v uint64, labels ...string) {
	return func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
}

func gaugeTo(ch chan<- prometheus.Metric) func(d *prometheus.Desc, v float64, labels ...string) {
	return func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
}
