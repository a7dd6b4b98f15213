package regions

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// TestOverUnits: where nothing is lost, the units that each region counts as admitted beyond the
// limit are exactly those that all nodes together admitted beyond it, by their own records: after
// an attack over slow links, and after one while all links are cut.
func TestOverUnits(t *testing.T) {
	t.Parallel()
	for _, of := range []rule.Regions{{Over: 50, Tell: 2}, {Over: 200, Tell: 2}, {Sync: true, Tell: 2}} {
		for _, cut := range []bool{false, true} {
			t.Run(fmt.Sprintf("over %d, sync %v, cut %v", of.Over, of.Sync, cut), func(t *testing.T) {
				inVirtualTime(t, func(t *testing.T) { overUnits(t, of, cut, true) })
			})
		}
	}
	t.Run("Redis", func(t *testing.T) { overUnits(t, rule.Regions{Over: 50, Tell: 2}, true, false) })
}

func overUnits(t *testing.T, of rule.Regions, cut, virtual bool) {
	const n, keys, each = 300, 3, 400
	w := &world{
		t: t, plan: plan{config: algo.Config{Algorithm: algo.FixedWindow, N: n, Window: algo.MaxWindow, FirstRequest: true}},
		prefix: fmt.Sprintf("o%d:", rand.Uint32()), names: []string{"ap", "eu", "us"}, weights: []int{1, 1, 1}, nodes: make([][]*node, 3),
		log: slog.New(slog.DiscardHandler), timeout: time.Minute, // a call of which nothing is known would be missing
		virtual: virtual,
	}
	w.start()
	w.counter = borrowable(t, w.plan.config, of)
	for region := range w.names {
		w.open(region)
		w.open(region)
	}
	defer w.end()
	w.until("the regions hear each other", w.hear)
	w.eachLink(func(i, j int) {
		if w.links[i][j].Delay(100 * time.Millisecond); cut {
			w.links[i][j].Refuse()
			w.links[i][j].Cut()
		}
	})
	var running sync.WaitGroup
	for _, nodes := range w.nodes {
		for _, n := range nodes {
			running.Go(func() {
				for i := range keys * each {
					if key := i % keys; key != 0 || i%30 == 0 { // of the first key all get what they want
						n.take(t.Context(), key, 1+int64(i%2))
					}
				}
			})
		}
	}
	running.Wait()
	w.eachLink(func(i, j int) { w.links[i][j].Pass() })
	var used, all [3]int64 // by region, and by key
	for region, nodes := range w.nodes {
		for _, n := range nodes {
			n.s.x.ledger.rest() // what of quiet keys would stay at home is told, as by a node that stops
			for _, a := range n.admitted {
				used[region] += a.cost
				all[a.key] += a.cost
			}
		}
	}
	beyond := int64(0)
	for _, sum := range all {
		beyond += max(0, sum-n)
	}
	for region, nodes := range w.nodes {
		var over uint64
		w.until(fmt.Sprintf("%s has heard all, and %d units beyond the limit", w.names[region], beyond), func() bool {
			var heard uint64
			over = 0
			for _, n := range nodes {
				l := n.s.Stats().Limits[testLimit]
				heard, over = heard+l.Heard.Used, over+l.Over
			}
			return int64(heard) == used[0]+used[1]+used[2]-used[region] && int64(over) >= beyond
		})
		if int64(over) != beyond {
			t.Errorf("%s counts %d units beyond the limit, of %d; %d were admitted beyond it", w.names[region], over,
				all, beyond)
		}
	}
	if t.Logf("admitted %d of %d, %d beyond it", all, n, beyond); cut && beyond == 0 {
		t.Error("nothing was admitted beyond the limit")
	}
}

// eachLink does something with all links.
func (w *world) eachLink(do func(i, j int)) {
	for i := range w.links {
		for j := range w.links[i] {
			if w.links[i][j] != nil {
				do(i, j)
			}
		}
	}
}
