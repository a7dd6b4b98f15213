// Package algo holds the rate-limiting algorithms as pure functions: (limit, state, now, cost) →
// (state, result).
//
// The package reads no clock, takes no lock, logs nothing and does no I/O. All arithmetic is on
// integers below 2^53, so that a twin in Lua computes the same numbers. Time is in microseconds
// since the Unix epoch, up to 2^53 − 1 (the year 2255). docs/how-it-works/algorithms.md defines
// the exact semantics.
//
// Begin with Config and New, which compile a Limit, and then read Limit.Take (limit.go). Each
// algorithm has a file: bucket.go and interval.go, fixed.go, window.go, log.go, concurrency.go.
// margin.go adds soft margins that close, lease.go units that are lent ahead, and schedule.go
// limits that follow the clock.
package algo

import (
	"fmt"
	"time"
)

// Algorithm names one way of counting. The zero value is SlidingWindow, the default of a rule.
type Algorithm uint8

const (
	// SlidingWindow approximates a sliding log with K counters for each key (K = 1: the sliding
	// window counter).
	SlidingWindow Algorithm = iota
	// SlidingLog remembers the instant of every admitted unit. Exact; memory grows with N.
	SlidingLog
	// FixedWindow counts in windows aligned to the epoch, to the calendar, or to a key's first
	// request.
	FixedWindow
	// TokenBucket holds B tokens and refills N per W. Continuous refill is GCRA (ITU-T I.371, ATM
	// Forum TM 4.0).
	TokenBucket
	// LeakyBucket is a FIFO queue of B drained at N per W. The result of an admitted request says
	// how long to wait for its turn.
	LeakyBucket
	// Concurrency bounds how many are in flight; a slot is given back by Release or after a
	// time-out.
	Concurrency
)

var algorithmNames = [...]string{"sliding_window", "sliding_log", "fixed_window", "token_bucket", "leaky_bucket",
	"concurrency"}

// String returns the name used in rule files, such as "token_bucket".
func (a Algorithm) String() string {
	if int(a) < len(algorithmNames) {
		return algorithmNames[a]
	}
	switch a {
	case Margin:
		return "margin"
	case Lease:
		return "lease"
	}
	return fmt.Sprintf("algorithm(%d)", uint8(a))
}

// Algorithms returns all algorithms that a rule can name.
func Algorithms() []Algorithm {
	list := make([]Algorithm, len(algorithmNames))
	for i := range list {
		list[i] = Algorithm(i)
	}
	return list
}

// ParseAlgorithm is the inverse of Algorithm.String; ok is false for an unknown name.
func ParseAlgorithm(name string) (a Algorithm, ok bool) {
	for i, n := range algorithmNames {
		if n == name {
			return Algorithm(i), true
		}
	}
	return 0, false
}

// Calendar makes a fixed window follow real calendar units. The zero value, NoCalendar, aligns
// windows to the epoch.
type Calendar uint8

// The calendar units. A week is an ISO week, from Monday.
const (
	NoCalendar Calendar = iota
	Day
	Week
	Month
	Year
)

// Bounds that every limit keeps, so that all products fit 2^53.
const (
	MaxN = 1_000_000_000 // requests per window, and bucket sizes
	// requests per window of a FixedWindow that lends nothing, soft margin included: it multiplies
	// nothing
	MaxFixedN = MaxCost - 1
	// requests per window of a sliding log (soft margin not counted)
	MaxLogN   = 100_000
	MaxCost   = maxInt               // a cost is within ±MaxCost, which no limit admits
	MaxHits   = 1<<31 - 1            // hits that a request may cost, at doors that let it say so
	MaxWindow = 366 * 24 * time.Hour // the longest window
	MaxK      = 240                  // sub-windows of a sliding window
	MaxSoft   = 1000                 // percent of a soft margin
)

// NoBurst as Config.Burst makes a bucket of size 0 (a leaky bucket without a queue).
const NoBurst = -1

// Never as a Result.RetryAfter says that the request can never be admitted; as a Result.ResetAfter,
// that a bucket which is refilled with 0 requests per window stays as it is.
const Never = -1

// Config describes a limit; New checks it and compiles it into a Limit. The zero value of each
// field means its default.
type Config struct {
	Algorithm Algorithm
	// requests per window, 0 to MaxN (Concurrency: the number of slots; FixedWindow: to MaxFixedN);
	// 0 refuses every cost above 0
	N       int64
	Window  time.Duration // W; a whole number of microseconds above 0; not for Concurrency
	Burst   int64         // TokenBucket, LeakyBucket: the size B. 0 means N; NoBurst means 0
	Buckets int           // SlidingWindow: K, 1 to MaxK, divides W in µs. 0 means 1
	// percent of N (buckets: of B) that is admitted above it and marked; 0 means hard
	Soft int
	// SoftFor is how long the soft margin stays open after it was first used; it opens again once a
	// whole window has stayed within N. 0 means that it never closes. See Limit.Margin.
	SoftFor time.Duration

	// FixedWindow: real calendar units instead of Window (Window is then nominal)
	Calendar     Calendar
	Location     *time.Location // FixedWindow with a Calendar: time zone; nil means UTC
	FirstRequest bool           // FixedWindow: a key's window starts at its first request
	// TokenBucket: all N at each interval boundary instead of continuously
	RefillInterval bool
	// FixedWindow, SlidingLog, SlidingWindow: denied requests are counted too
	CountDenied bool
	Timeout     time.Duration // Concurrency: a slot is given back after this long; 0 means 30 s
	// Lease is how much of N (buckets: of B) may be lent ahead at a time, in percent, MinLease to
	// MaxLease; 0 means that nothing is. FixedWindow, SlidingLog, SlidingWindow, and TokenBucket
	// with continuous refill; not with SoftFor, and with CountDenied only FixedWindow. See
	// Limit.TakeAhead.
	Lease int
	// LeaseFor is E, the length of a generation: units that are lent end after E to 2E, or with the
	// window of a FixedWindow or a phase of a schedule. MinLeaseFor to MaxLeaseFor; 0 means half of
	// the lease's share of Window, but at least 100 ms and at most 15 s.
	LeaseFor time.Duration
}

// State is the consumption of one key. The zero value is a fresh key. Each algorithm defines the
// meaning of its words; a store only keeps them, and copies them when it takes a snapshot. Use a
// State only with Limits of one identity (one algorithm and one W; N, B and all else may differ
// from call to call); Limit.Carry moves it to another W or K. B is 0 if and only if nothing is
// counted; the other words are then without meaning.
type State struct {
	A int64  // a time, or an index of time
	B uint64 // counts, or a level
	C uint32 // how B is scaled, or more counts
	// variable part: the ring of a SlidingLog, the counters of a SlidingWindow with K > 1, the
	// slots of a Concurrency; nil otherwise
	Ext []byte
}

// Ask is one question to a limit.
type Ask struct {
	Cost     int64  // units asked for; 0 peeks, below 0 refunds
	MaxDelay int64  // LeakyBucket: the longest delay in µs that the asker can honour; below 0: any
	Slot     uint64 // Concurrency: the id under which an admission holds its slots; not 0
	// LastEnds makes a refund of a LeakyBucket conditional: it gives back a turn only while that
	// turn is the last in the queue. LastEnds is now + ResetAfter of the turn's admission; if the
	// queue drains at any other instant, the refund is denied for good. 0: no condition.
	LastEnds int64
	// Room makes a peek ask for room: it is admitted only where a Cost of 1 would be. A request
	// asks so whose cost is known afterwards, and 0 until then. No meaning with another Cost.
	Room bool
}

// Needs returns the units for which there must be room so that the ask is admitted.
func (a *Ask) Needs() int64 {
	if a.Room && a.Cost == 0 {
		return 1
	}
	return a.Cost
}

// Result is a limit's answer. All times are in µs and exact; one of more than 2^53 − 1 (285
// years) is given as that.
type Result struct {
	// capacity in force: N; TokenBucket B; LeakyBucket B + 1. Without the soft margin
	Limit     int64
	SoftLimit int64 // capacity with the soft margin; equals Limit without one
	// largest cost still admitted at this instant after this decision, counted up to Limit; never
	// negative
	Remaining int64
	// 0 if allowed; else the smallest d such that the same ask at now + d is admitted; Never if it
	// can never be
	RetryAfter int64
	// smallest d after which the state equals a fresh one; Never if it stays as it is for good
	ResetAfter int64
	Delay      int64 // LeakyBucket: how long an admitted request must wait for its turn
	Allowed    bool  // admitted or not
	Soft       bool  // admitted (or, for a peek, standing) above Limit, in the soft margin
	// the limit's schedule puts no limit at this time: admitted, nothing counted, and the other
	// fields mean nothing
	Off bool
}
