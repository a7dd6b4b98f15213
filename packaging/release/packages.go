package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers itself
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm" // registers itself
)

// Where the unit has the program, and where a package puts it.
const (
	unitsProgram    = "ExecStart=/usr/local/bin/weir "
	packagesProgram = "ExecStart=/usr/bin/weir "
)

// writePackages writes a deb and an rpm, as nfpm.yaml describes them.
func (r *release) writePackages(t target) error {
	stage, err := os.MkdirTemp("", "weir-package")
	if err != nil {
		return err
	}
	defer os.RemoveAll(stage)
	if err := r.fillStage(stage, t); err != nil {
		return err
	}
	text, err := os.ReadFile("nfpm.yaml")
	if err != nil {
		return err
	}
	value := map[string]string{"STAGE": stage, "ARCH": t.arch, "VERSION": r.version}
	expanded := os.Expand(string(text), func(name string) string { return value[name] })
	config, err := nfpm.Parse(strings.NewReader(expanded))
	if err != nil {
		return err
	}
	for _, kind := range []string{"deb", "rpm"} {
		if err := r.writePackage(config, kind); err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
	}
	return nil
}

func (r *release) writePackage(config nfpm.Config, kind string) error {
	info, err := config.Get(kind)
	if err != nil {
		return err
	}
	info = nfpm.WithDefaults(info)
	info.MTime = r.time
	for _, c := range info.Contents {
		if c.FileInfo == nil {
			c.FileInfo = &files.ContentFileInfo{}
		}
		c.FileInfo.MTime = r.time
	}
	packager, err := nfpm.Get(kind)
	if err != nil {
		return err
	}
	info.Target = filepath.Join(r.out, packager.ConventionalFileName(info))
	var out bytes.Buffer
	if err := packager.Package(info, &out); err != nil {
		return err
	}
	return os.WriteFile(info.Target, out.Bytes(), 0o644)
}

// fillStage puts into a folder what nfpm.yaml names in $STAGE: the program, the licences of its
// modules, its manual pages and completions, and the unit for the place where a package has the
// program.
func (r *release) fillStage(stage string, t target) error {
	if err := os.MkdirAll(filepath.Join(stage, "man"), 0o755); err != nil {
		return err
	}
	program, err := os.ReadFile(r.program(t))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(stage, "weir"), program, 0o755); err != nil {
		return err
	}
	licences, err := r.thirdParty(t)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(stage, "THIRD-PARTY"), licences, 0o644); err != nil {
		return err
	}
	if err := os.CopyFS(filepath.Join(stage, "completions"), os.DirFS(filepath.Join(r.in, "completions"))); err != nil {
		return err
	}
	pages, err := filepath.Glob(filepath.Join(r.in, "man", "*.1"))
	if err != nil || len(pages) == 0 {
		return fmt.Errorf("%s has no manual pages (%w)", r.in, err)
	}
	for _, page := range pages {
		data, err := os.ReadFile(page)
		if err != nil {
			return err
		}
		packed, err := gzipped(data, gzip.BestCompression)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(stage, "man", filepath.Base(page)+".gz"), packed, 0o644); err != nil {
			return err
		}
	}
	unit, err := os.ReadFile(filepath.Join(root, "packaging", "systemd", "weir.service"))
	if err != nil {
		return err
	}
	_, body, found := strings.Cut(string(unit), "[Unit]\n") // the comment before it says where a unit made by hand goes
	if !found || strings.Count(body, unitsProgram) != 1 {
		return fmt.Errorf("weir.service has no %q", unitsProgram)
	}
	body = "[Unit]\n" + strings.Replace(body, unitsProgram, packagesProgram, 1)
	return os.WriteFile(filepath.Join(stage, "weir.service"), []byte(body), 0o644)
}
