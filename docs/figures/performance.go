package main

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// The pictures and tables of docs/how-it-works/performance.md: the results of scripts/measure
// performance, with a file for each part in the folder performance. They are drawn, and written
// into the page, from these files alone.

// measured is a file of results.
type measured struct {
	part   string
	header map[string]string // date, commit, machine, others, took
	rows   []measuredRow
}

// measuredRow is a measure of a contestant at a size.
type measuredRow struct {
	measure, series     string
	at                  float64
	median, least, most float64
}

func readMeasured(path string) (*measured, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	m := &measured{part: strings.TrimSuffix(filepath.Base(path), ".csv"), header: map[string]string{}}
	for line := range strings.Lines(string(data)) {
		if text, ok := strings.CutPrefix(line, "# "); ok {
			name, value, _ := strings.Cut(strings.TrimSpace(text), ": ")
			m.header[name] = value
		}
	}
	r := csv.NewReader(bytes.NewReader(data))
	r.Comment = '#'
	rows, err := r.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(rows) < 2 || len(rows[0]) < 6 {
		return nil, fmt.Errorf("%s holds no results", path)
	}
	for _, cells := range rows[1:] {
		row := measuredRow{measure: cells[0], series: cells[1]}
		for i, number := range []*float64{&row.at, &row.median, &row.least, &row.most} {
			if *number, err = strconv.ParseFloat(cells[2+i], 64); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
		}
		m.rows = append(m.rows, row)
	}
	return m, nil
}

// value is the median of a measure; not a number if there is none.
func (m *measured) value(measure, series string, at float64) float64 {
	for _, r := range m.rows {
		if r.measure == measure && r.series == series && r.at == at {
			return r.median
		}
	}
	return math.NaN()
}

// series are the contestants of a measure, in the order of the file.
func (m *measured) series(measure string) (names []string) {
	for _, r := range m.rows {
		if r.measure == measure && !slices.Contains(names, r.series) {
			names = append(names, r.series)
		}
	}
	return names
}

// sizes are those at which something of a measure was measured.
func (m *measured) sizes(measure string) (list []float64) {
	for _, r := range m.rows {
		if r.measure == measure && !slices.Contains(list, r.at) {
			list = append(list, r.at)
		}
	}
	slices.Sort(list)
	return list
}

// digits writes a number to three digits, with commas between thousands.
func digits(v float64) string {
	if v == 0 {
		return "0"
	}
	scale := math.Pow(10, 2-math.Floor(math.Log10(math.Abs(v))))
	text := strconv.FormatFloat(math.Round(v*scale)/scale, 'f', -1, 64)
	whole, rest, _ := strings.Cut(text, ".")
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if rest != "" {
		return whole + "." + rest
	}
	return whole
}

// tableColumn is a measure of a table, with a column for each size of it.
type tableColumn struct {
	measure string
	head    func(at float64) string
}

// writeMeasured writes a table with a row for each contestant.
func writeMeasured(b *strings.Builder, m *measured, about string, columns ...tableColumn) {
	head, rule := "| "+about+" |", "| --- |"
	for _, c := range columns {
		for _, at := range m.sizes(c.measure) {
			head += " " + c.head(at) + " |"
			rule += " --- |"
		}
	}
	fmt.Fprintf(b, "%s\n%s\n", head, rule)
	for _, name := range m.series(columns[0].measure) {
		cell := strings.ReplaceAll(name, "|", `\|`)
		if strings.Contains(name, ": ") { // a rule
			cell = "`" + cell + "`"
		}
		fmt.Fprintf(b, "| %s |", cell)
		for _, c := range columns {
			for _, at := range m.sizes(c.measure) {
				if v := m.value(c.measure, name, at); !math.IsNaN(v) {
					fmt.Fprintf(b, " %s |", digits(v))
				} else {
					b.WriteString(" |")
				}
			}
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
}

// isZero reports whether nothing but 0 was found of a measure.
func (m *measured) isZero(measure string) bool {
	return !slices.ContainsFunc(m.rows, func(r measuredRow) bool { return r.measure == measure && r.median != 0 })
}

// sources says where the figures of a part come from.
func (m *measured) sources() string {
	text := fmt.Sprintf("`scripts/measure performance %s`, %s, at commit %s on %s.",
		m.part, m.header["date"], m.header["commit"], m.header["machine"])
	switch others, err := strconv.ParseFloat(strings.TrimSuffix(m.header["others"], " %"), 64); {
	case err != nil:
	case others > 5:
		text += fmt.Sprintf(" Other programs took %s of the processors meanwhile: compare ratios.", m.header["others"])
	default:
		text += fmt.Sprintf(" Other programs took %s of the processors.", m.header["others"])
	}
	return wrap(text, 100) + "\n"
}

// block is what stands in the page for a part.
func (l *law) block(m *measured) string {
	var b strings.Builder
	fmt.Fprintf(&b, "**%s**\n\n![%s](../figures/performance/%s.svg)\n\n", wrap(l.says(m), 96), l.title, m.part)
	for _, t := range l.tables {
		if m.isZero(t.columns[0].measure) {
			fmt.Fprintf(&b, "%s: 0 for all.\n\n", t.about)
			continue
		}
		writeMeasured(&b, m, t.about, t.columns...)
	}
	b.WriteString(m.sources())
	return b.String()
}

// wrap breaks a text into lines of so many bytes.
func wrap(text string, most int) string {
	var b strings.Builder
	length := 0
	for i, word := range strings.Fields(text) {
		switch {
		case i == 0:
		case length+1+len(word) > most:
			b.WriteByte('\n')
			length = 0
		default:
			b.WriteByte(' ')
			length++
		}
		b.WriteString(word)
		length += len(word)
	}
	return b.String()
}

// withBlocks puts the block of each part into the page, between its two comments.
func withBlocks(page string, blocks map[string]string) (string, error) {
	for part, text := range blocks {
		from, to := fmt.Sprintf("<!-- measured: %s -->\n", part), fmt.Sprintf("<!-- end of %s -->\n", part)
		before, rest, found := strings.Cut(page, from)
		_, after, ended := strings.Cut(rest, to)
		if !found || !ended {
			return "", fmt.Errorf("docs/how-it-works/performance.md has no place for %s: %q and %q", part, from, to)
		}
		page = before + from + text + to + after
	}
	return page, nil
}

// performance returns the drawings and the text made from the results in dir: pictures by the name
// of their file, and the page, if it was page before.
func performance(dir, page string) (pictures map[string][]byte, after string, err error) {
	pictures, blocks := map[string][]byte{}, map[string]string{}
	for i := range laws {
		l := &laws[i]
		m, err := readMeasured(filepath.Join(dir, "performance", l.part+".csv"))
		if err != nil {
			return nil, "", err
		}
		pictures[filepath.Join("performance", l.part+".svg")] = drawLaw(l, m)
		blocks[l.part] = l.block(m)
	}
	after, err = withBlocks(page, blocks)
	return pictures, after, err
}

// drawPerformance writes what performance returns. dir is docs/figures.
func drawPerformance(dir string) error {
	path := filepath.Join(dir, "..", "how-it-works", "performance.md")
	page, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	pictures, after, err := performance(dir, string(page))
	if err != nil {
		return err
	}
	for name, svg := range pictures {
		if err := os.WriteFile(filepath.Join(dir, name), svg, 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(path, []byte(after), 0o644)
}

// lineColours are the colours of the curves, Weir's first.
var lineColours = []string{"#1f6feb", "#16324f", "#9aa5b1", "#c62f3b", "#2a9d6f", "#e08700", "#8a5fd1", "#0e8a8a",
	"#b5489e", "#6b705c", "#7f5539"}

// drawLaw draws a measure by size, both on scales of powers.
func drawLaw(l *law, m *measured) []byte {
	const (
		width, height    = 800, 380
		left, right      = 60, 250
		top, bottom      = 64, 336
		ink, grey, faint = "#16324f", "#5b6b7b", "#e6ebf0"
	)
	sizes := m.sizes(l.measure)
	low, high := math.Inf(1), 0.0
	for _, r := range m.rows {
		if r.measure == l.measure && r.median > 0 {
			low, high = min(low, r.median), max(high, r.median)
		}
	}
	low, high = ticksAround(low, high)
	x := func(at float64) float64 {
		return left + math.Log(at/sizes[0])/math.Log(sizes[len(sizes)-1]/sizes[0])*(width-left-right)
	}
	y := func(v float64) float64 { return bottom - math.Log(v/low)/math.Log(high/low)*(bottom-top) }
	var b bytes.Buffer
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="system-ui, sans-serif" font-size="12">`,
		width, height)
	p(`<title>%s</title>`, escaped(l.title))
	p(`<rect width="%d" height="%d" rx="6" fill="#ffffff"/>`, width, height)
	p(`<text x="%d" y="22" font-size="15" font-weight="600" fill="%s">%s</text>`, left, ink, escaped(l.title))
	p(`<text x="%d" y="42" fill="%s">%s</text>`, left, grey, escaped(l.unit+", both scales in powers"))
	for v := low; v <= high*1.001; v = nextTick(v) {
		p(`<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="%s"/>`, left, y(v), width-right, y(v), faint)
		p(`<text x="%d" y="%.1f" text-anchor="end" fill="%s">%s</text>`, left-6, y(v)+4, grey, brief(v))
	}
	for _, at := range sizes {
		p(`<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="%s"/>`, x(at), top, x(at), bottom, faint)
		p(`<text x="%.1f" y="%d" text-anchor="middle" fill="%s">%s</text>`, x(at), bottom+16, grey, brief(at))
	}
	p(`<text x="%d" y="%d" text-anchor="middle" fill="%s">%s</text>`, (left+width-right)/2, bottom+34, grey, l.by)
	names := m.series(l.measure)
	type label struct {
		at           float64 // where the curve ends
		name, colour string
	}
	var labels []label
	for i, name := range names {
		var curve bytes.Buffer
		last := 0.0
		for _, at := range sizes {
			if v := m.value(l.measure, name, at); v > 0 {
				fmt.Fprintf(&curve, "%.1f,%.1f ", x(at), y(v))
				last = y(v)
			}
		}
		colour, wide := lineColours[i%len(lineColours)], 1.4
		if strings.HasPrefix(name, "Weir") {
			wide = 2.4
		}
		p(`<polyline points="%s" fill="none" stroke="%s" stroke-width="%.1f"/>`, bytes.TrimSpace(curve.Bytes()), colour,
			wide)
		labels = append(labels, label{last, name, colour})
	}
	// The names stand where the curves end, moved apart so that each can be read.
	slices.SortStableFunc(labels, func(a, b label) int { return int(math.Copysign(1, a.at-b.at)) })
	const apart = 15.0
	for i := range labels {
		if i > 0 {
			labels[i].at = max(labels[i].at, labels[i-1].at+apart)
		}
	}
	for i := len(labels) - 1; i >= 0; i-- {
		lowest := float64(bottom)
		if i < len(labels)-1 {
			lowest = labels[i+1].at - apart
		}
		labels[i].at = min(labels[i].at, lowest)
	}
	for _, l := range labels {
		p(`<text x="%d" y="%.1f" fill="%s">%s</text>`, width-right+10, l.at+4, l.colour, escaped(l.name))
	}
	p(`</svg>`)
	return b.Bytes()
}

// nextTick is the next of 1, 2, 5, 10, 20, …
func nextTick(v float64) float64 {
	step := math.Pow(10, math.Floor(math.Log10(v)+1e-9))
	switch first := math.Round(v / step); {
	case first < 2:
		return 2 * step
	case first < 5:
		return 5 * step
	}
	return 10 * step
}

// ticksAround returns the ticks that have all of a range between them.
func ticksAround(low, high float64) (from, to float64) {
	from = math.Pow(10, math.Floor(math.Log10(low)))
	for nextTick(from) <= low {
		from = nextTick(from)
	}
	for to = nextTick(from); to < high; to = nextTick(to) {
	}
	return from, to
}

// brief writes a size: 10k for ten thousand.
func brief(v float64) string {
	switch {
	case v >= 1e6:
		return strconv.FormatFloat(v/1e6, 'f', -1, 64) + "M"
	case v >= 1e4:
		return strconv.FormatFloat(v/1e3, 'f', -1, 64) + "k"
	case v >= 1e3:
		return fmt.Sprintf("%d,%03d", int(v)/1000, int(v)%1000)
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}

func escaped(text string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(text)
}
