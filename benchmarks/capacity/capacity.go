// Package capacity simulates a fleet of nodes that share stores. It says what a given traffic
// needs: how many store operations and store calls a decision takes, which share of the decisions a
// node makes by itself, what processor time and latency this costs, and whether more was admitted
// than the limit allows. docs/operating/capacity.md is written from its results.
//
// Begin with Scenario and Run (capacity.go, run.go). Time is virtual: one event follows the next
// (events.go), so a simulated second takes as long as its events do. A scenario and its seed
// determine everything that happens.
//
// The deciding parts are the real ones: a store keeps an algo.State for each key and asks package
// algo, and a node keeps the books of package lessee (place.go). Everything between them is
// modelled. Requests come by chance (traffic.go). A node sends its calls to a store in groups
// (link.go). Each call takes a round trip and the service time of a single-threaded Redis
// (store.go). Nodes die and start again (churn.go). judge.go checks each admission against the
// guarantee of its limit, at the instant of the decision, with arithmetic of its own.
package capacity

import (
	"errors"
	"fmt"
	"time"

	"github.com/weir-rl/weir/algo"
)

// Scenario describes a simulation. Nodes, Limit, Strata and Length are required.
type Scenario struct {
	Seed       uint64
	Nodes      int
	Partitions int         // of the keys, as in a Cluster; 0 means 1
	Stores     int         // servers that share the partitions; 0 means 1
	Limit      *algo.Limit // of each key
	Strata     []Stratum
	Balance    Balance
	// RoundTrip is the time to a store and back, without the store's own time; 0 means 1 ms.
	RoundTrip time.Duration
	// Jitter is by how much one way may be longer or shorter, as a share of it.
	Jitter float64
	// Serve is the time that a call takes on a store's one thread; the zero value means no time.
	Serve Serve
	// RememberRefusals is how long a node may repeat a refusal; 0 means never.
	RememberRefusals time.Duration
	// ClockError is by how much, as a share, nodes' clocks may run too fast or too slow.
	ClockError float64
	// Churn is how often a node dies. Another takes its place after Down, with no state. 0: never.
	Churn, Down time.Duration
	// Ramp is how long the load rises from nothing at the beginning.
	Ramp time.Duration
	// Warm is how long the fleet runs before anything is counted, and Length how long after that.
	Warm, Length time.Duration
}

// Serve is the time that a store takes for a call: for the call itself, for each operation in it,
// and for each decision in an operation.
type Serve struct{ Call, Operation, Decision time.Duration }

// Of returns the time for a number of calls, operations and decisions.
func (s Serve) Of(calls, operations, decisions float64) time.Duration {
	return time.Duration(calls*float64(s.Call) + operations*float64(s.Operation) + decisions*float64(s.Decision))
}

// Balance decides which node a request reaches. The zero value is any node, by chance.
type Balance struct {
	// Home sends all requests of a key to one node.
	Home bool
	// Skew is the share of a key's requests that one node gets; the others share the rest. The node
	// changes each Move.
	Skew float64
	Move time.Duration
}

// latest bounds the times of a scenario, so that no sum of them overflows.
const latest = 24 * time.Hour

func (s *Scenario) check() error {
	switch a := s.limit(); {
	case s.Limit == nil:
		return errors.New("capacity: a scenario needs a limit")
	case a != algo.FixedWindow && a != algo.TokenBucket && a != algo.SlidingLog:
		return fmt.Errorf("capacity: %v is not judged; use fixed_window, sliding_log or token_bucket", a)
	case s.Nodes < 1 || s.Nodes > 1<<20:
		return fmt.Errorf("capacity: the number of nodes is %d; it must be from 1 to %d", s.Nodes, 1<<20)
	case s.Partitions < 0 || s.Partitions > 1<<14 || s.Stores < 0 || s.Stores > max(1, s.Partitions):
		return fmt.Errorf(
			"capacity: %d partitions on %d stores; there are at most %d, and no more stores than partitions", s.Partitions, s.Stores, 1<<14)
	case s.Length <= 0 || s.Warm < 0 || s.Ramp < 0 || s.Ramp > s.Warm || s.Length > latest || s.Warm > latest:
		return fmt.Errorf(
			"capacity: it is to run for %v and %v, %v of it rising; Length must be above 0, the rise within Warm, and both within %v", s.Warm, s.Length, s.Ramp, latest)
	case s.RoundTrip < 0 || s.Jitter < 0 || s.Jitter >= 1 || s.RoundTrip > latest:
		return fmt.Errorf("capacity: a round trip takes %v, give or take %v of it; that must be from 0 to 1",
			s.RoundTrip, s.Jitter)
	case s.Balance.Skew < 0 || s.Balance.Skew > 1 || s.Balance.Skew > 0 && (s.Balance.Move <= 0 || s.Balance.Home):
		return fmt.Errorf(
			"capacity: %v of the requests go to one node, which changes each %v; the share is from 0 to 1, and does not go with Home", s.Balance.Skew, s.Balance.Move)
	case s.ClockError < 0 || s.ClockError >= 1:
		return fmt.Errorf("capacity: clocks are wrong by a share of %v; it must be from 0 to 1", s.ClockError)
	case s.Churn < 0 || s.Down < 0 || s.Churn > 0 && s.Nodes < 2:
		return errors.New("capacity: nodes that die need others that do not, and times that are not below 0")
	}
	return checkStrata(s.Strata)
}

func (s *Scenario) limit() algo.Algorithm {
	if s.Limit == nil {
		return algo.FixedWindow
	}
	return s.Limit.Algorithm()
}
