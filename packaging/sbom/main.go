// Program sbom prints which modules a Go binary was built from, as a CycloneDX 1.5 document:
//
//	go run ./packaging/sbom BINARY
//
// It reads the record that the Go linker wrote into the binary, so that the list has the modules
// that are really inside. The same binary gives the same document.
package main

import (
	"debug/buildinfo"
	"encoding/json"
	"log"
	"os"
	"path/filepath"
	"runtime/debug"
)

type document struct {
	Format     string      `json:"bomFormat"`
	Spec       string      `json:"specVersion"`
	Version    int         `json:"version"`
	Metadata   metadata    `json:"metadata"`
	Components []component `json:"components"`
}

type metadata struct {
	Component component `json:"component"`
}

type component struct {
	Type    string `json:"type"`
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	PURL    string `json:"purl,omitempty"` // https://github.com/package-url/purl-spec
}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: sbom BINARY")
	}
	info, err := buildinfo.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	e := json.NewEncoder(os.Stdout)
	e.SetIndent("", "  ")
	if err := e.Encode(describe(filepath.Base(os.Args[1]), info)); err != nil {
		log.Fatal(err)
	}
}

// describe lists the standard library, which has Go's version, and the modules.
func describe(name string, info *debug.BuildInfo) document {
	d := document{Format: "CycloneDX", Spec: "1.5", Version: 1}
	d.Metadata.Component = component{Type: "application", Name: name}
	d.Components = []component{{"library", "std", info.GoVersion, "pkg:golang/std@" + info.GoVersion}}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		d.Components = append(d.Components,
			component{"library", m.Path, m.Version, "pkg:golang/" + m.Path + "@" + m.Version})
	}
	return d
}
