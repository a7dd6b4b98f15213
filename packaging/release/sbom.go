package main

import (
	"debug/buildinfo"
	"runtime/debug"
)

// document lists which modules a program was built from, in CycloneDX 1.5
// (https://cyclonedx.org/docs/1.5/json).
type document struct {
	Format     string      `json:"bomFormat"`
	Spec       string      `json:"specVersion"`
	Version    int         `json:"version"`
	Metadata   metadata    `json:"metadata"`
	Components []component `json:"components"`
}

type metadata struct {
	Timestamp string    `json:"timestamp"`
	Component component `json:"component"`
}

type component struct {
	Type    string `json:"type"`
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	PURL    string `json:"purl,omitempty"` // https://github.com/package-url/purl-spec
	Hashes  []hash `json:"hashes,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

// writeModules lists the modules of a program. It reads the record that the Go linker wrote into
// it, so that the list has the modules that are really inside.
func (r *release) writeModules(t target) error {
	info, err := buildinfo.ReadFile(r.program(t))
	if err != nil {
		return err
	}
	sha256, err := hashFile(r.program(t))
	if err != nil {
		return err
	}
	d := describe(info)
	d.Metadata.Timestamp = r.time.Format("2006-01-02T15:04:05Z")
	d.Metadata.Component.Version = "v" + r.version
	d.Metadata.Component.PURL = "pkg:golang/" + info.Main.Path + "@v" + r.version
	d.Metadata.Component.Hashes = []hash{{"SHA-256", sha256}}
	return writeJSON(r.file(t.String()+".cdx.json"), d)
}

// describe lists the standard library, which has Go's version, and the modules.
func describe(info *debug.BuildInfo) document {
	d := document{Format: "CycloneDX", Spec: "1.5", Version: 1}
	d.Metadata.Component = component{Type: "application", Name: "weir"}
	library := func(path, version string) {
		d.Components = append(d.Components, component{Type: "library", Name: path, Version: version,
			PURL: "pkg:golang/" + path + "@" + version})
	}
	library("std", info.GoVersion)
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		library(m.Path, m.Version)
	}
	return d
}
