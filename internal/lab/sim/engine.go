// Package sim runs rules in virtual time: a limiter over the embedded store, with a clock that the
// caller moves. `weir test` (testfile.go, testrun.go) and `weir replay` (replay.go) run on it.
// Begin with Engine (engine.go), which both use. A replay also judges the rules (judge.go) and
// suggests limits (survey.go, suggest.go).
package sim

import (
	"context"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

// Engine decides requests at instants of the caller's choice. Not safe for concurrent use. Make one
// with NewEngine.
type Engine struct {
	limiter *weir.Limiter
	store   *memory.Store
	now     int64
	signals signals
}

// signals are the values of signals as set, unfiltered.
type signals map[string]int

// Signal implements weir.Signals.
func (s signals) Signal(name string) (percent int, ok bool) {
	percent, ok = s[name]
	return percent, ok
}

// NewEngine returns an engine with an empty store. A set may serve several engines.
func NewEngine(set *rule.Set) (*Engine, error) { return NewEngineWith(set, EngineOptions{}) }

// EngineOptions tune NewEngineWith. NewEngine uses the zero value.
type EngineOptions struct {
	MaxBytes int64 // bound on the store; 0 means memory.DefaultMaxBytes
	// Limit returns the limit to apply to a charge in place of c.Limit; nil changes none.
	Limit func(c *store.Charge) *algo.Limit
}

// NewEngineWith is NewEngine with options.
func NewEngineWith(set *rule.Set, o EngineOptions) (*Engine, error) {
	e := &Engine{signals: signals{}}
	var err error
	if e.store, err = memory.New(memory.Options{Clock: func() int64 { return e.now },
		MaxBytes: o.MaxBytes}); err != nil {
		return nil, err
	}
	var counters store.Store = e.store
	if o.Limit != nil {
		counters = renumbered{e.store, o.Limit}
	}
	if e.limiter, err = weir.New(counters, weir.WithRules(set), weir.WithSignals(e.signals),
		weir.WithClock(func() int64 { return e.now })); err != nil {
		e.store.Close()
		return nil, err
	}
	return e, nil
}

// renumbered is a store that charges other limits than its caller asks for.
type renumbered struct {
	*memory.Store
	limit func(*store.Charge) *algo.Limit
}

func (s renumbered) Take(ctx context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	for i := range charges {
		charges[i].Limit = s.limit(&charges[i])
	}
	return s.Store.Take(ctx, charges, results)
}

// Now returns the virtual time in µs since the Unix epoch.
func (e *Engine) Now() int64 { return e.now }

// SetTime sets the virtual time, in µs since the Unix epoch.
func (e *Engine) SetTime(now int64) { e.now = now }

// SetSignal sets a signal that elastic limits follow, in percent; before that they are at 100 %.
func (e *Engine) SetSignal(name string, percent int) { e.signals[name] = percent }

// Decide decides r at the virtual time, into d, whose memory it reuses.
func (e *Engine) Decide(r *weir.Request, d *weir.Decision) error {
	return e.limiter.Decide(context.Background(), r, d)
}

// Release gives a concurrency slot back at the virtual time; false if it is gone.
func (e *Engine) Release(slot string) (bool, error) {
	return e.limiter.Release(context.Background(), slot)
}

// Stats returns the size of the store.
func (e *Engine) Stats() memory.Stats { return e.store.Stats() }

// Close frees the store.
func (e *Engine) Close() error { return e.store.Close() }
