package weir

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// Ban is a key of a rule that is refused outright until an instant, whatever the rule's limits say.
type Ban struct {
	Domain string   `json:"domain"`
	Limit  string   `json:"limit"` // name of the rule
	Key    []string `json:"key"`   // as rule.Window.KeyParts shows it
	// Wide: the key is refused everywhere in the domain, rather than where the rule applies.
	Wide   bool      `json:"wide,omitempty"`
	Since  time.Time `json:"since"` // by the Limiter's clock, as Until
	Until  time.Time `json:"until"`
	Reason string    `json:"reason"`
	// Set: somebody set it, rather than the key's denials.
	Set bool `json:"set,omitempty"`
	// NFTables: the rule wants the kernel to drop the key's packets, too.
	NFTables bool `json:"nftables,omitempty"`
}

// Banned tells why a request was refused outright.
type Banned struct {
	Rule  *rule.Rule // whose ban it is; nil if the request was not refused so
	Until int64      // by the Limiter's clock, µs since the Unix epoch
}

// BanOptions tune WithBans. The zero value is right for most.
type BanOptions struct {
	// Max bounds the bans in force at a time; past it the one that ends first goes. 0 means DefaultMaxBans.
	Max int
	// Async counts denials in the background, grouped by key, rather than before the refusal is answered. It is always so for a
	// Remote store.
	Async bool
	// Pending bounds the keys whose denials wait to be counted in the background; further ones are not counted, and BanStats
	// tells how many. 0 means 16,384.
	Pending int
	// Changed is told of each ban that is set, here or on another node, and of each that is lifted; not of those that end by
	// themselves. It is called on the deciding path: it must be quick, safe for concurrent use, and must not call the Limiter. nil
	// means nobody.
	Changed func(b *Ban, lifted bool)
}

// The defaults of BanOptions, and the bound on grants.
const (
	DefaultMaxBans    = 100_000
	defaultMaxPending = 16_384
	maxGrants         = 10_000
)

// maxReason is how many bytes of a reason are kept.
const maxReason = 256

// WithBans tunes bans. They are in force without it, too, where a rule asks for them.
func WithBans(o BanOptions) Option {
	return func(l *Limiter) error {
		if o.Max < 0 || o.Pending < 0 {
			return fmt.Errorf("weir: WithBans: Max (%d) and Pending (%d) must not be negative; 0 means the default", o.Max, o.Pending)
		}
		l.bans.o = o
		return nil
	}
}

// WithClock makes now the clock by which bans and grants begin and end, in µs since the Unix epoch; without it that is the wall
// clock. It is for a store with a clock of its own, such as a virtual one. It must be safe for concurrent use if the Limiter is used so.
func WithClock(now func() int64) Option {
	return func(l *Limiter) error {
		if now == nil {
			return errors.New("weir: WithClock got no clock")
		}
		l.bans.clock = now
		return nil
	}
}

// bans is what a Limiter knows of bans.
type bans struct {
	o        BanOptions
	clock    func() int64    // nil: wall
	table    timetable[*Ban] // the Bans are not changed
	wide     atomic.Bool     // there was a ban that holds everywhere: else no request is looked up under rules that it does not meet
	set      atomic.Uint64
	requests atomic.Uint64
	pending  pending
}

func (b *bans) init(s Store) {
	if b.o.Max == 0 {
		b.o.Max = DefaultMaxBans
	}
	if b.o.Pending == 0 {
		b.o.Pending = defaultMaxPending
	}
	if r, ok := as[Remote](s); ok && r.Remote() {
		b.o.Async = true
	}
	b.table.init(b.o.Max)
}

// now is the instant by which bans and grants go.
func (b *bans) now() int64 {
	if b.clock != nil {
		return b.clock()
	}
	return time.Now().UnixMicro()
}

// hitsOf is the cost in hits of what h is charged for.
func (r *Request) hitsOf(h *rule.Hit) int64 {
	if h.Descriptor >= 0 && r.Descriptors[h.Descriptor].HasHits {
		return r.Descriptors[h.Descriptor].Hits
	}
	return r.Hits
}

// banned refuses r if a key of it is banned: d then holds the limits whose bans they are, and no others. Refunds are never refused.
func (l *Limiter) banned(r *Request, d *Decision) bool {
	if d.Exempt || !d.Known {
		return false
	}
	now := l.bans.now()
	d.Limits = d.Limits[:0]
	hits := d.Matches.Hits
	for i := range hits {
		h := &hits[i]
		if h.Mode != rule.Enforce || r.hitsOf(h) < 0 || i > 0 && sameKey(h, &hits[i-1]) {
			continue
		}
		if _, until, ok := l.bans.table.find(h.Window.Counter.Keys, h.Key, now); ok {
			d.ban(h, now, until)
		}
	}
	if len(d.Limits) > 0 {
		d.onlyBanned()
	}
	if l.bans.wide.Load() && r.Hits >= 0 {
		l.bannedWide(d, now)
	}
	if len(d.Limits) == 0 {
		return false
	}
	d.Allowed, d.Time = false, now
	l.bans.requests.Add(1)
	return true
}

// bannedWide finds the bans that hold everywhere in the domain.
func (l *Limiter) bannedWide(d *Decision, now int64) {
	met := len(d.Limits)
	d.Rules.BanKeys(&d.Matches, func(r *rule.Rule, key []byte) bool {
		w := counted(r)
		if w == nil || slices.ContainsFunc(d.Limits[:met], func(res LimitResult) bool { return res.Window.Rule == r }) {
			return true
		}
		b, until, ok := l.bans.table.find(w.Counter.Keys, key, now)
		if !ok || !b.Wide {
			return true
		}
		if len(d.Limits) == 0 {
			d.Matches.Hits = d.Matches.Hits[:0]
			for i := range d.Matches.Descriptors {
				d.Matches.Descriptors[i].Hit = -1
			}
		}
		h := rule.Hit{Window: w, Limit: w.Limit, Key: key, Cost: 1, Mode: rule.Enforce, Descriptor: -1}
		d.ban(&h, now, until)
		d.Matches.Hits = append(d.Matches.Hits, h)
		return true
	})
}

// sameKey reports whether two hits are of one rule and key: of two windows of a rule.
func sameKey(a, b *rule.Hit) bool {
	return a.Window.Rule == b.Window.Rule && a.Descriptor == b.Descriptor && string(a.Key) == string(b.Key)
}

// ban adds the answer of a limit that a banned key met.
func (d *Decision) ban(h *rule.Hit, now, until int64) {
	var fresh algo.State
	res := LimitResult{Window: h.Window, Result: h.Limit.Check(&fresh, now, algo.Ask{}), Mode: rule.Enforce, Descriptor: h.Descriptor}
	res.Allowed, res.Off, res.Remaining, res.NearLimit = false, false, 0, true
	res.RetryAfter, res.ResetAfter = until-now, until-now
	d.Limits = append(d.Limits, res)
	if until > d.Banned.Until || d.Banned.Rule == nil {
		d.Banned = Banned{Rule: h.Window.Rule, Until: until}
		d.RetryAfter = until - now
	}
}

// onlyBanned leaves those hits to d that d.Limits answers for, in the same order.
func (d *Decision) onlyBanned() {
	hits, n := d.Matches.Hits, 0
	for i := range d.Matches.Descriptors {
		d.Matches.Descriptors[i].Hit = -1
	}
	for i := range hits {
		if n == len(d.Limits) || d.Limits[n].Window != hits[i].Window || d.Limits[n].Descriptor != hits[i].Descriptor {
			continue
		}
		hits[n] = hits[i]
		if at := hits[n].Descriptor; at >= 0 && at < len(d.Matches.Descriptors) {
			d.Matches.Descriptors[at].Hit = n
		}
		n++
	}
	d.Matches.Hits = hits[:n]
}

// place puts a ban in force on this node.
func (l *Limiter) place(group uint64, key []byte, until int64, b *Ban) {
	if b.Wide {
		l.bans.wide.Store(true)
	}
	l.bans.table.set(group, key, until, b)
	if f := l.bans.o.Changed; f != nil {
		f(b, false)
	}
}

// lift ends a ban on this node; ok is false if there is none.
func (l *Limiter) lift(group uint64, key []byte) (ok bool) {
	b, ok := l.bans.table.drop(group, key, l.bans.now())
	if ok && l.bans.o.Changed != nil {
		l.bans.o.Changed(b, true)
	}
	return ok
}

// target is a rule with a key of it.
type target struct {
	rule   *rule.Rule
	window *rule.Window // the first that has a counter
	group  uint64
	key    []byte
	parts  []string
}

// target finds a rule in force, and makes a key of it. A part of key is name=value, or the value alone of the first name that the
// rule has there.
func (l *Limiter) target(domain, limit string, key []string) (t target, err error) {
	f := l.rules.Load()
	if f == nil {
		return t, errors.New("weir: no rules are in force")
	}
	if domain == "" {
		domain = f.soleDomain
	}
	if !f.set.HasDomain(domain) {
		return t, fmt.Errorf("weir: no rule file declares the domain %q; there are %s", domain, strings.Join(f.set.Domains(), ", "))
	}
	if t.rule = f.rule(domain, limit); t.rule == nil {
		return t, fmt.Errorf("weir: the domain %q has no limit %q (a limit is named by its rule, without a window)", domain, limit)
	}
	if t.window = counted(t.rule); t.window == nil {
		return t, fmt.Errorf("weir: the limit %q counts nothing", limit)
	}
	parts := make([]string, len(key))
	for i, part := range key {
		if parts[i] = part; i < len(t.rule.Per) && !hasName(part, t.rule.Per[i]) {
			parts[i] = t.rule.Per[i][0] + "=" + part
		}
	}
	if t.key, err = t.window.AppendKey(nil, parts); err != nil {
		return t, fmt.Errorf("weir: key: %w", err)
	}
	t.group, t.parts = t.window.Counter.Keys, t.window.KeyParts(t.key)
	return t, nil
}

func hasName(part string, names rule.Key) bool {
	for _, name := range names {
		if strings.HasPrefix(part, name+"=") {
			return true
		}
	}
	return false
}

// counted returns the first window of a rule that has a counter, of those of an override if it has none itself; nil if none has.
func counted(r *rule.Rule) *rule.Window {
	for _, w := range r.Windows {
		if w.Counter != nil {
			return w
		}
	}
	for i := range r.Overrides {
		for _, w := range r.Overrides[i].Windows {
			if w.Counter != nil {
				return w
			}
		}
	}
	return nil
}

// rule finds a rule by its name; nil if there is none.
func (f *inForce) rule(domain, name string) *rule.Rule {
	for _, r := range f.set.Rules() {
		if r.Name == name && r.Domain == domain {
			return r
		}
	}
	return nil
}

// ErrNothingThere is the error of Unban and Revoke where there is nothing to end.
var ErrNothingThere = errors.New("weir: there is none for this key")

// Ban refuses a key of a rule outright until an instant of the Limiter's clock, on all nodes of the store (see Follow): wherever
// the rule applies and is enforced, or where its own ban would (scope: domain). A part of key is name=value, or a value. It
// takes the place of a ban of the same key. The error says what does not fit, or is ErrNotShared.
func (l *Limiter) Ban(ctx context.Context, domain, limit string, key []string, until time.Time, reason string) (Ban, error) {
	t, err := l.target(domain, limit, key)
	if err != nil {
		return Ban{}, err
	}
	if len(t.key) == 0 {
		return Ban{}, fmt.Errorf("weir: the limit %q has one counter for all: a ban would refuse everybody", limit)
	}
	now := l.bans.now()
	if until.UnixMicro() <= now {
		return Ban{}, fmt.Errorf("weir: the ban would have ended at %s already", until.UTC().Format(time.RFC3339))
	}
	b := newBan(t.rule, t.parts, now, until.UnixMicro())
	b.Reason, b.Set = clipText(reason, maxReason), true
	l.place(t.group, t.key, until.UnixMicro(), b)
	l.bans.set.Add(1)
	return *b, l.share.tell(ctx, l, kindBan, factID(t.group, t.key))
}

func newBan(r *rule.Rule, parts []string, now, until int64) *Ban {
	b := &Ban{Domain: r.Domain, Limit: r.Name, Key: parts, Since: time.UnixMicro(now), Until: time.UnixMicro(until)}
	if r.Ban != nil {
		b.Wide, b.NFTables = r.Ban.Domain, r.Ban.NFTables
	}
	return b
}

// Unban lifts a ban on all nodes, and forgets the denials that have been counted towards the next one. The error says what does
// not fit, or is ErrNothingThere or ErrNotShared, or the store's, if the ban is lifted and the denials could not be forgotten.
func (l *Limiter) Unban(ctx context.Context, domain, limit string, key []string) error {
	t, err := l.target(domain, limit, key)
	if err != nil {
		return err
	}
	if !l.lift(t.group, t.key) {
		return fmt.Errorf("%w: no ban", ErrNothingThere)
	}
	err = l.share.tell(ctx, l, kindBan, factID(t.group, t.key))
	if t.rule.Ban != nil {
		err = errors.Join(err, l.forgive(ctx, t.rule.Ban, t.key))
	}
	return err
}

// forgive forgets the denials of a key.
func (l *Limiter) forgive(ctx context.Context, b *rule.Ban, key []byte) error {
	l.bans.pending.forget(b, key)
	charge := []Charge{{Counter: b.Counter, Limit: b.Counter.Limit, Key: key, Mode: rule.Shadow, Ask: algo.Ask{Cost: -min(b.After, algo.MaxCost)}}}
	_, err := l.store.Take(ctx, charge, make([]algo.Result, 1))
	return err
}

// Bans returns the bans in force on this node, in no order.
func (l *Limiter) Bans() []Ban {
	var list []Ban
	l.bans.table.each(l.bans.now(), func(_ uint64, _ []byte, _ int64, b *Ban) { list = append(list, *b) })
	return list
}

// BanStats is a reading of bans and grants on this node: counts since the Limiter was made, but for InForce and Grants.
type BanStats struct {
	InForce  map[BanLimit]int // bans by their limit
	Grants   int
	Set      uint64 // bans that this node set
	Requests uint64 // requests refused by a ban
	Evicted  uint64 // bans that went before their end, since there were too many
	Dropped  uint64 // denials that were not counted: too many keys waited, or the store failed
}

// BanLimit names a rule.
type BanLimit struct{ Domain, Limit string }

// BanStats returns a reading. It looks at each ban.
func (l *Limiter) BanStats() BanStats {
	s := BanStats{
		InForce: map[BanLimit]int{}, Set: l.bans.set.Load(), Requests: l.bans.requests.Load(), Evicted: l.bans.table.evicted.Load(),
		Dropped: l.bans.pending.dropped.Load(),
	}
	now := l.bans.now()
	l.bans.table.each(now, func(_ uint64, _ []byte, _ int64, b *Ban) { s.InForce[BanLimit{b.Domain, b.Limit}]++ })
	l.grants.table.each(now, func(uint64, []byte, int64, *grant) { s.Grants++ })
	return s
}

// clipText cuts text to n bytes at a character's end.
func clipText(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "")
}
