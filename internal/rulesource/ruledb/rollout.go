package ruledb

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

// UnknownRuleError is the error of a rule that files do not have.
type UnknownRuleError struct{ Name string }

func (e *UnknownRuleError) Error() string { return fmt.Sprintf("there is no rule %s", e.Name) }

var (
	shadowKey  = regexp.MustCompile(`\bon_limit:[ \t]*(?:shadow\b|"shadow"|'shadow')`)
	enforceKey = regexp.MustCompile(`\benforce:[ \t]*(?:[0-9]+%|all\b|"[^"\n]*"|'[^'\n]*')`)
	shadowMode = regexp.MustCompile(`\bshadow_mode:[ \t]*true\b`)
	rateLimit  = regexp.MustCompile(`\brate_limit:[ \t]*(?:#.*)?(\{|\n[ \t]*)`)
)

// Enforce returns files in which a rule is enforced on a percentage of its keys, 1 to 100, and
// which one of them it changed. As in Shadow only a few words of the text are changed. An error
// names what cannot be changed so.
func Enforce(files []file.Source, domain, name string, percent int) (_ []file.Source, changed string, err error) {
	rules, err := rulesOf(files)
	if err != nil {
		return nil, "", err
	}
	is := func(r *rule.Rule) bool { return r.Domain == domain && r.Name == name }
	at := slices.IndexFunc(rules, is)
	if at < 0 {
		return nil, "", &UnknownRuleError{domain + "/" + name}
	}
	r := rules[at]
	if len(r.Per) == 0 && r.Lyft == nil && percent < 100 {
		return nil, "", fmt.Errorf("%s has one counter for all together: it cannot be enforced on a share of the keys",
			fullName(r))
	}
	share := "all"
	if percent < 100 {
		share = fmt.Sprint(percent, "%")
	}
	i := slices.IndexFunc(files, func(s file.Source) bool { return s.Name == r.Pos.File })
	e := entryAt(string(files[i].Data), r.Pos)
	text, ok := e.text, true
	if e.text == "" { // in one line with its list
		return nil, "", cannotEnforce(r, share)
	}
	switch {
	case r.Shadow && !enforceKey.MatchString(text):
		text, ok = replaceFirst(shadowKey, text, "enforce: "+share)
	case r.Shadow:
		text, ok = replaceFirst(shadowKey, text, "on_limit: reject")
	}
	if r.Lyft != nil && r.Lyft.Shadow {
		text, ok = replaceFirst(shadowMode, text, "shadow_mode: false")
	}
	switch {
	case enforceKey.MatchString(text):
		text, _ = replaceFirst(enforceKey, text, "enforce: "+share)
	case percent < 100 && r.Lyft != nil:
		text, ok = withShare(text, share)
	case percent < 100:
		text, ok = withLine(text, e.at, "enforce: "+share)
	}
	out := slices.Clone(files)
	out[i].Data = []byte(e.before + text + e.after)
	after, err := rulesOf(out)
	if !ok || err != nil || len(after) != len(rules) {
		return nil, "", cannotEnforce(r, share)
	}
	for k, now := range after {
		if is(now) && (inShadow(now) || now.EnforcePercent != percent) || now.Name != rules[k].Name {
			return nil, "", cannotEnforce(r, share)
		}
	}
	return out, r.Pos.File, nil
}

func cannotEnforce(r *rule.Rule, share string) error {
	return fmt.Errorf("%s: cannot be changed here, because of how it is written; write enforce: %s into %s:%d",
		fullName(r), share, r.Pos.File, r.Pos.Line)
}

// replaceFirst replaces the first match of a pattern outside of comments.
func replaceFirst(p *regexp.Regexp, text, by string) (string, bool) {
	for _, at := range p.FindAllStringIndex(text, -1) {
		line := text[strings.LastIndexByte(text[:at[0]], '\n')+1 : at[0]]
		if !strings.Contains(line, "#") {
			return text[:at[0]] + by + text[at[1]:], true
		}
	}
	return text, false
}

// withShare puts enforce into the rate_limit of a descriptor.
func withShare(text, share string) (string, bool) {
	at := rateLimit.FindStringSubmatchIndex(text)
	if at == nil {
		return "", false
	}
	opens := text[at[2]:at[3]]
	if opens == "{" {
		return text[:at[3]] + " enforce: " + share + "," + text[at[3]:], true
	}
	return text[:at[3]] + "enforce: " + share + opens + text[at[3]:], true
}

// withLine puts a key before the first key of the entry at a place.
func withLine(text string, at rule.Position, key string) (string, bool) {
	lines := strings.SplitAfter(text, "\n")
	if at.Line < 1 || at.Line > len(lines) || at.Column < 1 || at.Column > len(lines[at.Line-1]) {
		return "", false
	}
	line := lines[at.Line-1]
	front, rest := line[:at.Column-1], line[at.Column-1:]
	if inside, flow := strings.CutPrefix(rest, "{"); flow {
		line = front + "{ " + key + "," + inside
	} else {
		line = front + key + "\n" + strings.Repeat(" ", at.Column-1) + rest
	}
	lines[at.Line-1] = line
	return strings.Join(lines, ""), true
}
