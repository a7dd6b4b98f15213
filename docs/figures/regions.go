package main

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/weir-rl/weir/examples/regions/regionplot"
)

// The picture of docs/operating/regions.md: three regions share a limit, and one is cut off from
// the others for a while. regions.csv holds their admissions: real decisions, in virtual time,
// which a test makes (regions_test.go), since virtual time is for tests alone.
const (
	regionsRule = `
domain: shop
limits:
  - name: search
    per: [tenant]
    allow: 6000/min
    algorithm: fixed_window
    consistency: { regions: { over: 20% } }
`
	regionsN     = 6000
	regionsBound = 7200
	regionsSpan  = 4 * time.Minute
	regionsStep  = time.Second
	regionsDelay = 60 * time.Millisecond // one way
	cutFrom      = 65 * time.Second
	cutTo        = 150 * time.Second
)

// load is what comes to a node or a region: requests a second.
type load struct {
	name string
	rate int
}

// regionLoads are the regions, and how many requests a second come to each.
var regionLoads = []load{{"eu", 100}, {"us", 75}, {"ap", 50}}

func encodeRegions(samples []regionplot.Sample) []byte {
	var names []string
	for _, r := range regionLoads {
		names = append(names, r.name)
	}
	return encodeSamples(names, samples)
}

// encodeSamples writes what regions or nodes admitted, a column for each.
func encodeSamples(names []string, samples []regionplot.Sample) []byte {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	_ = w.Write(append([]string{"at_ms"}, names...)) // a buffer takes all
	for _, s := range samples {
		row := []string{strconv.FormatInt(s.At.Milliseconds(), 10)}
		for _, n := range s.Admitted {
			row = append(row, strconv.FormatInt(n, 10))
		}
		_ = w.Write(row)
	}
	w.Flush()
	return b.Bytes()
}

func readSamples(path string) ([]regionplot.Sample, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	rows, err := csv.NewReader(bytes.NewReader(data)).ReadAll()
	if err != nil {
		return nil, err
	}
	var samples []regionplot.Sample
	for _, row := range rows[1:] {
		var n []int64
		for _, cell := range row {
			v, err := strconv.ParseInt(cell, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			n = append(n, v)
		}
		samples = append(samples, regionplot.Sample{At: time.Duration(n[0]) * time.Millisecond, Admitted: n[1:]})
	}
	return samples, nil
}

// drawRegions draws what regions.csv holds.
func drawRegions(samples []regionplot.Sample) []byte {
	p := regionplot.Plot{
		Title:   "6000/min over three regions, over: 20%",
		Caption: "near the limit while the regions hear each other; never above the bound, whatever is cut",
		N:       regionsN, Bound: regionsBound, Window: time.Minute, Span: regionsSpan,
		Cut: "ap is cut off", CutFrom: cutFrom, CutTo: cutTo, Samples: samples,
	}
	for _, r := range regionLoads {
		p.Regions = append(p.Regions, r.name)
	}
	return p.SVG()
}

// drawRegionsIn draws regions.csv in dir.
func drawRegionsIn(dir string) error {
	samples, err := readSamples(filepath.Join(dir, "regions.csv"))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "regions.svg"), drawRegions(samples), 0o644)
}
