package main

import (
	"bytes"
	"debug/buildinfo"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// thirdPartyHead is what THIRD-PARTY begins with.
const thirdPartyHead = `Weir is under the Apache License, Version 2.0. Its program also holds Go's library, the modules of
Go below and, in the admin page, uPlot. Here are their licences and notices, each below its name.
The source of a module is what "go mod download MODULE@VERSION" fetches.
`

// thirdParty is the file THIRD-PARTY for a program: the licences and notices of all that it was
// built from. As in writeModules, that is what the Go linker wrote into it.
func (r *release) thirdParty(t target) ([]byte, error) {
	info, err := buildinfo.ReadFile(r.program(t))
	if err != nil {
		return nil, err
	}
	goRoot, err := r.output("go", "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	out.WriteString(thirdPartyHead)
	library := os.DirFS(strings.TrimSpace(string(goRoot)))
	if err := appendTexts(&out, "Go "+info.GoVersion, library, "LICENSE"); err != nil {
		return nil, err
	}
	args := []string{"list", "-m", "-f", "{{.Path}}@{{.Version}} {{.Dir}}"}
	for _, m := range info.Deps { // sorted
		args = append(args, m.Path)
	}
	list, err := r.output("go", args...)
	if err != nil {
		return nil, err
	}
	folders := map[string]string{}
	for line := range strings.Lines(string(list)) {
		module, folder, _ := strings.Cut(strings.TrimSpace(line), " ")
		folders[module] = folder
	}
	for _, m := range info.Deps {
		module := m.Path + "@" + m.Version
		if folders[module] == "" {
			return nil, fmt.Errorf("%s is in the program, and go list knows no folder of it", module)
		}
		if err := appendModule(&out, module, os.DirFS(folders[module])); err != nil {
			return nil, err
		}
	}
	vendored := os.DirFS(filepath.Join(root, "internal", "admin", "page", "assets", "vendor"))
	if err := appendTexts(&out, "uPlot", vendored, "uplot.LICENSE"); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// How files with licences and with notices are called.
var (
	licenceName = regexp.MustCompile(`(?i)^(un)?(licen[cs]e|copying)([-.].*)?$`)
	noticeName  = regexp.MustCompile(`(?i)^(copyright|notice)([-.].*)?$`)
)

// appendModule appends the licences and notices of a module, also those in folders of code that it
// has copied from others.
func appendModule(out *bytes.Buffer, module string, files fs.FS) error {
	var names []string
	licensed := false
	err := fs.WalkDir(files, ".", func(name string, d fs.DirEntry, err error) error {
		base := path.Base(name)
		switch {
		case err != nil:
			return err
		case d.IsDir() && base == "testdata":
			return fs.SkipDir
		case d.IsDir() || path.Ext(base) == ".go":
		case licenceName.MatchString(base):
			licensed = licensed || name == base
			names = append(names, name)
		case noticeName.MatchString(base):
			names = append(names, name)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("%s: %w", module, err)
	}
	if !licensed {
		return fmt.Errorf("%s has no file with its licence", module)
	}
	return appendTexts(out, module, files, names...)
}

// appendTexts appends files, each below a heading that names it and whose it is.
func appendTexts(out *bytes.Buffer, of string, files fs.FS, names ...string) error {
	for _, name := range names {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return fmt.Errorf("the licence of %s: %w", of, err)
		}
		fmt.Fprintf(out, "\n%s\n%s: %s\n\n%s\n", strings.Repeat("=", 80), of, name, bytes.TrimRight(text, "\r\n"))
	}
	return nil
}
