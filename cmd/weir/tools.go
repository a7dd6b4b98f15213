package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/weir-rl/weir/internal/source"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

// readRules reads and loads the rules of a folder or a file for the tools. Warnings of loading go
// to stderr.
func readRules(path string, o file.Options, stderr io.Writer) (*rule.Set, error) {
	files, err := source.ReadDir(path)
	if err != nil {
		return nil, usageError(err)
	}
	if len(files) == 0 {
		return nil, usageError(fmt.Errorf("%s holds no rule files (*.yaml, *.yml)", path))
	}
	set, warnings, err := file.Load(files, o)
	for _, w := range warnings {
		fmt.Fprintln(stderr, "weir: warning:", w.Error())
	}
	if err != nil {
		return nil, usageError(fmt.Errorf("the rules of %s:\n%w", path, err))
	}
	return set, nil
}

// chooseDomain is the domain that was asked for, else the only one that the rules hold.
func chooseDomain(set *rule.Set, asked, rules, flag string) (string, error) {
	domains := set.Domains()
	switch {
	case asked != "" && !set.HasDomain(asked):
		return "", usageError(fmt.Errorf("the rules of %s hold no domain %q: they hold %s", rules, asked, strings.Join(domains, ", ")))
	case asked != "":
		return asked, nil
	case len(domains) == 1:
		return domains[0], nil
	case len(domains) == 0:
		return "", usageError(fmt.Errorf("%s holds no rules", rules))
	}
	return "", usageError(fmt.Errorf("the rules of %s hold several domains: choose one of %s with %s", rules, strings.Join(domains, ", "), flag))
}

// checkIPv6Prefix checks the flag that the tools share with the server.
func checkIPv6Prefix(bits int) error {
	if bits < 1 || bits > 128 {
		return usageError(errors.New("--client-ip-ipv6-prefix: expected 1 to 128"))
	}
	return nil
}
