package main

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// The picture of the wings is true: each package has a box, and imports what is in a row below its
// own, or in its own box.
func TestWingsDrawn(t *testing.T) {
	type place struct{ row, column int }
	places := map[string]place{}
	for i, row := range wings {
		for j, w := range row {
			for _, folder := range strings.Fields(w.folders) {
				places[folder] = place{i, j}
			}
		}
	}
	// The longest folder that a package lies in is its box.
	boxOf := func(folder string) (place, bool) {
		for at := folder; ; at = path.Dir(at) {
			if p, ok := places[at]; ok && (at != "." || folder == ".") {
				return p, true
			}
			if at == "." {
				return place{}, false
			}
		}
	}
	root := filepath.Join("..", "..")
	checked := 0
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, file)
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			switch {
			case rel == ".":
				return nil
			case d.Name()[0] == '.', d.Name() == "testdata", d.Name() == "testkit", d.Name() == "storetest",
				rel == "docs", rel == "examples", rel == "packaging", rel == "scripts":
				return filepath.SkipDir
			}
			if _, err := os.Stat(filepath.Join(file, "go.mod")); err == nil {
				return filepath.SkipDir // a module of its own
			}
			return nil
		}
		if !strings.HasSuffix(rel, ".go") || strings.HasSuffix(rel, "_test.go") {
			return nil
		}
		from, ok := boxOf(path.Dir(rel))
		if !ok {
			t.Errorf("%s is in no box of the picture", rel)
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, i := range f.Imports {
			name, _ := strconv.Unquote(i.Path.Value)
			if name == "github.com/weir-rl/weir" {
				name += "/."
			}
			ours, ok := strings.CutPrefix(name, "github.com/weir-rl/weir/")
			if !ok {
				continue
			}
			checked++
			if to, ok := boxOf(ours); !ok || to != from && to.row <= from.row {
				t.Errorf("%s imports %s, which is not below it in docs/figures/architecture.svg", rel, ours)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if checked < 500 {
		t.Errorf("only %d imports found: does the walk still fit the repository?", checked)
	}
}
