package httplimit

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The Go code in docs/guides/middleware.md is taken from programs and examples that run.
func TestDocsAreCode(t *testing.T) {
	comment := regexp.MustCompile(`(?m)^//\t?`)
	var code strings.Builder
	for _, pattern := range []string{"*_test.go", "../grpclimit/*_test.go", "../limiter.go", "../options_test.go",
		"../examples/middleware/*/*.go"} {
		files, err := filepath.Glob(filepath.FromSlash(pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			text := comment.ReplaceAllString(string(data), "")
			code.WriteString(strings.Join(strings.Fields(text), " ") + "\n")
		}
	}
	page, err := os.ReadFile(filepath.FromSlash("../docs/guides/middleware.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?ms)^```go\n(.*?)^```").FindAllStringSubmatch(string(page), -1)
	if len(blocks) < 8 {
		t.Fatalf("only %d blocks of Go were found", len(blocks))
	}
	for _, b := range blocks {
		if !strings.Contains(code.String(), strings.Join(strings.Fields(b[1]), " ")) {
			t.Errorf("no program has\n%s", b[1])
		}
	}
}
