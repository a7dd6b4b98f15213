// Package weir decides for each request whether it may pass now: a rate limiter to embed in a Go
// program, and the core of the weir server and proxy. Begin with New and Limiter.Allow.
//
// A Limiter asks the rules in force (package rule) which limits a Request meets, charges them all
// or none in a Store (package store/memory, store/redis or store/fallback), and folds the answers
// into a Decision. A refusal is a value; an error means that the store failed.
//
//	store, err := memory.New(memory.Options{})
//	limiter, err := weir.New(store, weir.Limit("logins", "5/min", "user"))
//	decision, err := limiter.Allow(ctx, weir.Request{Attributes: weir.Map{"user": user}})
//
// Package httplimit puts a Limiter in front of an http.Handler, package grpclimit in front of a
// gRPC server.
package weir

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/internal/limiter/orders"
	"github.com/weir-rl/weir/internal/limiter/reserve"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// DefaultDomain is the domain of rules and requests that name none.
const DefaultDomain = rule.DefaultDomain

// Store keeps the states of all keys and decides charges on them: a store of package store/memory,
// store/redis or store/fallback. It is declared in package store.
type Store = store.Store

// Limiter decides requests by the rules in force.
//
// It has three ways to decide a Request. Most callers should use Allow. Decide reuses a Decision,
// so that it allocates nothing. Reserve is for requests whose cost is known only afterwards. Phases
// are the steps of Decide, for doors that have something to do between them.
//
// An admitted request may leave something to do: Release for the slots of concurrency limits,
// Settle for the cost of a response, GiveBack for a turn in a leaky bucket that goes unused. Bans,
// Grants, Reservations and Keys are for those who operate the limits.
//
// Safe for concurrent use. Make one with New.
type Limiter struct {
	store      Store
	prompt     store.Prompt // the store, if it is one
	hooks      Hooks
	signals    Signals      // nil for none
	unknown    *rule.Window // refuses requests of unknown domains; nil: they pass
	needsRules bool         // decisions fail until there are rules
	rules      atomic.Pointer[inForce]
	mu         sync.Mutex // serialises SetRules

	orders       *orders.Orders // behind bans and grants
	bans         Bans
	grants       Grants
	reservations Reservations
	keys         Keys
}

// inForce is a rule set with the tables that the limiter derives from it. Immutable.
type inForce struct {
	set        *rule.Set
	generation uint64
	soleDomain string                   // the domain of a request without one
	several    bool                     // the rules hold several domains
	counters   map[uint64]*rule.Counter // by ID, for Release
	bans       bool                     // some rule bans

	rulesByCounter rulesByCounter
	names          nameIndex
}

// New returns a Limiter over s. Without rules it allows everything until SetRules, unless it
// RequireRules.
func New(s Store, opts ...Option) (*Limiter, error) {
	if s == nil {
		return nil, errors.New("weir: New needs a store, such as memory.New(memory.Options{})")
	}
	o := options{clock: func() int64 { return time.Now().UnixMicro() }}
	for _, option := range opts {
		if err := option.apply(&o); err != nil {
			return nil, err
		}
	}
	rules, err := o.set()
	if err != nil {
		return nil, err
	}
	l := &Limiter{store: s, hooks: o.hooks, signals: o.signals}
	l.needsRules = o.needsRules
	if o.denyUnknown {
		if l.unknown, err = unknownDomain(); err != nil {
			return nil, err
		}
	}
	l.prompt, _ = s.(store.Prompt) // and not store.As: a store that wraps it would be passed over
	l.orders = orders.New(l.ordersConfig(&o))
	l.bans.l, l.grants.l, l.keys.l = l, l, l
	l.keys.hottest = newHottest()
	l.reservations.r = reserve.New(reserve.Config{
		Store: s, Window: l.windowOf, Limit: l.settleLimit, Failed: l.storeError,
	})
	if rules != nil {
		l.SetRules(rules)
	}
	return l, nil
}

// SetRules puts s in force for all decisions that begin after it returns. Counters are carried over
// from the rules before. A Set must not be given to more than one Limiter.
func (l *Limiter) SetRules(s *rule.Set) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.rules.Load()
	next := &inForce{set: s, generation: 1, soleDomain: s.DomainFor("")}
	if old != nil {
		if old.set == s {
			return
		}
		next.generation = old.generation + 1
		s.Inherit(old.set)
	}
	domains := s.Domains()
	next.several = len(domains) > 1
	next.counters = make(map[uint64]*rule.Counter, len(s.Counters()))
	for _, c := range s.Counters() {
		next.counters[c.ID] = c
	}
	for _, domain := range domains {
		next.bans = next.bans || len(s.BanRules(domain)) > 0
	}
	if l.hooks.RulesChanged != nil { // before, since the first decisions would wait for it after
		l.hooks.RulesChanged(s, next.generation)
	}
	l.orders.Expect(s)
	l.rules.Store(next)
	l.orders.SetRules(s)
}

// Rules returns the set in force and its generation, counted from 1; nil and 0 if there is none.
func (l *Limiter) Rules() (s *rule.Set, generation uint64) {
	f := l.rules.Load()
	if f == nil {
		return nil, 0
	}
	return f.set, f.generation
}

// encodeSlot packs the arguments of Release: the counter's ID, the slot and the key. The slot is
// random, so that nobody releases another one's.
func encodeSlot(c *store.Charge) string {
	raw := make([]byte, 16, 16+len(c.Key))
	binary.BigEndian.PutUint64(raw, c.Counter.ID)
	binary.BigEndian.PutUint64(raw[8:], c.Ask.Slot)
	return base64.RawURLEncoding.EncodeToString(append(raw, c.Key...))
}

// Release gives the slot of an admitted concurrency limit back; ok is false if it is gone
// (released, timed out, or of a rule that is no longer in force) or was never given.
func (l *Limiter) Release(ctx context.Context, slot string) (ok bool, err error) {
	raw, err := base64.RawURLEncoding.DecodeString(slot)
	if err != nil || len(raw) < 16 {
		return false, nil
	}
	f := l.rules.Load()
	if f == nil {
		return false, nil
	}
	c := f.counters[binary.BigEndian.Uint64(raw)]
	id := binary.BigEndian.Uint64(raw[8:])
	if c == nil || id == 0 || c.Limit == nil || !c.Limit.HasSlots() {
		return false, nil
	}
	return l.store.Release(ctx, c, raw[16:], id)
}

// Follow shares bans and grants with the other nodes through the store, which must be a
// store.Board, until ctx ends; then it returns nil. A store that keeps its facts over a restart
// brings them back in this way. Without Follow a Limiter publishes the orders that its handles set
// and end, but hears of nothing, and keeps the bans that denials bring to itself. The error is
// store.ErrNoBoard, or that Follow runs already.
func (l *Limiter) Follow(ctx context.Context) error { return l.orders.Follow(ctx) }

// Followed returns a channel that is closed when Follow has read for the first time which bans and
// grants the store holds, or has found that it holds none for good (store.ErrNoBoard). Until then
// banned keys pass. A program that is to refuse them from its first request on waits for it before
// it serves, for as long as it will wait for a store that may be away:
//
//	go limiter.Follow(ctx)
//	select {
//	case <-limiter.Followed():
//	case <-time.After(5 * time.Second):
//		log.Print("bans and grants could not be read yet")
//	}
//
// Without Follow the channel is never closed. Safe for concurrent use.
func (l *Limiter) Followed() <-chan struct{} { return l.orders.Followed() }
