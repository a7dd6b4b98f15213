// Program release makes what is published, from the commit that is checked out around it.
// scripts/release calls it:
//
//	release -version 0.1.0 -out FOLDER [-key FILE] linux/amd64 darwin/arm64
//
// The folder receives an archive and a list of the modules for each system, packages and images for
// Linux, a statement of where all of it is from, SHA256SUMS, and, with a secret key of minisign,
// its signature. The same commit gives the same bytes: the one time in them is when it was made.
//
// Begin with release.make. Each kind of file has a Go file of its own.
package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// root is the repository, as seen from this folder, in which the program runs.
const root = "../.."

// release is what becomes files.
type release struct {
	version, commit string
	time            time.Time // of the commit
	in, out         string    // folders: what build makes, and the files of the release
	targets         []target
}

// target is a system that a program is built for.
type target struct{ os, arch string }

func (t target) String() string { return t.os + "_" + t.arch }

func main() {
	log.SetFlags(0)
	log.SetPrefix("release: ")
	version := flag.String("version", "", "the version, as 0.1.0")
	out := flag.String("out", "", "folder for what is made")
	key := flag.String("key", "", "file of a secret key of minisign; its password is in MINISIGN_PASSWORD")
	flag.Parse()
	if flag.NArg() == 0 || *version == "" || *out == "" {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(*version, *out, *key, flag.Args()); err != nil {
		log.Fatal(err)
	}
}

func run(version, out, key string, targets []string) error {
	in, err := os.MkdirTemp("", "weir-release")
	if err != nil {
		return err
	}
	defer os.RemoveAll(in)
	r := release{version: version, in: in, out: out}
	for _, name := range targets {
		system, arch, _ := strings.Cut(name, "/")
		r.targets = append(r.targets, target{system, arch})
	}
	if err := r.build(); err != nil {
		return err
	}
	return r.make(key)
}

// make fills the folder out from the files that build has left in the folder in. Without a file of
// a key nothing is signed.
func (r *release) make(keyFile string) error {
	for _, t := range r.targets {
		if err := r.writeArchive(t); err != nil {
			return fmt.Errorf("the archive for %v: %w", t, err)
		}
		if err := r.writeModules(t); err != nil {
			return fmt.Errorf("the modules of %v: %w", t, err)
		}
		if t.os == "linux" {
			if err := r.writePackages(t); err != nil {
				return fmt.Errorf("the packages for %v: %w", t, err)
			}
		}
	}
	if err := r.writeImages(); err != nil {
		return fmt.Errorf("the image: %w", err)
	}
	if err := r.writeProvenance(); err != nil {
		return fmt.Errorf("the provenance: %w", err)
	}
	return r.writeSums(keyFile)
}

// program is the file of a built program.
func (r *release) program(t target) string { return filepath.Join(r.in, "weir_"+t.String()) }

// file is where a file of the release goes, which has the version in its name.
func (r *release) file(rest string) string { return filepath.Join(r.out, "weir_"+r.version+"_"+rest) }

// sum is a file of the release and the SHA-256 of its bytes, in hex.
type sum struct{ name, sha256 string }

// sums are all files that the release has so far, by name.
func (r *release) sums() ([]sum, error) {
	files, err := os.ReadDir(r.out)
	if err != nil {
		return nil, err
	}
	var all []sum
	for _, f := range files {
		hash, err := hashFile(filepath.Join(r.out, f.Name()))
		if err != nil {
			return nil, err
		}
		all = append(all, sum{f.Name(), hash})
	}
	slices.SortFunc(all, func(a, b sum) int { return cmp.Compare(a.name, b.name) })
	return all, nil
}

func hashFile(name string) (string, error) {
	data, err := os.ReadFile(name)
	hash := sha256.Sum256(data)
	return hex.EncodeToString(hash[:]), err
}
