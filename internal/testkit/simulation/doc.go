// Package simulation runs several nodes in one process, in virtual time, over one store behind a
// network that loses, delays and cuts, while clients, operators and clocks follow a seed. It checks
// all results against the promises of the documentation. All of it is in its tests.
//
// These are real: weir.Limiter, the rules, store/fallback, store/lease, store/cas, store/memory.
// These are simulated: the network (link_test.go, wire_test.go), the clocks, and the server, which
// is a store/memory, or the engine of internal/testkit/castest. A real Redis cannot take part, as
// its time is not ours; its functions are held against the same Go code elsewhere.
//
// Begin at run (run_test.go), which lets a plan (plan_test.go) come true: the plan of a seed is
// drawn before the run begins. check_test.go and bounds_test.go are the judges. mistakes_test.go
// plants mistakes, which they must find.
//
// # Determinism
//
// The same seed draws the same plan, and where nodes ask the server one call at a time (mode exact)
// it is the same run: line by line of the trace, in one process and in another, whatever the
// scheduler does. A test holds that, and the race detector shuffles the scheduler. The trace has
// each call that reaches the network, each decision with its numbers, each fault and each change of
// a breaker, and the virtual instant of each, to the nanosecond. Three things make it so. Time is
// virtual (testing/synctest), so that nothing depends on how fast the machine is. Every random
// number is drawn from the seed and from its purpose, and not from a stream that goroutines would
// race for. And delays are drawn to the nanosecond, so that no two events of a run meet at one
// instant: when one wakes, all others sleep.
//
// What is not: within one instant, the order in which the goroutines run that one event has woken.
// That is the scheduler's, and it is on purpose that the trace sorts its lines within an instant.
// It matters where one event wakes several that depend on each other: in store/lease the background
// asks for one key of a request or for all of them in one call, and in store/cas the requests that
// waited for one answer go on in any order. Nor is what a process draws for itself: store/lease
// goes through its keys by a hash of its own, and store/cas estimates the server's clock from when
// the process began, to the microsecond. So runs of the modes leased and swaps are alike, and often
// not the same: in one process, with the race detector, a fifth and a thirtieth of them differ in
// something when they are repeated, and in another process most do. A failure there may need a few
// repeats. IDs that are drawn by the product itself (slots, reservations, versions) differ from run
// to run in all modes, and are not in the trace.
package simulation
