package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/weir-rl/weir/internal/admin"
	"github.com/weir-rl/weir/internal/lab/sim"
	"github.com/weir-rl/weir/internal/rulesource"
	"github.com/weir-rl/weir/internal/rulesource/ruledb"
	"github.com/weir-rl/weir/internal/util/human"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

// ruleVersions are the versions in a database as admin.Versions. It connects for each call: they
// are few, and what follows the rules must not wait for them.
type ruleVersions struct {
	address *ruledb.Address
	lint    file.LintOptions
}

// List implements admin.Versions.
func (v *ruleVersions) List(ctx context.Context, n int) (admin.VersionList, error) {
	out := admin.VersionList{Space: v.address.Space, Versions: []admin.Version{}}
	d, err := ruledb.Open(ctx, v.address)
	if err != nil {
		return out, err
	}
	defer d.Close()
	list, err := d.Versions(ctx, n)
	for _, each := range list {
		out.Versions = append(out.Versions, admin.Version{
			Number: each.Number, Parent: each.Parent, Author: each.Author, Note: each.Note, Origin: each.Origin, Made: each.Made.UTC(),
		})
	}
	if err == nil && len(list) > 0 {
		var head *ruledb.Version
		if head, err = d.Head(ctx); err == nil {
			out.Head = head.Number
		}
	}
	return out, err
}

// Push implements admin.Versions. It checks what weir rules push checks.
func (v *ruleVersions) Push(ctx context.Context, c admin.VersionChange) (admin.Pushed, error) {
	for _, name := range slices.Sorted(maps.Keys(c.Files)) {
		if rulesource.IsTestFile(path.Base(name)) {
			return admin.Pushed{}, &admin.CheckError{Message: fmt.Sprintf(
				"%s: holds tests, which the page does not change: the tests of the version are kept, "+
					"and have to pass. Change tests with weir rules pull and push", human.Printable(name))}
		}
	}
	d, err := ruledb.Open(ctx, v.address)
	if err != nil {
		return admin.Pushed{}, err
	}
	defer d.Close()
	head, err := d.Head(ctx)
	if err != nil {
		return admin.Pushed{}, unusable(err)
	}
	if head.Number != c.Base {
		return admin.Pushed{}, v.came(head)
	}
	before, err := d.Version(ctx, c.Base)
	if err != nil {
		return admin.Pushed{}, unusable(err)
	}
	files := changedFiles(before.Files, c.Files)
	if rulesource.Digest(files) == before.Digest {
		return admin.Pushed{}, &admin.CheckError{Message: fmt.Sprintf(
			"these are the rules of version %d, which is in force", c.Base)}
	}
	var shadowed []string
	if c.Shadow {
		if files, shadowed, err = ruledb.Shadow(files, before.Files); err != nil {
			return admin.Pushed{}, &admin.CheckError{Message: err.Error()}
		}
	}
	if err := v.check(ctx, files); err != nil {
		return admin.Pushed{}, err
	}
	out := admin.Pushed{Shadowed: shadowed, InForce: ruledb.Changes(files, before.Files)}
	return v.push(ctx, d, out, ruledb.Change{Base: c.Base, Files: files, Author: c.Author, Note: c.Note,
		Origin: ruledb.Page})
}

// Diff implements admin.Versions.
func (v *ruleVersions) Diff(ctx context.Context, from, to int64) (admin.VersionDiff, error) {
	out := admin.VersionDiff{From: from, To: to}
	d, err := ruledb.Open(ctx, v.address)
	if err != nil {
		return out, err
	}
	defer d.Close()
	var sides [2]ruledb.Side
	for i, n := range []int64{from, to} {
		if sides[i].Name = "nothing"; n == 0 {
			continue
		}
		version, err := d.Version(ctx, n)
		if err != nil {
			return out, unusable(err)
		}
		sides[i] = ruledb.Side{Name: fmt.Sprintf("version %d", n), Files: version.Files}
	}
	out.Diff = ruledb.Diff(sides[0], sides[1])
	if out.RuleChanges, err = CompareRules(sides[0].Files, sides[1].Files); err != nil {
		out.Broken = err.Error()
	}
	return out, nil
}

// Rollback implements admin.Versions.
func (v *ruleVersions) Rollback(ctx context.Context, to int64, author, note string) (admin.Pushed, error) {
	d, err := ruledb.Open(ctx, v.address)
	if err != nil {
		return admin.Pushed{}, err
	}
	defer d.Close()
	head, err := d.Head(ctx)
	if err != nil {
		return admin.Pushed{}, unusable(err)
	}
	c, err := d.BackTo(ctx, head, to)
	if err != nil {
		return admin.Pushed{}, unusable(err)
	}
	c.Author, c.Note = author, note
	return v.push(ctx, d, admin.Pushed{InForce: ruledb.Changes(c.Files, head.Files)}, c)
}

// push makes a version, and adds its number to what is answered of it.
func (v *ruleVersions) push(ctx context.Context, d *ruledb.DB, out admin.Pushed, c ruledb.Change) (admin.Pushed,
	error) {
	version, err := d.Push(ctx, c)
	if _, conflict := errors.AsType[*ruledb.ConflictError](err); conflict {
		head, err := d.Head(ctx)
		if err != nil {
			return admin.Pushed{}, err
		}
		return admin.Pushed{}, v.came(head)
	}
	out.Version = version
	return out, err
}

// unusable makes a CheckError of an error about the contents of the database. Any other error is
// the database's own, and may be gone the next time.
func unusable(err error) error {
	if _, ok := errors.AsType[*ruledb.UnusableError](err); ok || errors.Is(err, ruledb.ErrNoRules) {
		return &admin.CheckError{Message: err.Error()}
	}
	return err
}

// came is the error of a change that another one came before.
func (v *ruleVersions) came(head *ruledb.Version) error {
	note := ""
	if head.Note != "" {
		note = " (" + human.Printable(head.Note) + ")"
	}
	return &admin.CheckError{Conflict: true,
		Message: fmt.Sprintf("version %d came meanwhile, by %s at %s%s; nothing was put in force. "+
			"Keep your change, load the page anew, and make it once more", head.Number, human.Printable(head.Author), head.Made.UTC().Format(time.RFC3339), note)}
}

// changedFiles are the rules of a change, with the tests of the version that it changes.
func changedFiles(before []file.Source, rules map[string]string) []file.Source {
	var files []file.Source
	for _, f := range before {
		if rulesource.IsTestFile(path.Base(f.Name)) {
			files = append(files, f)
		}
	}
	for name, text := range rules {
		files = append(files, file.Source{Name: name, Data: []byte(text)})
	}
	slices.SortFunc(files, func(a, b file.Source) int { return strings.Compare(a.Name, b.Name) })
	return files
}

// check lints files, and runs their tests.
func (v *ruleVersions) check(ctx context.Context, files []file.Source) error {
	if err := ruledb.CheckFiles(files); err != nil {
		return &admin.CheckError{Message: err.Error()}
	}
	set, warnings, err := rulesource.LoadBelow(files, ".")
	if err != nil {
		return &admin.CheckError{Message: err.Error()}
	}
	for _, w := range append(warnings, file.Lint(set, v.lint)...) {
		if w.Name == "" { // a comment for lint that says nothing
			return &admin.CheckError{Message: w.Error()}
		}
	}
	var report strings.Builder
	failed := 0
	for _, f := range files {
		if !rulesource.IsTestFile(path.Base(f.Name)) {
			continue
		}
		dir := path.Dir(f.Name)
		results, err := sim.RunTests(ctx, f.Name, f.Data, dir, func() (*rule.Set, error) {
			set, _, err := rulesource.LoadBelow(files, dir)
			return set, err
		})
		if err == nil {
			err = sim.WriteTests(&report, f.Name, results, false)
		}
		if err != nil {
			return &admin.CheckError{Message: err.Error()}
		}
		failed += sim.Failed(results)
	}
	if failed > 0 {
		return &admin.CheckError{Message: fmt.Sprintf("%s of these rules failed:\n%s", human.Count(failed, "test"),
			strings.TrimSpace(report.String()))}
	}
	return nil
}
