package file

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"pgregory.net/rapid"
)

// sameAsLibrary reads text both ways, if the quick one takes it, and reports whether it does.
func sameAsLibrary(t interface {
	Helper()
	Fatalf(format string, args ...any)
}, text string) bool {
	t.Helper()
	document, comments, ok := readQuick(text)
	if !ok || !utf8.ValidString(text) { // which parseYAML refuses before

		return false
	}
	documents, wantComments, misread, failure := readYAML(text)
	switch {
	case failure != nil:
		t.Fatalf("the library refuses %q, %d:%d: %s", text, failure.line, failure.column, failure.message)
	case len(misread) > 0:
		t.Fatalf("the library cannot read a value of %q: %+v", text, misread[0])
	case len(documents) != 1:
		t.Fatalf("the library finds %d documents in %q", len(documents), text)
	case !reflect.DeepEqual(document, documents[0]):
		t.Fatalf("%q is read as\n%s\nthe library reads\n%s", text, outline(document), outline(documents[0]))
	case len(comments)+len(wantComments) > 0 && !reflect.DeepEqual(comments, wantComments):
		t.Fatalf("%q: comments %+v, the library finds %+v", text, comments, wantComments)
	}
	return true
}

// outline shows an element with all that is known of it.
func outline(v *element) string {
	s := fmt.Sprintf("%d:%d %d %t %q size %d depth %d", v.line, v.column, v.kind, v.quoted, v.text, v.size, v.depth)
	for _, p := range v.pairs {
		s += "\n  " + strings.ReplaceAll(outline(p.key)+": "+outline(p.value), "\n", "\n  ")
	}
	for _, i := range v.items {
		s += "\n- " + strings.ReplaceAll(outline(i), "\n", "\n  ")
	}
	return s
}

// ruleTexts are the YAML files of the repository, and what the documentation shows of YAML.
func ruleTexts(t testing.TB) map[string]string {
	texts := map[string]string{}
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if name := d.Name(); name == ".git" || name == "node_modules" || name == ".cache" {
				return filepath.SkipDir
			}
			return err
		}
		ext := filepath.Ext(path)
		if ext != ".yaml" && ext != ".yml" && ext != ".md" {
			return nil
		}
		data, err := os.ReadFile(path)
		if ext != ".md" {
			texts[path] = string(data)
			return err
		}
		for i, part := range strings.Split(string(data), "```yaml\n")[1:] {
			text, _, _ := strings.Cut(part, "```")
			texts[fmt.Sprint(path, "#", i)] = text
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return texts
}

// What the repository has of YAML is read alike both ways, and most of it in the quick one.
func TestQuickYAML(t *testing.T) {
	var quick, general []string
	for path, text := range ruleTexts(t) {
		if sameAsLibrary(t, text) {
			quick = append(quick, path)
		} else {
			general = append(general, path)
		}
	}
	if len(quick) < 2*len(general) {
		t.Errorf("%d texts are read in the quick way, and %d are not:\n%s", len(quick), len(general), strings.Join(general, "\n"))
	}
	for _, k := range loadKinds {
		if !sameAsLibrary(t, string(rulesOf(k.text, 100))) {
			t.Errorf("rules like %s are not read in the quick way", k.text)
		}
	}
}

// yamlPieces are what drawn texts are made of.
var yamlPieces = []string{
	"a", "b: ", "c:", "key: ", "limits:\n", "- ", "  ", " ", "\n", "\n  ", "\n    ", "\n- ", "\n  - ", ": ", ":", "{", "}", "[", "]", ", ", ",",
	"# lint:x", "#", " # c", "'", "''", "\"", "\\", "\\\\", "\\\"", "null", "~", "~^/x", "true", "1", "1.5", "0x1F", "1_0", "-1", "10/min", "/x/**",
	"a b", "a: b", "<<", "&a", "*a", "!x", "|", ">", "%", "@", "`", "?", "? ", "-", "--", "---", "...", "é", "a#b", "=", "(", "<", "x[0]", "a == \"b\"",
	"2026-01-01", ".inf", ".5", "+1", "$x", "a,b", "a{b", "10:30", "y", "No",
}

// Texts of any pieces, most of which are not YAML; and trees in the forms that the quick way knows,
// with a byte changed here and there.
func TestQuickYAMLDrawn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { quickYAMLDrawn(t) })
}

// TestQuickYAMLFixed does the same with fixed examples, some of which are read in the quick way.
func TestQuickYAMLFixed(t *testing.T) {
	taken := 0
	effort.Fixed(t, func() {
		rapid.Check(t, func(t *rapid.T) {
			if quickYAMLDrawn(t) {
				taken++
			}
		})
	})
	if taken == 0 {
		t.Error("none was read in the quick way")
	}
}

// quickYAMLDrawn is one example of TestQuickYAMLDrawn. It reports whether it was read in the quick
// way.
func quickYAMLDrawn(t *rapid.T) bool {
	var text string
	if rapid.Bool().Draw(t, "pieces") {
		text = strings.Join(rapid.SliceOfN(rapid.SampledFrom(yamlPieces), 1, 12).Draw(t, "text"), "")
	} else {
		var b strings.Builder
		drawBlock(t, &b, 0, 3)
		text = b.String()
		for range rapid.IntRange(0, 2).Draw(t, "changes") {
			i := rapid.IntRange(0, len(text)).Draw(t, "at")
			text = text[:i] + rapid.SampledFrom(yamlPieces).Draw(t, "piece") + text[min(len(text), i+rapid.IntRange(0, 2).Draw(t, "cut")):]
		}
	}
	return sameAsLibrary(t, text)
}

func drawKey(t *rapid.T, keys map[string]bool) string {
	for {
		k := rapid.SampledFrom([]string{"a", "name", "header.x-y", "1", "1.5", "true", "y", "a/b", "x_", "2026-01-01", "0x1", "domain"}).Draw(t, "key") +
			rapid.SampledFrom([]string{"", "0", "z"}).Draw(t, "more")
		if !keys[k] {
			keys[k] = true
			return k
		}
	}
}

func drawScalar(t *rapid.T) string {
	return rapid.SampledFrom([]string{
		"a", "10/min", "/x/**", "a b", "\"!free\"", "'a'", "'it''s'", "\"~\\\\d\\\"\"", "10%", "user|ip", "1", "-1", "1.50", "true", "''", "\"\"", "~^/x", "/a", "2026-01-01",
		"'a: b'", "\"# no\"", "0x1F", "1_000", "a-b", "10.0.0.0/8", ".5", "+1", "(a", "$b", "^c", "\\d",
	}).Draw(t, "scalar")
}

func drawFlow(t *rapid.T, depth int) string {
	switch n := rapid.IntRange(0, 3).Draw(t, "flow"); {
	case n == 0 && depth > 0:
		s, keys := "", map[string]bool{}
		for range rapid.IntRange(0, 3).Draw(t, "n") {
			s += rapid.SampledFrom([]string{"", " "}).Draw(t, "space") + drawKey(t, keys) + ": " + drawFlow(t, depth-1) + ","
		}
		return "{" + strings.TrimSuffix(s, ",") + rapid.SampledFrom([]string{"", " "}).Draw(t, "end") + "}"
	case n == 1 && depth > 0:
		s := ""
		for range rapid.IntRange(0, 3).Draw(t, "n") {
			s += drawFlow(t, depth-1) + rapid.SampledFrom([]string{",", ", ", " , "}).Draw(t, "comma")
		}
		return "[" + strings.TrimRight(s, ", ") + "]"
	}
	return drawScalar(t)
}

func drawEnd(t *rapid.T) string {
	return rapid.SampledFrom([]string{"\n", "\n", "\n", " \n", " # c\n", "\n\n", "\n# lint:ignore x\n", "  #lint: é\n   # d\n"}).Draw(t, "end")
}

// drawBlock writes a mapping or a list at an indentation; the cursor stands there.
func drawBlock(t *rapid.T, b *strings.Builder, indent, depth int) {
	space := strings.Repeat(" ", indent)
	list := depth < 3 && rapid.Bool().Draw(t, "list")
	keys := map[string]bool{}
	for i := range rapid.IntRange(1, 3).Draw(t, "entries") {
		if i > 0 {
			b.WriteString(space)
		}
		if list {
			b.WriteString("-" + strings.Repeat(" ", rapid.IntRange(1, 2).Draw(t, "gap")))
		} else {
			b.WriteString(drawKey(t, keys) + ":")
		}
		switch {
		case depth == 0 || rapid.Bool().Draw(t, "inline"):
			if !list {
				b.WriteString(" ")
			}
			b.WriteString(drawFlow(t, 2) + drawEnd(t))
		case list:
			drawBlock(t, b, b.Len()-strings.LastIndex(b.String(), "\n")-1, 0)
		default:
			b.WriteString(drawEnd(t))
			more := rapid.IntRange(0, 3).Draw(t, "deeper")
			b.WriteString(space + strings.Repeat(" ", more))
			drawBlock(t, b, indent+more, depth-1)
		}
	}
}

func FuzzQuickYAML(f *testing.F) {
	for _, text := range ruleTexts(f) {
		if len(text) < 2000 {
			f.Add(text)
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) < 4000 {
			sameAsLibrary(t, text)
		}
	})
}
