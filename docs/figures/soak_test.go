package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSoakPicture: samples of two servers become a curve each, in every chart.
func TestSoakPicture(t *testing.T) {
	from := filepath.Join(t.TempDir(), "soak.csv")
	samples := `at_s,server,decisions,failed,failed_in_faults,p99_us,rss_bytes,heap_bytes,goroutines,files,connections,faults
1,0,13229,0,0,25874,84889600,29999104,73,31,13,0
1,1,13314,0,0,16065,78594048,36528128,40,29,13,0
2,0,26413,0,3,26440,85020672,38256640,74,31,13,1
2,1,26455,0,3,15721,80691200,20357120,40,29,13,1
`
	if err := os.WriteFile(from, []byte(samples), 0o600); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "soak.svg")
	if err := drawSoak(from, to); err != nil {
		t.Fatal(err)
	}
	svg, err := os.ReadFile(to)
	if err != nil {
		t.Fatal(err)
	}
	curves := 0
	for of := xml.NewDecoder(strings.NewReader(string(svg))); ; {
		token, err := of.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "polyline" {
			curves++
		}
	}
	if want := 2 * len(soakPanels); curves != want {
		t.Errorf("%d curves, want %d", curves, want)
	}
	if !strings.Contains(string(svg), "13228 decisions a second") {
		t.Errorf("the caption is another one:\n%s", svg)
	}
}
