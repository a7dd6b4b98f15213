package orders

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/weir-rl/weir/rule"
)

// wideRules are the rules under which keys are banned in their whole domain. The list only changes
// when such a ban is the first one of its rule, and the deciding path reads it without a lock.
type wideRules struct {
	list  atomic.Pointer[[]*wideRule] // nil until there is the first one
	known atomic.Pointer[wideKnown]
	mu    sync.Mutex
}

type wideRule struct {
	domain, name string
	until        int64 // when the last ban ends; under wideRules.mu
}

// wideKnown is a list of names as the rules of a set.
type wideKnown struct {
	list     *[]*wideRule
	set      *rule.Set
	byDomain map[string][]*rule.Rule
}

// note notes a ban. Rules whose bans are over leave the list when another one enters.
func (w *wideRules) note(domain, name string, until, now int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []*wideRule
	if have := w.list.Load(); have != nil {
		for _, r := range *have {
			if r.domain == domain && r.name == name {
				r.until = max(r.until, until)
				return
			}
			if r.until > now {
				list = append(list, r)
			}
		}
	}
	list = append(list, &wideRule{domain, name, until})
	w.list.Store(&list)
}

// of returns the rules of a domain whose own bans do not hold everywhere.
func (w *wideRules) of(s *rule.Set, domain string) []*rule.Rule {
	list := w.list.Load()
	if list == nil {
		return nil
	}
	k := w.known.Load()
	if k == nil || k.list != list || k.set != s {
		k = &wideKnown{list, s, map[string][]*rule.Rule{}}
		for _, r := range s.Rules() {
			if r.BansDomain() && (r.Ban == nil || !r.Ban.Domain) && slices.ContainsFunc(*list,
				func(x *wideRule) bool { return x.domain == r.Domain && x.name == r.Name }) {
				k.byDomain[r.Domain] = append(k.byDomain[r.Domain], r)
			}
		}
		w.known.Store(k)
	}
	return k.byDomain[domain]
}

// networks are the sizes of the networks that are banned, by the group of their keys. Each size
// costs a lookup for each request that meets the rule, so there are as few as are in use.
type networks struct {
	list atomic.Pointer[map[uint64][]networkSize] // nil until there is the first one
	mu   sync.Mutex
	ends map[networkOf]int64 // when the last ban ends; under mu
}

type networkSize struct {
	bits uint8
	v6   bool
}

type networkOf struct {
	group uint64
	size  networkSize
}

// note notes the ban of a network. Sizes whose bans are over leave the list when another one
// enters.
func (n *networks) note(group uint64, bits uint8, v6 bool, until, now int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	of := networkOf{group, networkSize{bits, v6}}
	if end, ok := n.ends[of]; ok {
		n.ends[of] = max(end, until)
		return
	}
	if n.ends == nil {
		n.ends = map[networkOf]int64{}
	}
	n.ends[of] = until
	list := map[uint64][]networkSize{}
	for of, end := range n.ends {
		if end <= now {
			delete(n.ends, of)
			continue
		}
		list[of.group] = append(list[of.group], of.size)
	}
	n.list.Store(&list)
}

// findNetwork returns the ban that ends last, of longest and of those on networks that hold the
// address of a key; longest may be nil.
func (b *Bans) findNetwork(sizes []networkSize, longest *BanOrder, group uint64, key []byte, now int64,
	wide bool) *BanOrder {
	var room [32]byte
	for _, size := range sizes {
		network, ok := rule.AppendNetworkOf(room[:0], key, int(size.bits), size.v6)
		if !ok {
			continue
		}
		ban, _, ok := b.table.find(group, network, now)
		if ok && ban.bits == size.bits && (ban.DomainWide || !wide) &&
			(longest == nil || ban.Until.After(longest.Until)) {
			longest = ban
		}
	}
	return longest
}
