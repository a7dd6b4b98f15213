package orders

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/weir-rl/weir/rule"
)

// inUse counts the bans of each kind that makes requests look further than their own keys. What
// requests look at is published before the first such ban is in the table, and pruned by a request
// that comes after the last one has left it. That request allocates; all others read what is
// published without a lock.
type inUse[K comparable] struct {
	ended   atomic.Bool // the last ban of a kind has left the table, and the kind is published still
	mu      sync.Mutex
	bans    map[K]int
	publish func(bans map[K]int, more bool) // mu is held; more says that a kind was added
}

// count counts bans that enter the table (n > 0), or that left it.
func (u *inUse[K]) count(k K, n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.bans == nil {
		u.bans = map[K]int{}
	}
	before := u.bans[k]
	if before+n <= 0 {
		delete(u.bans, k)
		u.ended.Store(true)
		return
	}
	u.bans[k] = before + n
	if before == 0 {
		u.publish(u.bans, true)
		u.ended.Store(false)
	}
}

// prune takes back what was published for bans that are over. It waits for nobody.
func (u *inUse[K]) prune() {
	if !u.ended.Load() || !u.mu.TryLock() {
		return
	}
	defer u.mu.Unlock()
	if u.ended.Swap(false) {
		u.publish(u.bans, false)
	}
}

// wideRules are the rules under which keys are banned in their whole domain.
type wideRules struct {
	inUse[ruleName]
	known   atomic.Pointer[wideKnown] // nil while there is no such ban
	inForce func() *rule.Set
}

// wideKnown is a list of names, and the rules of these names in the last two sets that were asked
// for: requests of both come while rules change. Immutable.
type wideKnown struct {
	names map[ruleName]bool
	sets  [2]wideSet
}

type wideSet struct {
	set      *rule.Set
	byDomain map[string][]*rule.Rule
}

func (w *wideRules) init(inForce func() *rule.Set) { w.inForce, w.publish = inForce, w.published }

// current returns what is known; nil if no key is banned in its whole domain.
func (w *wideRules) current() *wideKnown {
	w.prune()
	return w.known.Load()
}

func (w *wideRules) published(bans map[ruleName]int, more bool) {
	if len(bans) == 0 {
		w.known.Store(nil)
		return
	}
	k := &wideKnown{names: make(map[ruleName]bool, len(bans))}
	for name := range bans {
		k.names[name] = true
	}
	switch old := w.known.Load(); {
	case old == nil:
		if s := w.inForce(); s != nil {
			k.sets[0] = k.of(s)
		}
	case more:
		for i, x := range old.sets {
			if x.set != nil {
				k.sets[i] = k.of(x.set)
			}
		}
	default:
		for i, x := range old.sets {
			k.sets[i] = k.pruned(x)
		}
	}
	w.known.Store(k)
}

// of finds the rules of a set whose own bans do not hold everywhere.
func (k *wideKnown) of(s *rule.Set) wideSet {
	x := wideSet{s, map[string][]*rule.Rule{}}
	for _, r := range s.Rules() {
		if k.names[ruleName{r.Domain, r.Name}] && r.BansDomain() && (r.Ban == nil || !r.Ban.Domain) {
			x.byDomain[r.Domain] = append(x.byDomain[r.Domain], r)
		}
	}
	return x
}

func (k *wideKnown) pruned(from wideSet) wideSet {
	x := wideSet{from.set, map[string][]*rule.Rule{}}
	for domain, list := range from.byDomain {
		list = slices.DeleteFunc(slices.Clone(list), func(r *rule.Rule) bool { return !k.names[ruleName{r.Domain, r.Name}] })
		if len(list) > 0 {
			x.byDomain[domain] = list
		}
	}
	return x
}

func (k *wideKnown) find(s *rule.Set) *wideSet {
	for i := range k.sets {
		if k.sets[i].set == s {
			return &k.sets[i]
		}
	}
	return nil
}

// of returns the rules of a domain whose own bans do not hold everywhere. Of those who ask for
// another set at the same time, one looks for its rules.
func (w *wideRules) of(s *rule.Set, domain string) []*rule.Rule {
	k := w.current()
	if k == nil {
		return nil
	}
	x := k.find(s)
	if x == nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		if k = w.known.Load(); k == nil {
			return nil
		}
		if x = k.find(s); x == nil {
			k = &wideKnown{k.names, [2]wideSet{k.of(s), k.sets[0]}}
			w.known.Store(k)
			x = &k.sets[0]
		}
	}
	return x.byDomain[domain]
}

// networks are the sizes of the networks that are banned, by the group of their keys. Each size
// costs a lookup for each request that meets the rule, so there are as few as are in use.
type networks struct {
	inUse[networkOf]
	list atomic.Pointer[map[uint64][]networkSize] // nil while there is none
}

type networkSize struct {
	bits uint8
	v6   bool
}

type networkOf struct {
	group uint64
	size  networkSize
}

func (n *networks) init() { n.publish = n.published }

// of returns the sizes of the networks that are banned among the keys of a group.
func (n *networks) of(group uint64) []networkSize {
	list := n.list.Load()
	if list == nil {
		return nil
	}
	n.prune()
	return (*list)[group]
}

func (n *networks) published(bans map[networkOf]int, _ bool) {
	if len(bans) == 0 {
		n.list.Store(nil)
		return
	}
	list := map[uint64][]networkSize{}
	for of := range bans {
		list[of.group] = append(list[of.group], of.size)
	}
	n.list.Store(&list)
}

// counted counts a ban that enters the table, or that left it.
func (b *Bans) counted(group uint64, key []byte, ban *BanOrder, n int) {
	if ban.DomainWide {
		b.wide.count(ruleName{ban.Domain, ban.Rule}, n)
	}
	if ban.bits > 0 {
		b.networks.count(networkOf{group, networkSize{ban.bits, rule.NetworkOfIPv6(key)}}, n)
	}
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
