package words

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/observe/recent"
	"github.com/weir-rl/weir/internal/util/human"
)

const instantFormat = "2006-01-02 15:04:05.000 MST"

// Decision describes in words how a request was decided, and why. Parts of that come from
// clients, rule files and other nodes: none of it steers the terminal.
func Decision(out io.Writer, e *recent.Entry) {
	id := e.ID.String()
	if id != "" {
		id += " "
	}
	fmt.Fprintf(out, "decision %sof %s\n", id, e.Time.UTC().Format(instantFormat))
	fmt.Fprintf(out, "domain %s", human.Printable(e.Domain))
	if e.Door != "" {
		fmt.Fprintf(out, ", through the door %s", human.Printable(e.Door))
	}
	fmt.Fprintf(out, ", by rule set %d\n\n%s\n", e.Generation, verdict(e))
	if len(e.Attributes) > 0 {
		var list []string
		for _, name := range slices.Sorted(maps.Keys(e.Attributes)) {
			list = append(list, human.Printable(name)+"="+human.Printable(e.Attributes[name]))
		}
		fmt.Fprintf(out, "\nThe rules looked at %s.\n", strings.Join(list, ", "))
	}
	if len(e.Limits) == 0 {
		fmt.Fprintln(out, "It met no limit.")
		return
	}
	var text strings.Builder
	for i := range e.Limits {
		l := &e.Limits[i]
		fmt.Fprintf(&text, "  %s\t%s\n", called(l, l.Name), limitPart(e, l))
		fmt.Fprintf(&text, "  \t%s (%s)", human.Printable(l.Allows), human.Printable(human.Algorithm(l.Algorithm)))
		if l.Key != "" {
			fmt.Fprintf(&text, " for %s", human.Printable(l.Key))
		} else {
			text.WriteString(" for all together")
		}
		fmt.Fprintf(&text, "; %d of %d remaining, %d asked for\n", l.Remaining, l.Limit, l.Asked)
		if l.File != "" {
			fmt.Fprintf(&text, "  \t%s:%d\n", human.Printable(l.File), l.Line)
		}
	}
	fmt.Fprintf(out, "\nlimits that it met:\n%s", Align(text.String()))
	if e.LimitsLeftOut > 0 {
		fmt.Fprintf(out, "and %s that the server had no room to remember\n",
			human.Plural(e.LimitsLeftOut, "more limit"))
	}
}

// called is how a limit is called: as Envoy's headers do where the rule has a name of its own, and
// by the name that the other commands take.
func called(l *recent.Limit, name string) string {
	name = human.Printable(name)
	if l.GivenName == "" {
		return name
	}
	return fmt.Sprintf("%s (%s)", human.Printable(l.GivenName), name)
}

// verdict is the outcome of the request.
func verdict(e *recent.Entry) string {
	var by []string
	for i := range e.Limits {
		if l := &e.Limits[i]; l.Refuses && !slices.Contains(by, called(l, l.Rule)) {
			by = append(by, called(l, l.Rule))
		}
	}
	names := strings.Join(by, " and ")
	switch {
	case e.Allowed && e.Delay > 0:
		return fmt.Sprintf("It was ADMITTED, to wait %s for its turn.", span(e.Delay))
	case e.Allowed:
		return "It was ADMITTED."
	case e.Banned:
		return fmt.Sprintf("It was REFUSED outright, since its key was banned by %s. It can pass %s later, at %s.",
			names, span(e.RetryAfter), after(e, e.RetryAfter))
	case len(e.Limits) > 0 && e.Limits[0].Name == weir.UnknownDomainLimit && e.Limits[0].File == "":
		return fmt.Sprintf("It was REFUSED, since no rule file declares the domain %s (unknown_domain: deny).",
			human.Printable(e.Domain))
	case e.RetryAfter == algo.Never:
		return fmt.Sprintf("It was REFUSED by %s, and can never pass: it asks for more than the limit holds.", names)
	}
	return fmt.Sprintf("It was REFUSED by %s. The same request would have passed %s later, at %s.", names,
		span(e.RetryAfter), after(e, e.RetryAfter))
}

// limitPart describes a limit's part in the decision.
func limitPart(e *recent.Entry, l *recent.Limit) string {
	late := "; it would never have passed it"
	if l.RetryAfter != algo.Never {
		late = fmt.Sprintf("; it would have passed it %s later", span(l.RetryAfter))
	}
	switch {
	case l.Refuses && e.Banned:
		return "refused it: the key was banned"
	case l.Refuses:
		return "refused it" + late
	case !l.Allowed && l.Mode == "shadow":
		return "in shadow: would have refused it" + late
	case !l.Allowed:
		return "its quota was used up, and others' was not" + late
	case l.Mode == "shadow":
		return "in shadow: would have passed it"
	case !e.Allowed:
		return "would have passed it; nothing was charged"
	case l.Soft:
		return fmt.Sprintf("passed it above the limit, in the soft margin up to %d", l.SoftLimit)
	case l.NearLimit:
		return "passed it, near the limit"
	}
	return "passed it"
}

func after(e *recent.Entry, s recent.Seconds) string {
	return e.Time.Add(time.Duration(s) * time.Microsecond).UTC().Format(instantFormat)
}

// DecisionLine is a decision in a line.
func DecisionLine(d *recent.Entry) string {
	outcome := human.Visible(d.Outcome)
	if d.Banned {
		outcome = "banned"
	}
	parts := []string{d.Time.UTC().Format("2006-01-02T15:04:05.000Z"), outcome}
	if text := strings.TrimSpace(d.Attributes["method"] + " " + d.Attributes["path"]); text != "" {
		parts = append(parts, human.Visible(text))
	} else if d.Door != "" {
		parts = append(parts, "by "+human.Visible(d.Door))
	}
	for i := range d.Limits { // the first one made the outcome
		if l := &d.Limits[i]; i == 0 || l.Refuses {
			if l.Key != "" {
				parts = append(parts, human.Visible(l.Key))
			}
			parts = append(parts, human.Visible(d.Domain+"/"+l.Name))
		}
	}
	switch {
	case d.Allowed:
	case d.RetryAfter < 0:
		parts = append(parts, "never again")
	default:
		parts = append(parts, "again in "+span(d.RetryAfter))
	}
	if d.ID != 0 { // one whose key is masked has none
		parts = append(parts, d.ID.String())
	}
	if d.Node != "" {
		parts = append(parts, "on "+human.Visible(d.Node))
	}
	return strings.Join(parts, "  ")
}
