package words

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/admin"
	"github.com/weir-rl/weir/internal/util/human"
	"github.com/weir-rl/weir/rule"
)

// Hit says in words how much a limit allows at an instant, and for which key.
func Hit(h *rule.Hit, now time.Time) string {
	var b strings.Builder
	limit, _ := h.Limit.At(now.UnixMicro())
	if limit == nil {
		return "not limited at this time of its schedule"
	}
	b.WriteString(Limit(limit, h.Window.Rule))
	if h.Limit.Scheduled() {
		b.WriteString(" at this time of its schedule")
	}
	if parts := h.Window.KeyParts(h.Key); len(parts) > 0 {
		fmt.Fprintf(&b, " for %s", strings.Join(parts, ", "))
	} else {
		b.WriteString(" for all together")
	}
	if h.Cost != 1 {
		fmt.Fprintf(&b, "; costs %d", h.Cost)
	}
	if lyft := h.Window.Rule.Lyft; lyft != nil && lyft.LimitName != "" {
		fmt.Fprintf(&b, "; named %s in Envoy's headers", lyft.LimitName)
	}
	if h.Mode == rule.Shadow {
		b.WriteString("; in shadow: counted, never refused")
	}
	return b.String()
}

// Limit says in words how much a limit of r allows.
func Limit(limit *algo.Limit, r *rule.Rule) string {
	c := limit.Config()
	var b strings.Builder
	if c.Algorithm.HasSlots() {
		fmt.Fprintf(&b, "%d in flight", c.N)
	} else {
		fmt.Fprintf(&b, "%d per %s", c.N, c.Period())
		if c.Algorithm.HasBurst() {
			fmt.Fprintf(&b, ", burst %d", max(c.Burst, 0))
		}
	}
	if c.Soft > 0 {
		fmt.Fprintf(&b, ", soft margin %d %%", c.Soft)
		if c.SoftFor > 0 {
			fmt.Fprintf(&b, " for %s", human.Span(c.SoftFor))
		}
	}
	fmt.Fprintf(&b, " (%s)", human.Algorithm(c.Algorithm.String()))
	switch lease := limit.Lease(); {
	case lease == nil:
	case r.Lent && r.Regions != nil:
		fmt.Fprintf(&b, ", up to %d %% of a region's part of it lent to other regions for %s", c.Lease,
			human.Span(lease.Config().Timeout))
	default:
		fmt.Fprintf(&b, ", up to %d %% of it leased for %s", c.Lease, human.Span(lease.Config().Timeout))
	}
	return b.String()
}

// Rule describes in words, one line each, the settings of a rule besides its numbers.
func Rule(r *rule.Rule) []string {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for _, p := range r.Schedule {
		add("schedule: %s", p)
	}
	if e := r.Elastic; e != nil {
		var points []string
		for _, p := range e.Curve {
			points = append(points, fmt.Sprintf("%d %% at %d %%", p.Share, p.At))
		}
		add("elastic: follows the signal %s: %s of the limit", e.Signal, strings.Join(points, ", "))
	}
	switch {
	case r.Wait > 0 && r.WaitQueue > 0:
		add("refused requests wait for up to %s, up to %d of a key", human.Span(r.Wait), r.WaitQueue)
	case r.Wait > 0:
		add("requests wait for up to %s", human.Span(r.Wait))
	case r.Defer != "":
		add("refused requests are deferred to the queue %s", r.Defer)
	}
	if b := r.Ban; b != nil {
		where := "wherever this limit applies"
		if b.Domain {
			where = "everywhere in the domain"
		}
		if b.NFTables {
			where += ", and by nftables"
		}
		refuse := "refuse"
		if b.After == 1 {
			refuse = "refuses"
		}
		add("ban: %s within %s %s the key for %s %s", human.Plural(int(b.After), "denial"), human.Span(b.Within),
			refuse, human.Span(b.For), where)
	}
	if leased(r) {
		add(
			"consistency: servers decide by units that they are leased; where they hold none, the store decides exactly")
	}
	if of := r.Regions; of != nil {
		together := fmt.Sprintf("together the regions admit up to %d %% more than the limit", of.Over)
		switch {
		case of.Sync:
			together = "each region admits the limit by itself, less what it has heard that others used"
		case of.Over == 0:
			together = "the regions share the limit, and together never admit more"
		}
		add("regions: %s", together)
	}
	switch r.Priority {
	case rule.Critical:
		add("priority: critical")
	case rule.Sheddable:
		add("priority: sheddable")
	}
	if r.CostAfter != "" {
		add("the real cost is known afterwards: %s", r.CostAfter)
	}
	return lines
}

// leased reports whether servers lease of a limit of r.
func leased(r *rule.Rule) bool {
	return !r.Lent && slices.ContainsFunc(r.Windows,
		func(w *rule.Window) bool { return w.Counter != nil && w.Counter.Lease != nil })
}

// Lifts names, behind "; ", the rules that r lifts; "" if it lifts none.
func Lifts(r *rule.Rule) string {
	if len(r.Replaces) == 0 {
		return ""
	}
	return "; lifts " + strings.Join(r.Replaces, ", ")
}

// ElasticShare says how much of an elastic limit holds now; "" if that is not known.
func ElasticShare(r *rule.Rule, signals []admin.SignalState) string {
	if r.Elastic == nil {
		return ""
	}
	at := slices.IndexFunc(signals, func(s admin.SignalState) bool { return s.Name == r.Elastic.Signal })
	switch {
	case at < 0:
		return ""
	case signals[at].Value == nil:
		return fmt.Sprintf("the signal %s has no value, so all of the limit holds", r.Elastic.Signal)
	}
	num, den := r.Elastic.Share(*signals[at].Value)
	return fmt.Sprintf("the signal %s stands at %d %%, so %d %% of the limit hold", r.Elastic.Signal,
		*signals[at].Value, 100*num/den)
}
