package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/util/human"
)

// refusesVerb returns the verb for the rule's effect on requests.
func refusesVerb(r *insight.RuleReport) string {
	if r.Mode == "shadow" {
		return "would refuse"
	}
	return "refuses"
}

// statuses lists the refused requests by their status in the log: "200: 134, 301: 6, none: 2".
func statuses(r *insight.RuleReport) string {
	refused := r.Refused + r.WouldRefuse
	if refused == 0 || len(r.By["status"]) == 0 {
		return ""
	}
	var parts []string
	known := uint64(0)
	for i, c := range r.By["status"] {
		known += c.Count
		if i < 6 {
			parts = append(parts, fmt.Sprintf("%s: %s", c.Value, human.Number(c.Count)))
		}
	}
	if n := len(r.By["status"]); n > 6 {
		parts = append(parts, fmt.Sprintf("%d others", n-6))
	}
	if refused > known {
		parts = append(parts, "not told: "+human.Number(int64(refused-known)))
	}
	return strings.Join(parts, ", ")
}

// fillNames are the bins of a fill histogram.
var fillNames = [11]string{"0–10", "10–20", "20–30", "30–40", "40–50", "50–60", "60–70", "70–80", "80–90", "90–100",
	"> 100"}

// fillEdges are the lower ends of the bins, for bars that are too narrow for more.
var fillEdges = [11]string{"0", "10", "20", "30", "40", "50", "60", "70", "80", "90", "> 100"}

// fills lists the bins of the fill histogram that hold keys: "0–10 %: 430, > 100 %: 3".
func fills(r *insight.RuleReport) string {
	var parts []string
	for i, n := range r.Fill {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%s %%: %s", fillNames[i], human.Number(n)))
		}
	}
	if parts == nil {
		return ""
	}
	return strings.Join(parts, ", ") + fmt.Sprintf("; the fullest used %.0f %%", 100*r.MaxFill)
}

// tallied writes counts by name, the largest first.
func tallied(counts map[string]int) []string {
	var names []string
	for name := range counts {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		if counts[a] != counts[b] {
			return counts[b] - counts[a]
		}
		return strings.Compare(a, b)
	})
	for i, name := range names {
		names[i] = fmt.Sprintf("%d %s", counts[name], name)
	}
	return names
}
