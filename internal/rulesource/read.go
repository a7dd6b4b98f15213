// Package rulesource reads rules from a folder (or a single file), watches it, and hands every
// change over as a whole. Begin with Open and Folder.Run (folder.go); ReadDir (read.go) reads the
// folder once, and notify.go watches it.
package rulesource

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weir-rl/weir/rule/file"
)

const (
	// maxFileSize is the largest rule file that is read, in bytes.
	maxFileSize = 16 << 20
	// maxDepth is how deep folders may lie within each other.
	maxDepth = 16
)

// ReadDir reads the rule files of a folder, or the single file that path names, sorted by name as
// file.Load wants them.
//
// Rule files are *.yaml and *.yml without a leading dot; *_test.yaml and *_test.yml are rule tests
// and left out. Sub-folders are entered (but those with a leading dot), as envoyproxy/ratelimit
// does; a Source's Name is then the path relative to the folder, with slashes. Symbolic links are
// followed. A single file is taken whatever its name is; its Name is the last element of path.
//
// A folder without rule files gives an empty slice and no error.
func ReadDir(path string) ([]file.Source, error) { return read(path, IsRuleFile) }

// ReadFolder is ReadDir that reads the rule tests as well.
func ReadFolder(path string) ([]file.Source, error) {
	return read(path, func(name string) bool { return IsRuleFile(name) || IsTestFile(name) })
}

// read reads the files of those names.
func read(path string, wanted func(name string) bool) ([]file.Source, error) {
	files, _, err := listOf(path, wanted)
	if err != nil {
		return nil, err
	}
	sources := make([]file.Source, 0, len(files))
	for _, f := range files {
		data, err := readFile(f.path)
		if err != nil {
			return nil, err
		}
		sources = append(sources, file.Source{Name: f.name, Data: data})
	}
	return sources, nil
}

// IsRuleFile reports whether a file of this name in a rules folder is read as rules.
func IsRuleFile(name string) bool { return isYAML(name) && !isTest(name) }

// IsTestFile reports whether a file of this name in a rules folder holds rule tests.
func IsTestFile(name string) bool { return isYAML(name) && isTest(name) }

func isYAML(name string) bool {
	ext := path.Ext(name)
	return !strings.HasPrefix(name, ".") && (ext == ".yaml" || ext == ".yml")
}

func isTest(name string) bool {
	return strings.HasSuffix(strings.TrimSuffix(name, path.Ext(name)), "_test")
}

// entry is one rule file that list found.
type entry struct {
	name string // relative to the folder, with slashes
	path string
	info fs.FileInfo
}

// list finds the rule files under root, sorted by name, and the folders that they may lie in.
func list(root string) (files []entry, folders []string, err error) { return listOf(root, IsRuleFile) }

// listOf is list of files of other names.
func listOf(root string, wanted func(name string) bool) (files []entry, folders []string, err error) {
	info, err := os.Stat(root)
	if err != nil {
		return nil, nil, err
	}
	if !info.IsDir() {
		return []entry{{name: filepath.Base(root), path: root, info: info}}, nil, nil
	}
	l := lister{wanted: wanted}
	if err := l.folder(root, "", []fs.FileInfo{info}); err != nil {
		return nil, nil, err
	}
	slices.SortFunc(l.files, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	return l.files, l.folders, nil
}

type lister struct {
	wanted  func(name string) bool
	files   []entry
	folders []string
}

// folder adds what lies in dir. Above are the folders that lead there, dir included: a link back to
// one of them is left out.
func (l *lister) folder(dir, prefix string, above []fs.FileInfo) error {
	if len(above) > maxDepth {
		return fmt.Errorf("%s: folders lie more than %d deep", dir, maxDepth)
	}
	l.folders = append(l.folders, dir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, ".") {
			continue
		}
		p := filepath.Join(dir, name)
		mayBeFolder := e.IsDir() || e.Type()&fs.ModeSymlink != 0
		if !mayBeFolder && !l.wanted(name) {
			continue
		}
		info, err := os.Stat(p)
		switch {
		case err != nil && !l.wanted(name):
			continue // a dangling link that is no rule file
		case err != nil:
			return err
		case info.IsDir():
			if slices.ContainsFunc(above, func(a fs.FileInfo) bool { return os.SameFile(a, info) }) {
				continue
			}
			if err := l.folder(p, prefix+name+"/", append(slices.Clip(above), info)); err != nil {
				return err
			}
		case !l.wanted(name):
		case !info.Mode().IsRegular():
			return fmt.Errorf("%s: is not a regular file", p)
		default:
			l.files = append(l.files, entry{name: prefix + name, path: p, info: info})
		}
	}
	return nil
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFileSize {
		return nil, fmt.Errorf("%s: is larger than %d MiB", path, maxFileSize>>20)
	}
	return data, nil
}
