package weir_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/weir-rl/weir"

// pure are the packages of the standard library that package algo may import: no clock, lock, log
// or I/O.
var pure = []string{"cmp", "encoding/binary", "errors", "fmt", "math", "math/bits", "slices", "sort", "strings",
	"sync/atomic", "time"}

// judges are the packages of ours that internal/observe/insight/judge may import: it is pure, too,
// although its wing gathers.
var judges = []string{"algo", "internal/observe/insight", "internal/util/human", "rule"}

// These numbers may only fall.
const (
	mostFolders = 37 // in the table of arrows
	mostWings   = 12
	mostFiles   = 11 // of package weir, without tests
	mostMethods = 15 // of Limiter, exported
)

// arrows reads from the table in docs/architecture.md which folders of this module each folder may
// import; "*" is any. The root is ".".
func arrows(t *testing.T) map[string][]string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(data), "| folder | what lives there | may import |\n")
	if !found {
		t.Fatal("docs/architecture.md has no table of folders")
	}
	quoted := regexp.MustCompile("`([^`]+)`")
	out := map[string][]string{}
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 5 || strings.HasPrefix(cells[1], " ---") {
			if line == "\n" {
				break
			}
			continue
		}
		var allowed []string
		for name := range strings.SplitSeq(cells[3], ",") {
			switch name = strings.TrimSpace(name); name {
			case "weir":
				allowed = append(allowed, ".")
			case "everything", "":
				allowed = append(allowed, "*")
			case "nothing of ours", "the standard library":
			default:
				allowed = append(allowed, name)
			}
		}
		for _, folder := range quoted.FindAllStringSubmatch(cells[1], -1) {
			out[path.Clean(folder[1])] = allowed
		}
	}
	return out
}

// allowedFor returns what the row of a folder, or of one above it, allows.
func allowedFor(table map[string][]string, folder string) (allowed []string, ok bool) {
	if allowed, ok = table[folder]; ok {
		return allowed, true
	}
	for above := path.Dir(folder); above != "."; above = path.Dir(above) {
		if allowed, ok = table[above]; ok {
			return allowed, true
		}
	}
	return nil, false
}

// allows reports whether a row allows to import a folder. A wing, and store/internal, stand for all
// folders below; "internal/door/." is that package alone.
func allows(row []string, folder string) bool {
	return slices.ContainsFunc(row, func(name string) bool {
		below := strings.HasPrefix(name, "internal/") || strings.HasSuffix(name, "/internal")
		return name == "*" || name == folder || name == folder+"/." || below && strings.HasPrefix(folder, name+"/")
	})
}

// wing returns the folder right below internal/ that a folder is in; "" if it is in none.
func wing(folder string) string {
	below, ok := strings.CutPrefix(folder, "internal/")
	if !ok {
		return ""
	}
	name, _, _ := strings.Cut(below, "/")
	return name
}

// sameWing reports whether two folders are in one wing, in which they may import each other: in
// util they may not.
func sameWing(a, b string) bool { return wing(a) != "" && wing(a) != "util" && wing(a) == wing(b) }

// isDoor reports whether a folder of internal/door serves a protocol: all do but these.
func isDoor(folder string) bool {
	name, ok := strings.CutPrefix(folder, "internal/door/")
	name, _, _ = strings.Cut(name, "/")
	return ok && !slices.Contains([]string{"answer", "auth", "line"}, name)
}

// shipped reports whether a folder is among those that users run or import.
func shipped(folder string) bool {
	top, _, _ := strings.Cut(folder, "/")
	switch top {
	case "docs", "examples", "scripts", "packaging":
		return false
	}
	return wing(folder) != "testkit" && folder != "store/storetest"
}

// TestImportDirection holds the one direction of the arrows between the packages. Tests may import
// more: they use real parts.
func TestImportDirection(t *testing.T) {
	table := arrows(t)
	wings, err := os.ReadDir("internal")
	if err != nil {
		t.Fatal(err)
	}
	if len(table) > mostFolders || len(wings) > mostWings {
		t.Errorf(
			"the table of docs/architecture.md has %d folders, of at most %d, and internal/ %d wings, of at most %d: a new package has its place in a wing", len(table), mostFolders, len(wings), mostWings)
	}
	if len(table) < 12 || !slices.Equal(table["rule"], []string{"algo", "internal/util"}) || len(table["algo"]) != 0 {
		t.Fatalf("the table in docs/architecture.md was read as %v", table)
	}
	checked := 0
	err = filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			name := d.Name()
			if file != "." && (name[0] == '.' || name == "testdata" || isModule(file)) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		folder := path.Dir(filepath.ToSlash(file))
		allowed, ok := allowedFor(table, folder)
		if !ok {
			t.Errorf("%s: the folder %s has no row in the table of docs/architecture.md", file, folder)
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, i := range f.Imports {
			name, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			checked++
			if name == module {
				name = module + "/."
			}
			ours, isOurs := strings.CutPrefix(name, module+"/")
			owner, _, below := strings.Cut(ours, "/internal/")
			switch {
			case !isOurs && folder == "algo" && !slices.Contains(pure, name):
				t.Errorf("%s imports %s; algo is pure and may import %q", file, name, pure)
			case !isOurs || below && owner == folder: // its own
			case folder == "internal/observe/insight/judge" && !slices.Contains(judges, ours):
				t.Errorf("%s imports %s; it may import %q", file, ours, judges)
			case wing(ours) == "server" && wing(folder) != "server" && wing(folder) != "testkit" &&
				folder != "cmd/weir":
				t.Errorf("%s imports %s: only cmd/weir runs the server", file, ours)
			case strings.HasPrefix(ours, "cmd/"):
				t.Errorf("%s imports %s: nothing imports a command", file, ours)
			case shipped(folder) && (wing(ours) == "testkit" || ours == "store/storetest"):
				t.Errorf("%s imports %s, which is for tests alone", file, ours)
			case wing(folder) == "door" && isDoor(ours) && ours != folder && path.Dir(ours) != folder:
				t.Errorf("%s imports %s: nothing of internal/door imports a door", file, ours)
			case !allows(allowed, ours) && !sameWing(folder, ours):
				t.Errorf("%s imports %s, against the direction of the arrows; %s may import %q", file, ours, folder,
					allowed)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if checked < 100 {
		t.Errorf("only %d imports were found; the test does not see the code", checked)
	}
}

// TestRootIsSmall: what is new in package weir stands behind one of the handles of Limiter, in a
// file that is there.
func TestRootIsSmall(t *testing.T) {
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	var files, methods []string
	for _, e := range entries {
		name := e.Name()
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			continue
		}
		files = append(files, name)
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv != nil && f.Name.IsExported() && receiver(f) == "Limiter" {
				methods = append(methods, f.Name.Name)
			}
		}
	}
	if len(files) > mostFiles {
		t.Errorf("package weir has %d files, of at most %d: %q", len(files), mostFiles, files)
	}
	if len(methods) > mostMethods || !slices.Contains(methods, "Allow") {
		t.Errorf("Limiter has %d exported methods, of at most %d: %q", len(methods), mostMethods, methods)
	}
}

// receiver returns the name of the type that a method is of.
func receiver(f *ast.FuncDecl) string {
	of := f.Recv.List[0].Type
	if p, ok := of.(*ast.StarExpr); ok {
		of = p.X
	}
	name, _ := of.(*ast.Ident)
	return name.Name
}

// isModule reports whether dir is a module of its own.
func isModule(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}
