package report

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"strings"
	"time"

	"github.com/weir-rl/weir/internal/lab/sim"
	"github.com/weir-rl/weir/internal/util/human"
)

// The charts are plain SVG. Colours come from the page's style sheet, so that they follow light and
// dark.

// A frame is the position of a chart in its picture. There are two for the chart over time, because
// one that is scaled down for a phone cannot be read.
type frame struct {
	class               string
	width, left, right  int
	top, height         int // of the plot of requests
	stripTop, stripHigh int // of the plot of refusals
	buckets, labels     int // at most
}

var (
	wide = frame{class: "wide", width: 1080, left: 58, right: 14, top: 30, height: 240, stripTop: 330, stripHigh: 84,
		buckets: 260, labels: 10}
	narrow = frame{class: "narrow", width: 360, left: 40, right: 6, top: 26, height: 150, stripTop: 232, stripHigh: 56,
		buckets: 90, labels: 4}
)

// niceCeil returns the smallest of 1, 2, 2.5, 5 × 10^k, or of their multiples by up to 4, that is
// at least v, and a step that divides it into at most five parts.
func niceCeil(v int64) (top, step float64) {
	if v < 4 {
		return float64(max(v, 1)), 1
	}
	raw := float64(v) / 4
	power := math.Pow(10, math.Floor(math.Log10(raw)))
	for _, m := range []float64{1, 2, 2.5, 5, 10} {
		if step = m * power; step >= raw && (step >= 1 && step == math.Floor(step)) {
			break
		}
	}
	return math.Ceil(float64(v)/step) * step, step
}

// short writes a number of an axis: 1.5k, 20k, 3M.
func short(v float64) string {
	switch {
	case v >= 1e6:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", v/1e6), ".0") + "M"
	case v >= 1e4 || v >= 1e3 && math.Mod(v, 100) == 0:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", v/1e3), ".0") + "k"
	}
	return fmt.Sprintf("%g", v)
}

// area appends the outline of a stepped area between two series to b.
func area(b *strings.Builder, class string, low, high []int64, x func(int) float64, y func(int64) float64) {
	fmt.Fprintf(b, `<path class="%s" d="`, class)
	for i := range high {
		command := "L"
		if i == 0 {
			command = "M"
		}
		fmt.Fprintf(b, "%s%.1f %.1fH%.1f", command, x(i), y(high[i]), x(i+1))
	}
	for i := len(low) - 1; i >= 0; i-- {
		fmt.Fprintf(b, "L%.1f %.1fH%.1f", x(i+1), y(low[i]), x(i))
	}
	b.WriteString(`Z"/>`)
}

// merge merges neighbouring buckets of a timeline until there are no more than most.
func merge(t *sim.Timeline, most int) *sim.Timeline {
	for len(t.Requests) > most {
		t = halve(t)
	}
	return t
}

func halve(t *sim.Timeline) *sim.Timeline {
	n := len(t.Requests)
	m := &sim.Timeline{Seconds: 2 * t.Seconds}
	odd := int(t.Start.Unix() / t.Seconds % 2)
	m.Start = t.Start.Add(-time.Duration(int64(odd)*t.Seconds) * time.Second)
	pairs := func(values []int64) []int64 {
		if values == nil {
			return nil
		}
		sums := make([]int64, (n+odd+1)/2)
		for i, v := range values {
			sums[(i+odd)/2] += v
		}
		return sums
	}
	m.Requests, m.Denied, m.DeniedOther = pairs(t.Requests), pairs(t.Denied), pairs(t.DeniedOther)
	return m
}

// start returns when a bucket begins.
func start(t *sim.Timeline, i int) time.Time {
	return t.Start.Add(time.Duration(int64(i)*t.Seconds) * time.Second)
}

// timeChart draws requests over time, allowed below refused, and under it the refusals by
// themselves on a scale of their own.
func timeChart(r *sim.Report, f *frame) template.HTML {
	t := merge(&r.Timeline, f.buckets)
	n := len(t.Requests)
	if n == 0 {
		return ""
	}
	allowed := make([]int64, n)
	zero := make([]int64, n)
	mostRequests, mostDenied, busiest := int64(0), int64(0), 0
	for i := range n {
		allowed[i] = t.Requests[i] - t.Denied[i]
		if t.Requests[i] > mostRequests {
			mostRequests, busiest = t.Requests[i], i
		}
		mostDenied = max(mostDenied, t.Denied[i])
		if t.DeniedOther != nil {
			mostDenied = max(mostDenied, t.DeniedOther[i])
		}
	}
	strip := mostDenied > 0
	bottom := f.top + f.height
	if strip {
		bottom = f.stripTop + f.stripHigh
	}
	x := func(i int) float64 { return float64(f.left) + float64(i)*float64(f.width-f.left-f.right)/float64(n) }
	top, step := niceCeil(mostRequests)
	y := func(v int64) float64 { return float64(f.top) + float64(f.height)*(1-float64(v)/top) }

	var b strings.Builder
	fmt.Fprintf(&b,
		`<svg class="chart %s" viewBox="0 0 %d %d" role="img" aria-label="Requests over time, admitted and refused. Busiest: %s at %s UTC, within %s. The figures stand in the table below.">`,
		f.class, f.width, bottom+30, human.Count(mostRequests, "request"), start(t, busiest).Format("2 Jan 15:04"),
		each(t.Seconds))
	fmt.Fprintf(&b, `<text class="label" x="%d" y="14">requests in %s</text>`, 0, each(t.Seconds))
	line := func(y float64, text string) {
		fmt.Fprintf(&b,
			`<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/><text class="tick" x="%d" y="%.1f" text-anchor="end">%s</text>`,
			f.left, f.width-f.right, y, y, f.left-8, y+4, text)
	}
	for v := 0.0; v <= top+step/2; v += step {
		line(y(int64(v)), short(v))
	}
	timeTicks(&b, t, f, x, bottom)
	area(&b, "allowed", zero, allowed, x, y)
	area(&b, "denied", allowed, t.Requests, x, y)
	if strip {
		top, _ := niceCeil(mostDenied)
		y := func(v int64) float64 { return float64(f.stripTop) + float64(f.stripHigh)*(1-float64(v)/top) }
		fmt.Fprintf(&b, `<text class="label" x="0" y="%d">refused, on a scale of its own</text>`, f.stripTop-14)
		for _, v := range []float64{0, top} {
			line(y(int64(v)), short(v))
		}
		area(&b, "denied", zero, t.Denied, x, y)
		if t.DeniedOther != nil {
			b.WriteString(`<path class="other" d="`)
			for i, v := range t.DeniedOther {
				command := "L"
				if i == 0 {
					command = "M"
				}
				fmt.Fprintf(&b, "%s%.1f %.1fH%.1f", command, x(i), y(v), x(i+1))
			}
			b.WriteString(`"/>`)
		}
	}
	// One transparent column for each bucket shows its figures under the pointer as well.
	for i := range n {
		if t.Requests[i] == 0 || f != &wide {
			continue
		}
		title := fmt.Sprintf("%s UTC, %s\n%s", start(t, i).Format("2 Jan 2006 15:04:05"), each(t.Seconds),
			human.Count(t.Requests[i], "request"))
		if t.Denied[i] > 0 {
			title += fmt.Sprintf("\n%s refused (%s)", human.Number(t.Denied[i]), percent(t.Denied[i], t.Requests[i]))
		}
		if t.DeniedOther != nil && t.DeniedOther[i] > 0 {
			title += fmt.Sprintf("\n%s refused by %s", human.Number(t.DeniedOther[i]), r.Compare.Rules)
		}
		fmt.Fprintf(&b, `<rect class="hover" x="%.2f" y="%d" width="%.2f" height="%d"><title>%s</title></rect>`,
			x(i), f.top, x(i+1)-x(i), bottom-f.top, html.EscapeString(title))
	}
	b.WriteString("</svg>")
	return template.HTML(b.String())
}

// timeTicks labels the time axis at round instants.
func timeTicks(b *strings.Builder, t *sim.Timeline, f *frame, x func(int) float64, bottom int) {
	n := len(t.Requests)
	total := int64(n) * t.Seconds
	step := int64(1)
	for _, s := range []int64{1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 10800, 21600, 43200, 86400,
		2 * 86400, 7 * 86400, 14 * 86400, 30 * 86400, 91 * 86400, 365 * 86400, 3650 * 86400} {
		if step = s; total/s <= int64(f.labels) {
			break
		}
	}
	layout := "15:04"
	switch {
	case step < 60:
		layout = "15:04:05"
	case step >= 30*86400:
		layout = "Jan 2006"
	case step >= 86400:
		layout = "2 Jan"
	}
	start := t.Start.Unix()
	first := true
	behind := math.Inf(-1) // where the label before ends
	for at := (start + step - 1) / step * step; at <= start+total; at += step {
		px := x(0) + (x(n)-x(0))*float64(at-start)/float64(total)
		when := time.Unix(at, 0).UTC()
		label, class := when.Format(layout), "tick"
		if step < 86400 && (first || when.Hour() == 0 && when.Minute() == 0 && when.Second() == 0) {
			label, class = when.Format("2 Jan "+layout), "tick day"
		}
		if step < 86400 && when.Unix()%86400 == 0 {
			label, class = when.Format("2 Jan"), "tick day"
		}
		// About the width of the text: labels must not run into each other.
		width := 7 * float64(len(label))
		from := min(max(px-width/2, float64(f.left)-30), float64(f.width)-width)
		fmt.Fprintf(b, `<line class="grid faint" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/>`, px, px, f.top, bottom+5)
		if from > behind+6 {
			fmt.Fprintf(b, `<text class="%s" x="%.1f" y="%d" text-anchor="middle">%s</text>`, class, from+width/2,
				bottom+21, label)
			behind = from + width
			first = false
		}
	}
}

// spark draws a small series of denials.
func spark(values []int64) template.HTML {
	const width, height, cells = 150, 26, 75
	if len(values) == 0 {
		return ""
	}
	sums, most := squeeze(values, cells)
	var b strings.Builder
	fmt.Fprintf(&b,
		`<svg class="spark" viewBox="0 0 %d %d" preserveAspectRatio="none" aria-hidden="true"><line class="grid" x1="0" x2="%d" y1="%d" y2="%d"/>`, width, height, width, height, height)
	zero := make([]int64, len(sums))
	area(&b, "denied", zero, sums,
		func(i int) float64 { return float64(i) * width / float64(len(sums)) },
		func(v int64) float64 { return float64(height) - float64(height-2)*float64(v)/float64(most) })
	b.WriteString("</svg>")
	return template.HTML(b.String())
}
