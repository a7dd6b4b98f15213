package top

import (
	"fmt"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/recent"
	"github.com/weir-rl/weir/internal/util/human"
)

func micro(s recent.Seconds) time.Duration { return time.Duration(s) * time.Microsecond }

// openLines returns the lines of the item that Enter opened.
func (s *State) openLines(width int) []string {
	it := s.open
	switch {
	case it.decision != nil:
		return s.decisionLines(it.decision, width)
	case it.failed != "":
		return []string{"", " " + human.Visible(it.failed)}
	case it.ruleReport != nil:
		return s.ruleLines(it.ruleReport, width)
	case it.keyReport != nil:
		return s.keyLines(it.keyReport, width)
	}
	return []string{"", " asking …"}
}

func (s *State) decisionLines(d *recent.Entry, width int) []string {
	text := ""
	if s.explain != nil {
		text = s.explain(d)
	}
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, wrap(human.Visible(strings.TrimRight(line, "\n")), width)...)
	}
	return lines
}

// ruleLines returns everything about a rule: its definition, its verdicts with their reasons, and
// its figures.
func (s *State) ruleLines(r *insight.RuleReport, width int) []string {
	v := verdictOf(r)
	at := ""
	if r.File != "" {
		at = fmt.Sprintf("   %s:%d", r.File, r.Line)
	}
	head := styled(bold, human.Visible(r.Domain+"/"+r.Name)) + "   " + human.Visible(strings.Join(r.Limits, ", "))
	if len(r.Per) > 0 {
		head += human.Visible(" per " + strings.Join(r.Per, ", "))
	}
	if r.Mode != "enforce" && r.Mode != "" {
		head += "   in " + human.Visible(r.Mode)
	}
	lines := []string{head + human.Visible(at) + "   " + styled(v.style, strings.TrimSpace(v.mark+" "+v.words)), ""}
	for i := range r.Verdicts {
		w := &r.Verdicts[i]
		j := verdictNamed(w.Verdict)
		text := fmt.Sprintf("%s (%s confidence): %s", j.words, w.Confidence, w.Sentence)
		lines = append(lines, wrap(human.Visible(text), width)...)
		if w.Proposal != nil {
			lines = append(lines, wrap(human.Visible("→ "+w.Proposal.Sentence), width)...)
		}
	}
	lines = append(lines, "")
	say := func(format string, args ...any) { lines = append(lines, wrap(fmt.Sprintf(format, args...), width)...) }
	say("requests %d, refused %d (%s, of these alone %s), by its ban %d, soft %d, near %d; %s/s now",
		r.Met, r.Refused, percent(share(r.Refused, r.Met)), percent(share(r.RefusedAlone, r.Refused)), r.Banned, r.Soft,
		r.Near, rate(r.PerSecond))
	if r.Mode == "shadow" {
		say("would refuse %d (%s)", r.WouldRefuse, percent(share(r.WouldRefuse, r.Met)))
	}
	keys := fmt.Sprintf("clients %d", r.Keys)
	if r.KeysError > 0 {
		keys += fmt.Sprintf(" (± %s)", percent(r.KeysError))
	}
	refused, were := "refused", "were refused"
	if r.Mode == "shadow" {
		refused, were = "would be refused", "would be"
	}
	if r.Good.Confidence == "" && r.Good.All == 0 {
		say("%s, %s %d; nothing tells which of them are good", keys, refused, r.KeysRefused)
	} else {
		say("%s, %s %d; of %d good ones %d %s (%s, %s to %s)", keys, refused, r.KeysRefused, r.Good.All,
			r.Good.Keys, were,
			percent(r.Good.Share), percent(r.Good.Low), percent(r.Good.High))
	}
	if e := r.Episodes; e.Obeyed+e.Early+e.GaveUp > 0 {
		all := e.Obeyed + e.Early + e.GaveUp
		say("after %d refusals %s came back when told, %s too early, %s not at all", all,
			percent(share(e.Obeyed, all)), percent(share(e.Early, all)), percent(share(e.GaveUp, all)))
	}
	lines = append(lines, "",
		styled(bold, "Peak per client")+fmt.Sprintf("   one client asked for %s of the limit", percent(r.MaxFill)))
	var most uint64
	for _, n := range r.Fill {
		most = max(most, n)
	}
	for i, n := range r.Fill {
		name := fmt.Sprintf("%d-%d %%", 10*i, 10*i+10)
		if i == 10 {
			name = "over 100 %"
		}
		lines = append(lines, "  "+row(1, cell{text: name, width: 10, right: true},
			cell{text: number(float64(n)), width: 8, right: true},
			cell{text: bar(share(n, most), 40), width: 40, style: blue}))
	}
	if r.Series != nil && len(r.Series.T) > 0 {
		chart := max(min(width-12, 120), 10)
		lines = append(lines, "", "admitted  "+styled(blue, spark(squeeze(r.Series.Admitted, chart), chart)),
			"refused   "+styled(red, spark(squeeze(r.Series.Refused, chart), chart)))
	}
	if len(r.Curve) > 0 {
		what := "the limit"
		if len(r.Windows) > 1 && r.CurveOf != "" {
			what = r.CurveOf
		}
		lines = append(lines, "", styled(bold, "What if "+human.Visible(what)+" was"))
		for _, p := range r.Curve {
			text := fmt.Sprintf("  %10d   would refuse about %s clients (± %s)", p.Limit, number(p.Keys),
				number(p.PlusMinus))
			if p.GoodKeys != nil {
				text += fmt.Sprintf(", %s of them good", number(*p.GoodKeys))
			}
			lines = append(lines, text)
		}
	}
	lines = append(lines, countLines("Refused most", r.Top)...)
	return append(lines, countLines("Near the limit now", r.NearNow)...)
}

func countLines(title string, list []insight.KeyCount) []string {
	if len(list) == 0 {
		return nil
	}
	lines := []string{"", styled(bold, title)}
	for i := range list {
		k := &list[i]
		lines = append(lines, fmt.Sprintf("  %8s  %s", countOf(k), human.Visible(k.Key)))
	}
	return lines
}

// keyLines returns everything about a key.
func (s *State) keyLines(k *insight.KeyReport, width int) []string {
	lines := []string{styled(bold, human.Visible(k.Key)) + "   " + human.Visible(k.Domain), ""}
	if k.Domain == insight.CommandDomain {
		lines = append(lines, wrap("Its limit comes with each command: no rule, ban or grant is on it.", width)...)
	}
	for i := range s.Keys {
		c := &s.Keys[i]
		if c.Key == k.Key && c.Domain == k.Domain {
			if text := s.keyState(c); text != "" {
				lines = append(lines, human.Visible(c.Limit)+": "+text)
			}
		}
	}
	if len(k.Limits) == 0 {
		return append(lines, wrap("Nothing is known of it: it is not among the keys that come most often.", width)...)
	}
	lines = append(lines, styled(bold,
		row(2, cell{text: "LIMIT", width: 28}, cell{text: "ASKED", width: 9, right: true},
			cell{text: "REFUSED", width: 9, right: true}, cell{text: "NEAR", width: 9, right: true},
			cell{text: "PEAK", width: 8, right: true})))
	for _, l := range k.Limits {
		lines = append(lines, row(2, cell{text: human.Visible(l.Limit), width: 28},
			cell{text: number(float64(l.Asked)), width: 9, right: true},
			cell{text: number(float64(l.Refused)), width: 9, right: true},
			cell{text: number(float64(l.Near)), width: 9, right: true},
			cell{text: percent(l.Fill), width: 8, right: true}))
	}
	lines = append(lines, "")
	if !k.Sampled {
		return append(lines,
			wrap(
				"It is not in the sample of refused keys: whether it is known, and whether it comes back when told, is not known.", width)...)
	}
	switch {
	case k.Known:
		lines = append(lines, "It came with an identity.")
	case k.Domain != insight.CommandDomain: // a command cannot carry one
		lines = append(lines, "It never came with an identity.")
	}
	if k.Obey >= 0 {
		lines = append(lines,
			fmt.Sprintf("After a refusal it came back when told %d times, too early %d times, and gave up %d times.",
				k.Episodes.Obeyed, k.Episodes.Early, k.Episodes.GaveUp))
	}
	return lines
}

// wrap breaks a harmless, plain text into lines. Lines after the first have the indentation of the
// text.
func wrap(text string, width int) []string {
	indent := len(text) - len(strings.TrimLeft(text, " "))
	if indent > width/2 {
		indent = 0
	}
	var lines []string
	line := text[:indent]
	for word := range strings.FieldsSeq(text) {
		switch {
		case strings.TrimSpace(line) == "":
			line += word
		case ansi.StringWidth(line)+1+ansi.StringWidth(word) <= width:
			line += " " + word
		default:
			lines = append(lines, line)
			line = strings.Repeat(" ", indent) + word
		}
	}
	return append(lines, line)
}
