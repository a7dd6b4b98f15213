package top

import (
	"fmt"
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/recent"
	"github.com/weir-rl/weir/internal/util/human"
)

// wide is the width from which on a screen shows less important columns, and sideBySide the one
// from which on two tables with whole addresses of IPv6 fit side by side.
const (
	wide       = 100
	sideBySide = 180
)

// View draws the state: height lines of at most width columns, with SGR sequences for style and no
// others. From 80 × 24 on everything is shown; on a smaller screen it is cut. View changes
// nothing.
func View(s *State, width, height int) string {
	if width < 1 || height < 1 {
		return ""
	}
	lines := s.header(width)
	body := height - len(lines) - 1
	switch {
	case s.Help:
		lines = append(lines, clip(s.helpLines(), 0, body)...)
	case s.At.IsZero():
		lines = append(lines, "", s.waiting())
	case s.open != nil:
		lines = append(lines, clip(s.openLines(width), s.scroll, body)...)
	case s.Screen == Rules:
		lines = append(lines, s.ruleTable(width, body, true)...)
	case s.Screen == Keys:
		lines = append(lines, s.keyTable(width, body, true)...)
	case s.Screen == Decisions:
		lines = append(lines, s.decisionTable(width, body, true)...)
	default:
		lines = append(lines, s.all(width, body)...)
	}
	for len(lines) < height-1 {
		lines = append(lines, "")
	}
	lines = append(lines[:max(height-1, 0)], s.footer(width))
	for i := range lines {
		lines[i] = ansi.Truncate(lines[i], width, "…")
	}
	return strings.Join(lines, "\n")
}

// page returns about how many rows a screen of that height shows, for paging.
func page(height int) int { return max(height-6, 1) }

// clip cuts lines to a height. It never scrolls beyond the last page.
func clip(lines []string, from, height int) []string {
	height = max(height, 0)
	from = max(min(from, len(lines)-height), 0)
	return lines[from:min(from+height, len(lines))]
}

func (s *State) waiting() string {
	if s.Failed != "" {
		return ""
	}
	return "asking " + human.Visible(s.Server) + " …"
}

// header returns one line of figures, one of requests over time, and, if something is wrong, one
// that says so.
func (s *State) header(width int) []string {
	title := styled(bold, "weir top") + "  "
	o := s.Overview
	if o == nil {
		lines := []string{title + human.Visible(s.Server)}
		return append(lines, s.trouble()...)
	}
	paused := ""
	if s.Paused {
		paused = styled(reverse, " PAUSED ")
	}
	parts := []string{paused, s.domains(), human.Count(s.count(), "rule"),
		fmt.Sprintf("%d/%d nodes", o.Nodes.Answered, o.Nodes.Asked)}
	if s.count() == 0 {
		parts[2] = ""
	}
	parts = append(parts, o.To.Local().Format("15:04:05"), rate(o.PerSecond)+"/s",
		percent(share(o.Refused, o.Requests))+" refused")
	if o.P99 > 0 {
		parts = append(parts, "p99 "+short(o.P99))
	}
	var shown []string
	for _, p := range parts {
		if p != "" {
			shown = append(shown, p)
		}
	}
	gap := "   "
	if width < wide {
		gap = "  "
	}
	lines := []string{title + strings.Join(shown, gap)}

	chart := min(max(width/3, 10), 60)
	total := make([]uint32, len(o.Series.T))
	for i := range total {
		for _, list := range [][]uint32{o.Series.Admitted, o.Series.Refused} {
			if i < len(list) {
				total[i] += list[i]
			}
		}
	}
	second := cell{"REQUESTS", 8, false, bold}.String() + " " + styled(blue, spark(squeeze(total, chart), chart)) + "  "
	if len(o.NeedsALook) == 0 {
		second += styled(faint, "no rule needs a look")
	} else {
		second += styled(bold, "NEEDS A LOOK") + " "
		for i := range o.NeedsALook {
			v := &o.NeedsALook[i]
			j := verdictNamed(v.Verdict)
			second += " " + styled(j.style, j.mark+" "+human.Visible(v.Rule)+" "+j.words) + " "
		}
	}
	if u := o.UnknownDomain; u != nil {
		lines = append(lines, styled(red, u.Sentence()))
	}
	lines = append(lines, s.away()...)
	lines = append(lines, second)
	lines = append(lines, s.trouble()...)
	return append(lines, "")
}

// away says what nodes go without, and how they decide meanwhile.
func (s *State) away() (lines []string) {
	for i := range s.Outages {
		o := &s.Outages[i]
		if !o.Lasts() {
			continue
		}
		text := human.Visible(o.Title) + " since " + o.From.Local().Format("15:04:05") + ": " + human.Visible(o.Summary)
		lines = append(lines, styled(red, text))
		for _, n := range o.Nodes {
			lines = append(lines, "  "+human.Visible(n.Node+" "+n.Does))
		}
	}
	return lines[:min(len(lines), mostAway)]
}

// mostAway bounds the lines of away.
const mostAway = 6

// trouble says that the data shown is old, and why.
func (s *State) trouble() []string {
	if s.Failed == "" {
		return nil
	}
	text := " no answer: " + human.Visible(s.Failed) + " "
	if !s.At.IsZero() {
		text = " no answer for " + human.Span(s.Now.Sub(s.At)) + ", trying on: " + human.Visible(s.Failed) + " "
	}
	return []string{styled(reverse, text)}
}

// domains names the domain, or says how many there are.
func (s *State) domains() string {
	if s.Overview.Domain != "" {
		return human.Visible(s.Overview.Domain)
	}
	seen := map[string]bool{}
	one := ""
	for i := range s.Rules {
		if s.Rules[i].Command {
			continue
		}
		one = s.Rules[i].Domain
		seen[one] = true
	}
	switch len(seen) {
	case 0:
		return ""
	case 1:
		return human.Visible(one)
	}
	return fmt.Sprintf("%d domains", len(seen))
}

func share(part, whole uint64) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}

// all shows the first rows of each table: rules above, keys and decisions below, side by side if
// there is room.
func (s *State) all(width, height int) []string {
	most := height * 2 / 3
	if width < sideBySide {
		most = height / 2
	}
	top := min(max(len(s.rules()), 1)+2, most)
	lines := s.ruleTable(width, top, s.focus() == Rules)
	for len(lines) < top {
		lines = append(lines, "")
	}
	below := height - top
	if width < sideBySide {
		half := (below - 1) / 2
		lines = append(lines, s.keyTable(width, half, s.focus() == Keys)...)
		for len(lines) < top+half {
			lines = append(lines, "")
		}
		return append(lines, s.decisionTable(width, below-half, s.focus() == Decisions)...)
	}
	left := 80 // room for an address of IPv6
	a := s.keyTable(left, below, s.focus() == Keys)
	b := s.decisionTable(width-left-2, below, s.focus() == Decisions)
	for i := range max(len(a), len(b)) {
		line := ""
		if i < len(a) {
			line = ansi.Truncate(a[i], left, "…")
		}
		line += strings.Repeat(" ", max(left-ansi.StringWidth(line), 0)) + "  "
		if i < len(b) {
			line += b[i]
		}
		lines = append(lines, line)
	}
	return lines
}

// table draws a heading and as many rows around the cursor as there is room for.
func (s *State) table(p Screen, heading, empty string, n, width, height int, focused bool,
	draw func(i int) string) []string {
	lines := []string{styled(bold, ansi.Truncate(heading, width, "…"))}
	room := height - 1
	if n == 0 {
		if s.Filter != "" {
			empty = "nothing fits the filter " + human.Visible(s.Filter)
		}
		return append(lines, styled(faint, "  "+empty))
	}
	at := s.cursors[p].row
	from := 0
	if at >= room {
		from = at - room + 1
	}
	for i := from; i < n && len(lines) <= room; i++ {
		line := draw(i)
		if focused && i == at {
			line = styled(reverse, fit("▸"+ansi.Strip(line), width, false))
		} else {
			line = " " + line
		}
		lines = append(lines, line)
	}
	return lines
}

func (s *State) ruleTable(width, height int, focused bool) []string {
	gap, trend, verdict := 1, 0, 14
	if width >= wide {
		gap, trend = 2, 12
	}
	numbers := verdict + 6 + 8 + 7 + 11 + trend + 6*gap
	left := width - 1 - numbers
	limit := min(max(left/2, 12), 26)
	name := min(max(left-limit, 8), 40)
	line := func(mark, rule, limits string, v cell, req, refused, good, peak string, trendText string) string {
		return mark + row(gap,
			cell{text: rule, width: name - 1}, cell{text: limits, width: limit}, v,
			cell{text: req, width: 6, right: true}, cell{text: refused, width: 8, right: true, style: v.style},
			cell{text: good, width: 7, right: true}, cell{text: peak, width: 11},
			cell{text: trendText, width: trend})
	}
	sorted := map[string]string{s.sort(): "▾"}
	heading := " " + ansi.Strip(line(" ", "RULE"+sorted["name"], "LIMIT",
		cell{text: "VERDICT" + sorted["verdict"], width: verdict},
		"REQ/S"+sorted["requests"], "REFUSED"+sorted["refused"], "GOOD"+sorted["good"], "PEAK"+sorted["peak"],
		"TREND"))
	list := s.rules()
	several := s.several()
	return s.table(Rules, heading, "no rule is in force", len(list), width, height, focused, func(i int) string {
		r := list[i]
		v := verdictOf(r)
		name := r.Name
		if several && !r.Command {
			name = r.Domain + "/" + r.Name
		}
		refused := share(r.Refused, r.Met)
		text := percent(refused)
		if r.Mode == "shadow" {
			text = "(" + percent(share(r.WouldRefuse, r.Met)) + ")"
		}
		good := "-"
		if r.Good.All > 0 || r.Good.Refused > 0 {
			good = percent(r.Good.Share)
		}
		return line(styled(v.style, v.mark), human.Visible(name), limitText(r),
			cell{text: v.words, width: verdict, style: v.style},
			rate(r.PerSecond), text, good, spark(r.Fill[:], 11), spark(r.Trend, 12))
	})
}

// count returns the number of rules, without commands.
func (s *State) count() (n int) {
	for i := range s.Rules {
		if !s.Rules[i].Command {
			n++
		}
	}
	return n
}

// several reports whether the rules belong to more than one domain.
func (s *State) several() bool {
	for i := range s.Rules { // commands come last
		if s.Rules[i].Domain != s.Rules[0].Domain && !s.Rules[i].Command {
			return true
		}
	}
	return false
}

func (s *State) keyTable(width, height int, focused bool) []string {
	full := width >= wide
	gap, state, barWidth := 1, 0, 7
	if full {
		gap, state, barWidth = 2, 30, 10
	}
	rule := min(max(width/4, 12), 30)
	list := s.keys()
	widest := 0
	for _, k := range list {
		widest = max(widest, keyWidth(k.Key))
	}
	key := max(width-1-rule-7-barWidth-7-state-5*gap, 0)
	key = grow(key, widest, column{&state, 0}, column{&rule, 12}, column{&barWidth, 7}, column{&rule, 8})
	line := func(k, r, n, b, share, st string) string {
		return row(gap, cell{text: k, width: key}, cell{text: r, width: rule}, cell{text: n, width: 7, right: true},
			cell{text: b, width: barWidth, style: red}, cell{text: share, width: 7, right: true},
			cell{text: st, width: state})
	}
	what := map[string]string{insight.ByRefused: "KEYS refused, 1 min", insight.ByAsked: "KEYS asked, 1 min",
		insight.ByNear: "KEYS near, 1 min"}[s.by()]
	heading := " " + ansi.Strip(line(what+" ▾", "LIMIT", "COUNT", "", "REFUSED", "STATE"))
	return s.table(Keys, heading, "nobody, in the last minute", len(list), width, height, focused, func(i int) string {
		k := list[i]
		text := k.Key
		if text == "" {
			text = "all together"
		}
		return line(human.Visible(text), human.Visible(k.Limit), countOf(k), mark(k, barWidth, full),
			percent(k.RefusedShare), s.keyState(k))
	})
}

// countOf formats how often a key came, with a tilde if that is an estimate.
func countOf(k *insight.KeyCount) string {
	if k.Estimated {
		return "~" + number(float64(k.Count))
	}
	return number(float64(k.Count))
}

// mark draws a key's share of refusals as a bar. Unless full, banned or granted takes the place of
// the bar.
func mark(k *insight.KeyCount, width int, full bool) string {
	switch {
	case !full && k.BannedUntil != nil:
		return "banned"
	case !full && k.GrantedUntil != nil:
		return "granted"
	}
	return bar(k.RefusedShare, width)
}

// keyState describes anything special about a key.
func (s *State) keyState(k *insight.KeyCount) string {
	var parts []string
	if k.BannedUntil != nil {
		parts = append(parts, "banned until "+untilText(*k.BannedUntil, s.At))
	}
	if k.GrantedUntil != nil {
		parts = append(parts, "granted until "+untilText(*k.GrantedUntil, s.At))
	}
	if k.Fill > 0 {
		parts = append(parts, "asked for "+percent(k.Fill))
	}
	if k.Known {
		parts = append(parts, "known")
	}
	if k.Obey >= 0 && k.Known {
		parts = append(parts, "obeys "+percent(k.Obey))
	}
	return strings.Join(parts, ", ")
}

func (s *State) decisionTable(width, height int, focused bool) []string {
	full := width >= wide
	gap, wait := 1, 0
	timeFormat, timeWidth := "15:04:05", 8
	if full {
		gap, wait = 2, 12
		timeFormat, timeWidth = "15:04:05.0", 10
	}
	left := max(width-1-timeWidth-7-wait-5*gap, 10)
	request := left * 2 / 5
	rule := left / 4
	list := s.decisions()
	widest := 0
	for _, d := range list {
		widest = max(widest, keyWidth(mainLimit(d).Key))
	}
	key := grow(left-request-rule, widest, column{&wait, 7}, column{&request, 16}, column{&rule, 8},
		column{&request, 8})
	line := func(at string, out cell, req, k, r, w string) string {
		out.width = 7
		return row(gap, cell{text: at, width: timeWidth}, out, cell{text: req, width: request},
			cell{text: k, width: key},
			cell{text: r, width: rule}, cell{text: w, width: wait, right: true})
	}
	heading := " " + ansi.Strip(line("TIME", cell{text: "OUTCOME"}, "DECISIONS", "KEY", "LIMIT", "AGAIN IN"))
	return s.table(Decisions, heading, "none is kept yet", len(list), width, height, focused, func(i int) string {
		d := list[i]
		l := mainLimit(d)
		text, style := outcome(d)
		again := ""
		if !d.Allowed {
			again = waitText(d.RetryAfter)
		}
		return line(d.Time.Local().Format(timeFormat), cell{text: text, style: style}, requestText(d),
			human.Visible(l.Key), human.Visible(l.Name), again)
	})
}

// footer returns the question, the typed text or the message, or else what the keys do.
func (s *State) footer(width int) string {
	switch {
	case s.question != nil:
		return styled(bold, s.question.prompt())
	case s.typing:
		return styled(bold, "filter: ") + human.Visible(s.Filter) + "▏" + styled(faint,
			"  Enter keeps it, Esc lifts it")
	case s.Said != "":
		return styled(bold, human.Visible(s.Said))
	}
	keys := []string{"r rules", "k keys", "d decisions", "s sort", "/ filter", "Enter open"}
	if width < wide {
		keys = []string{"r k d tables", "s sort", "/ filter", "Enter open"}
	}
	if s.open != nil {
		keys = []string{"Esc back", "↑ ↓ scroll"}
	}
	if s.MayBan && (s.open == nil || s.open.Key != "") {
		keys = append(keys, "b ban", "g grant")
	}
	if width >= wide || s.open != nil {
		keys = append(keys, "p pause")
	}
	text := " " + strings.Join(append(keys, "? help", "q quit"), "  ")
	if s.Filter != "" {
		text = " filter: " + human.Visible(s.Filter) + " (Esc lifts it) " + text
	}
	return styled(faint, text)
}

// prompt asks for the next part of a change.
func (q *question) prompt() string {
	c := &q.change
	key := human.Visible(strings.Join(c.Key, ", ")) + " at " + human.Visible(c.Domain+"/"+c.Rule)
	verb := "Ban " + key
	if c.Grant {
		verb = "Grant " + key
		if c.Allow != "" {
			verb += " " + human.Visible(c.Allow)
		}
	}
	switch q.step {
	case askAllow:
		return verb + " what (such as 100/min)? " + human.Visible(q.text) + "▏"
	case askFor:
		return verb + " for how long? " + human.Visible(q.text) + "▏"
	}
	return verb + " for " + human.Visible(c.For) + "? y/n"
}

func (s *State) helpLines() []string {
	lines := []string{
		styled(bold, "Keys"),
		"  r  k  d      rules, keys, decisions alone; Esc goes back to all three",
		"  Tab          to the next table",
		"  ↑ ↓ PgUp PgDn Home End   move;  Enter  open a rule, a key, a decision",
		"  s            sort rules by " + strings.Join(Sorts, ", ") + ";",
		"               keys by refused, asked, near",
		"  /            show only what holds a text; Esc lifts it",
	}
	if s.MayBan {
		lines = append(lines, "  b  g         ban the chosen key, or grant it other numbers, after a question")
	}
	return append(lines,
		"  p            pause;  q  quit",
		"",
		styled(bold, "Columns"),
		"  VERDICT      does the rule do its job?  x broken   ! too strict, or ignored",
		"               ↯ lets a rush in   ? maybe   - does nothing",
		"  REFUSED      of the requests that met the rule, in the last "+human.Span(s.Over)+"; (in shadow)",
		"  GOOD         of the clients that behave well, those that were refused",
		"  PEAK         clients by how much of the limit each asked for at most:",
		"               0-10, 10-20, … 90-100, and more than 100 %",
		"",
		styled(faint, "any key goes back"))
}

func waitText(r recent.Seconds) string {
	if r < 0 {
		return "never"
	}
	return human.Span(micro(r))
}
