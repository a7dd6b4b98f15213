package rule

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// The naive matcher: every rule, every condition, every pattern, from the sources. Written only to
// check Match.

func naiveValue(name, raw string) string {
	switch name {
	case "path":
		if raw != "" {
			return NormalPath(raw)
		}
	case "method":
		return strings.ToUpper(raw)
	case "host":
		host, _, _ := strings.Cut(strings.ToLower(raw), ":")
		if name := strings.TrimRight(host, "."); name != "" {
			return name
		}
		return host
	case "ip":
		if a, err := netip.ParseAddr(raw); err == nil {
			return a.Unmap().WithZone("").String()
		}
	}
	return raw
}

func naivePattern(name, source, value string) bool {
	if rest, ok := strings.CutPrefix(source, "!"); ok {
		return !naivePattern(name, rest, value)
	}
	if rest, ok := strings.CutPrefix(source, "~"); ok {
		return regexp.MustCompile(rest).MatchString(value)
	}
	source = strings.TrimPrefix(source, `\`)
	if name == "ip" {
		if p, err := netip.ParsePrefix(source); err == nil {
			a, err := netip.ParseAddr(value)
			return err == nil && p.Contains(a)
		}
	}
	if !strings.HasPrefix(source, "*") {
		source = naiveValue(name, source)
	}
	return globRegexp(source, false).MatchString(value)
}

// naiveSpellings are what a value is compared as: what is named, and what is excluded. A path is
// folded where fold says so, and HEAD is GET.
func naiveSpellings(name, value string, fold bool) []string {
	switch {
	case name == "path" && fold:
		lower := strings.ToLower(value)
		return []string{lower, naiveCut(lower)}
	case name == "method" && value == "HEAD":
		return []string{"HEAD", "GET"}
	}
	return []string{value}
}

var naiveEnd = regexp.MustCompile(`^(.+?)(/|\.|%20)*$`)

func naiveCut(path string) string { return naiveEnd.ReplaceAllString(path, "$1") }

// naiveFolded is naivePattern without a negation, in any spelling.
func naiveFolded(name, source, value string, fold bool) bool {
	if name == "path" && fold {
		switch {
		case strings.HasPrefix(source, "~"):
			source = "~(?i)" + source[1:]
		case !strings.HasSuffix(source, "**/") && len(source) > 1:
			source = strings.TrimSuffix(strings.ToLower(source), "/")
		default:
			source = strings.ToLower(source)
		}
	}
	return slices.ContainsFunc(naiveSpellings(name, value, fold),
		func(v string) bool { return naivePattern(name, source, v) })
}

// naiveHolds reports whether c holds: in some spelling, or with sure in every one.
func naiveHolds(q Map, c Condition, fold, sure bool) bool {
	name := c.Attribute
	value := naiveValue(name, q[name])
	positive, matched := false, false
	for _, p := range c.Patterns {
		source, negated := strings.CutPrefix(p.Source, "!")
		exactly := value != "" && naivePattern(name, source, value)
		folded := value != "" && naiveFolded(name, source, value, fold)
		if !negated {
			positive = true
			matched = matched || exactly || folded && !sure
		} else if exactly || folded && sure {
			return false
		}
	}
	return matched || !positive
}

// naivePart is how a value is counted, as KeyParts shows it; written is as it came. What a wildcard
// of the rule stands for keeps its case.
func naivePart(r *Rule, name, value string, written bool) string {
	value = naiveValue(name, value)
	if name == "ip" {
		if a, err := netip.ParseAddr(value); err == nil && a.Is6() {
			return netip.PrefixFrom(a, 64).Masked().String()
		}
	}
	if name == "method" && value == "HEAD" && !written {
		value = "GET"
	}
	if name == "path" && !written && !r.ExactPaths {
		value = naiveKeyPath(r, value)
	}
	if len(value) > 256 {
		return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(value)))
	}
	return value
}

func naiveKeyPath(r *Rule, value string) string {
	cut := naiveCut(value)
	key := []byte(cut)
	met := false
	for _, c := range r.When {
		for _, p := range c.Patterns {
			if c.Attribute != "path" || strings.HasPrefix(p.Source, "!") ||
				!naiveFolded("path", p.Source, value, true) {
				continue
			}
			met = true
			source := strings.ToLower(strings.TrimSuffix(p.Source, "/"))
			head, tail, wild := strings.Cut(source, "*") // none has two wildcards
			if !wild || strings.HasPrefix(source, "~") || len(cut) < len(head) {
				return strings.ToLower(cut)
			}
			tail = strings.TrimLeft(tail, "*")
			copy(key, head)
			copy(key[len(key)-len(tail):], tail)
		}
	}
	if !met {
		return strings.ToLower(cut)
	}
	return string(key)
}

func naiveMatch(files []*File, q Map) (met []string, exempt bool) {
	type one struct {
		r             *Rule
		parts         []string
		names         []string // the alternative of each part
		values, wrote []string
		sure          bool
	}
	var all []one
	for _, f := range files {
		for _, c := range f.Exempt {
			if naiveHolds(q, c, !f.ExactPaths, true) {
				return nil, true
			}
		}
		shadowed, enforced := false, false
	rules:
		for _, r := range f.Rules {
			sure := true
			for _, c := range r.When {
				if !naiveHolds(q, c, !r.ExactPaths, false) {
					continue rules
				}
				sure = sure && naiveHolds(q, c, !r.ExactPaths, true)
			}
			var parts, names, values, wrote []string
		per:
			for _, key := range r.Per {
				for _, name := range key {
					if naiveValue(name, q[name]) != "" {
						v := naivePart(r, name, q[name], false)
						parts, names, values = append(parts, name+"="+v), append(names, name), append(values, v)
						wrote = append(wrote, naivePart(r, name, q[name], true))
						continue per
					}
				}
				continue rules
			}
			if f.First && (enforced || r.Shadow && shadowed) {
				continue
			}
			shadowed, enforced = shadowed || sure, enforced || !r.Shadow && sure
			all = append(all, one{r, parts, names, values, wrote, sure})
		}
	}
	for _, b := range all {
		replaced := false
		for _, a := range all {
			replaced = replaced || a.sure && slices.Contains(a.r.Replaces, b.r.Name) && (!a.r.Shadow || b.r.Shadow)
		}
		if replaced {
			continue
		}
		windows := b.r.Windows
		if b.r.Unlimited {
			windows = nil
		}
		for i := range b.r.Overrides {
			switch o := b.r.Overrides[i]; {
			case naiveOverride(b.r, o.Values, b.names, b.wrote, true):
				windows = o.Windows
			case naiveOverride(b.r, o.Values, b.names, b.values, false) && o.Windows[0].Limit.Config().N < 10:
				windows = o.Windows
			}
		}
		for _, w := range windows {
			s := w.Name
			if len(b.parts) > 0 {
				s += "[" + strings.Join(b.parts, " ") + "]"
			}
			if b.r.Shadow {
				s += "~"
			}
			met = append(met, fmt.Sprintf("%s N=%d", s, w.Limit.Config().N))
		}
	}
	return met, false
}

// naiveOverride reports whether an override is for the key: its values are read as the alternatives
// that the key is made of.
func naiveOverride(r *Rule, values, names, parts []string, written bool) bool {
	for i, v := range values {
		if naivePart(r, names[i], v, written) != parts[i] {
			return false
		}
	}
	return true
}

var naivePatterns = map[string][]string{
	"path":   {"/", "/a", "/a/*", "/a/**", "/a/b", "/*/b", "/**/b", "**b", "/ab*", "!/a", "!/a/**", "~b$", "~^/a", "/a/b/**", "/b", "*/b", "/**", "/A", "/a/", "/A/B/", "!/A", "!/a/", "/A/*", "~^/A/B", "/*/B/", "**/"},
	"user":   {"ada", "a*", "*a", "b*b", "bob", "!ada", "!**", "~o", "**", `\!x`, "ad*", "*b"},
	"ip":     {"10.0.0.0/8", "10.1.0.0/16", "10.1.2.3", "2001:db8::/32", "2001:db8::1", "!10.0.0.0/8", "10.*", "0.0.0.0/0", "::/0", "gw"},
	"method": {"GET", "post", "P*", "!GET", "HEAD", "!HEAD"},
	"host":   {"a.com", "*.a.com", "!b.com"},
}

var naiveValues = map[string][]string{
	"path":   {"/", "/a", "/a/", "//a", "/a/b", "/a/b/c", "/%61", "/b", "/ab", "/abc", "/x/../a", "", "/x/y/b", "/A", "/A/", "/a/B", "/A/b/", "/B/", "/AB", "/%41", "/a.", "/A/B%20./", "/.a..", "/a. /", "/%2520"},
	"user":   {"ada", "bob", "anna", "b", "!x", "", "10.1.2.3", strings.Repeat("a", 300)},
	"ip":     {"10.1.2.3", "10.1.2.4", "::ffff:10.1.2.3", "2001:db8::1", "2001:db8::2", "2001:db8:0:1::2", "gw", "", "11.0.0.1", "fe80::1%lo"},
	"method": {"GET", "get", "POST", "PUT", "", "HEAD", "head"},
	"host":   {"a.com", "A.COM:80", "x.a.com", "b.com"},
}

var naiveAttributes = []string{"path", "user", "ip", "method", "host"}

func drawCondition(t *rapid.T, tb testing.TB) Condition {
	name := rapid.SampledFrom(naiveAttributes).Draw(t, "attribute")
	var patterns []string
	for range rapid.SampledFrom([]int{1, 1, 1, 2, 3, 9}).Draw(t, "patterns") {
		patterns = append(patterns, rapid.SampledFrom(naivePatterns[name]).Draw(t, "pattern"))
	}
	return on(tb, name, patterns...)
}

func drawFiles(t *rapid.T, tb testing.TB) []*File {
	var files []*File
	n := 0
	for range rapid.IntRange(1, 3).Draw(t, "files") {
		f := &File{Domain: "default", First: rapid.Bool().Draw(t, "first"),
			ExactPaths: rapid.IntRange(0, 3).Draw(t, "exact") == 0}
		for range rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "exempt") {
			f.Exempt = append(f.Exempt, drawCondition(t, tb))
		}
		for range rapid.SampledFrom([]int{0, 1, 2, 3, 12}).Draw(t, "rules") {
			r := testRule(tb, fmt.Sprint("r", n))
			n++
			r.ExactPaths = f.ExactPaths
			for range rapid.IntRange(0, 3).Draw(t, "conditions") {
				r.When = append(r.When, drawCondition(t, tb))
			}
			for range rapid.IntRange(0, 2).Draw(t, "per") {
				r.Per = append(r.Per, rapid.SliceOfNDistinct(rapid.SampledFrom(naiveAttributes), 1, 3, rapid.ID).Draw(t,
					"key"))
			}
			r.Shadow = rapid.IntRange(0, 4).Draw(t, "shadow") == 0
			if n > 1 && rapid.IntRange(0, 3).Draw(t, "replaces") == 0 {
				// older ones only: no cycle
				r.Replaces = []string{fmt.Sprint("r", rapid.IntRange(0, n-2).Draw(t, "replaced"))}
			}
			if len(r.Per) > 0 && rapid.Bool().Draw(t, "override") {
				numbers := rapid.SampledFrom([]int64{5, 77}).Draw(t, "numbers")
				o := Override{Windows: []*Window{testWindow(tb, r.Name, numbers, time.Minute)}}
				for _, key := range r.Per {
					o.Values = append(o.Values,
						rapid.SampledFrom(slices.DeleteFunc(slices.Clone(naiveValues[key[0]]),
							func(s string) bool { return s == "" })).Draw(t, "value"))
				}
				if !slices.ContainsFunc(r.Per,
					func(k Key) bool { return mixedText(k, o.Values[0]) || mixedText(k, o.Values[len(o.Values)-1]) }) {
					r.Overrides = []Override{o}
				}
			}
			f.Rules = append(f.Rules, r)
		}
		files = append(files, f)
	}
	return files
}

// mixedText reports whether a value is another text to each of the alternatives of a part. An
// override does not tell them apart.
func mixedText(k Key, value string) bool {
	texts := map[string]bool{}
	for _, name := range k {
		if name != "ip" {
			texts[naiveValue(name, value)] = true
		}
	}
	return len(texts) > 1
}

// Whatever the index leaves out, Match finds what a look at every rule finds, with one Matches for
// all requests.
func TestMatchAgainstNaive(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		files := drawFiles(rt, t)
		s, problems := Compile(files, Options{})
		if problems != nil {
			rt.Fatalf("%v", problems)
		}
		var m Matches
		for range 20 {
			q := Map{}
			for _, name := range naiveAttributes {
				if rapid.IntRange(0, 3).Draw(rt, "has") > 0 {
					q[name] = rapid.SampledFrom(naiveValues[name]).Draw(rt, name)
				}
			}
			s.Match(&Query{Domain: "default", Attributes: q}, &m)
			want, exempt := naiveMatch(files, q)
			var got []string
			for _, h := range m.Hits {
				text := met(&Matches{Hits: []Hit{h}})
				got = append(got, fmt.Sprintf("%s N=%d", text, h.Limit.Config().N))
			}
			if !slices.Equal(got, want) || m.Exempt != exempt {
				rt.Fatalf("%v: met %q (exempt %v), want %q (%v)", q, got, m.Exempt, want, exempt)
			}
			// Explain agrees with Match on what applies.
			reasons := s.Explain(&Query{Domain: "default", Attributes: q})
			if len(reasons) != len(s.rules) {
				rt.Fatalf("%d reasons for %d rules", len(reasons), len(s.rules))
			}
			explained := 0
			for _, r := range reasons {
				if r.Applies != (r.Why == "") || r.Applies != (len(r.Hits) > 0) {
					rt.Fatalf("%v: reason %+v of %s", q, r, r.Rule.Name)
				}
				explained += len(r.Hits)
			}
			if explained != len(want) {
				rt.Fatalf("%v: Explain knows %d hits, Match %d", q, explained, len(want))
			}
		}
	})
}
