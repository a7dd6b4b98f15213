package main

import (
	"bytes"
	"os"
	"testing"
	"time"
)

// TestOverloadRuns lets the experiment of docs/guides/overload.md run for a moment. What it shows
// takes seconds on a machine that does nothing else: TestOverload.
func TestOverloadRuns(t *testing.T) {
	for _, adaptive := range []bool{false, true} {
		all, readings, err := experiment(t.Context(), adaptive, 100*time.Millisecond, 200*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		if len(all) < 40 || !adaptive && len(readings) > 0 { // those that come are drawn by a fixed seed
			t.Errorf("adaptive %t: %d requests, %d readings", adaptive, len(all), len(readings))
		}
		for i := range parts {
			if share, total := served(all, i); total == 0 || share < 0 || share > 1 {
				t.Errorf("adaptive %t, %s: %v of %d served", adaptive, parts[i].name, share, total)
			}
		}
	}
}

// The committed picture shows the committed measurement, which in turn is written as it was read.
func TestOverloadPictureIsCurrent(t *testing.T) {
	points, err := readPoints("overload.csv")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]byte{"overload.svg": drawOverload(points),
		"overload.csv": encodePoints(points)} {
		have, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(have, want) {
			t.Errorf("%s is out of date: run go -C docs/figures run .", name)
		}
	}
}
