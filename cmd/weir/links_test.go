package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// Every link of a page to another file, and to a heading of a page, leads somewhere.
func TestLinks(t *testing.T) {
	root := servertest.RepositoryRoot(t)
	pages := map[string]*markdown{}
	page := func(path string) *markdown {
		if pages[path] == nil {
			pages[path] = readMarkdown(t, path)
		}
		return pages[path]
	}
	checked, anchors := 0, 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() && path != root &&
			(strings.HasPrefix(name, ".") || name == "testdata" || isBuilt(root, path)) {
			return filepath.SkipDir
		}
		if d.IsDir() || filepath.Ext(path) != ".md" {
			return nil
		}
		for _, l := range page(path).links {
			target, anchor, _ := strings.Cut(l.target, "#")
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			checked++
			full := path
			if target != "" {
				full = filepath.Join(filepath.Dir(path), filepath.FromSlash(target))
			}
			at, _ := filepath.Rel(root, path)
			if _, err := os.Stat(full); err != nil {
				t.Errorf("%s:%d: %s: %v", at, l.line, l.target, err)
				continue
			}
			if anchor == "" {
				continue
			}
			anchors++
			if filepath.Ext(full) != ".md" || !page(full).anchors[anchor] {
				t.Errorf("%s:%d: %s: there is no such heading", at, l.line, l.target)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if checked < 100 || anchors < 30 {
		t.Errorf("only %d links, %d of them with an anchor: does the search still fit the pages?", checked, anchors)
	}
}

// isBuilt says whether a folder of the repository is one that scripts/build site or scripts/release
// fills.
func isBuilt(root, folder string) bool {
	return folder == filepath.Join(root, "site") || folder == filepath.Join(root, "dist")
}

// markdown is what links need to know of a page.
type markdown struct {
	links   []link
	anchors map[string]bool
}

type link struct {
	target string
	line   int
}

var (
	inlineCode = regexp.MustCompile("`[^`]*`")
	inlineLink = regexp.MustCompile(`\]\(([^()\s]+)\)`)
)

func readMarkdown(t *testing.T, path string) *markdown {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	m := &markdown{anchors: map[string]bool{}}
	fenced := false
	for i, line := range strings.Split(string(data), "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
			continue
		}
		if fenced {
			continue
		}
		if heading, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") {
			m.anchor(heading)
		}
		// The text of a link may be code; what is a link in code is none.
		for _, found := range inlineLink.FindAllStringSubmatch(inlineCode.ReplaceAllString(line, "code"), -1) {
			m.links = append(m.links, link{found[1], i + 1})
		}
	}
	return m
}

// anchor adds the anchor of a heading, as GitHub makes it.
func (m *markdown) anchor(heading string) {
	slug := strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, strings.TrimSpace(heading))
	name := slug
	for n := 1; m.anchors[name]; n++ {
		name = fmt.Sprintf("%s-%d", slug, n)
	}
	m.anchors[name] = true
}
