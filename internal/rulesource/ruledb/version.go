package ruledb

import (
	"encoding/json"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/weir-rl/weir/internal/rulesource"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

// maxBytes bounds the files of a version together.
const maxBytes = 16 << 20

// Version is a whole folder of rules.
type Version struct {
	Number int64         `json:"number"`
	Parent int64         `json:"parent,omitempty"` // the version that it followed; 0 for none
	Author string        `json:"author"`
	Note   string        `json:"note,omitempty"`
	Origin string        `json:"origin"` // Push, Page, Rollback or Import
	Made   time.Time     `json:"made"`
	Files  []file.Source `json:"-"` // rules and their tests, sorted; nil if they were pruned
	Digest [32]byte      `json:"-"` // of all files: rulesource.Digest
	Head   bool          `json:"head,omitempty"`
}

// The origins of versions.
const (
	Push     = "push"
	Page     = "page"
	Rollback = "rollback"
	Import   = "import"
)

// Rules are the files of a version that hold rules, and no tests.
func (v *Version) Rules() []file.Source {
	return slices.DeleteFunc(slices.Clone(v.Files),
		func(s file.Source) bool { return !rulesource.IsRuleFile(path.Base(s.Name)) })
}

// CheckFiles returns why files cannot be a version, whatever rules they hold.
func CheckFiles(files []file.Source) error {
	_, err := encode(files)
	return err
}

// encode makes the JSON of files. Files that a folder could not hold are an error.
func encode(files []file.Source) ([]byte, error) {
	if len(files) == 0 {
		return nil, fmt.Errorf("there are no rule files (*.yaml, *.yml)")
	}
	all, total := make(map[string]string, len(files)), 0
	for _, s := range files {
		if err := checkName(s.Name); err != nil {
			return nil, err
		}
		if !utf8.Valid(s.Data) || slices.Contains(s.Data, 0) {
			return nil, fmt.Errorf("%s: is no text in UTF-8", s.Name)
		}
		if _, twice := all[s.Name]; twice {
			return nil, fmt.Errorf("%s: is there twice", s.Name)
		}
		all[s.Name] = string(s.Data)
		total += len(s.Data)
	}
	for name := range all {
		for above := path.Dir(name); above != "."; above = path.Dir(above) {
			if _, file := all[above]; file {
				return nil, fmt.Errorf("%s: cannot lie below %s, which is a file", name, above)
			}
		}
	}
	if total > maxBytes {
		return nil, fmt.Errorf("the files have %d bytes together; a version takes at most %d", total, maxBytes)
	}
	return json.Marshal(all)
}

// CheckText returns why a text, such as a note, cannot be kept in a database. what is its name.
func CheckText(what, s string) error {
	if !utf8.ValidString(s) || strings.Contains(s, "\x00") {
		return fmt.Errorf("%s: must be text in UTF-8, without zero bytes", what)
	}
	return nil
}

// checkName checks that a file of this name can be written below a folder, on any system, and is
// read from there as rules or tests.
func checkName(name string) error {
	base := path.Base(name)
	if !filepath.IsLocal(filepath.FromSlash(name)) || path.Clean(name) != name ||
		strings.ContainsAny(name, `\:*?"<>|`) || strings.ContainsFunc(name, unicode.IsControl) ||
		!rulesource.IsRuleFile(base) && !rulesource.IsTestFile(base) || strings.HasPrefix(name, ".") ||
		strings.Contains(name, "/.") {
		return fmt.Errorf("%q is no name of a rule file below a folder", name)
	}
	return nil
}

// decode reads the JSON of files, sorted by name. It trusts nothing of them: a role that may write
// to the database must not write elsewhere.
func decode(raw []byte) ([]file.Source, error) {
	var all map[string]string
	if err := json.Unmarshal(raw, &all); err != nil {
		return nil, fmt.Errorf("the files of the version are not readable: %w", err)
	}
	files := make([]file.Source, 0, len(all))
	for name, text := range all {
		if err := checkName(name); err != nil {
			return nil, err
		}
		files = append(files, file.Source{Name: name, Data: []byte(text)})
	}
	slices.SortFunc(files, func(a, b file.Source) int { return strings.Compare(a.Name, b.Name) })
	return files, nil
}

// load makes the set of rules of files, as a folder of them would be loaded.
func load(from string, files []file.Source, o file.Options) (*rule.Set, []rule.Problem, error) {
	if len(files) == 0 {
		return nil, nil, fmt.Errorf("rules: %s holds no rule file (*.yaml or *.yml)", from)
	}
	return rulesource.Load(from, files, o)
}
