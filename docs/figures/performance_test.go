package main

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The committed page and pictures show the committed results.
func TestPerformanceIsCurrent(t *testing.T) {
	path := filepath.Join("..", "how-it-works", "performance.md")
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	pictures, after, err := performance(".", string(page))
	if err != nil {
		t.Fatal(err)
	}
	if after != string(page) {
		t.Error("docs/how-it-works/performance.md is out of date: run go -C docs/figures run .")
	}
	for name, want := range pictures {
		have, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(have, want) {
			t.Errorf("%s is out of date: run go -C docs/figures run .", name)
		}
	}
}

// The page is made of the results, and of nothing else: other figures make another page.
func TestPerformanceFollowsResults(t *testing.T) {
	m, err := readMeasured(filepath.Join("performance", "keys.csv"))
	if err != nil {
		t.Fatal(err)
	}
	l := &laws[0]
	block, picture := l.block(m), drawLaw(l, m)
	for i := range m.rows {
		m.rows[i].median *= 2
	}
	if l.block(m) == block || bytes.Equal(drawLaw(l, m), picture) {
		t.Error("figures that are twice as high make the same page or picture")
	}
	m.header["commit"] = "another"
	if !strings.Contains(l.block(m), "at commit another on ") {
		t.Error("the page does not name the commit")
	}
	if _, err := withBlocks("no place", map[string]string{"keys": block}); err == nil {
		t.Error("a page without a place for the keys is taken")
	}
}

// What the sentences of docs/how-it-works/performance.md say is so in the results, whatever the
// figures are.
func TestPerformanceLaws(t *testing.T) {
	read := func(part string) *measured {
		m, err := readMeasured(filepath.Join("performance", part+".csv"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"date", "commit", "machine", "others", "took"} {
			if m.header[name] == "" {
				t.Errorf("%s.csv does not tell its %s", part, name)
			}
		}
		return m
	}
	below := func(law string, ratio, most float64) {
		t.Helper()
		if !(ratio <= most) { // nor is one that is not there
			t.Errorf("%s: %.2f times, at most %v is said", law, ratio, most)
		}
	}
	grows := func(m *measured, measure, series string, from, to float64) float64 {
		return m.value(measure, series, to) / m.value(measure, series, from)
	}

	keys := read("keys")
	sizes := keys.sizes("cpu_ns")
	below("a decision with the most keys", grows(keys, "cpu_ns", "Weir, with rule matching", sizes[0],
		sizes[len(sizes)-1]), 10)
	hot := read("hot")
	below("one key for two processors, beside one", grows(hot, "ns", "Weir, with rule matching", 1, 2), 2)
	for _, at := range []float64{1, 2} {
		below("the store on one key, beside go-limiter",
			hot.value("ns", "Weir, the store alone", at)/hot.value("ns", "sethvargo/go-limiter", at), 1.5)
	}
	rules := read("rules")
	if kinds := flatKinds(rules); len(kinds) < 7 {
		t.Errorf("only %v were measured with 100,000 rules", kinds)
	}
	for _, kind := range flatKinds(rules) {
		below("100,000 rules of "+kind, grows(rules, "cpu_ns", kind, 10, 100_000), 2.5)
	}
	limits := read("limits")
	below("eight limits", grows(limits, "cpu_ns", "Weir, one key", 1, 8), 8)
	below("50 limits", grows(limits, "cpu_ns", "Weir, one key", 1, 50), 75)
	each := func(from, to float64) float64 {
		return (limits.value("cpu_ns", "Weir, one key", to) - limits.value("cpu_ns", "Weir, one key", from)) / (to - from)
	}
	below("a limit beyond ten, beside one of up to eight", each(10, 50)/each(1, 8), 1.5)
	below("a thousand callers", grows(read("callers"), "cpu_us", rpc, 1, 1024), 0.5)
	connections := read("connections")
	below("2,000 connections of RESP", grows(connections, "cpu_us", throttling, 50, 2000), 4)
	below("2,000 connections of gRPC", grows(connections, "cpu_us", "Weir, gRPC", 50, 2000), 4)
	read("proxies")
	below("four nodes", grows(read("nodes"), "redis_us", "Weir, as a library", 1, 4), 1.5)
	open := read("open")
	var longer []float64
	for _, door := range []string{"Weir, RLS", "Weir, HTTP", "Weir, forward auth", "Weir, WEIR.LIMIT",
		"Weir, CL.THROTTLE", "Weir, proxy"} {
		longer = append(longer, grows(open, "p50_us", door, 130, 30))
	}
	slices.Sort(longer) // what is not a number comes first
	below("a door that is not there", longer[0], 100)
	below("half of the doors at 30 % of their load", longer[len(longer)/2], 1)
}

func TestDigitsAndTicks(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.01234: "0.0123", 9.996: "10", 123.4: "123", 1234: "1,230",
		1234567: "1,230,000"} {
		if got := digits(v); got != want {
			t.Errorf("digits(%v) = %s, want %s", v, got, want)
		}
	}
	for _, c := range [][4]float64{{3, 40, 2, 50}, {1, 1, 1, 2}, {0.07, 1000, 0.05, 1000}} {
		if from, to := ticksAround(c[0], c[1]); math.Abs(from-c[2]) > 1e-9 || math.Abs(to-c[3]) > 1e-9 {
			t.Errorf("ticks around %v to %v: %v to %v", c[0], c[1], from, to)
		}
	}
}
