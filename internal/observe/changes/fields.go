package changes

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/observe/insight/judge"
	"github.com/weir-rl/weir/rule"
)

// field is what a rule file says of a rule under one key.
type field struct {
	name string
	text func(r *rule.Rule) string // "" where the key is not there, or says the default
}

// fields are all that can change how a rule decides, in the order in which changes are listed.
var fields = []field{
	{"allow", allowOf},
	{"enforce", func(r *rule.Rule) string {
		if r.EnforcePercent == 100 {
			return "all"
		}
		return fmt.Sprint(r.EnforcePercent, "%")
	}},
	{"on_limit", onLimitOf},
	{"shadow_mode", func(r *rule.Rule) string { return flag(r.Lyft != nil && r.Lyft.Shadow) }},
	{"quota_mode", func(r *rule.Rule) string { return flag(r.Lyft != nil && r.Lyft.Quota) }},
	{"when", func(r *rule.Rule) string {
		list := make([]string, len(r.When))
		for i := range r.When {
			list[i] = conditionText(&r.When[i])
		}
		return strings.Join(list, "; ")
	}},
	{"if", func(r *rule.Rule) string { return r.If }},
	{"paths", func(r *rule.Rule) string {
		if r.ExactPaths && r.Lyft == nil {
			return "exact"
		}
		return ""
	}},
	{"per", func(r *rule.Rule) string {
		list := make([]string, len(r.Per))
		for i, k := range r.Per {
			list[i] = strings.Join(k, "|")
		}
		return strings.Join(list, ", ")
	}},
	{"algorithm", algorithmOf},
	{"schedule", func(r *rule.Rule) string {
		list := make([]string, len(r.Schedule))
		for i, p := range r.Schedule {
			list[i] = p.String()
		}
		return strings.Join(list, "; ")
	}},
	{"override", overridesOf},
	{"cost", func(r *rule.Rule) string {
		if r.CostExpr != "" {
			return r.CostExpr
		}
		return fmt.Sprint(r.Cost)
	}},
	{"cost_min", func(r *rule.Rule) string { return number(r.CostMin) }},
	{"cost_after", func(r *rule.Rule) string { return r.CostAfter }},
	{"cost_timeout", func(r *rule.Rule) string {
		if r.CostTimeout == rule.DefaultCostTimeout {
			return ""
		}
		return r.CostTimeout.String()
	}},
	{"throttle", func(r *rule.Rule) string {
		if r.Elastic == nil {
			return ""
		}
		text := "elastic " + r.Elastic.Signal
		for _, p := range r.Elastic.Curve {
			text += fmt.Sprintf(", %d%%: %d%%", p.At, p.Share)
		}
		return text
	}},
	{"warn", func(r *rule.Rule) string { return fmt.Sprint(r.WarnPercent, "%") }},
	{"replaces", func(r *rule.Rule) string { return strings.Join(r.Replaces, ", ") }},
	{"priority", func(r *rule.Rule) string {
		return map[rule.Priority]string{rule.Critical: "critical", rule.Sheddable: "sheddable"}[r.Priority]
	}},
	{"ban", banOf},
	{"on_store_error", func(r *rule.Rule) string {
		return map[rule.StoreErrorPolicy]string{rule.AllowAll: "allow", rule.DenyAll: "deny"}[r.OnStoreError]
	}},
	{"consistency", consistencyOf},
	{"response", responseOf},
	{"rate_limit.name", func(r *rule.Rule) string {
		if r.Lyft == nil {
			return ""
		}
		return r.Lyft.LimitName
	}},
	{"descriptor", func(r *rule.Rule) string {
		if r.Lyft == nil {
			return ""
		}
		list := make([]string, len(r.Lyft.Path))
		for i, e := range r.Lyft.Path {
			list[i] = e.Key
			if e.Value != "" {
				list[i] += "=" + e.Value
			}
		}
		return strings.Join(list, " → ")
	}},
}

func flag(set bool) string {
	if set {
		return "true"
	}
	return ""
}

func number(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

// allowOf writes the limits of a rule.
func allowOf(r *rule.Rule) string { return ratesOf(r.Windows, r.Unlimited) }

func ratesOf(windows []*rule.Window, unlimited bool) string {
	if unlimited || len(windows) == 0 {
		return "unlimited"
	}
	list := make([]string, len(windows))
	for i, w := range windows {
		if list[i] = "unlimited"; w.Limit == nil {
			continue
		}
		c := w.Limit.Config()
		if list[i] = judge.RateText(c); c.Algorithm.HasSlots() {
			list[i] += " concurrent"
		}
		// A burst that is no other than its rate is not written.
		if c.Algorithm.HasBurst() && c.Burst != c.N {
			list[i] += fmt.Sprintf(" burst %d", max(0, c.Burst))
		}
	}
	return strings.Join(list, ", ")
}

// algorithmOf writes how the limits of a rule count, beside their numbers.
func algorithmOf(r *rule.Rule) string {
	var list []string
	for _, w := range r.Windows {
		if w.Limit == nil {
			continue
		}
		if text := algorithmText(w.Limit.Config()); !slices.Contains(list, text) {
			list = append(list, text)
		}
	}
	return strings.Join(list, "; ")
}

func algorithmText(c algo.Config) string {
	parts := []string{c.Algorithm.String()}
	add := func(is bool, format string, args ...any) {
		if is {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	add(c.Buckets > 1, "buckets %d", c.Buckets)
	add(c.Calendar != algo.NoCalendar && c.Location != nil, "timezone %v", c.Location)
	add(c.FirstRequest, "align first_request")
	add(c.RefillInterval, "refill interval")
	add(c.CountDenied, "count_denied")
	add(c.Algorithm.HasSlots(), "timeout %v", c.Timeout)
	add(c.Soft > 0, "soft %d%%", c.Soft)
	add(c.SoftFor > 0, "for %v", c.SoftFor)
	return strings.Join(parts, ", ")
}

func conditionText(c *rule.Condition) string {
	list := make([]string, len(c.Patterns))
	for i := range c.Patterns {
		list[i] = c.Patterns[i].Source
	}
	return c.Attribute + " " + strings.Join(list, ", ")
}

func onLimitOf(r *rule.Rule) string {
	switch {
	case r.Shadow:
		return "shadow"
	case r.Wait > 0 && r.WaitQueue > 0 && r.WaitQueue != rule.DefaultWaitQueue:
		return fmt.Sprintf("wait %v, queue %d", r.Wait, r.WaitQueue)
	case r.Wait > 0:
		return fmt.Sprintf("wait %v", r.Wait)
	case r.Defer != "":
		return "defer " + r.Defer
	}
	return "reject"
}

func overridesOf(r *rule.Rule) string {
	list := make([]string, len(r.Overrides))
	for i := range r.Overrides {
		o := &r.Overrides[i]
		list[i] = strings.Join(o.Values, ", ") + " " + ratesOf(o.Windows, o.Unlimited)
	}
	return strings.Join(list, "; ")
}

// consistencyOf leaves out what leases the settings of the server bring.
func consistencyOf(r *rule.Rule) string {
	if x := r.Regions; x != nil {
		return fmt.Sprintf("regions over %d%%, sync %t, tell %d%%", x.Over, x.Sync, x.Tell)
	}
	for _, w := range r.Windows {
		if w.Limit == nil || r.Lent {
			continue
		}
		if c := w.Limit.Config(); c.Lease > 0 && c.LeaseFor > 0 {
			return fmt.Sprintf("lease %d%% for %v", c.Lease, c.LeaseFor)
		} else if c.Lease > 0 {
			return fmt.Sprintf("lease %d%%", c.Lease)
		}
	}
	return ""
}

func banOf(r *rule.Rule) string {
	b := r.Ban
	if b == nil {
		return ""
	}
	text := fmt.Sprintf("after %d/%v for %v", b.After, b.Within, b.For)
	if b.Domain {
		text += ", scope domain"
	}
	if b.NFTables {
		text += ", at nftables"
	}
	return text
}

func responseOf(r *rule.Rule) string {
	x := r.Response
	if x == nil {
		return ""
	}
	var list []string
	if x.Status != 0 {
		list = append(list, fmt.Sprint("status ", x.Status))
	}
	for _, f := range x.Headers {
		list = append(list, f.Name+": "+f.Value.Source)
	}
	if x.ContentType != "" {
		list = append(list, x.ContentType)
	}
	if x.JSON {
		list = append(list, "json")
	}
	if x.Body.Source != "" {
		list = append(list, x.Body.Source)
	}
	for _, b := range x.Bodies {
		list = append(list, b.MediaType+" "+b.Text.Source)
	}
	return strings.Join(list, ", ")
}
