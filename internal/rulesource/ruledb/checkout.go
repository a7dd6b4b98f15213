package ruledb

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/weir-rl/weir/internal/rulesource"
	"github.com/weir-rl/weir/rule/file"
)

// Marker is the file in a folder that says which version it was made from.
const Marker = ".weir-rules"

// Base is what lies in Marker: the version that a folder was made from.
type Base struct {
	Space   string `json:"space"`
	Version int64  `json:"version"`
	Digest  string `json:"digest"` // of the files as they were
}

// ReadMarker returns where a folder comes from; nil if it does not say so.
func ReadMarker(dir string) (*Base, error) {
	raw, err := os.ReadFile(filepath.Join(dir, Marker))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	o := new(Base)
	if err := json.Unmarshal(raw, o); err != nil {
		return nil, fmt.Errorf("%s: is damaged; remove it, and name the version with --base",
			filepath.Join(dir, Marker))
	}
	return o, nil
}

// WriteMarker notes in a folder that its files are a version of a space.
func WriteMarker(dir, space string, version int64, files []file.Source) error {
	raw, err := json.Marshal(Base{Space: space, Version: version, Digest: digestText(files)})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, Marker), append(raw, '\n'), 0o644)
}

func digestText(files []file.Source) string { return fmt.Sprintf("%x", rulesource.Digest(files)) }

// WriteFolder writes the files of a version of a space into a folder, and Marker. had is every file
// of rules and tests that the folder holds: it removes those which the version lacks. Changes in
// had that nobody pushed are an error, unless force drops them.
func (v *Version) WriteFolder(dir, space string, had []file.Source, force bool) error {
	from, err := ReadMarker(dir)
	if err != nil && !force {
		return err
	}
	kept := from != nil && from.Digest == digestText(had)
	if len(had) > 0 && !kept && !force && !rulesource.Equal(had, v.Files) {
		return fmt.Errorf("%s holds rules that were not pushed; push them, or drop them with --force", dir)
	}
	// The folder is one of os.Root, so that no link in it leads writes elsewhere.
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	wanted := map[string]bool{}
	for _, f := range v.Files {
		wanted[f.Name] = true
		name := filepath.FromSlash(f.Name)
		if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := root.WriteFile(name, f.Data, 0o644); err != nil {
			return err
		}
	}
	for _, f := range had {
		if !wanted[f.Name] {
			if err := root.Remove(filepath.FromSlash(f.Name)); err != nil {
				return err
			}
		}
	}
	return WriteMarker(dir, space, v.Number, v.Files)
}
