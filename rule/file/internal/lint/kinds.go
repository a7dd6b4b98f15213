package lint

import (
	"slices"
	"strings"
	"time"

	"github.com/weir-rl/weir/internal/util/suggest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/message"
)

// longWait is from when on it is asked whether a client still waits.
const longWait = time.Minute

// kinds warns of settings for the requests that a rule would refuse.
func (l *linter) kinds(r *rule.Rule) {
	l.waits(r)
	l.commits(r)
	l.bans(r)
	l.elastic(r)
	l.schedule(r)
	if r.Priority != rule.DefaultPriority && r.Shadow {
		l.warn(NoEffect, r, r.Pos, "", "priority has no effect while the rule is in shadow")
	}
	if r.CostAfter != "" && r.Lyft != nil {
		l.warn(warnDescriptorDoor, r, r.Pos, "the proxy and the middleware see it",
			"cost_after: doors that ask with descriptors never see the response, so that cost stands")
	}
}

func (l *linter) waits(r *rule.Rule) {
	switch {
	case r.Wait == 0 && r.Defer == "":
		return
	case r.Lyft != nil:
		l.warn(warnDescriptorDoor, r, r.Pos, "the proxy can",
			"on_limit: doors that ask with descriptors cannot keep a request, and refuse it")
		return
	case r.Wait > longWait:
		l.warn(warnLongWait, r, r.Pos,
			"clients and proxies between give up earlier; on_limit: {defer: NAME} keeps a request without its connection", "on_limit.wait holds a request, and its connection, for up to %s", message.DaysOrMinutes(r.Wait))
	}
	var shortest time.Duration // until the first units come back, at the latest
	for _, w := range r.Windows {
		c := w.Limit.Config()
		if !c.Algorithm.ResetsAtOnce() && !c.RefillInterval {
			return
		}
		shortest = max(shortest, c.Window)
	}
	if r.Wait > 0 && shortest > 10*r.Wait {
		l.warn(warnUselessWait, r, r.Pos, "take token_bucket or sliding_log, which give back little by little",
			"on_limit.wait of %s rarely helps: what is used comes back all at once, at the end of the window of %s", r.Wait, message.DaysOrMinutes(shortest))
	}
}

// soonRefilled is for how long requests with a cost_after are taken to last.
const soonRefilled = 10 * time.Second

// commits warns of a cost that is known afterwards where the bucket hardly gives back an estimate.
func (l *linter) commits(r *rule.Rule) {
	if r.CostAfter == "" || r.Lyft != nil {
		return // doors that ask with descriptors see no answer, which has a warning of its own
	}
	const hint = "take sliding_window with buckets: 60, which gives back all that is too much"
	for _, w := range r.Windows {
		if w.Limit == nil {
			continue
		}
		c := w.Limit.Config()
		if !c.Algorithm.Refills() || c.N == 0 {
			continue
		}
		refilled := time.Duration(float64(r.Cost) * float64(c.Window) / float64(c.N))
		switch {
		case r.Elastic != nil:
			l.warn(warnCommitLost, r, r.Pos, hint,
				"cost_after: a token_bucket that follows a signal gives nothing back of an estimate")
		case c.RefillInterval && c.Window <= soonRefilled:
			l.warn(warnCommitLost, r, r.Pos, hint,
				"cost_after: nothing of an estimate comes back when a new interval of %s has begun", message.DaysOrMinutes(c.Window))
		case c.RefillInterval:
		case r.CostExpr != "" && len(r.Per) == 0:
			l.warn(warnCommitLost, r, r.Pos, hint,
				"cost_after: of an estimate the bucket gives back what it has not refilled since (%s), for one that all share nearly nothing", show(c))
		case r.CostExpr == "" && r.Cost > 1 && refilled <= soonRefilled:
			l.warn(warnCommitLost, r, r.Pos, hint,
				"cost_after: the bucket refills an estimate of %d in %s, and gives nothing of it back to a request that takes as long",
				r.Cost, message.DaysOrMinutes(max(refilled.Round(time.Millisecond), time.Millisecond)))
		}
	}
}

func (l *linter) bans(r *rule.Rule) {
	b := r.Ban
	if b == nil {
		return
	}
	// With the address in the key nobody can bring a ban upon somebody else.
	if !slices.ContainsFunc(r.Per, func(k rule.Key) bool { return slices.Equal(k, rule.Key{"ip"}) }) {
		for _, k := range r.Per {
			for _, attribute := range k {
				// Without the configuration it is not known whether the user is verified.
				unsure := forgeable(attribute) || l.unverified(attribute) != "" ||
					attribute == "user" && l.options.Identity == nil
				if unsure && !pinned(r, attribute) {
					l.warn(warnForgeableBan, r, r.Pos, "add ip to per, or be sure that the attribute is verified",
						"ban per %s: whoever sends the %s of somebody else can have them banned", attribute, attribute)
				}
			}
		}
	}
	if b.After >= largeLog {
		l.warn(warnLargeLog, r, r.Pos, "ban after fewer denials",
			"ban: counting %d denials needs up to %d KB for each key", b.After, b.After*5/1000)
	}
	var shortest time.Duration
	for _, w := range r.Windows {
		if c := w.Limit.Config(); shortest == 0 || c.Window < shortest {
			shortest = c.Window
		}
	}
	if b.For < shortest/10 {
		l.warn(warnBanTooShort, r, r.Pos, "ban for longer than the limit itself refuses",
			"ban.for of %s is short beside the window of %s, for which the limit refuses anyway", message.DaysOrMinutes(
				b.For), message.DaysOrMinutes(shortest))
	}
	if b.NFTables && !b.Domain {
		l.warn(warnKernelBan, r, r.Pos, "say so with scope: domain",
			"ban.at: nftables drops all packets of an address, not only what meets this limit")
	}
}

// forgeable reports whether any client can send any value of an attribute.
func forgeable(attribute string) bool {
	return strings.HasPrefix(attribute, "header.") || strings.HasPrefix(attribute, "query.") || attribute == "path" ||
		attribute == "host"
}

func (l *linter) elastic(r *rule.Rule) {
	e := r.Elastic
	if e == nil {
		return
	}
	if !slices.Contains(rule.Signals, e.Signal) {
		if near := suggest.Nearest(e.Signal, rule.Signals); near != "" {
			l.warn(warnUnknownSignal, r, e.Pos, "did you mean "+near+"? A signal that nobody pushes counts as 100%",
				"throttle.elastic: %s is no signal that the server knows of itself", e.Signal)
		}
	}
	if !slices.ContainsFunc(e.Curve, func(p rule.Point) bool { return p.Share != 100 }) {
		l.warn(warnFlatCurve, r, e.Pos, "leave elastic out",
			"throttle.elastic: the curve is flat at 100%%, so that nothing follows the signal")
	} else if !slices.ContainsFunc(e.Curve, func(p rule.Point) bool { return p.Share != 0 }) {
		l.warn(warnFlatCurve, r, e.Pos, "leave some of the limit",
			"throttle.elastic: the curve is flat at 0%%, so that nobody is ever admitted")
	}
}

func (l *linter) schedule(r *rule.Rule) {
	var reached minutesOfWeek
	for i := range r.Schedule {
		p := &r.Schedule[i]
		if !reached.add(p) {
			l.warn(NoEffect, r, p.Pos, "put the narrower one first",
				"schedule: %s is never reached, since what stands before it holds all that time", p.When())
		}
	}
	if len(r.Schedule) > 0 && reached.full() {
		l.warn(NoEffect, r, r.Schedule[len(r.Schedule)-1].Pos, "leave times to allow, or write the last entry as allow",
			"schedule: its entries hold at all times, so that allow never does")
	}
}
