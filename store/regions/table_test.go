package regions

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
)

// tableLoad is a load on three regions. rate is a region's rate after some windows and a part of
// one, in limits a window.
type tableLoad struct {
	name string
	rate func(region int, windows float64) float64
	cut  bool // the first region is cut off
}

const (
	muchOffered = 1.8     // by all regions
	attack      = 25. / 3 // in each: all of the limit in four hundredths of a window
)

func evenly(int, float64) float64 { return muchOffered / 3 }

func inOne(region int, _ float64) float64 {
	if region == 0 {
		return muchOffered
	}
	return 0
}

func moving(region int, windows float64) float64 {
	if int(3*windows)%3 == region {
		return muchOffered
	}
	return 0
}

func attacked(int, float64) float64 { return attack }

var tableLoads = []tableLoad{
	{"all in one region", inOne, false},
	{"attack while one is cut off", attacked, true},
	{"even load, 1.8 N", evenly, false},
	{"load moves to another region, three times a window", moving, false},
	{"attack, 8.3 N in each region", attacked, false},
	{"even load, one region is cut off", evenly, true},
	{"all in one region, which is cut off", inOne, true},
}

// tableColumns are ways to share a limit.
var tableColumns = []struct {
	name  string
	of    rule.Regions
	alone bool
	bound float64 // on the units that all regions admit in a window, in limits
}{
	{"static", rule.Regions{Tell: 2}, true, 1},
	{"`over: 0%`", rule.Regions{Tell: 2}, false, 1},
	{"`over: 50%`", rule.Regions{Tell: 2, Over: 50}, false, 1.5},
	{"`sync`", rule.Regions{Tell: 2, Sync: true}, false, 3},
}

// TestTable: what all regions admit in a window under different loads, with links of 60 ms one way,
// is never above the bound. scripts/measure regions sets WEIR_REGIONS_TABLE, and makes the table of
// docs/operating/regions.md over real Redis servers, with the settings of a rule. Else all is in
// virtual time.
func TestTable(t *testing.T) {
	t.Parallel()
	if windows := int(number("WEIR_REGIONS_TABLE", 0)); windows > 0 {
		makeTable(t, tableConfig, windows, tableLoads,
			[]*redistest.Server{redistest.Start(t), redistest.Start(t), redistest.Start(t)})
		return
	}
	c, loads := tableConfig, tableLoads
	if !effort.All() {
		c.N, c.Window, c.LeaseFor = 100, 2*time.Second, 0
		loads = loads[:2]
	}
	inVirtualTime(t, func(t *testing.T) { makeTable(t, c, 1, loads, nil) })
}

var tableConfig = algo.Config{Algorithm: algo.FixedWindow, N: 500, Window: 10 * time.Second, LeaseFor: 2 * time.Second}

// makeTable makes the table over these servers, or in virtual time if there are none.
func makeTable(t *testing.T, c algo.Config, windows int, loads []tableLoad, list []*redistest.Server) {
	var b strings.Builder
	fmt.Fprintf(&b, "| N = %d in %v |", c.N, c.Window)
	for _, column := range tableColumns {
		fmt.Fprintf(&b, " %s |", column.name)
	}
	b.WriteString("\n|" + strings.Repeat(" --- |", len(tableColumns)+1) + "\n")
	for _, load := range loads {
		cells := make([]string, len(tableColumns))
		var running sync.WaitGroup
		for i, column := range tableColumns {
			w := &world{
				t: t, plan: plan{config: c}, prefix: fmt.Sprintf("t%d:", rand.Uint32()), names: []string{"ap", "eu", "us"}, weights: []int{1, 1, 1},
				nodes: make([][]*node, 3), log: slog.New(slog.DiscardHandler), alone: column.alone,
				virtual: list == nil,
			}
			if list == nil {
				w.start()
			} else {
				w.take(list)
			}
			w.counter = borrowable(t, c, column.of)
			for region := range w.names {
				w.open(region)
				w.open(region)
			}
			defer w.end()
			if !column.alone {
				w.until("the regions hear each other", w.hear)
			}
			w.eachLink(func(i, j int) {
				if w.links[i][j].Delay(60 * time.Millisecond); load.cut && (i == 0 || j == 0) {
					w.links[i][j].Refuse()
					w.links[i][j].Cut()
				}
			})
			running.Go(func() {
				least, most := w.windows(load.rate, windows)
				if most > column.bound {
					t.Errorf("%s, %s: %.3f N in a window; the bound is %v", load.name, column.name, most, column.bound)
				}
				if cells[i] = fmt.Sprintf("%.2f N", most); most-least >= 0.005 {
					cells[i] = fmt.Sprintf("%.2f to %.2f N", least, most)
				}
			})
		}
		running.Wait()
		fmt.Fprintf(&b, "| %s | %s |\n", load.name, strings.Join(cells, " | "))
	}
	t.Logf("admitted by all regions in a window, the least and the most of %d:\n%s", windows, b.String())
}

// take uses servers that are there.
func (w *world) take(list []*redistest.Server) {
	w.redis, w.links = list, make([][]fault, len(list))
	for i, from := range list {
		w.servers, w.urls, w.links[i] = append(w.servers, from), append(w.urls, from.URL()), make([]fault, len(list))
		for j, to := range list {
			if i != j {
				w.links[i][j] = redistest.Proxy(w.t, to.Addr())
			}
		}
	}
}

// hear reports whether each region hears the others.
func (w *world) hear() bool {
	for _, nodes := range w.nodes {
		heard := false
		for _, n := range nodes {
			st := n.s.Stats()
			heard = heard || st.Leads && st.Peers[0].Stale >= 0 && st.Peers[1].Stale >= 0
		}
		if !heard {
			return false
		}
	}
	return true
}

// windows puts a load on all regions for so many windows, and returns the least and the most that
// these together admitted in one, in limits.
func (w *world) windows(rate func(region int, windows float64) float64, windows int) (least, most float64) {
	c := w.plan.config
	window := c.Window.Microseconds()
	first := time.Now().UnixMicro()/window + 1
	begin := time.UnixMicro(first * window)
	end := begin.Add(time.Duration(windows) * c.Window)
	var running sync.WaitGroup
	const clients = 2
	for region, nodes := range w.nodes {
		for _, n := range nodes {
			for range clients {
				running.Go(func() {
					for next := begin; next.Before(end); {
						time.Sleep(time.Until(next))
						at := next.Sub(begin).Seconds() / c.Window.Seconds()
						each := rate(region, at) / float64(clients*len(nodes)) * float64(c.N) / c.Window.Seconds()
						if each == 0 {
							next = next.Add(c.Window / 100)
							continue
						}
						n.take(context.Background(), 0, 1)
						next = next.Add(time.Duration(rand.Int64N(2*int64(float64(time.Second)/each) + 1)))
					}
				})
			}
		}
	}
	running.Wait()
	sums := make([]int64, windows)
	for _, nodes := range w.nodes {
		for _, n := range nodes {
			for _, a := range n.admitted {
				if i := a.at/window - first; i >= 0 && i < int64(windows) {
					sums[i] += a.cost
				}
			}
		}
	}
	least, most = float64(sums[0])/float64(c.N), float64(sums[0])/float64(c.N)
	for _, sum := range sums {
		least, most = min(least, float64(sum)/float64(c.N)), max(most, float64(sum)/float64(c.N))
	}
	return least, most
}
