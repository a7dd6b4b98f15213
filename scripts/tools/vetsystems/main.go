// Vetsystems type-checks and vets the module in the working directory, tests as well, for other
// systems: vetsystems GOOS/GOARCH... It reads all from source, so that nothing need be compiled for
// a system where nothing is run, and prints what it finds.
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/checker"
	"golang.org/x/tools/go/analysis/passes/appends"
	"golang.org/x/tools/go/analysis/passes/asmdecl"
	"golang.org/x/tools/go/analysis/passes/assign"
	"golang.org/x/tools/go/analysis/passes/atomic"
	"golang.org/x/tools/go/analysis/passes/bools"
	"golang.org/x/tools/go/analysis/passes/copylock"
	"golang.org/x/tools/go/analysis/passes/defers"
	"golang.org/x/tools/go/analysis/passes/errorsas"
	"golang.org/x/tools/go/analysis/passes/ifaceassert"
	"golang.org/x/tools/go/analysis/passes/lostcancel"
	"golang.org/x/tools/go/analysis/passes/nilfunc"
	"golang.org/x/tools/go/analysis/passes/printf"
	"golang.org/x/tools/go/analysis/passes/shift"
	"golang.org/x/tools/go/analysis/passes/sigchanyzer"
	"golang.org/x/tools/go/analysis/passes/stringintconv"
	"golang.org/x/tools/go/analysis/passes/unmarshal"
	"golang.org/x/tools/go/analysis/passes/unreachable"
	"golang.org/x/tools/go/analysis/passes/unsafeptr"
	"golang.org/x/tools/go/packages"
)

// Of the checks of go vet, those that a system can make a difference to.
var checks = []*analysis.Analyzer{
	appends.Analyzer, asmdecl.Analyzer, assign.Analyzer, atomic.Analyzer, bools.Analyzer,
	copylock.Analyzer, defers.Analyzer, errorsas.Analyzer, ifaceassert.Analyzer, lostcancel.Analyzer,
	nilfunc.Analyzer, printf.Analyzer, shift.Analyzer, sigchanyzer.Analyzer, stringintconv.Analyzer,
	unmarshal.Analyzer, unreachable.Analyzer, unsafeptr.Analyzer,
}

func main() {
	found := 0
	for _, system := range os.Args[1:] {
		n, err := vet(system)
		if err != nil {
			fmt.Fprintf(os.Stderr, "vetsystems: %s: %v\n", system, err)
			os.Exit(2)
		}
		found += n
	}
	if found > 0 {
		os.Exit(1)
	}
}

// vet prints the faults of the module on a system, and returns how many there are.
func vet(system string) (int, error) {
	goos, goarch, ok := strings.Cut(system, "/")
	if !ok {
		return 0, fmt.Errorf("want GOOS/GOARCH")
	}
	here, err := os.Getwd()
	if err != nil {
		return 0, err
	}
	all, err := packages.Load(&packages.Config{
		Mode:  packages.LoadAllSyntax | packages.NeedModule,
		Tests: true,
		Env:   append(os.Environ(), "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED=0"),
		ParseFile: func(fset *token.FileSet, name string, src []byte) (*ast.File, error) {
			return parse(fset, here, name, src)
		},
	}, "./...")
	if err != nil {
		return 0, err
	}
	printed := map[string]bool{} // a package and the same with its tests have files in common
	report := func(position, message string) {
		line := fmt.Sprintf("%s: %s: %s\n", system, strings.TrimPrefix(position, here+"/"), message)
		if !printed[line] {
			printed[line] = true
			fmt.Print(line)
		}
	}
	// The main program of each package's tests is the go command's own.
	all = slices.DeleteFunc(all, func(p *packages.Package) bool { return strings.HasSuffix(p.ID, ".test") })
	initial := map[*packages.Package]bool{}
	for _, p := range all {
		initial[p] = true
	}
	packages.Visit(all, nil, func(p *packages.Package) {
		if initial[p] {
			for _, e := range p.Errors {
				report(e.Pos, e.Msg)
			}
		}
		p.IllTyped = false // functions of other modules have no bodies
	})
	graph, err := checker.Analyze(checks, all, nil)
	if err != nil {
		return len(printed), err
	}
	for action := range graph.All() {
		if !initial[action.Package] || !action.IsRoot {
			continue
		}
		if action.Err != nil {
			report(action.Package.PkgPath, action.Err.Error())
		}
		for _, d := range action.Diagnostics {
			report(action.Package.Fset.Position(d.Pos).String(), d.Message)
		}
	}
	return len(printed), nil
}

// parse leaves functions of other modules without their bodies: nobody can mend those, and they are
// most of the work.
func parse(fset *token.FileSet, here, name string, src []byte) (*ast.File, error) {
	if strings.HasPrefix(name, here+"/") {
		return parser.ParseFile(fset, name, src, parser.AllErrors|parser.ParseComments)
	}
	file, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution)
	if file != nil {
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
				f.Body.List = nil
			}
		}
	}
	return file, err
}
