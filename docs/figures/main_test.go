package main

import (
	"bytes"
	"os"
	"testing"
)

// The committed pictures show what the algorithms decide today.
func TestPicturesAreCurrent(t *testing.T) {
	current := func(file string, want []byte, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		have, err := os.ReadFile(file + ".svg")
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(have, want) {
			t.Errorf("%s.svg is out of date: run go -C docs/figures run .", file)
		}
	}
	for _, f := range figures {
		svg, err := draw(f)
		current(f.file, svg, err)
	}
	svg, err := drawLeases()
	current("lease", svg, err)
	for file, svg := range diagrams() {
		current(file, svg, nil)
	}
}

// What the picture of leases tells: nothing beyond the limit, and what was truly admitted lies
// within what is charged and held.
func TestLeasesDrawn(t *testing.T) {
	run, err := runLeases()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range run.samples {
		sum := s.charged
		for _, held := range s.held {
			sum += held
		}
		if s.truly > sum || s.truly < s.charged || sum > leaseN {
			t.Errorf("at %d: %d admitted, %d charged, %v held", s.at-start, s.truly, s.charged, s.held)
		}
	}
	if run.asked*5 > run.admitted {
		t.Errorf("%d calls for %d admissions", run.asked, run.admitted)
	}
}
