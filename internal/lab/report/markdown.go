package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/weir-rl/weir/internal/lab/sim"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/util/human"
)

// toldLimits bounds the rows of a comment, which may have 65,536 characters at most.
const toldLimits = 100

// Markdown writes r as a comment on a change of rules: what it would have refused, and of which
// limits. It holds numbers, the names of rules and limits, and the names of the rule sets: no
// client, key or path of the log, since many may read it.
func Markdown(w io.Writer, r *sim.Report) error {
	var b strings.Builder
	fmt.Fprintf(&b, "### Rules on %s\n\n", human.Count(r.Requests, "request"))
	if r.Requests > 0 {
		fmt.Fprintf(&b, "From %s, %s.\n\n", human.Count(r.Clients, "client"), period(r))
		sets := []*sim.Outcome{&r.Outcome}
		if r.Compare != nil {
			sets = append(sets, &r.Compare.Outcome)
		}
		writeSets(&b, r, sets)
		writeLimits(&b, sets)
		writeChangedVerdicts(&b, sets)
	}
	last := &r.Outcome
	if r.Compare != nil {
		last = &r.Compare.Outcome
	}
	for _, f := range last.Failures { // what failed may quote a value
		fmt.Fprintf(&b, "\n%s: its %s failed %s times.\n", code(f.Rule), code(f.Key), human.Number(f.Count))
	}
	if r.Skipped > 0 {
		fmt.Fprintf(&b, "\n%s of the log did not parse (%.1f %%).\n", human.Count(r.Skipped, "line"), r.SkippedShare)
	}
	if r.Late > 0 {
		fmt.Fprintf(&b, "\n%s replayed at the newest time seen.\n", lay(r.Late))
	}
	if r.Estimated {
		b.WriteString("\nNumbers of clients and keys are estimates.\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// tableRow writes a row of a table.
func tableRow(b *strings.Builder, cells ...string) {
	b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
}

// tableHead writes the head of a table, and the line below it: the first column is text, others are
// numbers.
func tableHead(b *strings.Builder, cells ...string) {
	tableRow(b, cells...)
	b.WriteString("| ---" + strings.Repeat(" | ---:", len(cells)-1) + " |\n")
}

// code shows a name as it is, whatever it holds. In a table a bar needs its backslash there, too.
func code(name string) string {
	name = strings.NewReplacer("`", "'", "|", `\|`, `\`, "/").Replace(clean(name))
	if name == "" {
		return "–"
	}
	return "`" + name + "`"
}

// writeSets writes how many requests each rule set would have refused.
func writeSets(b *strings.Builder, r *sim.Report, sets []*sim.Outcome) {
	cells := func(first string, cell func(o *sim.Outcome) string) []string {
		row := []string{first}
		for _, o := range sets {
			row = append(row, cell(o))
		}
		return row
	}
	tableHead(b, cells("", func(o *sim.Outcome) string { return code(o.Rules) })...)
	tableRow(b, cells("requests refused", func(o *sim.Outcome) string {
		return fmt.Sprintf("%s (%s)", human.Number(o.Denied), percent(o.Denied, r.Requests))
	})...)
	if c := r.Compare; c != nil {
		tableRow(b, "by these rules alone", human.Number(c.OnlyFirst), human.Number(c.OnlySecond))
	}
	if r.Clients > 0 {
		tableRow(b, cells("clients refused", func(o *sim.Outcome) string { return human.Number(o.ClientsDenied) })...)
	}
	tableRow(b, cells("requests without a limit", func(o *sim.Outcome) string { return human.Number(o.Unlimited) })...)
}

// writeLimits writes the limits that refuse, or, of two rule sets, those that differ.
func writeLimits(b *strings.Builder, sets []*sim.Outcome) {
	var names []string
	byName := map[string][2]*sim.Limit{}
	for i, o := range sets {
		for k := range o.Limits {
			l := &o.Limits[k]
			pair, known := byName[l.Name]
			if !known {
				names = append(names, l.Name)
			}
			pair[i] = l
			byName[l.Name] = pair
		}
	}
	var rows [][]string
	same := 0
	for _, name := range names {
		pair := byName[name]
		cells := []string{code(name)}
		for _, l := range pair[:len(sets)] {
			cells = append(cells, limitCells(l)...)
		}
		if len(sets) == 1 && pair[0].Denied+pair[0].Banned == 0 || len(sets) == 2 && sameCells(cells[1:]) {
			same++
			continue
		}
		rows = append(rows, cells)
	}
	if len(rows) > 0 {
		titles := []string{"limit", "each key", "refuses", "keys"}
		if len(sets) == 2 {
			titles = []string{"limit", "each key before", "refuses", "keys", "each key after", "refuses", "keys"}
		}
		b.WriteByte('\n')
		tableHead(b, titles...)
		for _, cells := range rows[:min(len(rows), toldLimits)] {
			tableRow(b, cells...)
		}
	}
	if more := len(rows) - toldLimits; more > 0 {
		fmt.Fprintf(b, "\n%s more.\n", human.Plural(more, "limit"))
	}
	switch {
	case same == 0:
	case len(sets) == 1:
		fmt.Fprintf(b, "\n%s would have refused nothing.\n", human.Plural(same, "limit"))
	default:
		fmt.Fprintf(b, "\n%s would have refused as much as before.\n", human.Plural(same, "limit"))
	}
}

// limitCells are what a limit allows and refuses, and of how many of its keys; l is nil where a
// rule set has no such limit.
func limitCells(l *sim.Limit) []string {
	if l == nil {
		return []string{"–", "–", "–"}
	}
	allows := allowance(l)
	if l.Shadow {
		allows += ", in shadow"
	}
	refuses := human.Number(l.Denied)
	if l.Banned > 0 {
		refuses += ", and its ban " + human.Number(l.Banned)
	}
	return []string{allows, refuses, fmt.Sprintf("%s of %s", human.Number(l.KeysDenied), human.Number(l.Keys))}
}

// sameCells reports whether both halves of the cells are alike.
func sameCells(cells []string) bool {
	for i := range len(cells) / 2 {
		if cells[i] != cells[len(cells)/2+i] {
			return false
		}
	}
	return true
}

// writeChangedVerdicts writes the verdicts that need somebody, or, of two rule sets, the verdicts
// that differ.
func writeChangedVerdicts(b *strings.Builder, sets []*sim.Outcome) {
	before := map[string]string{}
	if len(sets) == 2 {
		for i := range sets[0].ByRule {
			if r := &sets[0].ByRule[i]; len(r.Verdicts) > 0 {
				before[r.Name] = r.Verdicts[0].Verdict
			}
		}
	}
	var lines []string
	reports := sets[len(sets)-1].ByRule
	for i := range reports {
		r := &reports[i]
		if len(r.Verdicts) == 0 {
			continue
		}
		now := r.Verdicts[0].Verdict
		was, known := before[r.Name]
		switch {
		case now == insight.TooEarly, len(sets) == 1 && !insight.Alarming(now), known && was == now:
		case known && was != insight.TooEarly:
			lines = append(lines, fmt.Sprintf("- %s: %s, was %s\n", code(r.Name), human.Verdict(now), human.Verdict(was)))
		default:
			lines = append(lines, fmt.Sprintf("- %s: %s\n", code(r.Name), human.Verdict(now)))
		}
	}
	if len(lines) == 0 {
		return
	}
	b.WriteString("\nVerdicts on this log:\n")
	for _, line := range lines[:min(len(lines), toldRules)] {
		b.WriteString(line)
	}
	if more := len(lines) - toldRules; more > 0 {
		fmt.Fprintf(b, "- %s more\n", human.Plural(more, "rule"))
	}
}
