package main

import (
	"bytes"
	"fmt"
	"math"
)

// picture shows samples as charts over the same time.
type picture struct {
	title, caption string
	about          string // what to see, for those who cannot
	panels         []panel
}

// panel is a chart of the picture: curves over the same time.
type panel struct {
	title  string
	curves []curve
}

type curve struct {
	name, color string
	value       func(t *table, row int) float64
}

// draw draws the samples of t.
func (of *picture) draw(t *table) []byte {
	const (
		width, left, right = 800, 60, 110
		top, high, gap     = 74, 110, 36
		ink, grey, pale    = "#16324f", "#5b6b7b", "#e6ebf0"
	)
	bottom := func(i int) float64 { return float64(top + (i+1)*high + i*gap) }
	last := len(t.rows) - 1
	span := t.of(last, "at_s")
	x := func(s float64) float64 { return left + s/span*(width-left-right) }
	var b bytes.Buffer
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p(
		`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %.0f" font-family="system-ui, sans-serif" font-size="12">`, width, bottom(len(of.panels)-1)+34)
	p(`<title>%s: %s</title>`, of.title, of.about)
	p(`<rect width="%d" height="%.0f" rx="6" fill="#ffffff"/>`, width, bottom(len(of.panels)-1)+34)
	p(`<text x="%d" y="22" font-size="15" font-weight="600" fill="%s">%s</text>`, left, ink, of.title)
	p(`<text x="%d" y="42" fill="%s">%s</text>`, left, grey, of.caption)
	for i, panel := range of.panels {
		highest := 0.0
		for _, c := range panel.curves {
			for row := range t.rows {
				highest = max(highest, c.value(t, row))
			}
		}
		step := 1.0
		if highest > 0 {
			step = stepOf(highest)
		}
		full := step * math.Ceil(max(highest, step)/step)
		y := func(v float64) float64 { return bottom(i) - v/full*high }
		for v := 0.0; v <= full; v += step {
			p(`<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="%s"/>`, left, y(v), width-right, y(v), pale)
			p(`<text x="%d" y="%.1f" text-anchor="end" fill="%s">%g</text>`, left-6, y(v)+4, grey, v)
		}
		p(`<text x="%d" y="%.1f" fill="%s">%s</text>`, left, bottom(i)-high-6, grey, panel.title)
		for j, c := range panel.curves {
			var at bytes.Buffer
			for row := range t.rows {
				fmt.Fprintf(&at, "%.1f,%.1f ", x(t.of(row, "at_s")), y(c.value(t, row)))
			}
			p(`<polyline points="%s" fill="none" stroke="%s" stroke-width="1.6"/>`, bytes.TrimSpace(at.Bytes()),
				c.color)
			p(`<text x="%d" y="%.1f" fill="%s">%s</text>`, width-right+10, bottom(i)-high+14+18*float64(j), c.color,
				c.name)
		}
	}
	foot := bottom(len(of.panels) - 1)
	every := 600 * math.Ceil(span/6000)
	if span < 600 {
		every = 60
	}
	for s := 0.0; s <= span; s += every {
		p(`<text x="%.1f" y="%.1f" text-anchor="middle" fill="%s">%.0f min</text>`, x(s), foot+18, grey, s/60)
	}
	p(`</svg>`)
	return b.Bytes()
}

// stepOf returns how far apart the lines of a chart are that reaches up to v: 1, 2 or 5 times a
// power of ten, two to five of them.
func stepOf(v float64) float64 {
	step := math.Pow(10, math.Floor(math.Log10(max(v, 1e-9))))
	switch {
	case v/step < 2:
		return step / 2
	case v/step < 5:
		return step
	}
	return 2 * step
}
