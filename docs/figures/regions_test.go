package main

import (
	"bytes"
	"context"
	"flag"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/examples/regions/regionplot"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
	"github.com/weir-rl/weir/store/regions"
)

var update = flag.Bool("update", false, "write regions.csv, outage.csv and their pictures anew")

// way is the way between regions, in both directions.
type way struct {
	mu   sync.Mutex
	open chan struct{} // closed while the region is not cut off
}

func (w *way) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open = make(chan struct{})
}

func (w *way) heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.open)
}

// pass takes as long as a message does.
func (w *way) pass(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(regionsDelay):
	}
	w.mu.Lock()
	open := w.open
	w.mu.Unlock()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-open:
		return nil
	}
}

// far is the store of another region.
type far struct {
	*memory.Store
	way *way
}

func (f far) Told(ctx context.Context, part int, after string, limit int, wait time.Duration) (told []store.Told,
	next string, gap bool, now int64, err error) {
	if err = f.way.pass(ctx); err != nil {
		return nil, "", false, 0, err
	}
	if told, next, gap, now, err = f.Store.Told(ctx, part, after, limit, wait); err == nil {
		err = f.way.pass(ctx)
	}
	return told, next, gap, now, err
}

func (f far) TakeAhead(
	ctx context.Context, minWait, maxWait time.Duration, charges []store.Charge, ahead []algo.Ahead,
	results []algo.Result,
) (now, asked int64, err error) {
	if err = f.way.pass(ctx); err != nil {
		return 0, 0, err
	}
	if now, asked, err = f.Store.TakeAhead(ctx, minWait, maxWait, charges, ahead, results); err == nil {
		err = f.way.pass(ctx)
	}
	return now, asked, err
}

// runRegions attacks a node in each region, in a bubble of virtual time, and returns what was
// admitted at each step.
func runRegions(t *testing.T) (samples []regionplot.Sample) {
	set, problems, err := file.Load([]file.Source{{Name: "shop.yaml", Data: []byte(regionsRule)}}, file.Options{})
	if err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	// A bubble begins in 2000, before this process, and its monotonic clock below 0.
	time.Sleep(time.Until(time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)))
	n := len(regionLoads)
	var table []regions.Region
	stores := make([]*memory.Store, n)
	for i, r := range regionLoads {
		table = append(table, regions.Region{Name: r.name, Weight: 1})
		if stores[i], err = memory.New(memory.Options{MaxKeys: 1000}); err != nil {
			t.Fatal(err)
		}
	}
	// Between each two regions.
	ways := map[[2]int]*way{}
	limiters := make([]*weir.Limiter, n)
	for i, r := range regionLoads {
		o := regions.Options{
			Region: r.name, Table: table, Own: stores[i], Peers: map[string]regions.Neighbour{},
			Rules: func(id uint64, key []byte) (*rule.Counter, *algo.Limit, *algo.Limit) {
				return limiters[i].Phases().Numbers(id, key)
			},
		}
		for j, other := range regionLoads {
			if i == j {
				continue
			}
			between := [2]int{min(i, j), max(i, j)}
			if ways[between] == nil {
				ways[between] = &way{open: make(chan struct{})}
				ways[between].heal()
			}
			o.Peers[other.name] = far{stores[j], ways[between]}
		}
		s, err := regions.New(stores[i], o)
		if err != nil {
			t.Fatal(err)
		}
		if limiters[i], err = weir.New(s, weir.WithRules(set)); err != nil {
			t.Fatal(err)
		}
		defer s.Close()
	}
	// The first full minute, once all have heard of each other.
	begin := time.Now().Truncate(time.Minute).Add(time.Minute)
	time.Sleep(time.Until(begin))
	each := func(do func(*way)) {
		for between, w := range ways {
			if between[1] == n-1 {
				do(w)
			}
		}
	}
	time.AfterFunc(cutFrom, func() { each((*way).cut) })
	time.AfterFunc(cutTo, func() { each((*way).heal) })
	return sampled(t, begin, regionsSpan, regionsStep, limiters, regionLoads)
}

// What the picture of regions tells: near the limit while they hear each other, up to the bound
// while one is cut off, and never above it. The committed measurement is such a run.
func TestRegionsDrawn(t *testing.T) {
	var samples []regionplot.Sample
	synctest.Test(t, func(t *testing.T) { samples = runRegions(t) })
	if *update {
		for name, data := range map[string][]byte{"regions.csv": encodeRegions(samples),
			"regions.svg": drawRegions(samples)} {
			if err := os.WriteFile(name, data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	committed, err := readSamples("regions.csv")
	if err != nil {
		t.Fatal(err)
	}
	for name, run := range map[string][]regionplot.Sample{"now": samples, "committed": committed} {
		p := regionplot.Plot{N: regionsN, Window: time.Minute, Span: regionsSpan, Samples: run}
		most := p.Most()
		t.Log(name, most)
		for i, n := range most {
			switch end := time.Duration(i+1) * time.Minute; {
			case n > regionsBound:
				t.Errorf("%s: in minute %d %d are admitted, above the bound of %d", name, i+1, n, regionsBound)
			case n < regionsN*99/100:
				t.Errorf("%s: in minute %d only %d are admitted, of %d", name, i+1, n, regionsN)
			case n < regionsN*110/100 && cutFrom < end && end <= cutTo:
				t.Errorf("%s: in minute %d, with a region cut off, only %d are admitted", name, i+1, n)
			case n > regionsN*105/100 && (cutFrom >= end || cutTo <= end-time.Minute):
				t.Errorf("%s: in minute %d, with no region cut off, %d are admitted", name, i+1, n)
			}
		}
	}
}

// The committed picture shows the committed measurement, which in turn is written as it was read.
func TestRegionsPictureIsCurrent(t *testing.T) {
	samples, err := readSamples("regions.csv")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]byte{"regions.svg": drawRegions(samples),
		"regions.csv": encodeRegions(samples)} {
		have, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(have, want) {
			t.Errorf("%s is out of date: run go -C docs/figures run .", name)
		}
	}
}
