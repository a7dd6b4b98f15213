package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"fmt"
	"log"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// bucket is the resolution of the picture of the experiment.
const bucket = 200 * time.Millisecond

// Contents of the picture.
const (
	pictureEase = 3 * time.Second
	pictureOver = 9 * time.Second
)

// point is a bucket of a run: what overload.csv holds.
type point struct {
	run             string // plain or adaptive
	at              time.Duration
	median, p99     time.Duration   // of those served or given up
	sent, served    [len(parts)]int // by part of the load
	limit, underWay int             // of the adaptive run
}

// measure runs the experiment, and writes its results into dir.
func measure(dir string) error {
	var points []point
	for _, run := range []string{"plain", "adaptive"} {
		all, readings, err := experiment(context.Background(), run == "adaptive", pictureEase, pictureOver)
		if err != nil {
			return err
		}
		for at := time.Duration(0); at < pictureEase+pictureOver; at += bucket {
			here := between(all, at, at+bucket)
			p := point{run: run, at: at, median: quantile(here, 0.5), p99: quantile(here, 0.99)}
			for _, r := range here {
				p.sent[r.part]++
				if r.ok {
					p.served[r.part]++
				}
			}
			for _, r := range readings {
				if r.at >= at && r.at < at+bucket {
					p.limit, p.underWay = r.limit, r.inFlight
				}
			}
			points = append(points, p)
		}
		log.Printf("%s: %d requests", run, len(all))
	}
	return os.WriteFile(filepath.Join(dir, "overload.csv"), encodePoints(points), 0o644)
}

func encodePoints(points []point) []byte {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	row := []string{"run", "at_ms", "median_ms", "p99_ms"}
	for _, part := range parts {
		row = append(row, part.name+"_sent", part.name+"_served")
	}
	_ = w.Write(append(row, "limit", "in_flight")) // a buffer takes all
	ms := func(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
	for _, p := range points {
		row := []string{p.run, ms(p.at), ms(p.median), ms(p.p99)}
		for i := range parts {
			row = append(row, strconv.Itoa(p.sent[i]), strconv.Itoa(p.served[i]))
		}
		_ = w.Write(append(row, strconv.Itoa(p.limit), strconv.Itoa(p.underWay)))
	}
	w.Flush()
	return b.Bytes()
}

func readPoints(path string) ([]point, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	rows, err := csv.NewReader(bytes.NewReader(data)).ReadAll()
	if err != nil {
		return nil, err
	}
	var points []point
	for _, row := range rows[1:] {
		var n []int
		for _, cell := range row[1:] {
			v, err := strconv.Atoi(cell)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			n = append(n, v)
		}
		p := point{run: row[0], at: time.Duration(n[0]) * time.Millisecond,
			median: time.Duration(n[1]) * time.Millisecond, p99: time.Duration(n[2]) * time.Millisecond}
		for i := range parts {
			p.sent[i], p.served[i] = n[3+2*i], n[4+2*i]
		}
		p.limit, p.underWay = n[9], n[10]
		points = append(points, p)
	}
	return points, nil
}

// line is a curve of the picture.
type line struct {
	name, color string
	run         string
	value       func(p point) (v float64, ok bool)
}

func milliseconds(of func(p point) time.Duration) func(point) (float64, bool) {
	return func(p point) (float64, bool) { return float64(of(p).Milliseconds()), of(p) > 0 }
}

func share(part int) func(point) (float64, bool) {
	return func(p point) (float64, bool) {
		sent, served := 0, 0
		for i := range parts {
			if part < 0 || i == part {
				sent, served = sent+p.sent[i], served+p.served[i]
			}
		}
		return 100 * float64(served) / float64(max(sent, 1)), sent > 0
	}
}

// drawOverload draws the experiment: latencies above, who is served below.
func drawOverload(points []point) []byte {
	const (
		width, height       = 800, 430
		left, right         = 60, 150
		aTop, aBottom       = 64, 214
		bTop, bBottom       = 256, 396
		slowest, quickest   = 1500.0, 60.0 // ms
		red, blue, pale     = "#c62f3b", "#1f6feb", "#9cc3f5"
		green, orange, grey = "#1a7f37", "#e08700", "#5b6b7b"
	)
	x := func(at time.Duration) float64 {
		return left + float64(at)/float64(pictureEase+pictureOver)*(width-left-right)
	}
	yLatency := func(ms float64) float64 {
		return aBottom - math.Log(min(max(ms, quickest), slowest)/quickest)/math.Log(slowest/quickest)*(aBottom-aTop)
	}
	yShare := func(percent float64) float64 { return bBottom - percent/100*(bBottom-bTop) }
	var b bytes.Buffer
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	title := fmt.Sprintf("three times the load that a server can do (%d workers, %v a request)", workers, service)
	p(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="system-ui, sans-serif" font-size="12">`,
		width, height)
	p(`<title>%s: plain proxying collapses, adaptive concurrency keeps the latency and serves what is critical</title>`,
		title)
	p(`<rect width="%d" height="%d" rx="6" fill="#ffffff"/>`, width, height)
	p(`<text x="%d" y="22" font-size="15" font-weight="600" fill="#16324f">%s</text>`, left, title)
	p(`<text x="%d" y="42" fill="%s">from 3 s on; clients give up after 1 s; measured on loopback</text>`, left, grey)
	for s := time.Duration(0); s <= pictureEase+pictureOver; s += time.Second {
		stroke := "#e6ebf0"
		if s == pictureEase {
			stroke = grey
		}
		p(`<path d="M%.1f %dV%dM%.1f %dV%d" stroke="%s"/>`, x(s), aTop, aBottom, x(s), bTop, bBottom, stroke)
		p(`<text x="%.1f" y="%d" text-anchor="middle" fill="%s">%d s</text>`, x(s), bBottom+18, grey, int(s.Seconds()))
	}
	for _, ms := range []float64{100, 200, 500, 1000} {
		p(`<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#e6ebf0"/>`, left, yLatency(ms), width-right, yLatency(ms))
		p(`<text x="%d" y="%.1f" text-anchor="end" fill="%s">%g ms</text>`, left-6, yLatency(ms)+4, grey, ms)
	}
	for percent := 0.0; percent <= 100; percent += 50 {
		p(`<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#e6ebf0"/>`, left, yShare(percent), width-right,
			yShare(percent))
		p(`<text x="%d" y="%.1f" text-anchor="end" fill="%s">%g %%</text>`, left-6, yShare(percent)+4, grey, percent)
	}
	p(`<text x="%d" y="%d" fill="%s">time to the answer</text>`, left+4, aTop+14, grey)
	p(`<text x="%d" y="%d" fill="%s">requests served</text>`, left+4, bTop-8, grey)
	draw := func(lines []line, top float64, y func(float64) float64) {
		for i, l := range lines {
			var at bytes.Buffer
			for _, pt := range points {
				if v, ok := l.value(pt); ok && pt.run == l.run {
					fmt.Fprintf(&at, "%.1f,%.1f ", x(pt.at+bucket/2), y(v))
				}
			}
			p(`<polyline points="%s" fill="none" stroke="%s" stroke-width="1.8"/>`, bytes.TrimSpace(at.Bytes()),
				l.color)
			p(`<text x="%d" y="%.1f" fill="%s">%s</text>`, width-right+10, top+14+18*float64(i), l.color, l.name)
		}
	}
	median := func(p point) time.Duration { return p.median }
	draw([]line{
		{"plain, median", red, "plain", milliseconds(median)},
		{"adaptive, p99", pale, "adaptive", milliseconds(func(p point) time.Duration { return p.p99 })},
		{"adaptive, median", blue, "adaptive", milliseconds(median)},
	}, aTop, yLatency)
	draw([]line{
		{"critical", green, "adaptive", share(2)},
		{"default", blue, "adaptive", share(1)},
		{"sheddable", orange, "adaptive", share(0)},
		{"plain, all", red, "plain", share(-1)},
	}, bTop, yShare)
	p(`</svg>`)
	return b.Bytes()
}

// drawMeasured draws what overload.csv in dir holds.
func drawMeasured(dir string) error {
	points, err := readPoints(filepath.Join(dir, "overload.csv"))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "overload.svg"), drawOverload(points), 0o644)
}
