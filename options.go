package weir

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/limiter/orders"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// Option configures New. The middlewares take a struct; most programs give New one or two options,
// and some of these may fail.
type Option interface{ apply(o *options) error }

// option is an Option that is a function.
type option func(o *options) error

func (f option) apply(o *options) error { return f(o) }

// options are the values that the options of New set.
type options struct {
	limits  []rule.Spec // of Limit
	rules   *rule.Set   // of WithRules; nil for none
	hooks   Hooks
	signals Signals // nil for none
	bans    BanOptions
	clock   func() int64

	denyUnknown bool
	needsRules  bool
}

// WithRules puts a rule set in force. Package rule/file reads one from rule files (file.Load).
func WithRules(s *rule.Set) Option {
	return option(func(o *options) error {
		if s == nil {
			return errors.New("weir: WithRules got a nil set")
		}
		if o.rules != nil && o.rules != s {
			return errors.New("weir: WithRules may be given once; a set holds the rules of several files")
		}
		o.rules = s
		return nil
	})
}

// set returns the rules that the options put in force; nil for none.
func (o *options) set() (*rule.Set, error) {
	switch {
	case len(o.limits) == 0:
		return o.rules, nil
	case o.rules != nil:
		return nil, errors.New("weir: only one of WithRules and Limit may be given")
	}
	return rule.Of(o.limits...)
}

// Limit puts a limit in force, without rule files. It may be given several times, with a name each;
// a request must pass all limits that it meets, and is charged to all of them or none.
//
// allow is in the notation of rule files ("10/min", "100/15m", or "25 concurrent" for a bound on
// how many are under way, whose slots are given back by Limiter.Release). A number without a unit
// is an error, unless Algorithm says algo.Concurrency. per are the attributes that make the key of
// a counter, each as an entry of per in a rule file ("user", "user|ip"). Without any, all requests
// share one counter: Limit("jobs", "5/min") admits five a minute, whoever asks, through each door
// alike. A request that lacks an attribute of per does not meet the limit, and passes.
//
// The methods of LimitOption say more about the limit. What they cannot say, such as conditions, is
// for rule files and WithRules.
func Limit(name, allow string, per ...string) LimitOption {
	return LimitOption{rule.Spec{Name: name, Allow: allow, Per: per}}
}

// LimitOption is the Option that Limit returns. Each of its methods returns a limit that differs in
// one thing, so that they can be called one after the other. New returns an error if the values do
// not fit together.
type LimitOption struct{ spec rule.Spec }

// Algorithm makes the limit count by a. Without it a rate is counted by algo.SlidingWindow, and
// slots by algo.Concurrency. An algo.FixedWindow of a day, week, month or year is of the calendar,
// in UTC.
func (l LimitOption) Algorithm(a algo.Algorithm) LimitOption {
	l.spec.Algorithm = a
	return l
}

// Soft adds a margin, in percent, above the limit. Requests in the margin are admitted, and
// Decision.SoftExceeded reports them.
func (l LimitOption) Soft(percent int) LimitOption {
	l.spec.Soft = percent
	return l
}

// Ban bans a key that the limit has denied b.After times within b.Within. For as long as b.For says
// the key is refused outright: where the limit applies or, with b.Domain, everywhere. The limit
// needs attributes that make a key.
func (l LimitOption) Ban(b rule.Ban) LimitOption {
	l.spec.Ban = &b
	return l
}

func (l LimitOption) apply(o *options) error {
	o.limits = append(o.limits, l.spec)
	return nil
}

// DenyUnknownDomains refuses requests for a domain that no rule in force declares, by a limit with
// the name UnknownDomainLimit. Without it they pass, and Decision.UnknownDomain reports them. While
// no rules are in force at all, requests pass, unless RequireRules says otherwise.
func DenyUnknownDomains() Option {
	return option(func(o *options) error { o.denyUnknown = true; return nil })
}

// ErrNoRules is the error of a decision by a Limiter that has RequireRules, and no rules yet.
var ErrNoRules = errors.New("no rules are in force yet")

// RequireRules makes decisions fail with ErrNoRules until there are rules: by WithRules or Limit,
// or once SetRules was called. Without it requests pass until then.
func RequireRules() Option {
	return option(func(o *options) error { o.needsRules = true; return nil })
}

// WithHooks sets the hooks.
func WithHooks(h Hooks) Option {
	return option(func(o *options) error { o.hooks = h; return nil })
}

// Signals reports how loaded a service is, for elastic limits.
type Signals interface {
	// Signal returns the filtered value of a signal in whole percent, 0 to 100; ok is false for one
	// that is not known, or has gone stale. It is called on the deciding path: it must be quick,
	// and safe for concurrent use.
	Signal(name string) (percent int, ok bool)
}

// WithSignals makes elastic limits follow s. Without it, and where a signal is not ok, they stand
// at 100 percent.
func WithSignals(s Signals) Option {
	return option(func(o *options) error { o.signals = s; return nil })
}

// BanOptions tune WithBans. The zero value is right for most.
type BanOptions struct {
	// Max bounds the bans in force at a time; past it the one that ends first goes. 0 means
	// DefaultMaxBans.
	Max int
	// Async counts denials in the background, grouped by key, rather than before the refusal is
	// answered. Over a store.Remote this is always so.
	Async bool
	// Pending bounds the keys whose denials wait to be counted in the background. Denials of
	// further keys are not counted, and BanStats.Dropped says how many. 0 means 16,384.
	Pending int
	// Changed is called for each ban that is set, here or on another node, and for each that is
	// lifted; not for those that end by themselves. It is called on the deciding path: it must be
	// quick, safe for concurrent use, and must neither call the Limiter nor change b. nil means
	// nobody.
	Changed func(b *Ban, lifted bool)
}

// The defaults of BanOptions.
const (
	DefaultMaxBans    = 100_000
	defaultMaxPending = 16_384
)

// WithBans tunes bans. They are in force without it, too, where a rule asks for them.
func WithBans(b BanOptions) Option {
	return option(func(o *options) error {
		if b.Max < 0 || b.Pending < 0 {
			return fmt.Errorf("weir: WithBans: Max (%d) and Pending (%d) must not be negative; 0 means the default",
				b.Max, b.Pending)
		}
		o.bans = b
		return nil
	})
}

// WithClock makes now the clock by which bans and grants begin and end, in µs since the Unix
// epoch; without it that is the wall clock. It is for a store with a clock of its own, such as a
// virtual one. It must be safe for concurrent use if the Limiter is used so.
func WithClock(now func() int64) Option {
	return option(func(o *options) error {
		if now == nil {
			return errors.New("weir: WithClock got no clock")
		}
		o.clock = now
		return nil
	})
}

// ordersConfig returns the Config for the bans and grants of l.
func (l *Limiter) ordersConfig(o *options) orders.Config {
	remote, ok := store.As[store.Remote](l.store)
	return orders.Config{
		Store: l.store, Clock: o.clock,
		Rules: func() *rule.Set {
			s, _ := l.Rules()
			return s
		},
		MaxBans: cmp.Or(o.bans.Max, DefaultMaxBans), MaxPending: cmp.Or(o.bans.Pending, defaultMaxPending),
		Async: o.bans.Async || ok && remote.Remote(), Changed: o.bans.Changed,
	}
}
