package ruledb

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/weir-rl/weir/internal/util/human"
	"github.com/weir-rl/weir/rule/file"
)

// Side is one of two things that are compared.
type Side struct {
	Name  string
	Files []file.Source
}

// Diff shows what differs between two sides, file by file, as a unified diff; "" if nothing does.
func Diff(a, b Side) string {
	texts := func(files []file.Source) map[string]string {
		all := map[string]string{}
		for _, f := range files {
			all[f.Name] = string(f.Data)
		}
		return all
	}
	before, after := texts(a.Files), texts(b.Files)
	names := maps.Clone(before)
	maps.Copy(names, after)
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(names)) {
		old, had := before[name]
		now, has := after[name]
		from, to := fmt.Sprintf("%s (%s)", name, a.Name), fmt.Sprintf("%s (%s)", name, b.Name)
		if !had {
			from = "/dev/null"
		}
		if !has {
			to = "/dev/null"
		}
		text := diff.Diff(from, []byte(old), to, []byte(now))
		if _, rest, found := strings.Cut(string(text), "\n"); found { // the first line is a command
			out.WriteString(human.PrintableLines(rest))
		}
	}
	return out.String()
}
