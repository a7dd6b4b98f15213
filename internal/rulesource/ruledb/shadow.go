package ruledb

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weir-rl/weir/internal/rulesource"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

// Shadow returns files with all limits in shadow that before does not have, and the names of these,
// as domain/rule. Only new names count: a limit that changed would refuse nobody in shadow, where
// the one before did. A new limit that says itself what to do with a refusal is an error.
//
// The text is changed rather than parsed and written again, so that comments and layout stay.
func Shadow(files, before []file.Source) (_ []file.Source, names []string, err error) {
	have, err := rulesOf(files)
	if err != nil {
		return nil, nil, err
	}
	known := map[string]bool{}
	if len(before) > 0 {
		had, err := rulesOf(before)
		if err != nil {
			return nil, nil, fmt.Errorf("the version before: %w", err)
		}
		for _, r := range had {
			known[fullName(r)] = true
		}
	}
	var fresh []*rule.Rule
	for _, r := range have {
		if !known[fullName(r)] && !inShadow(r) {
			fresh = append(fresh, r)
			names = append(names, fullName(r))
		}
	}
	out := slices.Clone(files)
	slices.Reverse(fresh) // from the last to the first of a file, so that places stay
	for _, r := range fresh {
		i := slices.IndexFunc(out, func(s file.Source) bool { return s.Name == r.Pos.File })
		text, ok := withKey(string(out[i].Data), r.Pos, r.Lyft != nil)
		if !ok {
			return nil, nil, cannotShadow(fullName(r))
		}
		out[i].Data = []byte(text)
	}
	after, err := rulesOf(out)
	if err != nil || len(after) != len(have) {
		return nil, nil, cannotShadow(strings.Join(names, ", "))
	}
	for i, r := range after {
		if fullName(r) != fullName(have[i]) ||
			inShadow(r) != (inShadow(have[i]) || slices.Contains(names, fullName(r))) {
			return nil, nil, cannotShadow(fullName(r))
		}
	}
	return out, names, nil
}

func cannotShadow(name string) error {
	return fmt.Errorf("%s: cannot be put in shadow here, as where it has an on_limit of its own; write on_limit: shadow into the file", name)
}

func fullName(r *rule.Rule) string { return r.Domain + "/" + r.Name }

func inShadow(r *rule.Rule) bool { return r.Shadow || r.Lyft != nil && r.Lyft.Shadow }

// rulesOf are the rules of files, in their order there.
func rulesOf(files []file.Source) ([]*rule.Rule, error) {
	v := Version{Files: files}
	set, _, err := rulesource.Load("these files", v.Rules(), file.Options{})
	if err != nil {
		return nil, err
	}
	return set.Rules(), nil
}

// withKey puts the key of a shadow before the first key of the entry at a place.
func withKey(text string, at rule.Position, lyft bool) (string, bool) {
	key := "on_limit: shadow"
	if lyft {
		key = "shadow_mode: true"
	}
	lines := strings.SplitAfter(text, "\n")
	if at.Line < 1 || at.Line > len(lines) || at.Column < 1 || at.Column > len(lines[at.Line-1]) {
		return "", false
	}
	line := lines[at.Line-1]
	front, rest := line[:at.Column-1], line[at.Column-1:]
	if entry, flow := strings.CutPrefix(rest, "{"); flow {
		line = front + "{ " + key + "," + entry
	} else {
		line = front + key + "\n" + strings.Repeat(" ", at.Column-1) + rest
	}
	lines[at.Line-1] = line
	return strings.Join(lines, ""), true
}
