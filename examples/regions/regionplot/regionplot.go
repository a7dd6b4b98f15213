// Package regionplot draws what several regions, or nodes, admitted of one limit, window by window:
// for docs/operating/regions.md, docs/operating/redis.md and examples/regions.
package regionplot

import (
	"bytes"
	"cmp"
	"fmt"
	"html"
	"math"
	"time"
)

// Plot is a picture.
type Plot struct {
	Title, Caption string
	Regions        []string // at most four
	By             string   // what they are; "" means "region"
	N, Bound       int64    // the limit, and what all regions together may admit at most
	Window         time.Duration
	Span           time.Duration // from the first window's beginning on
	// Cut names the link that is cut from CutFrom to CutTo, in words; "" if none is.
	Cut            string
	CutFrom, CutTo time.Duration
	Samples        []Sample // in order of time
}

// Sample is how much was admitted until an instant, in the window that the instant is in.
type Sample struct {
	At       time.Duration
	Admitted []int64 // by region
}

// Sum is what all regions admitted.
func (s *Sample) Sum() (n int64) {
	for _, a := range s.Admitted {
		n += a
	}
	return n
}

// Most returns the most that all regions together admitted in each window.
func (p *Plot) Most() []int64 {
	out := make([]int64, (p.Span+p.Window-1)/p.Window)
	for i := range p.Samples {
		s := &p.Samples[i]
		if w := int(s.At / p.Window); w < len(out) {
			out[w] = max(out[w], s.Sum())
		}
	}
	return out
}

// The layout, in pixels, and the colours.
const (
	width, height = 800, 360
	left, right   = 60, 96
	top, bottom   = 92, 290
	legendY       = 338

	ink, grey, pale, red = "#16324f", "#5b6b7b", "#e6ebf0", "#c62f3b"
)

var colours = [...]string{"#1f6feb", "#2a9d6f", "#e08700", "#8a5fd1"}

// SVG draws the picture.
func (p *Plot) SVG() []byte {
	most := p.Most()
	highest := p.Bound
	for _, n := range most {
		highest = max(highest, n)
	}
	x := func(at time.Duration) float64 { return left + float64(at)/float64(p.Span)*(width-left-right) }
	y := func(n int64) float64 { return bottom - float64(n)/(float64(highest)*1.04)*(bottom-top) }

	var b bytes.Buffer
	w := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	text := html.EscapeString
	w(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="system-ui, sans-serif" font-size="12">`,
		width, height)
	w(`<title>%s: %s</title>`, text(p.Title), text(p.Caption))
	w(`<rect width="%d" height="%d" rx="6" fill="#ffffff"/>`, width, height)
	w(`<text x="%d" y="22" font-size="15" font-weight="600" fill="%s">%s</text>`, left, ink, text(p.Title))
	w(`<text x="%d" y="40" fill="%s">%s</text>`, left, grey, text(p.Caption))
	if p.Cut != "" {
		from, to := x(p.CutFrom), x(min(p.CutTo, p.Span))
		w(`<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="#fbe3e5"/>`, from, top-36, to-from, bottom-top+36)
		w(`<text x="%.1f" y="%d" text-anchor="middle" font-weight="600" fill="%s">%s</text>`, (from+to)/2, top-22, red,
			text(p.Cut))
	}
	// The sum of each window, as its head.
	for i, n := range most {
		from, to := time.Duration(i)*p.Window, min(time.Duration(i+1)*p.Window, p.Span)
		w(`<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#b9c4cf"/>`, x(from), top-14, x(from), bottom)
		if to-from == p.Window {
			w(`<text x="%.1f" y="%d" text-anchor="middle" fill="%s">%s</text>`, x((from+to)/2), top-4, ink,
				Against(n, p.N))
		}
	}
	w(`<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#b9c4cf"/>`, x(p.Span), top-14, x(p.Span), bottom)
	for _, n := range []int64{0, p.N / 2, p.N} {
		w(`<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="%s"/>`, left, y(n), width-right, y(n), pale)
		w(`<text x="%d" y="%.1f" text-anchor="end" fill="%s">%d</text>`, left-6, y(n)+4, grey, n)
	}
	p.areas(&b, x, y)
	if p.Cut != "" {
		for _, at := range []time.Duration{p.CutFrom, min(p.CutTo, p.Span)} {
			w(`<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="%s" stroke-width="1.2"/>`, x(at), top-36, x(at),
				bottom, red)
		}
	}
	line := func(n int64, colour, dashes, name string) {
		w(`<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="%s" stroke-width="1.4" stroke-dasharray="%s"/>`, left,
			y(n), width-right, y(n), colour, dashes)
		w(`<text x="%d" y="%.1f" fill="%s">%s</text>`, width-right+8, y(n)+4, colour, name)
	}
	line(p.N, ink, "2 3", "the limit, N")
	if p.Bound != p.N {
		line(p.Bound, red, "5 4", fmt.Sprintf("N + %d %%", (100*p.Bound+p.N-1)/p.N-100))
		w(`<text x="%d" y="%.1f" fill="%s">the bound</text>`, width-right+8, y(p.Bound)-10, red)
	}
	for i := range int(p.Span/p.Window) + 1 {
		at := time.Duration(i) * p.Window
		label := fmt.Sprintf("%g s", at.Seconds())
		if p.Window >= time.Minute {
			label = fmt.Sprintf("%d:%02d", int(at.Minutes()), int(at.Seconds())%60)
		}
		w(`<text x="%.1f" y="%d" text-anchor="middle" fill="%s">%s</text>`, x(at), bottom+18, grey, label)
	}
	at := left
	w(`<text x="%d" y="%d" fill="%s">admitted in the window, by %s:</text>`, at, legendY, grey,
		text(cmp.Or(p.By, "region")))
	at += 226
	for i, name := range p.Regions {
		w(`<rect x="%d" y="%d" width="12" height="12" fill="%s"/>`, at, legendY-11, colours[i])
		w(`<text x="%d" y="%d" fill="%s">%s</text>`, at+18, legendY, grey, text(name))
		at += 34 + 8*len(name)
	}
	w(`</svg>`)
	return b.Bytes()
}

// areas stacks the admissions of the regions on top of each other. Each window begins anew.
func (p *Plot) areas(b *bytes.Buffer, x func(time.Duration) float64, y func(int64) float64) {
	for i := range p.Regions {
		var upper, lower []byte // along the top to the right, and along the bottom back to the left
		flush := func() {
			if len(upper) > 0 {
				fmt.Fprintf(b, `<polygon points="%s%s" fill="%s" fill-opacity="0.85"/>`+"\n", upper,
					bytes.TrimSpace(lower), colours[i])
			}
			upper, lower = nil, nil
		}
		window := time.Duration(-1)
		for k := range p.Samples {
			s := &p.Samples[k]
			if s.At/p.Window != window {
				flush()
				window = s.At / p.Window
			}
			below := int64(0)
			for _, n := range s.Admitted[:i] {
				below += n
			}
			upper = fmt.Appendf(upper, "%.1f,%.1f ", x(s.At), y(below+s.Admitted[i]))
			lower = append(fmt.Appendf(nil, "%.1f,%.1f ", x(s.At), y(below)), lower...)
		}
		flush()
	}
}

// Against says how much was admitted, and how that compares with the limit.
func Against(n, limit int64) string {
	percent := math.Round(1000*float64(n-limit)/float64(limit)) / 10
	switch {
	case percent > 0:
		return fmt.Sprintf("%d = N + %.1f %%", n, percent)
	case percent < 0:
		return fmt.Sprintf("%d = N − %.1f %%", n, -percent)
	}
	return fmt.Sprintf("%d = N", n)
}
