package lint

import (
	"slices"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/message"
)

// Requirements of an Envoy's quotas on a limit (docs/guides/rlqs.md).
const (
	leastQuota = 2                // units of a lease; a lender lends no single unit
	quotaFor   = 11 * time.Second // from such a generation on, numbers of requests are assigned
	quotaOut   = 15 * time.Second // units that are out have to last so long
)

// quotas warns of limits that quotas for Envoys cannot be taken from, or only a part of them, in a
// domain of Options.Quotas.
func (l *linter) quotas(domain string, rules []*rule.Rule) {
	if !slices.Contains(l.options.Quotas, domain) {
		return
	}
	for _, r := range rules {
		if r.Shadow {
			continue // it has no say
		}
		all := slices.Clone(r.Windows)
		for i := range r.Overrides {
			all = append(all, r.Overrides[i].Windows...)
		}
		for _, w := range all {
			if w.Limit != nil && slices.ContainsFunc(w.Parts(),
				func(p *algo.Limit) bool { return l.quota(r, w, p.Config()) }) {
				break // one is enough for a rule
			}
		}
	}
}

// quota warns of one limit. It reports whether it did.
func (l *linter) quota(r *rule.Rule, w *rule.Window, c algo.Config) bool {
	const refused = "so that buckets of Envoys' quotas that meet it are refused"
	if c.N == 0 {
		return false
	}
	if c.Lease == 0 {
		c.Lease = message.DefaultLent
	}
	limit, err := algo.New(c)
	base, units := l.ceiling(r, message.SoftBase(c)), l.lendable(r, c)
	switch {
	case err != nil:
		l.warnOf(QuotaNever, w.Name, r, r.Pos, quotaHint(&c), "it lends nothing, %s: %v", refused, err)
	case c.FirstRequest:
		l.warnOf(QuotaNever, w.Name, r, r.Pos, "leave out align: first_request",
			"it lends nothing until a request at another door has begun its window, %s", refused)
	case units < max(leastQuota, r.Cost):
		least := max(leastQuota, r.Cost)
		l.warnOf(QuotaNever, w.Name, r, r.Pos, largerLease(least, base, "take a larger limit"),
			"a lease of %s has %s, and %d are needed at least, %s",
			l.share(r, c), message.Count(int(units), "unit", "units"), least, refused)
	case limit.Lease().Config().Timeout >= quotaFor &&
		float64(units)*c.Window.Seconds() < float64(c.N)*quotaOut.Seconds():
		need := int64(float64(c.N) * quotaOut.Seconds() / c.Window.Seconds())
		l.warnOf(warnQuotaSmall, w.Name, r, r.Pos, largerLease(need, base, "take a larger bucket, or a longer window"),
			"a lease of %s lasts for less than %v at its full rate, which Envoys then do not reach",
			l.share(r, c), quotaOut)
	default:
		return false
	}
	return true
}

// quotaHint says how to mend a limit that lends nothing.
func quotaHint(c *algo.Config) string {
	switch {
	case !c.Algorithm.Settles():
		return "take token_bucket or sliding_window, or leave its requests to the rate limit service"
	case c.RefillInterval:
		return "leave refill out"
	case c.SoftFor != 0:
		return "leave for out of throttle.soft"
	case c.CountDenied:
		return "write count_denied: false"
	}
	return ""
}
