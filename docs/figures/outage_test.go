package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/examples/regions/regionplot"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/fallback"
	"github.com/weir-rl/weir/store/memory"
)

// leaving is a store that is away at times, as one that refuses connections.
type leaving struct {
	store.Store
	away atomic.Bool
}

func (l *leaving) Take(ctx context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	if l.away.Load() {
		return 0, fmt.Errorf("connection refused: %w", store.ErrNotCharged)
	}
	return l.Store.Take(ctx, charges, results)
}

// runOutage sends requests to nodes on one store, in a bubble of virtual time, and returns what was
// admitted at each step.
func runOutage(t *testing.T) (samples []regionplot.Sample) {
	set, problems, err := file.Load([]file.Source{{Name: "shop.yaml", Data: []byte(outageRule)}}, file.Options{})
	if err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	// A bubble begins in 2000, before this process, and its monotonic clock below 0.
	time.Sleep(time.Until(time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)))
	newMemory := func() store.Store {
		s, err := memory.New(memory.Options{MaxKeys: 1000})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	shared := &leaving{Store: newMemory()}
	defer shared.Close()
	n := len(outageLoads)
	limiters := make([]*weir.Limiter, n)
	for i := range limiters {
		// Closing one node does not close the others' store.
		s, err := fallback.New(kept{shared}, fallback.Options{Local: newMemory(), Nodes: func() int { return n }})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if limiters[i], err = weir.New(s, weir.WithRules(set)); err != nil {
			t.Fatal(err)
		}
	}
	begin := time.Now().Truncate(time.Minute).Add(time.Minute)
	time.Sleep(time.Until(begin))
	time.AfterFunc(outageFrom, func() { shared.away.Store(true) })
	time.AfterFunc(outageTo, func() { shared.away.Store(false) })
	return sampled(t, begin, outageSpan, outageStep, limiters, outageLoads)
}

// kept is a store that others go on using when one closes it.
type kept struct{ *leaving }

func (kept) Close() error { return nil }

// What the picture of the outage tells: while the store is away no node admits more than its third,
// and the limit holds in each minute, except that each third is rounded up and is one of the units
// that the node last heard of. The committed measurement is such a run.
func TestOutageDrawn(t *testing.T) {
	var samples []regionplot.Sample
	synctest.Test(t, func(t *testing.T) { samples = runOutage(t) })
	if *update {
		for name, data := range map[string][]byte{"outage.csv": encodeSamples(outageNames(), samples),
			"outage.svg": drawOutage(samples)} {
			if err := os.WriteFile(name, data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	committed, err := readSamples("outage.csv")
	if err != nil {
		t.Fatal(err)
	}
	for name, run := range map[string][]regionplot.Sample{"now": samples, "committed": committed} {
		p := regionplot.Plot{N: outageN, Window: time.Minute, Span: outageSpan, Samples: run}
		most := p.Most()
		t.Log(name, most)
		for i, n := range most {
			if n > outageN*101/100 || n < outageN*95/100 {
				t.Errorf("%s: in minute %d %d are admitted, of %d", name, i+1, n, outageN)
			}
		}
		for i, at := range []time.Duration{outageFrom, 2 * time.Minute} {
			end := []time.Duration{2*time.Minute - outageStep, outageTo}[i]
			left := outageN - run[at/outageStep].Sum()
			for node, before := range run[at/outageStep].Admitted {
				if took := run[end/outageStep].Admitted[node] - before; took > left/int64(len(outageLoads))+1 {
					t.Errorf("%s: from %v to %v node %d admits %d, where %d were left", name, at, end, node, took, left)
				}
			}
		}
	}
}

// The committed picture shows the committed measurement, which in turn is written as it was read.
func TestOutagePictureIsCurrent(t *testing.T) {
	samples, err := readSamples("outage.csv")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]byte{"outage.svg": drawOutage(samples),
		"outage.csv": encodeSamples(outageNames(), samples)} {
		have, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(have, want) {
			t.Errorf("%s is out of date: run go -C docs/figures run .", name)
		}
	}
}
