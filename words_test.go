package weir_test

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// phrases make readers from other projects stumble. The numbers of lines that have them, in
// comments and on pages, may only fall.
var phrases = []struct {
	phrase          *regexp.Regexp
	comments, pages int
}{
	{regexp.MustCompile(`\b(that|those) of\b`), 2, 1},
	{regexp.MustCompile(`\b(of|in|by|from|with|for) what\b`), 5, 19},
	{regexp.MustCompile(`\b(told|tells|tell) of\b`), 0, 1},
	{regexp.MustCompile(`\bbecomes of\b`), 0, 4}, // the settings' own words
	{regexp.MustCompile(`\bof such\b`), 4, 2},
	{regexp.MustCompile(`\b(whichever|but for)\b`), 0, 0},
}

// TestPlainWords: the phrases do not come back.
func TestPlainWords(t *testing.T) {
	candidate := regexp.MustCompile(`(that|those|told|tells|tell|becomes) of|of such| what|whichever|but for`)
	comments, pages := make([]int, len(phrases)), make([]int, len(phrases))
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() && file != "." &&
			(name[0] == '.' || name == "testdata" || name == "node_modules" ||
				file == "site" || file == "dist") { // scripts/build site and scripts/release fill these
			return filepath.SkipDir
		}
		goFile := strings.HasSuffix(file, ".go") && !strings.HasSuffix(file, "_test.go")
		page := strings.HasSuffix(file, ".md") && file != "CHANGELOG.md"
		if d.IsDir() || !goFile && !page {
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		for line := range bytes.Lines(text) {
			words, lines := line, pages
			if goFile {
				_, words, _ = bytes.Cut(line, []byte("//"))
				lines = comments
			}
			if !candidate.Match(words) {
				continue
			}
			for i, p := range phrases {
				if p.phrase.Match(words) {
					lines[i]++
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range phrases {
		if comments[i] > p.comments || pages[i] > p.pages {
			t.Errorf("%d lines of comments, of at most %d, and %d of pages, of at most %d, hold %q: say who does what",
				comments[i], p.comments, pages[i], p.pages, p.phrase)
		}
	}
}
