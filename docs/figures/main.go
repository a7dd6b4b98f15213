// Command figures draws the pictures of docs/how-it-works/algorithms.md: it sends the same arrivals
// through each algorithm, and draws the real decisions. It also draws the pictures of README.md, of
// docs/architecture.md and of docs/how-it-works/consistency.md. It is a module of its own, which
// nothing of the product needs:
//
//	go -C docs/figures run .
//
// The picture of docs/guides/overload.md is drawn from a measurement on real servers, which takes
// half a minute; this makes it anew:
//
//	go -C docs/figures run . -experiment
//
// The picture of docs/operating/regions.md, and the one of an outage in docs/operating/redis.md,
// show decisions in virtual time, which tests make anew:
//
//	go -C docs/figures test -run 'Regions|Outage' -update
//
// The picture of docs/operating/stores.md is drawn from an hour of load on a real PostgreSQL, which
// scripts/soak postgres makes anew. The pictures of docs/how-it-works/performance.md, and its
// tables, come from the measurements of scripts/measure performance.
//
// scripts/soak server draws a soak this way, which belongs to no document:
//
//	go -C docs/figures run . -soak $PWD/soak.csv
package main

import (
	"bytes"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/weir-rl/weir/algo"
)

const (
	second = int64(time.Second / time.Microsecond)
	start  = int64(1767225600) * second // 2026-01-01T00:00:00Z, a window's first instant
	span   = 210 * second
	window = 60 * second
)

// figure is one picture: a limit, and its caption.
type figure struct {
	file    string
	title   string
	config  algo.Config
	caption string
}

var figures = []figure{
	{"fixed_window", "fixed_window, 10/min", algo.Config{Algorithm: algo.FixedWindow, N: 10, Window: time.Minute},
		"two bursts around the full minute both pass: up to twice the limit within 60 s"},
	{"sliding_log", "sliding_log, 10/min", algo.Config{Algorithm: algo.SlidingLog, N: 10, Window: time.Minute},
		"exact: never more than 10 in any 60 s"},
	{"sliding_window", "sliding_window, 10/min, buckets: 1",
		algo.Config{Algorithm: algo.SlidingWindow, N: 10, Window: time.Minute},
		"two counters a key: assumes that the last minute's requests were spread evenly"},
	{"sliding_window_12", "sliding_window, 10/min, buckets: 12",
		algo.Config{Algorithm: algo.SlidingWindow, N: 10, Window: time.Minute, Buckets: 12},
		"twelve sub-windows of 5 s: close to the log, at a fixed size"},
	{"token_bucket", "token_bucket, 10/min, burst 10",
		algo.Config{Algorithm: algo.TokenBucket, N: 10, Window: time.Minute},
		"a burst empties the bucket, then a token comes every 6 s"},
	{"leaky_bucket", "leaky_bucket, 10/min, queue 4",
		algo.Config{Algorithm: algo.LeakyBucket, N: 10, Window: time.Minute, Burst: 4},
		"requests wait for their turn (bars), and leave 6 s apart; a full queue refuses"},
	{"soft", "sliding_log, 10/min, soft: 20%",
		algo.Config{Algorithm: algo.SlidingLog, N: 10, Window: time.Minute, Soft: 20},
		"two above the limit are admitted and marked (orange)"},
}

// arrivals are the same for every figure: a trickle, a burst on each side of the first full minute,
// and a longer rush.
func arrivals() []int64 {
	var at []int64
	add := func(from, step float64, n int) {
		for i := range n {
			at = append(at, start+int64((from+step*float64(i))*float64(second)))
		}
	}
	add(5, 12, 4)     // a trickle
	add(53, 0.5, 8)   // a burst before the minute turns
	add(61, 0.5, 12)  // and one after
	add(90, 9, 4)     // a trickle again
	add(130, 1.5, 24) // a rush
	add(185, 5, 4)
	return at
}

// decision is the decision on one arrival.
type decision struct {
	at     int64
	result algo.Result
}

func decide(c algo.Config) ([]decision, error) {
	limit, err := algo.New(c)
	if err != nil {
		return nil, err
	}
	var state algo.State
	var out []decision
	for _, at := range arrivals() {
		out = append(out, decision{at, limit.Take(&state, at, algo.Ask{Cost: 1, MaxDelay: -1})})
	}
	return out, nil
}

// The layout, in pixels.
const (
	width, height = 800, 250
	left, right   = 60, 20
	dotsY         = 62  // the lane of decisions
	chartTop      = 100 // the chart of the requests admitted within the last window
	chartBottom   = 210
)

func x(at int64) float64 {
	return left + float64(at-start)/float64(span)*(width-left-right)
}

func draw(f figure) ([]byte, error) {
	decisions, err := decide(f.config)
	if err != nil {
		return nil, err
	}
	// departures: when the admitted went on, which for a leaky bucket is later than they came
	var departures []int64
	for _, d := range decisions {
		if d.result.Allowed {
			departures = append(departures, d.at+d.result.Delay)
		}
	}
	within := func(now int64) (n int) {
		for _, at := range departures {
			if at > now-window && at <= now {
				n++
			}
		}
		return n
	}
	const top = 24.0 // the chart's largest count
	y := func(n float64) float64 { return chartBottom - n/top*(chartBottom-chartTop) }

	var b bytes.Buffer
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="system-ui, sans-serif" font-size="12">`,
		width, height)
	p(`<title>%s: %s</title>`, f.title, f.caption)
	p(`<rect width="%d" height="%d" rx="6" fill="#ffffff"/>`, width, height)
	p(`<text x="%d" y="22" font-size="15" font-weight="600" fill="#16324f">%s</text>`, left, f.title)
	p(`<text x="%d" y="40" fill="#5b6b7b">%s</text>`, left, f.caption)
	for s := int64(0); s <= 210; s += 30 {
		at := start + s*second
		stroke := "#e6ebf0"
		if s%60 == 0 {
			stroke = "#b9c4cf"
		}
		p(`<line x1="%.1f" y1="50" x2="%.1f" y2="%d" stroke="%s"/>`, x(at), x(at), chartBottom, stroke)
		p(`<text x="%.1f" y="%d" text-anchor="middle" fill="#5b6b7b">%d:%02d</text>`, x(at), chartBottom+16, s/60, s%60)
	}
	p(`<text x="%d" y="%d" text-anchor="end" fill="#5b6b7b">requests</text>`, left-6, dotsY+4)
	for _, d := range decisions {
		switch {
		case !d.result.Allowed:
			cx := x(d.at)
			p(`<path d="M%.1f %dl6 6m0 -6l-6 6" stroke="#c62f3b" stroke-width="1.8"/>`, cx-3, dotsY+11)
		default:
			fill := "#1f6feb"
			if d.result.Soft {
				fill = "#e08700"
			}
			if d.result.Delay > 0 {
				p(`<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#9cc3f5" stroke-width="3"/>`, x(d.at), dotsY,
					x(d.at+d.result.Delay), dotsY)
			}
			p(`<circle cx="%.1f" cy="%d" r="3.2" fill="%s"/>`, x(d.at+d.result.Delay), dotsY, fill)
		}
	}
	// the chart: a step line of how many were admitted within the last window
	for _, n := range []int{0, 10, 20} {
		p(`<text x="%d" y="%.1f" text-anchor="end" fill="#5b6b7b">%d</text>`, left-6, y(float64(n))+4, n)
	}
	p(`<text x="14" y="%d" fill="#5b6b7b" transform="rotate(-90 14 %d)" text-anchor="middle">in the last 60 s</text>`,
		(chartTop+chartBottom)/2, (chartTop+chartBottom)/2)
	var line, over bytes.Buffer
	for t := start; t <= start+span; t += second / 4 {
		n := float64(within(t))
		fmt.Fprintf(&line, "%.1f,%.1f ", x(t), y(n))
		if n > 10 {
			fmt.Fprintf(&over,
				`<rect x="%.2f" y="%.1f" width="%.2f" height="%.1f" fill="#c62f3b" fill-opacity="0.25"/>`,
				x(t), y(n), x(t+second/4)-x(t)+0.05, y(10)-y(n))
		}
	}
	p(`%s`, over.String())
	p(`<polyline points="%s" fill="none" stroke="#16324f" stroke-width="1.6"/>`, bytes.TrimSpace(line.Bytes()))
	p(`<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#c62f3b" stroke-dasharray="5 4"/>`, left, y(10), width-right,
		y(10))
	admitted, soft := 0, 0
	for _, d := range decisions {
		if d.result.Allowed {
			admitted++
		}
		if d.result.Soft {
			soft++
		}
	}
	total := fmt.Sprintf("%d of %d admitted", admitted, len(decisions))
	if soft > 0 {
		total += fmt.Sprintf(", %d of them marked", soft)
	}
	p(`<text x="%d" y="22" text-anchor="end" fill="#5b6b7b">%s</text>`, width-right, total)
	p(`</svg>`)
	return b.Bytes(), nil
}

// diagrams returns the pictures that show no figures, by their files.
func diagrams() map[string][]byte {
	return map[string][]byte{
		"standing": drawStanding(), "architecture": drawWings(), "decision": drawDecision(),
		"decision_redis": drawOverRedis(), "decision_database": drawOverDatabase(), "failures": drawFailures(),
	}
}

func main() {
	dir := flag.String("dir", ".", "where to write the pictures")
	again := flag.Bool("experiment", false, "measure what docs/guides/overload.md shows anew")
	soak := flag.String("soak", "", "a CSV that scripts/soak has made: draw only that, as an SVG beside it")
	flag.Parse()
	if *soak != "" {
		if err := drawSoak(*soak, strings.TrimSuffix(*soak, ".csv")+".svg"); err != nil {
			log.Fatal(err)
		}
		return
	}
	if *again {
		if err := measure(*dir); err != nil {
			log.Fatal(err)
		}
	}
	if err := drawMeasured(*dir); err != nil {
		log.Fatal(err)
	}
	if err := drawRegionsIn(*dir); err != nil {
		log.Fatal(err)
	}
	if err := drawOutageIn(*dir); err != nil {
		log.Fatal(err)
	}
	if err := drawPostgresIn(*dir); err != nil {
		log.Fatal(err)
	}
	if err := drawPerformance(*dir); err != nil {
		log.Fatal(err)
	}
	svg, err := drawLeases()
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(*dir, "lease.svg"), svg, 0o644); err != nil {
		log.Fatal(err)
	}
	for file, svg := range diagrams() {
		if err := os.WriteFile(filepath.Join(*dir, file+".svg"), svg, 0o644); err != nil {
			log.Fatal(err)
		}
	}
	for _, f := range figures {
		svg, err := draw(f)
		if err != nil {
			log.Fatalf("%s: %v", f.file, err)
		}
		if err := os.WriteFile(filepath.Join(*dir, f.file+".svg"), svg, 0o644); err != nil {
			log.Fatal(err)
		}
	}
}
