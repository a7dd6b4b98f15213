package rule

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/weir-rl/weir/algo"
)

// addCounters gives the windows of a rule and of its overrides their Counters.
func (b *builder) addCounters(r *Rule) {
	identity := ruleIdentity(r)
	mine := map[uint64]*Counter{}
	names := map[string]bool{}
	for _, w := range r.Windows {
		w.own(r)
		if w.Limit == nil {
			continue
		}
		id, group := identityHashes(r.Domain, identity, w.Limit)
		if mine[id] != nil || names[w.Name] {
			b.problem(r, "keep one of them, or make two limits of it", "two entries of allow have the same window, %s",
				w.Name)
			continue
		}
		mine[id], names[w.Name] = b.addCounter(r, w, Counter{ID: id, Group: group, identity: identity}), true
		w.Counter = mine[id]
	}
	for i := range r.Overrides {
		used := map[uint64]bool{}
		for _, w := range r.Overrides[i].Windows {
			w.own(r)
			if w.Limit == nil {
				continue
			}
			id, group := identityHashes(r.Domain, identity, w.Limit)
			if used[id] {
				at := *r
				at.Pos = r.Overrides[i].Pos
				b.problem(&at, "keep one of them", "two entries of an override have the same window, %s", w.Name)
				continue
			}
			used[id] = true
			if mine[id] == nil {
				mine[id] = b.addCounter(r, w, Counter{ID: id, Group: group, identity: identity})
			}
			w.Counter = mine[id]
		}
	}
	b.addRegions(r)
	b.addBesides(r)
	b.addBan(r)
}

// own makes w a window of r.
func (w *Window) own(r *Rule) {
	w.Rule = r
	if w.Limit == nil {
		return
	}
	w.Seconds = int64((w.Limit.Config().Window + time.Second - 1) / time.Second)
	if r.Elastic != nil {
		w.scaled = new(scaledLimits)
	}
}

// addBesides gives the Counters of r the Counters of the records beside their states: of soft
// margins that close, and of units that are lent.
func (b *builder) addBesides(r *Rule) {
	// A limit has either a margin that closes or a lease.
	for _, of := range b.longest(r, (*algo.Limit).Margin,
		func(m *algo.Limit) time.Duration { return m.Config().Timeout }) {
		of.counter.Margin = b.beside(r, of.counter, 'm', of.limit, of.limit)
		if all := of.counter.all(); all != nil {
			all.Margin = b.beside(r, all, 'm', of.limit, of.limit)
		}
	}
	for _, of := range b.longest(r, (*algo.Limit).Lease,
		func(l *algo.Limit) time.Duration { return l.Config().Window }) {
		of.counter.Lease, of.counter.Lent = b.beside(r, of.counter, 'a', of.limit, of.counter.Limit), r.Lent
		if all := of.counter.all(); all != nil {
			all.Lease, all.Lent = b.beside(r, all, 'a', of.limit, all.Limit), r.Lent
		}
	}
}

// addRegions says of the Counters of r how they hold over several regions.
func (b *builder) addRegions(r *Rule) {
	if r.Regions == nil {
		return
	}
	add := func(w *Window) {
		c := w.Counter
		if c == nil || c.Regions != nil {
			return
		}
		c.Regions = &Regions{Over: r.Regions.Over, Sync: r.Regions.Sync, Tell: r.Regions.Tell}
		if c.Regions.Over > 0 && !c.Regions.Sync {
			c.Regions.All = b.beside(r, c, 'r', c.Limit, c.Limit)
			c.Regions.All.Keys = c.Keys
		}
	}
	for _, w := range r.Windows {
		add(w)
	}
	for i := range r.Overrides {
		for _, w := range r.Overrides[i].Windows {
			add(w)
		}
	}
}

// all returns Regions.All; nil if there is none.
func (c *Counter) all() *Counter {
	if c.Regions == nil {
		return nil
	}
	return c.Regions.All
}

// counterLimit is the limit of something that is kept beside the states of a Counter.
type counterLimit struct {
	counter *Counter
	limit   *algo.Limit
}

// longest returns, for each Counter of r with limits that have a second one (second is not nil),
// the second one whose states live longest, by life.
func (b *builder) longest(r *Rule,
	second func(*algo.Limit) *algo.Limit, life func(*algo.Limit) time.Duration) []counterLimit {
	var list []counterLimit
	see := func(w *Window) {
		if w.Limit == nil || w.Counter == nil || second(w.Limit) == nil {
			return
		}
		at := slices.IndexFunc(list, func(of counterLimit) bool { return of.counter == w.Counter })
		for _, l := range w.allLimits() {
			switch l = second(l); {
			case l == nil:
			case at < 0:
				at, list = len(list), append(list, counterLimit{w.Counter, l})
			case life(list[at].limit) < life(l):
				list[at].limit = l
			}
		}
	}
	for _, w := range r.Windows {
		see(w)
	}
	for i := range r.Overrides {
		for _, w := range r.Overrides[i].Windows {
			see(w)
		}
	}
	return list
}

// beside makes the Counter of a record that is kept under limit beside the states of c. Its ID
// depends on the kind of record, and on named, as the IDs of other Counters do on their limits.
func (b *builder) beside(r *Rule, c *Counter, kind byte, limit, named *algo.Limit) *Counter {
	id := string(kind) + c.identity
	hash, _ := identityHashes(c.Domain, id, named)
	of := &Counter{
		ID: hash, Group: c.Group, Domain: c.Domain, Rule: c.Rule, Window: c.Window,
		Limit: limit, Index: -1, identity: id,
	}
	b.reserve(r, of)
	return of
}

// Parts returns the limits that w has at one time or another: Limit alone, or those that its
// schedule chooses from.
func (w *Window) Parts() []*algo.Limit {
	if !w.Limit.Scheduled() {
		return []*algo.Limit{w.Limit}
	}
	var parts []*algo.Limit
	otherwise, phases, _ := w.Limit.Schedule()
	if otherwise != nil {
		parts = append(parts, otherwise)
	}
	for _, p := range phases {
		if p.Limit != nil {
			parts = append(parts, p.Limit)
		}
	}
	return parts
}

// allLimits returns Parts, and for an elastic rule also Parts scaled to each point of the curve.
func (w *Window) allLimits() []*algo.Limit {
	list := w.Parts()
	if e := w.Rule.Elastic; e != nil {
		for _, l := range list[:len(list):len(list)] {
			for _, p := range e.Curve {
				if scaled, err := l.Scale(int64(p.Share), 100); err == nil {
					list = append(list, scaled)
				}
			}
		}
	}
	return list
}

// addCounter adds the Counter of w, of which c has the identity.
func (b *builder) addCounter(r *Rule, w *Window, c Counter) *Counter {
	c.Domain, c.Rule, c.Window, c.Limit, c.Index = r.Domain, r.Name, w.Name, w.Limit, len(b.set.counters)
	c.Keys = keysHash(c.Group, r.Per)
	b.register(r, &c)
	return &c
}

func (b *builder) register(r *Rule, c *Counter) {
	if b.reserve(r, c) {
		b.set.counters = append(b.set.counters, c)
	}
}

// reserve takes the ID of c, so that no other Counter has it.
func (b *builder) reserve(r *Rule, c *Counter) bool {
	if old := b.byID[c.ID]; old != nil {
		b.problem(r, "rename one of them", "limits %q and %q have the same 64-bit identity", old.Rule, c.Rule)
		return false
	}
	tag := [2]uint64{c.Group, c.ID & 0xFFFFFFFF}
	if b.byTag[tag] {
		b.problem(r, "rename the rule", "two windows of %q have the same 32-bit identity", c.Rule)
		return false
	}
	b.byTag[tag] = true
	b.byID[c.ID] = c
	return true
}

// overrideCounters makes the Counters for limits that requests bring, which apply in any domain.
func (b *builder) overrideCounters() {
	for _, d := range b.set.domains {
		r := &Rule{Name: overrideName, Domain: d.name}
		for unit, u := range overrideUnits {
			limit, err := algo.New(overrideConfig(unit, 1))
			if err != nil {
				b.problem(r, "", "a limit of a request for a %s: %v", strings.ToLower(u.name), err)
				continue
			}
			c := &Counter{
				Domain: d.name, Rule: overrideName, Window: fmt.Sprintf("%s:%ds", overrideName, int64(u.length/time.Second)),
				Limit: limit, Index: len(b.set.counters), Override: true, identity: "o",
			}
			c.ID, c.Group = identityHashes(d.name, c.identity, limit)
			b.register(r, c)
			d.overrides[unit] = c
		}
	}
}

// ruleIdentity names a rule within its domain without ambiguity: a native limit by its name, a
// descriptor by its path.
func ruleIdentity(r *Rule) string {
	if r.compiled.levels == nil {
		return "n" + r.Name
	}
	id := []byte{'l'}
	for _, l := range r.compiled.levels {
		id = appendText(id, 0, l.node.Key)
		id = appendText(id, 0, l.node.Value)
	}
	return string(id)
}

// identityHashes hashes what names a limit's state: domain, rule, algorithm and W; and with W how
// it is cut (K, calendar, alignment), since states that are cut otherwise must be carried. group is
// the hash of domain and rule, which all windows of a rule share.
func identityHashes(domain, rule string, l *algo.Limit) (hash, group uint64) {
	c := l.Config()
	id := appendText(appendText(nil, 0, domain), 0, rule)
	group = xxhash.Sum64(id)
	id = appendText(id, 0, c.Algorithm.String())
	id = binary.AppendVarint(id, int64(c.Window))
	id = binary.AppendVarint(id, int64(c.Buckets))
	id = append(id, byte(c.Calendar), bit(c.FirstRequest), bit(c.RefillInterval))
	if c.Calendar != algo.NoCalendar && c.Location != nil {
		id = appendText(id, 0, c.Location.String())
	}
	return xxhash.Sum64(id), group
}

// keysHash hashes which attributes make the keys of a rule.
func keysHash(group uint64, per []Key) uint64 {
	id := binary.BigEndian.AppendUint64(nil, group)
	for _, k := range per {
		id = appendText(id, 0, strings.Join(k, "|"))
	}
	return xxhash.Sum64(id)
}

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}
