package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/leasing/lessee"
)

// The picture of docs/how-it-works/consistency.md: three nodes lease units of one limit. Packages
// algo and lessee do the work; answers take no time here.
const (
	leaseN     = 1000 // a minute
	leaseShare = 20   // percent
	leaseSpan  = 75 * second
	leaseStep  = second / 100
	leaseNodes = 3
)

// leaseLoad is how many requests a second come to each node, in parts of the time.
var leaseLoad = [...]struct {
	until int64
	rates [leaseNodes]float64
}{
	{12 * second, [leaseNodes]float64{12, 6, 2}},
	{28 * second, [leaseNodes]float64{4, 20, 6}},
	{leaseSpan, [leaseNodes]float64{14, 10, 8}},
}

// leaseSample is what there is at an instant.
type leaseSample struct {
	at      int64
	charged int64
	held    [leaseNodes]int64 // units in the hands of each node
	truly   int64             // admitted in this window
}

// leaseRun holds the outcomes of the requests.
type leaseRun struct {
	samples         []leaseSample
	refused         []int64
	admitted, asked int
}

func runLeases() (*leaseRun, error) {
	limit, err := algo.New(algo.Config{Algorithm: algo.FixedWindow, N: leaseN, Window: time.Minute, Lease: leaseShare,
		LeaseFor: 3 * time.Second})
	if err != nil {
		return nil, err
	}
	var (
		terms        = lessee.TermsOf(limit)
		state, lease algo.State
		nodes        [leaseNodes]lessee.Entry
		random       = rand.New(rand.NewPCG(1, 2))
		run          leaseRun
		truly        int64
	)
	for i := range nodes {
		nodes[i] = lessee.Begin(terms, 0)
	}
	part := 0
	for now := start; now < start+leaseSpan; now += leaseStep {
		at := (now - start) * 1000
		if (now-start)%window == 0 {
			truly = 0
		}
		if now-start >= leaseLoad[part].until {
			part++
		}
		// call asks the limit for a request of a cost, 0 for units alone.
		call := func(e *lessee.Entry, cost int64, h *algo.Ahead) algo.Result {
			r := limit.TakeAhead(&state, &lease, now, algo.Ask{Cost: cost}, h)
			e.Hear(terms, lessee.Answer{Asked: at, At: at, Now: now}, cost, &r, h)
			run.asked++
			return r
		}
		for i := range nodes {
			e := &nodes[i]
			var h algo.Ahead
			if (now-start)%(terms.E/8000) < leaseStep {
				if tell, _, _ := e.Visit(terms, at, now, terms.E/8); tell {
					e.Tell(terms, at, now, terms.E/8, true, &h)
					call(e, 0, &h)
				}
			}
			if random.Float64() >= leaseLoad[part].rates[i]*float64(leaseStep)/float64(second) {
				continue
			}
			refuses, _ := e.Refuses(at, 1)
			e.Note(terms, at, 1)
			admitted := e.Use(at, 1)
			if !admitted && !refuses {
				e.Ask(terms, at, now, true, true, &h)
				r := call(e, 1, &h)
				admitted = r.Allowed
			}
			if admitted {
				truly++
				run.admitted++
			} else {
				run.refused = append(run.refused, now)
			}
			if e.Short(terms, at) {
				e.Ask(terms, at, now, false, true, &h)
				call(e, 0, &h)
			}
		}
		if (now-start)%(second/10) == 0 {
			s := leaseSample{at: now, truly: truly}
			st, le := state, lease
			r := limit.TakeAhead(&st, &le, now, algo.Ask{}, new(algo.Ahead))
			for i := range nodes {
				left, used := nodes[i].Holds()
				s.held[i] = left + used
			}
			out := limit.Lease().Lent(&le).Out()
			s.charged = leaseN - r.Remaining - out
			run.samples = append(run.samples, s)
		}
	}
	return &run, nil
}

func drawLeases() ([]byte, error) {
	run, err := runLeases()
	if err != nil {
		return nil, err
	}
	const (
		top, bottom = 84.0, 300.0
		legendY     = 340
	)
	lx := func(at int64) float64 {
		return left + float64(at-start)/float64(leaseSpan)*(width-left-right)
	}
	y := func(n int64) float64 { return bottom - float64(n)/(leaseN*1.05)*(bottom-top) }
	colours := [leaseNodes]string{"#e08700", "#8a5fd1", "#2a9d6f"}

	var b bytes.Buffer
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="system-ui, sans-serif" font-size="12">`,
		width, legendY+14)
	p(
		`<title>fixed_window, 1000/min, lease: 20%%: what is charged, what three nodes have leased, and what was admitted</title>`)
	p(`<rect width="%d" height="%d" rx="6" fill="#ffffff"/>`, width, legendY+14)
	p(
		`<text x="%d" y="22" font-size="15" font-weight="600" fill="#16324f">fixed_window, 1000/min, lease: 20%%, three nodes</text>`, left)
	p(
		`<text x="%d" y="40" fill="#5b6b7b">units are set aside from what is free, less and less of them as the limit comes near</text>`, left)
	p(`<text x="%d" y="22" text-anchor="end" fill="#5b6b7b">%d admitted, %d calls to the store</text>`, width-right,
		run.admitted, run.asked)
	for s := int64(0); s <= 75; s += 15 {
		at := start + s*second
		stroke := "#e6ebf0"
		if s%60 == 0 {
			stroke = "#b9c4cf"
		}
		p(`<line x1="%.1f" y1="52" x2="%.1f" y2="%.0f" stroke="%s"/>`, lx(at), lx(at), bottom, stroke)
		p(`<text x="%.1f" y="%.0f" text-anchor="middle" fill="#5b6b7b">%d:%02d</text>`, lx(at), bottom+16, s/60, s%60)
	}
	p(`<text x="%d" y="70" text-anchor="end" fill="#5b6b7b">refused</text>`, left-6)
	for _, at := range run.refused {
		p(`<line x1="%.1f" y1="62" x2="%.1f" y2="70" stroke="#c62f3b" stroke-width="0.8"/>`, lx(at), lx(at))
	}
	for _, n := range []int64{0, 250, 500, 750, 1000} {
		p(`<text x="%d" y="%.1f" text-anchor="end" fill="#5b6b7b">%d</text>`, left-6, y(n)+4, n)
	}
	// The areas, from the one on top to the one at the bottom, each over those below it.
	area := func(fill string, height func(s *leaseSample) int64) {
		var points bytes.Buffer
		for i := range run.samples {
			s := &run.samples[i]
			fmt.Fprintf(&points, "%.1f,%.1f ", lx(s.at), y(height(s)))
		}
		last := run.samples[len(run.samples)-1].at
		p(`<polygon points="%.1f,%.1f %s%.1f,%.1f" fill="%s"/>`, lx(start), y(0), points.Bytes(), lx(last), y(0), fill)
	}
	for i := leaseNodes - 1; i >= 0; i-- {
		area(colours[i], func(s *leaseSample) int64 {
			n := s.charged
			for _, held := range s.held[:i+1] {
				n += held
			}
			return n
		})
	}
	area("#9cc3f5", func(s *leaseSample) int64 { return s.charged })
	var truly bytes.Buffer
	for i := range run.samples {
		s := &run.samples[i]
		fmt.Fprintf(&truly, "%.1f,%.1f ", lx(s.at), y(s.truly))
	}
	p(`<polyline points="%s" fill="none" stroke="#16324f" stroke-width="1.6"/>`, bytes.TrimSpace(truly.Bytes()))
	p(`<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#c62f3b" stroke-dasharray="5 4"/>`, left, y(leaseN),
		width-right, y(leaseN))
	at := left
	for _, l := range []struct {
		colour, text string
		wide         int
	}{
		{"#9cc3f5", "charged", 90}, {colours[0], "in the hands of node A", 165}, {colours[1], "of node B", 95},
		{colours[2], "of node C", 95},
	} {
		p(`<rect x="%d" y="%d" width="12" height="12" fill="%s"/>`, at, legendY-11, l.colour)
		p(`<text x="%d" y="%d" fill="#5b6b7b">%s</text>`, at+18, legendY, l.text)
		at += l.wide
	}
	p(`<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="#16324f" stroke-width="1.6"/>`, at, legendY-5, at+14, legendY-5)
	p(`<text x="%d" y="%d" fill="#5b6b7b">truly admitted in this minute</text>`, at+20, legendY)
	p(`</svg>`)
	return b.Bytes(), nil
}
