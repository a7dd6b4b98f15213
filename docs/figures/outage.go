package main

import (
	"os"
	"path/filepath"
	"time"

	"github.com/weir-rl/weir/examples/regions/regionplot"
)

// The picture of docs/operating/redis.md: three nodes share a limit, and their store is away for a
// while. outage.csv holds their admissions: real decisions, in virtual time, which a test makes
// (outage_test.go).
const (
	outageRule = `
domain: shop
limits:
  - name: search
    per: [tenant]
    allow: 600/min
    algorithm: fixed_window
`
	outageN    = 600
	outageSpan = 4 * time.Minute
	outageStep = time.Second
	outageFrom = 75 * time.Second
	outageTo   = 165 * time.Second
)

// outageLoads are the nodes, and how many requests a second come to each.
var outageLoads = []load{{"node A, 10/s", 10}, {"node B, 6/s", 6}, {"node C, 4/s", 4}}

func outageNames() (names []string) {
	for _, l := range outageLoads {
		names = append(names, l.name)
	}
	return names
}

// drawOutage draws what outage.csv holds.
func drawOutage(samples []regionplot.Sample) []byte {
	p := regionplot.Plot{
		Title:   "600/min over three nodes, which get twice as many",
		Caption: "without Redis each node admits a third of what Redis last had left, then of the limit",
		By:      "node", Regions: outageNames(),
		N: outageN, Bound: outageN, Window: time.Minute, Span: outageSpan,
		Cut: "Redis is away", CutFrom: outageFrom, CutTo: outageTo, Samples: samples,
	}
	return p.SVG()
}

// drawOutageIn draws outage.csv in dir.
func drawOutageIn(dir string) error {
	samples, err := readSamples(filepath.Join(dir, "outage.csv"))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "outage.svg"), drawOutage(samples), 0o644)
}
