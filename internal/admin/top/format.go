package top

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/recent"
	"github.com/weir-rl/weir/internal/util/human"
)

// The styles use the sixteen colours that every terminal has, in the shades that its user has
// chosen, so that they are readable on light and dark. No style says more than the text.
const (
	plain   = ""
	bold    = "1"
	faint   = "2"
	reverse = "7"
	red     = "31"
	green   = "32"
	yellow  = "33"
	blue    = "34"
	violet  = "35"
)

// styled puts a style around plain text.
func styled(style, text string) string {
	if style == plain || text == "" {
		return text
	}
	return "\x1b[" + style + "m" + text + "\x1b[0m"
}

// cell is a text of a fixed width: cut or padded, on the left if it is a number.
type cell struct {
	text  string // without a style, and harmless
	width int
	right bool
	style string
}

func (c cell) String() string { return styled(c.style, fit(c.text, c.width, c.right)) }

// fit cuts or pads plain text to a width.
func fit(text string, width int, right bool) string {
	if width <= 0 {
		return ""
	}
	text = ansi.Truncate(text, width, "…")
	space := strings.Repeat(" ", max(width-ansi.StringWidth(text), 0))
	if right {
		return space + text
	}
	return text + space
}

// row puts cells side by side.
func row(gap int, cells ...cell) string {
	var b strings.Builder
	for i, c := range cells {
		if c.width <= 0 {
			continue
		}
		if i > 0 {
			b.WriteString(strings.Repeat(" ", gap))
		}
		b.WriteString(c.String())
	}
	return b.String()
}

// number formats a count for people: exact below 100,000.
func number(n float64) string {
	switch {
	case n < 99_999.5:
		return fmt.Sprintf("%.0f", n)
	case n < 999_500:
		return fmt.Sprintf("%.0f k", n/1e3)
	case n < 9_995_000:
		return fmt.Sprintf("%.2f M", n/1e6)
	case n < 999.5e6:
		return fmt.Sprintf("%.0f M", n/1e6)
	}
	return fmt.Sprintf("%.1f G", n/1e9)
}

// rate formats a number a second.
func rate(n float64) string {
	switch {
	case n > 0 && n < 0.05:
		return "<0.1"
	case n > 0 && n < 9.95:
		return fmt.Sprintf("%.1f", n)
	}
	return number(n)
}

// percent formats a share of 1.
func percent(share float64) string {
	switch p := 100 * share; {
	case math.IsNaN(p) || math.IsInf(p, 0) || p < 0:
		return "-"
	case p == 0:
		return "0 %"
	case p < 0.095:
		return fmt.Sprintf("%.2f %%", max(p, 0.01))
	case p < 99.95:
		return fmt.Sprintf("%.1f %%", p)
	default:
		return fmt.Sprintf("%.0f %%", p)
	}
}

// short formats a time in seconds, as of a decision: 210 µs, 1.2 ms.
func short(s float64) string {
	switch {
	case s <= 0:
		return "-"
	case s < 1e-3:
		return fmt.Sprintf("%.0f µs", math.Max(s*1e6, 1))
	case s < 1:
		return fmt.Sprintf("%.1f ms", s*1e3)
	}
	return fmt.Sprintf("%.1f s", s)
}

// spark draws numbers as bars of eight heights, and only the last of them if there is no room for
// all. A 0 is the lowest bar: a gap would look like a missing number.
func spark[T uint32 | uint64](list []T, width int) string {
	const bars = "▁▂▃▄▅▆▇█"
	list = list[max(len(list)-width, 0):]
	var most T
	for _, n := range list {
		most = max(most, n)
	}
	var b strings.Builder
	for _, n := range list {
		height := 0
		if most > 0 && n > 0 {
			height = max(int(math.Ceil(float64(n)/float64(most)*8))-1, 0)
		}
		b.WriteString(string([]rune(bars)[height]))
	}
	return b.String()
}

// squeeze adds up neighbours until there are at most width numbers.
func squeeze(list []uint32, width int) []uint64 {
	if width <= 0 || len(list) == 0 {
		return nil
	}
	each := (len(list) + width - 1) / width
	out := make([]uint64, 0, width)
	// The oldest numbers are left out if they do not fill a bar.
	for i := len(list) % each; i <= len(list)-each; i += each {
		var sum uint64
		for _, n := range list[i : i+each] {
			sum += uint64(n)
		}
		out = append(out, sum)
	}
	return out
}

// bar draws a share of 1 as a bar of so many columns.
func bar(share float64, width int) string {
	n := int(math.Round(min(max(share, 0), 1) * float64(width)))
	if share > 0 {
		n = max(n, 1)
	}
	return strings.Repeat("▇", n)
}

// judged is how a verdict looks; human.Verdict has the words.
type judged struct {
	words, mark, style string
	rank               int // verdicts that need a look come first
}

var verdicts = map[string]judged{
	insight.Broken:       {mark: "x", style: red},
	insight.LooseCrowd:   {mark: "↯", style: red},
	insight.LooseFew:     {mark: "↯", style: red},
	insight.Strict:       {mark: "!", style: red},
	insight.MaybeStrict:  {mark: "?", style: yellow},
	insight.Ignored:      {mark: "!", style: yellow},
	insight.AddsNothing:  {mark: "-", style: faint},
	insight.NeverMet:     {mark: "-", style: faint},
	insight.NeverBinding: {mark: "-", style: faint},
	insight.TooEarly:     {mark: " ", style: faint},
	insight.Reserve:      {mark: " ", style: green},
	insight.Works:        {mark: " ", style: green},
}

// verdictOf returns the verdict of a rule that is shown first.
func verdictOf(r *insight.RuleReport) judged {
	if len(r.Verdicts) == 0 {
		return judged{words: "-", mark: " ", style: faint, rank: len(insight.Verdicts)}
	}
	return verdictNamed(r.Verdicts[0].Verdict)
}

// verdictNamed returns a verdict by its name. One that this program does not know comes first,
// under its name.
func verdictNamed(name string) judged {
	j, ok := verdicts[name]
	if !ok {
		j = judged{mark: "?", style: yellow}
	}
	j.words, j.rank = human.Verdict(name), max(slices.Index(insight.Verdicts, name), 0)
	return j
}

// limitText formats the limits of a rule in few columns: 5/min +1 ip.
func limitText(r *insight.RuleReport) string {
	if r.Command {
		return "by command"
	}
	text := "-"
	if len(r.Limits) > 0 {
		text = shortLimit(r.Limits[0])
	}
	if len(r.Limits) > 1 {
		text += fmt.Sprintf(" +%d", len(r.Limits)-1)
	}
	if len(r.Per) > 0 {
		text += " " + strings.Join(r.Per, ",")
	}
	return human.Visible(text)
}

// shortLimit shortens a limit in words: "20 per minute, burst 5" becomes 20/min.
func shortLimit(s string) string {
	s, _, _ = strings.Cut(s, ", ")
	return strings.NewReplacer(" per ", "/", " at a time", " at once", "minute", "min", "second", "s", "hour",
		"h").Replace(s)
}

// requestText describes a request: POST /login.
func requestText(d *recent.Entry) string {
	text := strings.TrimSpace(d.Attributes["method"] + " " + d.Attributes["path"])
	if text == "" && d.Door != "" {
		text = "by " + d.Door
	}
	return human.Visible(text)
}

// outcome returns a decision in a word, with its style.
func outcome(d *recent.Entry) (text, style string) {
	switch {
	case d.Banned:
		return "banned", red
	case !d.Allowed:
		return "refused", red
	case d.Outcome == "shadow_denied":
		return "shadow", violet
	case d.Outcome == "soft":
		return "soft", yellow
	case d.Outcome == "near_limit":
		return "near", yellow
	}
	return "passed", blue
}

// untilText formats an end by the user's clock, with the day if that is not today.
func untilText(t, now time.Time) string {
	t, now = t.Local(), now.Local()
	if t.YearDay() == now.YearDay() && t.Year() == now.Year() {
		return t.Format("15:04:05")
	}
	return t.Format("2 Jan 15:04")
}

// column is the width of a column that may shrink, and how far.
type column struct {
	width *int
	least int
}

// someKey is the width that a key gets at the cost of other columns if it takes as much. Clients
// choose longer ones; only an address gets all that it takes.
const someKey = 30

// keyWidth is the width that the column of a key should have, if there is room.
func keyWidth(key string) int {
	width := ansi.StringWidth(human.Visible(key))
	_, value, _ := strings.Cut(key, "=")
	_, notAddress := netip.ParseAddr(value)
	if _, notBlock := netip.ParsePrefix(value); notAddress != nil && notBlock != nil {
		return min(width, someKey)
	}
	return width
}

// grow returns width, or more of it up to want, at the cost of other columns in turn. Keys are cut
// last: a part of an address names nobody.
func grow(width, want int, from ...column) int {
	for _, c := range from {
		take := min(max(want-width, 0), max(*c.width-c.least, 0))
		*c.width -= take
		width += take
	}
	return width
}
