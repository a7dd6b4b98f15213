package report

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/weir-rl/weir/internal/lab/sim"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/util/human"
)

// Text writes r for a terminal.
func Text(w io.Writer, r *sim.Report) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s from %s, %s\n", human.Count(r.Requests, "request"), human.Count(r.Clients, "client"), period(r))
	for _, s := range provisos(r) {
		fmt.Fprintf(&b, "Note: %s\n", s)
	}
	if len(r.Limits) > 0 || r.Compare != nil {
		if r.Compare == nil {
			writeOutcome(&b, r, &r.Outcome)
		} else {
			fmt.Fprintf(&b, "\n=== %s\n", r.Rules)
			writeOutcome(&b, r, &r.Outcome)
			fmt.Fprintf(&b, "\n=== %s\n", r.Compare.Rules)
			writeOutcome(&b, r, &r.Compare.Outcome)
			c := r.Compare
			fmt.Fprintf(&b, "\n=== beside each other\n")
			writeTable(&b, []string{"", "requests"}, [][]string{
				{"refused by both", human.Number(c.Both)},
				{"only by " + r.Rules, human.Number(c.OnlyFirst)},
				{"only by " + c.Rules, human.Number(c.OnlySecond)},
			})
		}
	}
	if len(r.Timeline.Requests) > 1 {
		fmt.Fprintf(&b, "\nover time, %s to %s\n", when(r.From), when(r.To))
		rows := [][]string{{"  requests", sparkline(r.Timeline.Requests)}}
		if r.Denied > 0 {
			rows = append(rows, []string{"  refused", sparkline(r.Timeline.Denied)})
		}
		if r.Compare != nil && r.Compare.Denied > 0 {
			rows = append(rows, []string{"  refused by " + r.Compare.Rules, sparkline(r.Timeline.DeniedOther)})
		}
		width := 0
		for _, row := range rows {
			width = max(width, utf8.RuneCountInString(row[0]))
		}
		for _, row := range rows {
			fmt.Fprintf(&b, "%s%s  %s\n", row[0], strings.Repeat(" ", width-utf8.RuneCountInString(row[0])), row[1])
		}
	}
	if s := r.Suggestions; s != nil {
		if s.YAML == "" {
			b.WriteString("\nToo few clients and users to suggest limits from.\n")
		} else {
			fmt.Fprintf(&b, "\nsuggested limits, to paste into a rule file:\n\n%s", s.YAML)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func writeOutcome(b *strings.Builder, r *sim.Report, o *sim.Outcome) {
	fmt.Fprintf(b, "\nwould be refused: %s of %s (%s), of %s\n", human.Number(o.Denied),
		human.Count(r.Requests, "request"), percent(o.Denied, r.Requests), human.Count(o.ClientsDenied, "client"))
	for _, s := range sentences(r, o)[1:] {
		fmt.Fprintln(b, s)
	}
	b.WriteByte('\n')
	var rows [][]string
	for _, l := range o.Limits {
		name := l.Name
		if l.Shadow {
			name += " (shadow)"
		}
		rows = append(rows, []string{name, allowance(&l), human.Number(l.Allowed), human.Number(l.Denied),
			percent(l.Denied, l.Allowed+l.Denied), human.Number(l.Keys), human.Number(l.KeysDenied)})
	}
	writeTable(b, []string{"limit", "each key", "allowed", "denied", "", "keys", "denied"}, rows)
	writeVerdicts(b, o)
	if len(o.TopDenied) > 0 {
		rows = nil
		for _, c := range o.TopDenied[:min(10, len(o.TopDenied))] {
			rows = append(rows, []string{clean(c.Value), "", human.Number(c.Requests), human.Number(c.Denied),
				percent(c.Denied, c.Requests)})
		}
		b.WriteByte('\n')
		writeTable(b, []string{"most refused clients", "", "requests", "denied", ""}, rows)
	}
}

// toldRules bounds the rules that are described one by one. Of more rules, only those that need
// attention are.
const toldRules = 30

// writeVerdicts writes the verdicts on each rule.
func writeVerdicts(b *strings.Builder, o *sim.Outcome) {
	left := map[string]int{}
	for i := range o.ByRule {
		r := &o.ByRule[i]
		if len(r.Verdicts) == 0 {
			continue
		}
		if len(o.ByRule) > toldRules && !insight.Alarming(r.Verdicts[0].Verdict) {
			left[human.Verdict(r.Verdicts[0].Verdict)]++
			continue
		}
		for k, v := range r.Verdicts {
			head := "\n"
			if k > 0 {
				head = ""
			}
			b.WriteString(head)
			writeWrapped(b, "", fmt.Sprintf("%s: %s. %s", clean(r.Name), human.Verdict(v.Verdict), clean(v.Sentence)))
			if p := v.Proposal; p != nil {
				writeWrapped(b, "  ", clean(p.Sentence))
				for line := range strings.Lines(p.Patch) {
					fmt.Fprintf(b, "    %s\n", clean(strings.TrimRight(line, "\n")))
				}
			}
		}
		if text := statuses(r); text != "" {
			writeWrapped(b, "  ", fmt.Sprintf("What it %s was answered in the log: %s.", refusesVerb(r), text))
		}
		if text := fills(r); text != "" {
			writeWrapped(b, "  ", fmt.Sprintf("Keys by the most of their limit that they used: %s.", text))
		}
	}
	if len(left) > 0 {
		b.WriteString("\nother rules: " + strings.Join(tallied(left), ", ") + "\n")
	}
}

// writeWrapped writes a text in lines of at most 100 columns; further lines stand to the right.
func writeWrapped(b *strings.Builder, indent, text string) {
	const width = 100
	line := indent
	for _, word := range strings.Fields(strings.ReplaceAll(text, " %", "\u00a0%")) {
		if line != indent && utf8.RuneCountInString(line)+utf8.RuneCountInString(word) > width {
			b.WriteString(strings.TrimRight(strings.ReplaceAll(line, "\u00a0", " "), " ") + "\n")
			line = indent + "  "
		}
		line += word + " "
	}
	b.WriteString(strings.TrimRight(strings.ReplaceAll(line, "\u00a0", " "), " ") + "\n")
}

// writeTable writes rows in columns; the first two are text, the others numbers.
func writeTable(b *strings.Builder, head []string, rows [][]string) {
	widths := make([]int, len(head))
	all := append([][]string{head}, rows...)
	for _, row := range all {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range all {
		var line strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i < 2 && len(head) > 2 || i == 0 {
				line.WriteString("  " + cell + pad)
			} else {
				line.WriteString("  " + pad + cell)
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " "))
		b.WriteByte('\n')
	}
}

// clean makes a value of the log harmless on a terminal.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) && !unicode.Is(unicode.Zs, r) {
			return '?'
		}
		return r
	}, s)
}

// squeeze adds neighbours up until there are at most n values. It also returns the largest, at
// least 1.
func squeeze(values []int64, n int) (sums []int64, most int64) {
	sums = values
	if len(values) > n {
		sums = make([]int64, n)
		for i, v := range values {
			sums[i*n/len(values)] += v
		}
	}
	most = 1
	for _, v := range sums {
		most = max(most, v)
	}
	return sums, most
}

// sparkline draws values in at most 80 columns.
func sparkline(values []int64) string {
	const width = 80
	cells, most := squeeze(values, width)
	bars := []rune(" ▁▂▃▄▅▆▇█")
	var b strings.Builder
	for _, v := range cells {
		i := int((v*8 + most - 1) / most)
		b.WriteRune(bars[i])
	}
	return b.String()
}
