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

// TestPlainWords: phrases that make readers from other projects stumble do not come back into
// comments. The numbers of lines that have them may only fall.
func TestPlainWords(t *testing.T) {
	phrases := map[*regexp.Regexp]int{
		regexp.MustCompile(`\b(that|those) of\b`):               2,
		regexp.MustCompile(`\b(of|in|by|from|with|for) what\b`): 5,
		regexp.MustCompile(`\b(told|tells|tell) of\b`):          0,
		regexp.MustCompile(`\bbecomes of\b`):                    0,
		regexp.MustCompile(`\bof such\b`):                       4,
		regexp.MustCompile(`\b(whichever|but for)\b`):           0,
	}
	candidate := regexp.MustCompile(`(that|those|told|tells|tell|becomes) of|of such| what|whichever|but for`)
	lines := map[*regexp.Regexp]int{}
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() && file != "." && (name[0] == '.' || name == "testdata" || name == "node_modules") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		for line := range bytes.Lines(text) {
			_, comment, found := bytes.Cut(line, []byte("//"))
			if !found || !candidate.Match(comment) {
				continue
			}
			for phrase := range phrases {
				if phrase.Match(comment) {
					lines[phrase]++
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for phrase, most := range phrases {
		if n := lines[phrase]; n > most {
			t.Errorf("%d lines of comments hold %q, and at most %d may: say who does what", n, phrase, most)
		}
	}
}
