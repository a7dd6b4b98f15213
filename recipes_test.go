package weir_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-rl/weir/algo"
)

// recipe returns the text of a recipe in docs/architecture.md.
func recipe(t *testing.T, title string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(data), "\n### "+title+"\n")
	if !found {
		t.Fatalf("docs/architecture.md has no recipe %q", title)
	}
	text, _, _ = strings.Cut(text, "\n#")
	return text
}

// named returns the files and folders of this repository that a recipe names.
func named(t *testing.T, text string) []string {
	t.Helper()
	var paths []string
	for _, m := range regexp.MustCompile("`([a-z]+/[a-z/_]*[a-z](?:\\.[a-z]+)?)/?`").FindAllStringSubmatch(text, -1) {
		if _, err := os.Stat(m[1]); err != nil {
			t.Errorf("the recipe names %s: %v", m[1], err)
			continue
		}
		paths = append(paths, m[1])
	}
	if len(paths) < 3 {
		t.Fatalf("only %q are named", paths)
	}
	return paths
}

// mentions reports whether a file holds a word, in any case and with or without underscores.
func mentions(t *testing.T, path, word string) bool {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ToLower(string(data))
	return strings.Contains(text, word) || strings.Contains(text, strings.ReplaceAll(word, "_", ""))
}

// TestRecipeAlgorithm: each algorithm is in every file that the recipe for a new one lists.
func TestRecipeAlgorithm(t *testing.T) {
	for _, path := range named(t, recipe(t, "An algorithm")) {
		for _, a := range algo.Algorithms() {
			if !mentions(t, path, a.String()) {
				t.Errorf("the recipe for an algorithm lists %s, which does not mention %s", path, a)
			}
		}
	}
}

// mostNaming is how many files may name an algorithm. It may only fall.
const mostNaming = 27

// TestAlgorithmsAreNamedRarely: only the files that hold, read or write the states of one algorithm
// name it, or those that make a limit of it. All others ask for its traits (algo/traits.go).
func TestAlgorithmsAreNamedRarely(t *testing.T) {
	names := regexp.MustCompile(`^(SlidingWindow|SlidingLog|FixedWindow|TokenBucket|LeakyBucket|Concurrency)$`)
	kinds := regexp.MustCompile(`\bkind(Windows?|Bucket|Interval|Log|Slots)\b`) // of states in Redis
	texts := map[string]bool{}
	for _, a := range algo.Algorithms() {
		texts[strconv.Quote(a.String())] = true
	}
	var naming []string
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			name := d.Name()
			if file != "." && (name[0] == '.' || name == "testdata" || isModule(file) ||
				!shipped(filepath.ToSlash(file))) {
				return filepath.SkipDir
			}
			return nil
		}
		found := false
		switch {
		case strings.HasSuffix(file, ".lua"):
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			found = kinds.Match(text)
		case strings.HasSuffix(file, ".go") && !strings.HasSuffix(file, "_test.go"):
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.Ident:
					found = found || names.MatchString(n.Name) || kinds.MatchString(n.Name)
				case *ast.BasicLit:
					found = found || texts[n.Value]
				}
				return !found
			})
		}
		if found {
			naming = append(naming, file)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(naming); n > mostNaming || n < 10 {
		t.Errorf("%d files name an algorithm, and at most %d may: ask for a trait (algo/traits.go). They are %q", n,
			mostNaming, naming)
	}
}

// TestRecipeStore: each store runs the suite, and is opened where the recipe says.
func TestRecipeStore(t *testing.T) {
	named(t, recipe(t, "A store"))
	entries, err := os.ReadDir("store")
	if err != nil {
		t.Fatal(err)
	}
	stores := 0
	for _, e := range entries {
		if !e.IsDir() || e.Name() == "storetest" || e.Name() == "internal" {
			continue
		}
		folder := filepath.Join("store", e.Name())
		stores++
		tests, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		runs := false
		for _, test := range tests {
			runs = runs || mentions(t, test, "storetest.run(")
		}
		if !runs {
			t.Errorf("%s does not run storetest.Run", folder)
		}
		// store/cas is opened by the packages of its engines.
		imported := `weir/store/` + e.Name() + `"`
		if e.Name() != "cas" && !mentions(t, "internal/server/store.go", imported) &&
			!mentions(t, "internal/server/shared.go", imported) {
			t.Errorf("neither internal/server/store.go nor internal/server/shared.go opens %s", folder)
		}
	}
	if stores < 3 {
		t.Errorf("only %d stores were found", stores)
	}
}

// TestRecipeDoor: each door is in every table that the recipe for a new one lists.
func TestRecipeDoor(t *testing.T) {
	text := recipe(t, "A door")
	named(t, text)
	entries, err := os.ReadDir("internal/door")
	if err != nil {
		t.Fatal(err)
	}
	doors := 0
	for _, e := range entries {
		door := e.Name()
		// rlqs decides nothing that another door could decide, too.
		if !e.IsDir() || !isDoor("internal/door/"+door) || door == "rlqs" {
			continue
		}
		doors++
		for _, path := range []string{"internal/server/tests/doors/sameness_test.go", "internal/server/doors.go"} {
			if !strings.Contains(text, path) {
				t.Errorf("the recipe for a door does not list %s", path)
			}
		}
		if !mentions(t, "internal/server/tests/doors/sameness_test.go", `internal/door/`+door+`"`) {
			t.Errorf("the test of sameness does not ask %s", door)
		}
		if !mentions(t, "docs/architecture.md", "`"+door+"`") {
			t.Errorf("docs/architecture.md has no row for %s", door)
		}
	}
	if doors < 6 {
		t.Errorf("only %d doors were found", doors)
	}
}
