package ruledb

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/weir-rl/weir/internal/rulesource"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

// Shadow returns files in which all that before does not have is in shadow, and the names of these
// limits, as domain/rule. What is in force stays as it is: a limit that changed runs beside the one
// before, as search-next beside search. An error names what cannot be put in shadow, and would come
// into force.
//
// The text is changed rather than parsed and written again, so that comments and layout stay.
func Shadow(files, before []file.Source) (_ []file.Source, names []string, err error) {
	have, err := rulesOf(files)
	if err != nil {
		return nil, nil, err
	}
	had := map[string]*rule.Rule{}
	if len(before) > 0 {
		list, err := rulesOf(before)
		if err != nil {
			return nil, nil, fmt.Errorf("the version before: %w", err)
		}
		for _, r := range list {
			had[fullName(r)] = r
		}
	}
	out := slices.Clone(files)
	taken := map[string]bool{}
	for _, r := range have {
		taken[fullName(r)] = true
	}
	place := func(list []file.Source, r *rule.Rule) int {
		return slices.IndexFunc(list, func(s file.Source) bool { return s.Name == r.Pos.File })
	}
	for _, r := range slices.Backward(have) { // so that places stay
		i, was, text, ok := place(out, r), had[fullName(r)], "", false
		name := fullName(r)
		switch {
		case inShadow(r) || was != nil && (inShadow(was) || r.Lyft != nil):
			continue // a change of it is found below
		case was == nil:
			text, ok = withKey(string(out[i].Data), r.Pos, r.Lyft != nil)
		default:
			k := place(before, was)
			now, then := entryAt(string(out[i].Data), r.Pos), entryAt(string(before[k].Data), was.Pos)
			if sameEntry(out[i].Data, before[k].Data, r.Name) {
				continue
			}
			next := r.Name
			for n := 1; taken[r.Domain+"/"+next] || had[r.Domain+"/"+next] != nil; n++ {
				if next = r.Name + "-next"; n > 1 {
					next += fmt.Sprint("-", n)
				}
			}
			name = r.Domain + "/" + next
			taken[name] = true
			text, ok = now.beside(then, r.Name, next)
		}
		if !ok {
			return nil, nil, cannotShadow(name)
		}
		out[i].Data = []byte(text)
		names = append(names, name)
	}
	slices.Reverse(names)
	after, err := rulesOf(out)
	if err != nil {
		return nil, nil, cannotShadow(strings.Join(names, ", "))
	}
	for _, r := range after {
		if slices.Contains(names, fullName(r)) && !inShadow(r) {
			return nil, nil, cannotShadow(fullName(r))
		}
		for _, was := range had {
			if slices.Contains(names, fullName(r)) && takes(r, was) {
				return nil, nil, fmt.Errorf(
					"%s: in shadow it would take requests from %s, which limits them now; nothing was put in force",
					fullName(r), fullName(was))
			}
		}
	}
	if changes := Changes(out, before); len(changes) > 0 {
		return nil, nil, fmt.Errorf(
			"this cannot be put in shadow, and would come into force: %s; put it in force, or leave it as it was",
			strings.Join(changes, ", "))
	}
	return out, names, nil
}

func cannotShadow(name string) error {
	return fmt.Errorf(
		"%s: cannot be put in shadow here, as where it has an on_limit or a ban of its own; write on_limit: shadow into the file", name)
}

// takes reports whether a new descriptor takes requests from another one, as a value does from its
// key without one. Limits of the native form in shadow touch no other.
func takes(r, was *rule.Rule) bool {
	if r.Lyft == nil || was.Lyft == nil || r.Domain != was.Domain {
		return false
	}
	exact := func(v string) bool { return v != "" && !strings.Contains(v, "*") }
	for i := range min(len(r.Lyft.Path), len(was.Lyft.Path)) {
		a, b := r.Lyft.Path[i], was.Lyft.Path[i]
		switch {
		case a == b:
		case a.Key == b.Key && !(exact(a.Value) && exact(b.Value)):
			return true
		default:
			return false
		}
	}
	return false
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

// entry is the text of a limit in a list in block style, and what stands around it.
type entry struct {
	before, text, after string
	indent              int // of its dash
	at                  rule.Position
}

// entryAt returns the entry whose first key is at a place; its text is "" if it is in another
// style.
func entryAt(text string, at rule.Position) (e entry) {
	lines := strings.SplitAfter(text, "\n")
	if at.Line < 1 || at.Line > len(lines) || at.Column < 1 || at.Column > len(lines[at.Line-1]) {
		return e
	}
	begin, end := at.Line-1, at.Line
	front := lines[begin][:at.Column-1]
	if strings.TrimSpace(front) == "" && begin > 0 { // the dash has a line of its own
		begin--
		front = strings.TrimRight(lines[begin], "\r\n")
	}
	if strings.TrimSpace(front) != "-" {
		return e
	}
	e.indent = strings.Index(front, "-")
	for i := end; i < len(lines); i++ {
		rest := strings.TrimSpace(lines[i])
		if rest == "" || rest[0] == '#' {
			continue // it belongs to the entry if more of it follows
		}
		if len(lines[i])-len(strings.TrimLeft(lines[i], " ")) <= e.indent {
			break
		}
		end = i + 1
	}
	e.before, e.text, e.after = strings.Join(lines[:begin], ""), strings.Join(lines[begin:end], ""),
		strings.Join(lines[end:], "")
	e.at = rule.Position{Line: at.Line - begin, Column: at.Column}
	return e
}

// beside puts the entry in shadow, under another name, behind the one before.
func (e entry) beside(then entry, name, next string) (string, bool) {
	if e.text == "" || then.text == "" || e.indent != then.indent {
		return "", false
	}
	named := regexp.MustCompile(`(?m)((?:^|[\s{,-])name:[ \t]*["']?)` + regexp.QuoteMeta(name) +
		`(["']?[ \t]*(?:[,}#\r\n]|$))`)
	at := named.FindStringSubmatchIndex(e.text)
	if at == nil {
		return "", false
	}
	text, ok := withKey(e.text[:at[3]]+next+e.text[at[4]:], e.at, false)
	first := then.text
	if !strings.HasSuffix(first, "\n") {
		first += "\n"
	}
	return e.before + first + text + e.after, ok
}

// withKey puts the key of a shadow before the first key of the entry at a place.
func withKey(text string, at rule.Position, lyft bool) (string, bool) {
	key := "on_limit: shadow"
	if lyft {
		key = "shadow_mode: true"
	}
	return withLine(text, at, key)
}
