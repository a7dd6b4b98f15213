package weir

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/limiter/orders"
	"github.com/weir-rl/weir/internal/util/pq"
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
	// domain-wide; nil if there is none. It is a copy, and so is Grant.
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
	return &store.View{Counter: c, MaxDelay: maxDelay(&Request{MaxDelay: RuleDelay}, r),
		Limit: func(key []byte) *algo.Limit {
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
	var grant *Grant
	if k.Limit, grant = l.granted(w, key, now); grant != nil {
		k.Grant = new(*grant)
		k.Grant.Key = slices.Clone(grant.Key)
	}
	switch {
	case st != nil:
		k.Counted, k.Result, k.Next, k.Used, k.Lent, k.Regions = true, st.Result, st.Next, st.Used, st.Lent, st.Regions
	case k.Limit != nil:
		fresh := v.State(nil, k.Limit, &algo.State{}, nil, now)
		k.Result, k.Next = fresh.Result, fresh.Next
	}
	k.Ban = l.banOn(&k, now)
	return k
}

// banOn returns the ban that refuses all requests that meet a limit with this key; the one that
// ends last if there are several, nil if there is none.
func (l *Limiter) banOn(k *KeyInfo, now int64) *Ban {
	f := l.rules.Load()
	if f == nil || !l.orders.Bans.Any() || f.set.ExemptKey(k.Window.Rule.Domain, k.Parts) {
		return nil
	}
	var longest *orders.BanOrder
	look := func(r *rule.Rule, key []byte, wide bool) {
		w := orders.FirstCounted(r)
		if w == nil {
			return
		}
		b, ok := l.orders.Bans.Find(w.Counter.Keys, key, now, wide)
		if ok && (longest == nil || b.Until.After(longest.Until)) {
			longest = b
		}
	}
	look(k.Window.Rule, k.Key, k.Mode != rule.Enforce)
	if l.orders.Bans.AnyDomainWide() {
		var m rule.Matches
		domain := k.Window.Rule.Domain
		f.set.MatchBans(&rule.Query{Domain: domain, Attributes: attributesOf(k.Parts),
			BanRules: l.orders.Bans.WideRules(f.set, domain)}, &m)
		f.set.BanKeys(&m, func(r *rule.Rule, key []byte) bool {
			look(r, key, true)
			return true
		})
	}
	if longest == nil {
		return nil
	}
	ban := longest.Read()
	ban.Key = slices.Clone(ban.Key)
	return &ban
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

// HottestOptions bound what Keys.Hottest does. The zero value is right for most.
type HottestOptions struct {
	Keys int // how many to return at most; 0 means 20
	// Look is how many keys of the store to look at, about; 0 means 50,000, below 0 all.
	Look int
}

// Hottest is what Keys.Hottest found.
type Hottest struct {
	Keys   []KeyInfo // most used first
	Looked int       // keys of the store that were looked at, about
	Of     int       // keys that the store holds, about
	// Complete: all keys of the store were looked at. Else a hotter one may be among the others.
	Complete bool
	Banned   int          // banned keys of these limits, also keys without a counter
	Rules    []*rule.Rule // the rules of these limits
}

const (
	defaultHottest = 20
	defaultLook    = 50_000
	leastLook      = 1_000
	keptHottest    = 1_000 // keys of a counter that the next call looks at first
	keptLists      = 64    // counters of which such keys are kept
)

// hottest is what Keys.Hottest remembers from call to call.
type hottest struct {
	// turn holds one value while a call looks: many callers are no more load than one.
	turn  chan struct{}
	lists map[uint64]*hotList
	calls uint64
}

func newHottest() hottest {
	return hottest{turn: make(chan struct{}, 1), lists: map[uint64]*hotList{}}
}

// hotList is the memory of one counter.
type hotList struct {
	next string   // where the next call goes on
	keys [][]byte // the hottest that were found, to be looked at again
	used uint64   // the number of the call that used it last
}

// Hottest returns the keys that have used most of the limits that a name means, as in Get; an empty
// domain means all domains.
//
// It looks at a bounded number of keys, whatever the store holds. The next call begins with the
// hottest keys found so far, and goes on where this one ended; so repeated calls see all keys in
// the end. Only one call looks at a time: if another one still does when half of the time that ctx
// leaves is over, the error is ErrListing.
func (ks *Keys) Hottest(ctx context.Context, domain, limit string, o HottestOptions) (Hottest, error) {
	l := ks.l
	s, ok := store.As[store.Inspector](l.store)
	if !ok {
		return Hottest{}, store.ErrNoInspector
	}
	f := l.rules.Load()
	if f == nil {
		return Hottest{}, errNoRules
	}
	limits := f.limitsNamed(domain, limit)
	if len(limits) == 0 {
		in, name, err := f.nameOf(domain, limit)
		if err != nil {
			return Hottest{}, err
		}
		if in != "" {
			limits = f.limitsNamed(in, name)
		}
		if len(limits) == 0 {
			return Hottest{}, f.noSuchLimit(in, name, in == "")
		}
	}
	h := &ks.hottest
	if err := h.wait(ctx); err != nil {
		return Hottest{}, err
	}
	defer func() { <-h.turn }()
	n, look, counters := o.Keys, o.Look, 0
	if n <= 0 {
		n = defaultHottest
	}
	if look == 0 {
		look = defaultLook
	}
	for _, named := range limits {
		counters += len(named.windows)
	}
	found := Hottest{Complete: true}
	for _, named := range limits {
		found.Banned += l.bansOf(named.rule)
		found.Rules = append(found.Rules, named.rule)
		for _, w := range named.windows {
			each := look
			if look > 0 {
				each = max(leastLook, look/counters)
			}
			if err := ks.scan(ctx, s, named.rule, w, n, each, &found); err != nil {
				return Hottest{}, err
			}
		}
	}
	slices.SortFunc(found.Keys, func(a, b KeyInfo) int { return compareUse(&a, &b) })
	found.Keys = found.Keys[:min(n, len(found.Keys))]
	return found, nil
}

// wait takes the turn. It waits for half of the time that ctx leaves; the other half is for the
// look itself, which would else run out of time and blame the store.
func (h *hottest) wait(ctx context.Context) error {
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(end)/2)
		defer cancel()
	}
	select {
	case h.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrListing, ctx.Err())
	}
}

// scan adds the hottest keys of a counter to found.
func (ks *Keys) scan(ctx context.Context, st store.Inspector, r *rule.Rule, w *rule.Window, n, look int,
	found *Hottest) error {
	l := ks.l
	list := ks.hottest.list(w.Counter.ID)
	v := l.view(r, w.Counter)
	now := l.orders.Now()
	top := newHotHeap(max(n, keptHottest))
	visit := func(s store.KeyState) {
		if meets := r.WindowFor(w.Counter.ID, s.Key); meets != nil && !s.Result.Off {
			top.offer(KeyInfo{Window: meets, Key: s.Key, Result: s.Result, Next: s.Next, Used: s.Used, Lent: s.Lent,
				Regions: s.Regions})
		}
	}
	if err := st.Inspect(ctx, v, list.keys, visit); err != nil {
		return err
	}
	whole, next, looked := list.next == "" || look < 0, list.next, 0
	if look < 0 {
		next = ""
	}
	for {
		page := defaultLook
		if look > 0 {
			page = look - looked
		}
		s, err := st.Scan(ctx, v, next, page, visit)
		if err != nil {
			return err
		}
		looked += s.Looked
		next, found.Of = s.Next, max(found.Of, s.Of)
		if next == "" || look > 0 && looked >= look {
			break
		}
	}
	list.next = next
	found.Looked = max(found.Looked, looked)
	found.Complete = found.Complete && whole && next == ""
	sorted := slices.SortedFunc(slices.Values(top.keys.Items()), compareUse)
	list.keys = list.keys[:0]
	for i, k := range sorted {
		if i < keptHottest {
			list.keys = append(list.keys, k.Key)
		}
		if i < n {
			found.Keys = append(found.Keys, l.info(k.Window, k.Key, v,
				&store.KeyState{Result: k.Result, Next: k.Next, Used: k.Used, Lent: k.Lent, Regions: k.Regions}, now))
		}
	}
	return nil
}

// list returns the list of a counter. If there are too many lists, a new one replaces the least
// recently used one. The turn must be held.
func (h *hottest) list(counter uint64) *hotList {
	h.calls++
	list := h.lists[counter]
	if list == nil {
		if len(h.lists) >= keptLists {
			oldest, used := uint64(0), h.calls
			for id, l := range h.lists {
				if l.used < used {
					oldest, used = id, l.used
				}
			}
			delete(h.lists, oldest)
		}
		list = &hotList{}
		h.lists[counter] = list
	}
	list.used = h.calls
	return list
}

// bansOf counts the bans in force of a rule.
func (l *Limiter) bansOf(r *rule.Rule) (n int) {
	w := orders.FirstCounted(r)
	if w == nil || !l.orders.Bans.Any() {
		return 0
	}
	l.orders.Bans.Each(func(group uint64, _ *Ban) {
		if group == w.Counter.Keys {
			n++
		}
	})
	return n
}

// hotHeap keeps the most used keys, each once.
type hotHeap struct {
	most  int
	keys  pq.Heap[*KeyInfo] // the key that is used least comes first
	known map[string]bool   // keys that are in
}

func newHotHeap(most int) *hotHeap {
	less := func(a, b *KeyInfo) bool { return compareUse(a, b) > 0 }
	return &hotHeap{most: most, keys: pq.New(less, nil), known: map[string]bool{}}
}

// offer takes a key in if it is among the most used; then it copies the key's bytes.
func (h *hotHeap) offer(k KeyInfo) {
	full := h.keys.Len() == h.most
	if h.known[string(k.Key)] || full && compareUse(&k, h.keys.Min()) >= 0 {
		return
	}
	kept := new(KeyInfo)
	*kept = k
	kept.Key = bytes.Clone(k.Key)
	h.known[string(kept.Key)] = true
	if !full {
		h.keys.Push(kept)
		return
	}
	delete(h.known, string(h.keys.Min().Key))
	h.keys.Replace(kept)
}
