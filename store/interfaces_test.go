package store_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// TestNoHiddenInterfaces: what one store asks of another is public contract, declared in package
// store, so that no package below declares an interface for itself.
func TestNoHiddenInterfaces(t *testing.T) {
	public := 0
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		named := map[*ast.InterfaceType]bool{}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				if i, ok := n.Type.(*ast.InterfaceType); ok && n.Name.IsExported() {
					named[i] = true
					public++
				}
			case *ast.InterfaceType:
				if !named[n] && len(n.Methods.List) > 0 {
					t.Errorf("%s declares a private interface", file)
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if public < 10 {
		t.Errorf("only %d public interfaces were found; the test does not see the code", public)
	}
}
