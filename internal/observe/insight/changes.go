package insight

import (
	"fmt"
	"strings"

	"github.com/weir-rl/weir/internal/util/human"
)

// RuleChanges says what changed as other rules came into force: the first changes, and how many
// there are more.
type RuleChanges struct {
	Changes []RuleChange `json:"changes,omitempty"`
	More    int          `json:"more_changes,omitempty"`
}

// Bounds of RuleChanges.
const (
	MostChanges = 20  // rules
	MostFields  = 8   // of a rule
	MostValue   = 120 // bytes of a value, and of a name
)

// RuleChange says what changed in a rule.
type RuleChange struct {
	Domain string `json:"domain"`
	Rule   string `json:"rule,omitempty"` // "" if it is the domain, as by exempt
	Change string `json:"change"`         // one of Added, Removed and Changed
	// Fields are the fields that differ. An added rule has its limits here, and so has a removed
	// one.
	Fields []FieldChange `json:"fields,omitempty"`
}

// The values of RuleChange.Change.
const (
	Added   = "added"
	Removed = "removed"
	Changed = "changed"
)

// FieldChange is a field of a rule with its value before and after: "" where there is none.
type FieldChange struct {
	Field  string `json:"field"` // as rule files call it
	Before string `json:"before"`
	After  string `json:"after"`
}

// String says it in one line: "shop/images: allow 600/min → 700/min".
func (c RuleChange) String() string {
	var b strings.Builder
	b.WriteString(human.Visible(c.Domain))
	if c.Rule != "" {
		b.WriteString("/" + human.Visible(c.Rule))
	}
	b.WriteString(":")
	if c.Change != Changed {
		b.WriteString(" " + c.Change)
	}
	value := func(s string) string {
		if s == "" {
			return "none"
		}
		return human.Visible(s)
	}
	for i, f := range c.Fields {
		if i > 0 || c.Change != Changed {
			b.WriteString(",")
		}
		switch c.Change {
		case Added:
			fmt.Fprintf(&b, " %s %s", f.Field, value(f.After))
		case Removed:
			fmt.Fprintf(&b, " %s %s", f.Field, value(f.Before))
		default:
			fmt.Fprintf(&b, " %s %s → %s", f.Field, value(f.Before), value(f.After))
		}
	}
	return b.String()
}

// Lines says each change in one line.
func (c RuleChanges) Lines() (list []string) {
	for _, x := range c.Changes {
		list = append(list, x.String())
	}
	if c.More > 0 {
		list = append(list, fmt.Sprintf("and %s", human.Count(uint64(c.More), "more change")))
	}
	return list
}

// plainFields are the fields whose values can name no client: numbers, words that rule files fix,
// and names that operators give. An expression, a condition or a text may hold a key.
var plainFields = map[string]bool{
	"allow": true, "enforce": true, "on_limit": true, "shadow_mode": true, "quota_mode": true, "paths": true,
	"per": true, "algorithm": true, "schedule": true, "cost_min": true, "cost_after": true, "cost_timeout": true, "throttle": true,
	"warn": true, "replaces": true, "priority": true, "ban": true, "on_store_error": true, "consistency": true,
	"groups": true,
}

// Masked returns the changes without the values of fields that may name clients.
func (c RuleChanges) Masked() RuleChanges {
	out := RuleChanges{More: c.More}
	for _, x := range c.Changes {
		fields := make([]FieldChange, len(x.Fields))
		for i, f := range x.Fields {
			if fields[i] = f; !plainFields[f.Field] {
				fields[i].Before, fields[i].After = hideValue(f.Before), hideValue(f.After)
			}
		}
		x.Fields = fields
		out.Changes = append(out.Changes, x)
	}
	return out
}

// hideValue hides a value, unless it is a number.
func hideValue(s string) string {
	if strings.Trim(s, "0123456789") == "" {
		return s
	}
	return "…"
}
