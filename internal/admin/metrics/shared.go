package metrics

import (
	"time"

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

var redisRows = []row[*redis.Stats]{
	counter("weir_redis_calls_total", "Round trips to Redis that charged or read keys.",
		func(s *redis.Stats) uint64 { return s.Calls }),
	histogram("weir_redis_batch_decisions", "Decisions that one round trip carried.",
		func(s *redis.Stats) (n uint64, sum float64, counts map[float64]uint64) {
			// Upper bounds are 1, 2, 4, …
			counts = make(map[float64]uint64, len(s.Batches))
			for i, v := range s.Batches {
				n += v
				counts[float64(uint64(1)<<i)] = n
			}
			return n, float64(s.Decisions), counts
		}),
	counter("weir_redis_decisions_total", "Decisions that Redis made.",
		func(s *redis.Stats) uint64 { return s.Decisions }),
	counter("weir_redis_merged_decisions_total",
		"Decisions of weir_redis_decisions_total that went to Redis as one with an equal one before them.",
		func(s *redis.Stats) uint64 { return s.Merged }),
	counter("weir_redis_remembered_refusals_total",
		"Refusals that this node answered from memory, without asking Redis.",
		func(s *redis.Stats) uint64 { return s.Remembered }),
	counter("weir_redis_swaps_total",
		"Attempts to make a decision by compare-and-swap, as is done after a leap of the clock or a change of a window.",
		func(s *redis.Stats) uint64 { return s.Swaps }),
	counter("weir_redis_loads_total", "Times that the functions were loaded into Redis again, since they were gone.",
		func(s *redis.Stats) uint64 { return s.Loads }),
	counter("weir_redis_failures_total", "Round trips that failed, or whose outcome is not known.",
		func(s *redis.Stats) uint64 { return s.Failures }),
	counter("weir_redis_again_total", "Calls that were sent to Redis again, since their answer was lost.",
		func(s *redis.Stats) uint64 { return s.Again }),
	counter("weir_redis_redials_total",
		"Times that all connections to Redis were dialled anew, since a replica answered.",
		func(s *redis.Stats) uint64 { return s.Redials }),
	counter("weir_redis_given_back_total",
		"Charges that were given back, since a limit in another partition of the Cluster refused.",
		func(s *redis.Stats) uint64 { return s.GivenBack }),
	counter("weir_redis_disagreements_total",
		"Batches of which Redis and this node did not admit the same: above 0 there is a defect in weir.",
		func(s *redis.Stats) uint64 { return s.Disagreements }),
	gauge("weir_redis_nodes", "Nodes alive, this one included, as Redis last said; 0 if that is not known.",
		func(s *redis.Stats) int { return s.Nodes }),
}

// fallbackReading is a reading of a Fallback.
type fallbackReading struct {
	fallback.Stats
	state       fallback.State
	entered     [fallback.States]uint64
	away, parts int
	share       int
	excess      []fallback.Excess
}

func readFallback(f Fallback) *fallbackReading {
	s := &fallbackReading{Stats: f.Stats(), entered: f.Entered(), share: f.Share(), excess: f.Excess()}
	s.state, _, _ = f.State()
	s.away, s.parts = f.Away()
	return s
}

var fallbackRows = []row[*fallbackReading]{
	gauges("weir_store_breaker_state", "state",
		"1 for where the store is, 0 for the others: there (it decides), away, or returning (it answers again).",
		func(s *fallbackReading, v value) {
			for i := range fallback.State(fallback.States) {
				v(oneIf(i == s.state), i.String())
			}
		}),
	counters("weir_store_breaker_transitions_total", "state", "How often the store came to each state.",
		func(s *fallbackReading, n count) {
			for i, times := range s.entered {
				n(times, fallback.State(i).String())
			}
		}),
	counter("weir_store_breaker_trips_total",
		"How often the store went away, having been there.",
		func(s *fallbackReading) uint64 { return s.Trips }),
	counters("weir_store_fallback_decisions_total", "outcome",
		"Decisions without the store: on this node's share (local_allowed, local_denied), or since the rules want so (uncounted, refused).",
		func(s *fallbackReading, n count) {
			n(s.LocalAllowed, "local_allowed")
			n(s.LocalDenied, "local_denied")
			n(s.Uncounted, "uncounted")
			n(s.Refused, "refused")
		}),
	counter("weir_store_deadline_misses_total", "Answers of the store that did not come in time.",
		func(s *fallbackReading) uint64 { return s.DeadlineMisses }),
	counter("weir_store_unanswered_decisions_total",
		"Decisions that this node made by itself while the store counted as there: it did not answer in time, or failed the call.",
		func(s *fallbackReading) uint64 { return s.Unanswered }),
	counter("weir_store_unanswered_units_total", "Units that such decisions admitted.",
		func(s *fallbackReading) uint64 { return s.UnansweredUnits }),
	counters("weir_store_fallback_units_total", "outcome",
		"Units admitted without the store: charged to it (settled), not charged since its limit was exhausted (excess), perhaps charged, since its answer never came, or they could not be kept (lost), not charged as their window was over (lapsed), refunded before they were charged (returned).",
		func(s *fallbackReading, n count) {
			n(s.Settled, "settled")
			n(s.Excess, "excess")
			n(s.Lost, "lost")
			n(s.Lapsed, "lapsed")
			n(s.Returned, "returned")
		}),
	gauge("weir_store_fallback_open_units",
		"Units admitted without the store that are to be charged to it yet, or of which its answer is still to come.",
		func(s *fallbackReading) float64 { return float64(s.Open) }),
	counters("weir_store_excess_units_total", "domain rule",
		"Units that were admitted without the store beyond the limits of a rule.",
		func(s *fallbackReading, n count) {
			for _, e := range s.excess {
				n(e.Units, label(e.Domain), label(e.Rule))
			}
		}),
	gauge("weir_store_parts", "Parts of the store that can be away one by one: the partitions of a Cluster, else 1.",
		func(s *fallbackReading) int { return s.parts }),
	gauge("weir_store_parts_away", "Parts of the store that are away.",
		func(s *fallbackReading) int { return s.away }),
	gauge("weir_store_share_nodes", "Nodes among which limits are shared while the store is away.",
		func(s *fallbackReading) int { return s.share }),
}
