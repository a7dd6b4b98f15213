package weir

import (
	"bytes"
	"context"
	"slices"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/limiter/orders"
	"github.com/weir-rl/weir/rule"
)

// Bans and grants take part in a decision: Match calls banned, Charge applyGrants, Tell
// countDenials.

// hitsOf returns how many hits the charge for h costs.
func (r *Request) hitsOf(h *rule.Hit) int64 {
	if h.Descriptor >= 0 && r.Descriptors[h.Descriptor].HasHits {
		return r.Descriptors[h.Descriptor].Hits
	}
	return r.Cost()
}

// banned refuses r if one of its keys is banned. d then holds the limits whose bans they are, and
// no others. Refunds are never refused.
func (l *Limiter) banned(r *Request, d *Decision) bool {
	if d.Exempt || !d.Known {
		return false
	}
	now := l.orders.Now()
	d.Limits = d.Limits[:0]
	hits := d.Matches.Hits
	for i := range hits {
		h := &hits[i]
		if h.Mode != rule.Enforce || r.hitsOf(h) < 0 || i > 0 && sameKey(h, &hits[i-1]) {
			continue
		}
		if b, ok := l.orders.Bans.Find(h.Window.Counter.Keys, h.Key, now); ok {
			d.ban(h, now, b)
		}
	}
	if len(d.Limits) > 0 {
		d.onlyBanned()
	}
	if l.orders.Bans.AnyDomainWide() && r.Cost() >= 0 {
		l.bannedWide(d, now)
	}
	if len(d.Limits) == 0 {
		return false
	}
	d.Allowed, d.Time = false, now
	l.bans.requests.Add(1)
	return true
}

// bannedWide finds the domain-wide bans, also under rules that the request does not meet.
func (l *Limiter) bannedWide(d *Decision, now int64) {
	met := len(d.Limits)
	d.Rules.BanKeys(&d.Matches, func(r *rule.Rule, key []byte) bool {
		w := orders.FirstCounted(r)
		if w == nil || slices.ContainsFunc(d.Limits[:met], func(res LimitResult) bool { return res.Window.Rule == r }) {
			return true
		}
		b, ok := l.orders.Bans.Find(w.Counter.Keys, key, now)
		if !ok || !b.DomainWide {
			return true
		}
		if len(d.Limits) == 0 {
			d.Matches.Hits = d.Matches.Hits[:0]
			for i := range d.Matches.Descriptors {
				d.Matches.Descriptors[i].Hit = -1
			}
		}
		h := rule.Hit{Window: w, Limit: w.Limit, Key: key, Cost: 1, Mode: rule.Enforce, Descriptor: -1}
		d.ban(&h, now, b)
		d.Matches.Hits = append(d.Matches.Hits, h)
		return true
	})
}

// sameKey reports whether two hits are of one rule and key, which then have different windows.
func sameKey(a, b *rule.Hit) bool {
	return a.Window.Rule == b.Window.Rule && a.Descriptor == b.Descriptor && string(a.Key) == string(b.Key)
}

// ban adds the answer of a limit that a banned key met. Where the limit itself refuses for longer
// than the ban, its time is given: a client that came back when the ban ends would be refused
// again.
func (d *Decision) ban(h *rule.Hit, now int64, b *orders.Ban) {
	until := b.Until.UnixMicro()
	var fresh algo.State
	res := LimitResult{Window: h.Window, Result: h.Limit.Check(&fresh, now, algo.Ask{}), Mode: rule.Enforce, Descriptor: h.Descriptor}
	res.Allowed, res.Off, res.Remaining, res.Near = false, false, 0, true
	res.RetryAfter = max(until, b.RefusedUntil) - now
	res.ResetAfter = res.RetryAfter
	d.Limits = append(d.Limits, res)
	if until > d.Banned.Until || d.Banned.Rule == nil {
		d.Banned = Banned{Rule: h.Window.Rule, Until: until}
	}
	d.RetryAfter = max(d.RetryAfter, res.RetryAfter)
}

// onlyBanned removes the hits that d.Limits does not answer for, and keeps the others in order.
func (d *Decision) onlyBanned() {
	hits, n := d.Matches.Hits, 0
	d.place = slices.Grow(d.place[:0], len(hits))[:len(hits)]
	for i := range hits {
		d.place[i] = -1
		if n == len(d.Limits) || d.Limits[n].Window != hits[i].Window || d.Limits[n].Descriptor != hits[i].Descriptor {
			continue
		}
		hits[n], d.place[i] = hits[i], n
		n++
	}
	d.Matches.Hits = hits[:n]
	for i := range d.Matches.Descriptors {
		if m := &d.Matches.Descriptors[i]; m.Hit >= 0 {
			m.Hit = d.place[m.Hit]
		}
	}
}

// countDenials counts a denial for each rule with a ban whose own windows denied d.
func (l *Limiter) countDenials(ctx context.Context, d *Decision) {
	hits, now := d.Matches.Hits, int64(0)
next:
	for i := range d.results {
		b := hits[i].Window.Rule.Ban
		if b == nil || b.Counter == nil || d.results[i].Allowed || d.charges[i].Mode != rule.Enforce || d.charges[i].Ask.Needs() <= 0 {
			continue
		}
		for j := i - 1; j >= 0 && sameKey(&hits[i], &hits[j]); j-- {
			if !d.results[j].Allowed {
				continue next
			}
		}
		if now == 0 {
			now = l.orders.Now()
		}
		until := int64(0)
		for j := i; j < len(d.results) && sameKey(&hits[i], &hits[j]); j++ {
			if after := d.results[j].RetryAfter; !d.results[j].Allowed && after != algo.Never {
				until = max(until, now+after)
			}
		}
		l.orders.Bans.CountDenial(ctx, hits[i].Window, hits[i].Key, now, until)
	}
}

// applyGrants replaces the numbers that d is about to be charged under by grants' numbers. It
// returns false if nothing is left to charge. A grant of more is for a key as it is written: a
// request with another spelling may ask for something else.
func (l *Limiter) applyGrants(d *Decision) bool {
	now := l.orders.Now()
	lifted := false
	for i := range d.charges {
		h := &d.Matches.Hits[i]
		written := d.Matches.WrittenKey(i)
		g, ok := l.orders.Grants.Find(h.Window.Counter.Keys, written, now)
		respelled := !ok && !bytes.Equal(written, h.Key)
		if respelled {
			g, ok = l.orders.Grants.Find(h.Window.Counter.Keys, h.Key, now)
		}
		if !ok {
			continue
		}
		limit := g.Numbers(h.Window.Counter.ID, d.charges[i].Limit)
		if respelled && !rule.Lower(limit, d.charges[i].Limit) {
			continue
		}
		lifted = lifted || limit == nil
		if limit != nil && limit != d.charges[i].Limit {
			h.Limit = limit
		}
		d.charges[i].Limit = limit
	}
	if lifted {
		d.dropUnlimited()
	}
	return len(d.charges) > 0
}

// granted returns the numbers in force for a key under a limit, as Decide charges it; nil for none.
// g is the grant that the key has; nil if it has none.
func (l *Limiter) granted(w *rule.Window, key []byte, now int64) (limit *algo.Limit, g *orders.Grant) {
	limit = atSignal(w, w.Limit, l.signals)
	if found, ok := l.orders.Grants.Find(w.Counter.Keys, key, now); ok {
		return found.Numbers(w.Counter.ID, limit), found
	}
	return limit, nil
}
