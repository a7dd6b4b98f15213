package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	pathpkg "path"
	"time"

	"github.com/weir-rl/weir/internal/lab/sim"
	"github.com/weir-rl/weir/internal/rulesource"
	"github.com/weir-rl/weir/internal/rulesource/ruledb"
	"github.com/weir-rl/weir/internal/rulesource/xds"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

// place is where the tools read rules: a folder, a file, or the version in force in a database.
type place struct {
	name  string // for people, without a password
	files []file.Source
	tests []file.Source // from a database; a folder's are read separately (testFiles)
}

// databasePatience bounds the time that a tool waits for a database of rules.
const databasePatience = 15 * time.Second

// isRulesURL reports whether a path is the URL of a database or of a control plane.
func isRulesURL(path string) bool { return ruledb.IsURL(path) || xds.IsURL(path) }

// openPlace reads the rule files at a path, or at the URL of a database or a control plane. There
// is at least one.
func openPlace(ctx context.Context, path string) (*place, error) {
	p := &place{name: path}
	var err error
	switch {
	case ruledb.IsURL(path):
		p, err = openVersion(ctx, path)
	case xds.IsURL(path):
		p, err = openControlPlane(ctx, path)
	default:
		p.files, err = rulesource.ReadDir(path)
	}
	if err == nil && len(p.files) == 0 {
		err = fmt.Errorf("%s holds no rule files (*.yaml, *.yml)", p.name)
	}
	if err != nil {
		return nil, usageError(err)
	}
	return p, nil
}

// openVersion reads the version in force in a database.
func openVersion(ctx context.Context, url string) (*place, error) {
	a, err := ruledb.Parse(url)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, databasePatience)
	defer cancel()
	d, err := ruledb.Open(ctx, a)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	head, err := d.Head(ctx)
	if err != nil {
		return nil, err
	}
	v, err := d.Version(ctx, head.Number)
	if err != nil {
		return nil, err
	}
	p := &place{name: fmt.Sprintf("version %d of %s", v.Number, a), files: v.Rules()}
	for _, f := range v.Files {
		if rulesource.IsTestFile(pathpkg.Base(f.Name)) {
			p.tests = append(p.tests, f)
		}
	}
	return p, nil
}

// openControlPlane reads the rules that a control plane holds for a node, once.
func openControlPlane(ctx context.Context, url string) (*place, error) {
	a, err := xds.Parse(url)
	if err != nil {
		return nil, err
	}
	a.Require, a.Cache = xds.RequireStart, "" // which belongs to a server
	f, _, err := xds.Follow(ctx, xds.Options{Address: a, Version: versionText()})
	if err != nil {
		return nil, err
	}
	return &place{name: fmt.Sprintf("version %s of %s", f.Status().Version, a), files: f.Sources()}, nil
}

// load loads the rules. Warnings of that go to stderr.
func (p *place) load(o file.Options, stderr io.Writer) (*rule.Set, error) {
	set, warnings, err := file.Load(p.files, o)
	for _, w := range warnings {
		fmt.Fprintln(stderr, "weir: warning:", w.Error())
	}
	if err != nil {
		return nil, usageError(fmt.Errorf("the rules of %s:\n%w", p.name, err))
	}
	return set, nil
}

// readRules reads and loads the rules at a path, or in a database.
func readRules(ctx context.Context, path string, o file.Options, stderr io.Writer) (*rule.Set, error) {
	p, err := openPlace(ctx, path)
	if err != nil {
		return nil, err
	}
	return p.load(o, stderr)
}

// chooseDomain is the domain that was asked for, else the only one that the rules hold.
func chooseDomain(set *rule.Set, asked, rules, flag string) (string, error) {
	domain, err := sim.ChooseDomain(set, asked, rules, flag)
	if err != nil {
		return "", usageError(err)
	}
	return domain, nil
}

// checkIPv6Prefix checks the flag that the tools share with the server.
func checkIPv6Prefix(bits int) error {
	if bits < 1 || bits > 128 {
		return usageError(errors.New("--client-ip-ipv6-prefix: expected 1 to 128"))
	}
	return nil
}
