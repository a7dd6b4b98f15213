// Command regions shows one limit that holds over three regions, on one machine: a Redis and two
// nodes of Weir for each, and links between them that take their time and can be cut. It attacks in
// all regions at once, cuts a link meanwhile and heals it, and prints the admissions second by
// second. From the root of the repository:
//
//	go run ./examples/regions
package main

import (
	"context"
	"embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/weir-rl/weir/examples/internal/programs"
	"github.com/weir-rl/weir/examples/regions/regionplot"
)

//go:embed eu us ap rules
var files embed.FS

var names = []string{"eu", "us", "ap"}

// options are the flags.
type options struct {
	limit    int64
	window   time.Duration
	over     int64
	delay    time.Duration
	duration time.Duration
	rate     float64
	busy     string
	cut      string
	from, to time.Duration
	each     bool
	weir     string
	rival    string
	plot     string
}

func main() {
	log.SetFlags(0)
	var o options
	flag.Int64Var(&o.limit, "limit", 2000, "units in a window, of all regions together: N")
	flag.DurationVar(&o.window, "window", 10*time.Second, "the window; below 10s regions do not borrow")
	flag.Int64Var(&o.over, "over", 20,
		"percent of N that all regions together may admit beyond it while they do not hear each other")
	flag.DurationVar(&o.delay, "delay", 60*time.Millisecond, "how long bytes take from region to region, one way")
	flag.DurationVar(&o.duration, "duration", 40*time.Second, "how long to attack, at most 10m")
	flag.Float64Var(&o.rate, "rate", 0, "requests a second in each region; 0: three quarters of N in a window")
	flag.StringVar(&o.busy, "busy", "", "attack in this region alone")
	flag.StringVar(&o.cut, "cut", "ap",
		"what is cut: a region from all others, or the link between two as eu-us; empty for nothing")
	flag.DurationVar(&o.from, "cut-from", 0, "when it is cut; 0: with a window, a quarter of the way")
	flag.DurationVar(&o.to, "cut-to", 0, "when it is healed; 0: within a window, five eighths of the way")
	flag.BoolVar(&o.each, "each", false,
		"for comparison: the same rule without regions, so that each counts for itself")
	flag.StringVar(&o.weir, "weir", "", "the program weir; built if empty")
	flag.StringVar(&o.rival, "rival", "",
		"for comparison: a program to start in place of Weir (docs/operating/regions.md)")
	flag.StringVar(&o.plot, "plot", "regions.svg", "where to draw what happened; empty for nowhere")
	flag.Parse()
	if flag.NArg() > 0 {
		log.Fatalf("%q is no flag; see -help", flag.Arg(0))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	kept, err := run(ctx, &o, os.Stdout)
	stop()
	if err != nil {
		log.Fatal(err)
	}
	if !kept {
		os.Exit(1)
	}
}

// check completes the options.
func (o *options) check() error {
	if o.from == 0 {
		o.from = max(o.window, (o.duration / 4).Truncate(o.window))
	}
	if o.to == 0 {
		o.to = max(o.duration*5/8, o.from+o.window/2)
	}
	if o.rate == 0 {
		o.rate = 0.75 * float64(o.limit) / o.window.Seconds()
	}
	switch {
	case o.limit < 1 || o.over < 0 || o.over > 1000 || o.delay < 0 || o.rate < 0:
		return errors.New("-limit is at least 1, -over from 0 to 1000, and -delay and -rate are not below 0")
	case o.window < time.Second || o.window%time.Second != 0:
		return errors.New("-window is whole seconds, such as 10s")
	case o.duration < o.window || o.duration > 10*time.Minute:
		return errors.New("-duration is at least one window, and at most 10m")
	case o.from < 0 || o.to <= o.from:
		return errors.New("-cut-to is after -cut-from")
	case o.busy != "" && !slices.Contains(names, o.busy):
		return fmt.Errorf("-busy: %q is none of %v", o.busy, names)
	}
	for name := range strings.SplitSeq(o.cut, "-") {
		if o.cut != "" && !slices.Contains(names, name) {
			return fmt.Errorf("-cut: %q is none of %v", name, names)
		}
	}
	return nil
}

// isCut reports whether the link between two regions is one that is to be cut.
func (o *options) isCut(a, b string) bool {
	from, to, two := strings.Cut(o.cut, "-")
	if two {
		return a == from && b == to || a == to && b == from
	}
	return a == o.cut || b == o.cut
}

// bound is what all regions together may admit in a window.
func (o *options) bound() int64 { return o.limit * (100 + o.over) / 100 }

// run does it all. kept says that the bound held.
func run(ctx context.Context, o *options, out io.Writer) (kept bool, err error) {
	if err := o.check(); err != nil {
		return false, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var started processes
	defer func() {
		cancel()
		started.Stop()
	}()
	dir, err := os.MkdirTemp("", "regions-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)
	fmt.Fprintln(out, "starting: for each of eu, us, ap a Redis and its nodes, and links of", o.delay, "between them")
	regions, err := open(ctx, o, dir, &started)
	if err != nil {
		return false, err
	}
	a := &attack{window: o.window, mu: make([]sync.Mutex, len(regions)), admitted: make([][]time.Time, len(regions))}
	a.start = o.begin(time.Now())
	a.end = a.start.Add(o.duration)
	p := &regionplot.Plot{
		Title: o.title(), Caption: fmt.Sprintf("%.0f requests a second in each region, links of %v one way; by HTTP",
			o.rate, o.delay),
		Regions: names, N: o.limit, Bound: o.bound(), Window: o.window, Span: o.duration,
	}
	if o.busy != "" {
		p.Caption = fmt.Sprintf("%.0f requests a second in %s alone, links of %v one way; by HTTP", o.rate, o.busy,
			o.delay)
	}
	if o.cut != "" && o.from < o.duration {
		p.Cut, p.CutFrom, p.CutTo = o.cut+" is cut off", o.from, o.to
		if strings.Contains(o.cut, "-") {
			p.Cut = o.cut + " is cut"
		}
	}
	fmt.Fprintf(out, "attack: %s\n\n", p.Caption)
	var running sync.WaitGroup
	for i, r := range regions {
		if o.busy == "" || o.busy == r.name {
			running.Go(func() { a.run(ctx, i, r, o.rate) })
		}
	}
	running.Go(func() { o.breakLinks(ctx, a.start, regions) })
	table(ctx, out, o, a, regions)
	running.Wait()
	if ctx.Err() != nil {
		return false, errors.New("stopped")
	}
	for at := time.Duration(0); at < o.duration; at += o.window / 100 {
		p.Samples = append(p.Samples, a.at(a.start.Add(at)))
	}
	kept = verdict(out, o, a, p)
	if o.plot != "" {
		if err := os.WriteFile(o.plot, p.SVG(), 0o644); err != nil {
			return kept, err
		}
		fmt.Fprintln(out, "drawn in", o.plot)
	}
	return kept, nil
}

func (o *options) title() string {
	limit := fmt.Sprintf("%d in %v", o.limit, o.window)
	switch {
	case o.rival != "":
		return fmt.Sprintf("%s, %s", filepath.Base(o.rival), limit)
	case o.each:
		return fmt.Sprintf("fixed_window, %s, each region for itself", limit)
	}
	return fmt.Sprintf("fixed_window, %s, three regions, over: %d%%", limit, o.over)
}

// begin returns when the first window begins.
func (o *options) begin(now time.Time) time.Time {
	now = now.Add(time.Second)
	if o.rival != "" {
		now = now.Add(o.window) // until the window is over in which its nodes were started
	}
	return time.Unix(0, (now.UnixNano()/int64(o.window)+1)*int64(o.window))
}

// open starts the regions.
func open(ctx context.Context, o *options, dir string, started *processes) ([]*region, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute) // most of it to build
	defer cancel()
	if err := os.CopyFS(dir, files); err != nil {
		return nil, err
	}
	if err := o.rules(filepath.Join(dir, "rules", "search.yaml")); err != nil {
		return nil, err
	}
	program, build := &o.weir, "github.com/weir-rl/weir/cmd/weir"
	if o.rival != "" {
		program, build = &o.rival, ""
	}
	var err error
	if *program, err = programs.Built(ctx, *program, build, dir); err != nil {
		return nil, err
	}
	var regions []*region
	for _, name := range names {
		r := &region{name: name, links: map[string]*link{}}
		if o.rival != "" {
			r.redis, err = programs.FreeAddress() // where it hears the others, without a Redis
		} else {
			r.redis, err = started.startRedis(ctx, name, filepath.Join(dir, name))
		}
		if err != nil {
			return nil, err
		}
		regions = append(regions, r)
	}
	for _, r := range regions {
		for _, other := range regions {
			if other == r {
				continue
			}
			l, err := newLink(context.WithoutCancel(ctx), other.redis, o.delay)
			if err != nil {
				return nil, err
			}
			r.links[other.name] = l
		}
	}
	for _, r := range regions {
		if o.rival != "" {
			if err := started.startRival(ctx, o.rival, r.redis, r, o); err != nil {
				return nil, err
			}
			continue
		}
		for range nodesEach {
			if err := started.startWeir(ctx, o.weir, dir, r); err != nil {
				return nil, err
			}
		}
	}
	if o.rival != "" || o.each {
		return regions, nil
	}
	return regions, hearEachOther(ctx, regions)
}

// rules writes the numbers of the flags into the rule.
func (o *options) rules(path string) error {
	text, err := fs.ReadFile(files, "rules/search.yaml")
	if err != nil {
		return err
	}
	for pattern, with := range map[string]string{
		`allow: \S+`: fmt.Sprintf("allow: %d/%v", o.limit, o.window), `consistency: .*`: fmt.Sprintf("consistency: { regions: { over: %d%% } }", o.over),
	} {
		if o.each && strings.HasPrefix(pattern, "consistency") {
			with = ""
		}
		text = regexp.MustCompile(pattern).ReplaceAll(text, []byte(with))
	}
	return os.WriteFile(path, text, 0o644)
}

// breakLinks cuts and heals the links.
func (o *options) breakLinks(ctx context.Context, start time.Time, regions []*region) {
	if o.cut == "" {
		return
	}
	each := func(at time.Duration, do func(*link)) {
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(start.Add(min(at, o.duration)))):
		}
		for _, r := range regions {
			for name, l := range r.links {
				if o.isCut(r.name, name) {
					do(l)
				}
			}
		}
	}
	each(o.from, (*link).cut)
	each(o.to, (*link).heal)
}

// table prints a line each second.
func table(ctx context.Context, out io.Writer, o *options, a *attack, regions []*region) {
	fmt.Fprintf(out, "%3s %6s  %-24s %-16s %-18s %s\n", "", "", "admitted in the window", "all together",
		"staleness, s", "over_units")
	fmt.Fprintf(out, "%3s %6s  %6s %6s %6s     %-16s %5s %5s %5s\n", "s", "links", "eu", "us", "ap", "", "eu",
		"us", "ap")
	for s := time.Second; s <= o.duration; s += time.Second {
		// An instant before the second is full, so that a full window is shown.
		at := a.start.Add(s - time.Millisecond)
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(at)):
		}
		sample := a.at(at)
		links := "whole"
		if o.cut != "" && s > o.from && s <= o.to {
			links = "cut"
		}
		line := fmt.Sprintf("%3.0f %6s ", s.Seconds(), links)
		for _, n := range sample.Admitted {
			line += fmt.Sprintf(" %6d", n)
		}
		n := sample.Sum()
		line += fmt.Sprintf("     %5d %5.1f %% ", n, 100*float64(n)/float64(o.limit))
		over := 0.0
		for _, r := range regions {
			got, _ := r.read(ctx)
			over = max(over, got.over)
			if got.stale < 0 {
				line += "     –"
				continue
			}
			line += fmt.Sprintf(" %5.1f", got.stale)
		}
		fmt.Fprintf(out, "%s %11.0f\n", line, over)
		if s%o.window == 0 && s < o.duration {
			fmt.Fprintln(out)
		}
	}
}

// verdict prints how much was admitted in each window, and whether the bound held.
func verdict(out io.Writer, o *options, a *attack, p *regionplot.Plot) (kept bool) {
	fmt.Fprintf(out, "\n%d requests, %d of them without an answer; admitted:\n", a.asked.Load(), a.failed.Load())
	kept = true
	for i := range p.Most() {
		end := min(time.Duration(i+1)*o.window, o.duration)
		s := a.at(a.start.Add(end - 1))
		n := s.Sum()
		note := ""
		if o.cut != "" && o.from < end && o.to > time.Duration(i)*o.window {
			note = ", " + p.Cut
		}
		fmt.Fprintf(out, "  window %d: %s%s\n", i+1, regionplot.Against(n, o.limit), note)
		kept = kept && n <= o.bound()
	}
	if n := a.unsure.Load(); n > 0 {
		fmt.Fprintf(out, "  and %d that were answered after the turn of a window, and may be of either\n", n)
	}
	fmt.Fprintf(out, "never above the bound, N + %d %% = %d: %s\n", o.over, o.bound(),
		map[bool]string{true: "yes", false: "no"}[kept])
	return kept
}
