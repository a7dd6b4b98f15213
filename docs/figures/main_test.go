package main

import (
	"bytes"
	"os"
	"testing"
)

// The committed pictures show what the algorithms decide today.
func TestPicturesAreCurrent(t *testing.T) {
	for _, f := range figures {
		want, err := draw(f)
		if err != nil {
			t.Fatal(err)
		}
		have, err := os.ReadFile(f.file + ".svg")
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(have, want) {
			t.Errorf("%s.svg is out of date: run go run ./docs/figures", f.file)
		}
	}
}
