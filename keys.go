package weir

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/limiter/orders"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// KeyInfo is an operator's view of a key under one limit.
type KeyInfo struct {
	Window *rule.Window // the limit; of the override for the key, if there is one
	Key    []byte
	Parts  []string  // of Key, as rule.Window.KeyParts shows it
	Mode   rule.Mode // how the limit takes part in decisions on the key
	// Limit are the numbers in force for the key: of the rule, an override, a grant or an elastic
	// share; nil if a grant lifts the limit.
	Limit   *algo.Limit
	Counted bool        // false: the store holds no state, and Result is a fresh key's
	Result  algo.Result // of a peek
	// Used is how many units are used, in a soft margin too; at most Result.SoftLimit. Units that
	// are lent count as used.
	Used int64
	// Lent is how many units the store has lent of the limit for this key to all nodes together;
	// zero if there are none.
	Lent algo.Lent
	// Regions is how the key stands in this region and in all; nil if the limit does not hold over
	// several regions.
	Regions *store.KeyRegions
	// Next is the answer that a request with a cost of 1 would get if there were no ban. It may
	// wait as long as the rule says.
	Next algo.Result
	// Ban is the ban that refuses the key outright: of the rule, or of another one whose bans are
	// domain-wide; nil if there is none.
	Ban   *Ban
	Grant *Grant // of the key; nil if there is none
}

// Refused reports whether a request with a cost of 1 would be refused by this limit, and after how
// many µs it would pass: algo.Never if that is not known.
func (k *KeyInfo) Refused(now int64) (refused bool, retryAfter int64) {
	if k.Limit != nil && !k.Next.Off && !k.Next.Allowed && k.Mode != rule.Shadow {
		refused, retryAfter = true, k.Next.RetryAfter
	}
	if k.Ban != nil {
		if refused = true; retryAfter != algo.Never {
			retryAfter = max(retryAfter, k.Ban.Until.UnixMicro()-now)
		}
	}
	return refused, retryAfter
}

// used returns the share of the limit that is used, or of the ceiling of this region if that is
// more; above 1 in a soft margin.
func (k *KeyInfo) used() float64 {
	share := shareOf(k.Used, k.Result.Limit)
	if r := k.Regions; r != nil && r.Own != nil {
		share = max(share, shareOf(r.Own.Used, r.Own.Limit))
	}
	return share
}

func shareOf(used, limit int64) float64 {
	if limit <= 0 {
		return 1
	}
	return float64(used) / float64(limit)
}

// compareUse orders by use, most used first; then by how long it lasts; then by key.
func compareUse(a, b *KeyInfo) int {
	return cmp.Or(
		cmp.Compare(b.used(), a.used()), cmp.Compare(b.Result.ResetAfter, a.Result.ResetAfter),
		strings.Compare(a.Window.Name, b.Window.Name), bytes.Compare(a.Key, b.Key),
	)
}

// Keys shows operators the store's counters. Safe for concurrent use. See Limiter.Keys.
type Keys struct {
	l       *Limiter
	hottest hottest
}

// Keys returns the keys of this Limiter's store.
func (l *Limiter) Keys() *Keys { return &l.keys }

// view says how to look at the keys of a rule's counter: under the numbers that Decide would charge
// them by.
func (l *Limiter) view(r *rule.Rule, c *rule.Counter) *store.View {
	return &store.View{Counter: c, MaxDelay: maxDelay(&Request{MaxDelay: RuleDelay}, r), Limit: func(key []byte) *algo.Limit {
		w := r.WindowFor(c.ID, key)
		if w == nil || w.Limit == nil {
			return nil
		}
		limit, _ := l.granted(w, key, l.orders.Now())
		return limit
	}}
}

// info describes a key. st is its state in the store; nil if there is none.
func (l *Limiter) info(w *rule.Window, key []byte, v *store.View, st *store.KeyState, now int64) KeyInfo {
	k := KeyInfo{Window: w, Key: bytes.Clone(key), Parts: w.KeyParts(key), Mode: w.Rule.ModeFor(key)}
	var g *orders.Grant
	if k.Limit, g = l.granted(w, key, now); g != nil {
		grant := newGrant(g)
		k.Grant = &grant
	}
	switch {
	case st != nil:
		k.Counted, k.Result, k.Next, k.Used, k.Lent, k.Regions = true, st.Result, st.Next, st.Used, st.Lent, st.Regions
	case k.Limit != nil:
		fresh := v.State(nil, k.Limit, &algo.State{}, nil, now)
		k.Result, k.Next = fresh.Result, fresh.Next
	}
	if b := l.banOn(&k, now); b != nil {
		ban := newBan(b)
		k.Ban = &ban
	}
	return k
}

// banOn returns the ban that refuses all requests that meet a limit with this key; the one that
// ends last if there are several, nil if there is none.
func (l *Limiter) banOn(k *KeyInfo, now int64) *orders.Ban {
	f := l.rules.Load()
	if f == nil || !l.orders.Bans.Any() || f.set.ExemptKey(k.Window.Rule.Domain, k.Parts) {
		return nil
	}
	var longest *orders.Ban
	look := func(r *rule.Rule, key []byte, wide bool) {
		w := orders.FirstCounted(r)
		if w == nil {
			return
		}
		b, ok := l.orders.Bans.Find(w.Counter.Keys, key, now)
		if ok && (b.DomainWide || !wide) && (longest == nil || b.Until.After(longest.Until)) {
			longest = b
		}
	}
	look(k.Window.Rule, k.Key, k.Mode != rule.Enforce)
	if !l.orders.Bans.AnyDomainWide() {
		return longest
	}
	var m rule.Matches
	f.set.Match(&rule.Query{Domain: k.Window.Rule.Domain, Attributes: attributesOf(k.Parts)}, &m)
	f.set.BanKeys(&m, func(r *rule.Rule, key []byte) bool {
		look(r, key, true)
		return true
	})
	return longest
}

// attributesOf returns the attributes that each request with a key has. For a block of addresses
// that is the first address.
func attributesOf(parts []string) rule.Pairs {
	var list rule.Pairs
	for _, part := range parts {
		name, value, _ := strings.Cut(part, "=")
		if name == "ip" {
			value, _, _ = strings.Cut(value, "/")
		}
		list = append(list, rule.Pair{Name: name, Value: value})
	}
	return list
}

// Get returns the counters of a key, under each limit that a name means: a rule's name means all of
// its windows, a window's own name (rule:60s) that window. The parts of key are as in Bans.Set. An
// empty domain means the only one that the rules hold. If nothing is counted, and the key has
// neither a ban nor a grant, the error is ErrNotFound.
func (ks *Keys) Get(ctx context.Context, domain, limit string, key []string) ([]KeyInfo, error) {
	l := ks.l
	st, ok := store.As[store.Inspector](l.store)
	if !ok {
		return nil, store.ErrNoInspector
	}
	named, raw, err := l.keyTarget(domain, limit, key)
	if err != nil {
		return nil, err
	}
	var list []KeyInfo
	there := false
	for _, w := range named.windows {
		meets := named.rule.WindowFor(w.Counter.ID, raw)
		if meets == nil || meets.Limit == nil {
			continue // the key has an override with other windows, or none
		}
		k, err := ks.look(ctx, st, meets, raw)
		if err != nil {
			return nil, err
		}
		there = there || k.Counted || k.Ban != nil || k.Grant != nil
		list = append(list, k)
	}
	if !there {
		return nil, fmt.Errorf("%w: nothing is counted", ErrNotFound)
	}
	return list, nil
}

// look returns the counter of a key under a window, which has a limit.
func (ks *Keys) look(ctx context.Context, st store.Inspector, w *rule.Window, key []byte) (KeyInfo, error) {
	v := ks.l.view(w.Rule, w.Counter)
	var state *store.KeyState
	if err := st.Inspect(ctx, v, [][]byte{key}, func(s store.KeyState) { state = &s }); err != nil {
		return KeyInfo{}, err
	}
	return ks.l.info(w, key, v, state, ks.l.orders.Now()), nil
}

// Met returns the counters of the key under which a request met a limit; h is one of its Decision's
// Matches.Hits. A peek uses it to learn how much of the soft margin is used. The error is the
// store's, or store.ErrNoInspector.
func (ks *Keys) Met(ctx context.Context, h *rule.Hit) (KeyInfo, error) {
	st, ok := store.As[store.Inspector](ks.l.store)
	if !ok {
		return KeyInfo{}, store.ErrNoInspector
	}
	return ks.look(ctx, st, h.Window, h.Key)
}

// Reset forgets the counters of a key under each limit that a name means, as in Get, on all nodes
// of the store. It returns the names of the rule and the key. If there was nothing to forget, the
// error is ErrNotFound. After an error of the store, KeyInfo.Counted says whether something was
// forgotten under other windows.
func (ks *Keys) Reset(ctx context.Context, domain, limit string, key []string) (KeyInfo, error) {
	l := ks.l
	s, ok := store.As[store.Inspector](l.store)
	if !ok {
		return KeyInfo{}, store.ErrNoInspector
	}
	named, raw, err := l.keyTarget(domain, limit, key)
	if err != nil {
		return KeyInfo{}, err
	}
	w := named.windows[0]
	k := KeyInfo{Window: w, Key: raw, Parts: w.KeyParts(raw), Mode: named.rule.ModeFor(raw)}
	var failed []error
	for _, w := range named.windows {
		there, err := s.Reset(ctx, w.Counter, raw)
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", w.Name, err))
		}
		k.Counted = k.Counted || there
	}
	switch {
	case len(failed) > 0:
		return k, errors.Join(failed...)
	case !k.Counted:
		return k, fmt.Errorf("%w: nothing is counted", ErrNotFound)
	}
	return k, nil
}
