// Package site has the tests of the documentation's site, which scripts/build site renders.
package site

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"html"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weir-rl/weir/docs/site/playground"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// Bounds on what a reader fetches, in bytes: they are what the site promises.
const (
	mostFirstPage  = 100_000
	mostPlayground = 4_000_000
)

// docsPages returns the pages of docs/, by their paths from there.
func docsPages(t *testing.T) (pages []string) {
	t.Helper()
	docs := filepath.Join(servertest.RepositoryRoot(t), "docs")
	err := filepath.WalkDir(docs, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(file) != ".md" {
			return err
		}
		page, err := filepath.Rel(docs, file)
		pages = append(pages, filepath.ToSlash(page))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return pages
}

// Every page is in the table of docs/README.md, of which the site makes its table of contents and
// llms.txt.
func TestContents(t *testing.T) {
	table, err := os.ReadFile(filepath.Join(servertest.RepositoryRoot(t), "docs", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]int{}
	for _, row := range regexp.MustCompile(`(?m)^\| \*\*.+?\*\* \| (.*) \|$`).FindAllStringSubmatch(string(table), -1) {
		for _, link := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(row[1], -1) {
			listed[link[1]]++
		}
	}
	pages := docsPages(t)
	for _, page := range pages {
		if page != "README.md" && listed[page] != 1 {
			t.Errorf("docs/%s is %d times in the table of docs/README.md", page, listed[page])
		}
	}
	if len(pages) < 50 || len(listed) < 50 {
		t.Errorf("only %d pages, of which %d are listed: does the search still fit docs/README.md?", len(pages), len(listed))
	}
}

// built renders the site into a folder of the test.
func built(t *testing.T) string {
	t.Helper()
	effort.Long(t, "renders the documentation")
	root := servertest.RepositoryRoot(t)
	if _, err := os.Stat(filepath.Join(root, ".cache", "tools", "site", "node_modules")); err != nil {
		t.Skip("what renders the site is not in .cache/tools/site: scripts/install site brings it")
	}
	out := t.TempDir()
	build := exec.Command(filepath.Join(root, "scripts", "build"), "site", out)
	build.Env = append(os.Environ(), "VERSION=v0.0.0", "GOFLAGS=") // the program is not what is tested, and not raced
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("scripts/build site: %v\n%s", err, said)
	}
	return out
}

// sitePath is where a page of docs/ stands on the site.
func sitePath(page string) string {
	switch page {
	case "README.md":
		return "pages.md"
	case "site/playground.md":
		return "playground.md"
	}
	return strings.Replace(page, "README.md", "index.md", 1)
}

// The site has every page, with its Markdown beside it and a line in llms.txt; no link is broken,
// nothing comes from another host, and it opens in Chromium without a fault.
func TestSite(t *testing.T) {
	out := built(t)
	llms, err := os.ReadFile(filepath.Join(out, "llms.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range docsPages(t) {
		at := sitePath(page)
		for _, file := range []string{at, strings.TrimSuffix(at, ".md") + ".html"} {
			if _, err := os.Stat(filepath.Join(out, filepath.FromSlash(file))); err != nil {
				t.Errorf("docs/%s: %v", page, err)
			}
		}
		if page != "README.md" && !bytes.Contains(llms, []byte("](/"+at+")")) {
			t.Errorf("llms.txt lacks docs/%s", page)
		}
	}
	checkLinks(t, out)
	engine, err := os.Stat(filepath.Join(out, "playground.wasm.gz"))
	if err != nil || engine.Size() > mostPlayground {
		t.Errorf("the playground: %v, or %d bytes of at most %d", err, engine.Size(), mostPlayground)
	}
	inBrowser(t, out, []string{"", "pages.html", "playground.html", "reference/rules.html", "start/compare.html",
		"how-it-works/consistency.html"}, false)
}

var (
	htmlLink = regexp.MustCompile(`<a\b[^>]*?\shref="([^"]*)"`)
	htmlID   = regexp.MustCompile(`\sid="([^"]*)"`)
	loaded   = regexp.MustCompile(`<(?:img|script|link|iframe|source)\b[^>]*?\s(?:src|href)="([^"]*)"`)
)

// checkLinks checks each link of each page, and each file that a page loads.
func checkLinks(t *testing.T, out string) {
	t.Helper()
	ids, links := map[string]map[string]bool{}, map[string][]string{}
	here := func(page, href string) string {
		href = html.UnescapeString(href)
		if strings.HasPrefix(href, "/") {
			return href
		}
		return path.Join("/", path.Dir(page), href)
	}
	err := filepath.WalkDir(out, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(file) != ".html" || d.Name() == "404.html" {
			return err
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		page, _ := filepath.Rel(out, file)
		page = filepath.ToSlash(page)
		ids["/"+page] = map[string]bool{}
		for _, id := range htmlID.FindAllSubmatch(data, -1) {
			ids["/"+page][html.UnescapeString(string(id[1]))] = true
		}
		for _, link := range htmlLink.FindAllSubmatch(data, -1) {
			links[page] = append(links[page], string(link[1]))
		}
		for _, link := range loaded.FindAllSubmatch(data, -1) {
			from := string(link[1])
			if strings.HasPrefix(from, "data:") {
				continue
			}
			if _, err := os.Stat(filepath.Join(out, filepath.FromSlash(here(page, from)))); err != nil {
				t.Errorf("%s loads %s, which is not of the site", page, from)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for page, list := range links {
		for _, href := range list {
			if strings.Contains(href, "://") || strings.HasPrefix(href, "mailto:") {
				continue
			}
			checked++
			file, anchor, _ := strings.Cut(href, "#")
			to := "/" + page
			if file != "" {
				if to = here(page, file); strings.HasSuffix(file, "/") {
					to = path.Join(to, "index.html")
				}
			}
			switch {
			case ids[to] == nil:
				t.Errorf("%s: the link %s leads nowhere", page, href)
			case anchor != "" && !ids[to][html.UnescapeString(anchor)]:
				t.Errorf("%s: the link %s leads to no heading", page, href)
			}
		}
	}
	if checked < 3000 {
		t.Errorf("only %d links found: does the search still fit the pages?", checked)
	}
}

// compressed serves a folder as servers of files do.
func compressed(folder string) http.Handler {
	files := http.FileServer(http.Dir(folder))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		defer z.Close()
		files.ServeHTTP(zipped{w, z}, r)
	})
}

type zipped struct {
	http.ResponseWriter
	z *gzip.Writer
}

func (z zipped) Write(b []byte) (int, error) { return z.z.Write(b) }

// found is what driver.mjs tells.
type found struct {
	FirstPage int
	Title     string
	Results   int
	Searched  string
	Dark      bool
	Copied    string
	Block     string
	Summary   string
	Rows      []string
	Fault     string
	LeftOut   string
	Hostile   int
	Same      bool
	Faults    []string
}

// inBrowser opens pages of the site, and does what a reader does: every says whether each page is
// looked at in both themes and at both widths.
func inBrowser(t *testing.T, out string, pages []string, every bool) {
	t.Helper()
	tools := os.Getenv("WEIR_BROWSER_TOOLS")
	if tools == "" {
		tools = filepath.Join(servertest.RepositoryRoot(t), ".cache", "tools", "browser")
	}
	chromium, err := exec.LookPath("chromium")
	if _, missing := os.Stat(filepath.Join(tools, "node_modules", "playwright-core")); err != nil || missing != nil {
		t.Skip("Chromium, or what drives it, is not here: scripts/install brings both")
	}
	server := httptest.NewServer(compressed(out))
	defer server.Close()
	in, err := json.Marshal(map[string]any{"base": server.URL + "/", "pages": pages, "every": every,
		"patience": patience.Left(t).Milliseconds()})
	if err != nil {
		t.Fatal(err)
	}
	node := exec.CommandContext(t.Context(), "node", "driver.mjs")
	node.Env = append(os.Environ(), "WEIR_BROWSER_TOOLS="+tools, "CHROMIUM="+chromium)
	node.Stdin = bytes.NewReader(in)
	node.Stderr = os.Stderr
	said, err := node.Output()
	if err != nil {
		t.Fatal(err)
	}
	var f found
	if err := json.Unmarshal(said, &f); err != nil {
		t.Fatal(err)
	}
	for _, fault := range f.Faults {
		t.Error(fault)
	}
	t.Logf("the first page takes %d bytes", f.FirstPage)
	if f.FirstPage > mostFirstPage || f.FirstPage < 10_000 {
		t.Errorf("the first page takes %d bytes, of at most %d", f.FirstPage, mostFirstPage)
	}
	if f.Results == 0 || !strings.Contains(f.Searched, ".html") {
		t.Errorf("search: %d results, and Enter leads to %q", f.Results, f.Searched)
	}
	if f.Title != "Weir" || !f.Dark || f.Copied == "" || f.Copied != f.Block {
		t.Errorf("title %q; dark after the switch: %v; copied %q of %q", f.Title, f.Dark, f.Copied, f.Block)
	}
	if f.Summary != "20 of 26 requests allowed" || len(f.Rows) != 26 {
		t.Errorf("the playground says %q, in %d rows", f.Summary, len(f.Rows))
	}
	if !strings.Contains(f.LeftOut, "rules.yaml:4:9: if: expressions are left out of this program") {
		t.Errorf("an expression in the playground: %s", f.LeftOut)
	}
	if !slices.Equal(strings.Fields(f.Fault), strings.Fields(hostileFault())) || f.Hostile != 0 || !f.Same {
		t.Errorf("hostile: %d; the link shows the same: %v; the fault is\n%s\nwant\n%s", f.Hostile, f.Same, f.Fault,
			hostileFault())
	}
}

// hostileFault is what the rules that driver.mjs types into the playground are answered with.
func hostileFault() string {
	return strings.Join(playground.Run(
		"domain: shop\nlimits:\n  - name: \"<img src=x onerror=document.hostile=1>\"\n    per: [user]\n    alow: 1/min\n",
		"").Faults, "\n")
}
