package weir

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/weir-rl/weir/internal/limiter/orders"
	"github.com/weir-rl/weir/internal/util/pq"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

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
func (ks *Keys) scan(ctx context.Context, st store.Inspector, r *rule.Rule, w *rule.Window, n, look int, found *Hottest) error {
	l := ks.l
	list := ks.hottest.list(w.Counter.ID)
	v := l.view(r, w.Counter)
	now := l.orders.Now()
	top := newHotHeap(max(n, keptHottest))
	visit := func(s store.KeyState) {
		if meets := r.WindowFor(w.Counter.ID, s.Key); meets != nil && !s.Result.Off {
			top.offer(KeyInfo{Window: meets, Key: s.Key, Result: s.Result, Next: s.Next, Used: s.Used, Lent: s.Lent, Regions: s.Regions})
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
			found.Keys = append(found.Keys, l.info(k.Window, k.Key, v, &store.KeyState{Result: k.Result, Next: k.Next, Used: k.Used, Lent: k.Lent, Regions: k.Regions}, now))
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
	l.orders.Bans.Each(func(group uint64, _ *orders.Ban) {
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
