package main

import (
	"context"
	"encoding/json"
	"errors"
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

// explainDecision explains a decision by its id, from the memory of a running server.
func explainDecision(ctx context.Context, o explainOptions, args []string, out io.Writer) error {
	if len(args) > 0 {
		return usageError(errors.New("--id asks for a decision that was made; leave the attributes out"))
	}
	id, err := weir.ParseDecisionID(o.id)
	if err != nil {
		return usageError(fmt.Errorf("--id: %w", err))
	}
	c := &o.admin
	if c.Address == "" {
		c.Address = defaultAdmin
	}
	if err := c.open(); err != nil {
		return err
	}
	var raw json.RawMessage
	if err := c.Do(ctx, "GET", "/api/v1/decisions/"+id.String(), nil, &raw); err != nil {
		return err
	}
	if o.json {
		_, err := out.Write(raw)
		return err
	}
	var e recent.Entry
	if err := json.Unmarshal(raw, &e); err != nil {
		return fmt.Errorf("%s answered with something else than a decision: %w", c.Name(), err)
	}
	writeDecision(out, &e)
	return nil
}

const instantFormat = "2006-01-02 15:04:05.000 MST"

// writeDecision describes in words how a request was decided, and why. Parts of that come from
// clients, rule files and other nodes: none of it steers the terminal.
func writeDecision(out io.Writer, e *recent.Entry) {
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
	fmt.Fprintf(out, "\nlimits that it met:\n%s", align(text.String()))
	if e.LimitsLeftOut > 0 {
		fmt.Fprintf(out, "and %s that the server had no room to remember\n", count(e.LimitsLeftOut, "more limit"))
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

func span(s recent.Seconds) string { return human.Span(time.Duration(s) * time.Microsecond) }

func after(e *recent.Entry, s recent.Seconds) string {
	return e.Time.Add(time.Duration(s) * time.Microsecond).UTC().Format(instantFormat)
}
