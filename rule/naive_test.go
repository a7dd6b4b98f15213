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

func naiveHolds(q Map, c Condition) bool {
	value := naiveValue(c.Attribute, q[c.Attribute])
	positive, matched := false, false
	for _, p := range c.Patterns {
		if !p.Negated {
			positive = true
			matched = matched || value != "" && naivePattern(c.Attribute, p.Source, value)
		} else if value != "" && !naivePattern(c.Attribute, p.Source, value) {
			return false
		}
	}
	return matched || !positive
}

// naivePart is how a value is counted, as KeyParts shows it.
func naivePart(name, value string) string {
	value = naiveValue(name, value)
	if name == "ip" {
		if a, err := netip.ParseAddr(value); err == nil && a.Is6() {
			return netip.PrefixFrom(a, 64).Masked().String()
		}
	}
	if len(value) > 256 {
		return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(value)))
	}
	return value
}

func naiveMatch(files []*File, q Map) (met []string, exempt bool) {
	type one struct {
		r      *Rule
		parts  []string
		names  []string // the alternative of each part
		values []string
	}
	var all []one
	for _, f := range files {
		for _, c := range f.Exempt {
			if naiveHolds(q, c) {
				return nil, true
			}
		}
		shadowed, enforced := false, false
	rules:
		for _, r := range f.Rules {
			for _, c := range r.When {
				if !naiveHolds(q, c) {
					continue rules
				}
			}
			var parts, names, values []string
		per:
			for _, key := range r.Per {
				for _, name := range key {
					if naiveValue(name, q[name]) != "" {
						v := naivePart(name, q[name])
						parts, names, values = append(parts, name+"="+v), append(names, name), append(values, v)
						continue per
					}
				}
				continue rules
			}
			if f.First && (enforced || r.Shadow && shadowed) {
				continue
			}
			shadowed, enforced = true, enforced || !r.Shadow
			all = append(all, one{r, parts, names, values})
		}
	}
	for _, b := range all {
		replaced := false
		for _, a := range all {
			replaced = replaced || slices.Contains(a.r.Replaces, b.r.Name) && (!a.r.Shadow || b.r.Shadow)
		}
		if replaced {
			continue
		}
		windows := b.r.Windows
		if b.r.Unlimited {
			windows = nil
		}
		for i := range b.r.Overrides {
			if naiveOverride(b.r.Overrides[i].Values, b.names, b.values) {
				windows = b.r.Overrides[i].Windows
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
func naiveOverride(values, names, parts []string) bool {
	for i, v := range values {
		if naivePart(names[i], v) != parts[i] {
			return false
		}
	}
	return true
}

var naivePatterns = map[string][]string{
	"path":   {"/", "/a", "/a/*", "/a/**", "/a/b", "/*/b", "/**/b", "**b", "/ab*", "!/a", "!/a/**", "~b$", "~^/a", "/a/b/**", "/b", "*/b", "/**"},
	"user":   {"ada", "a*", "*a", "b*b", "bob", "!ada", "!**", "~o", "**", `\!x`, "ad*", "*b"},
	"ip":     {"10.0.0.0/8", "10.1.0.0/16", "10.1.2.3", "2001:db8::/32", "2001:db8::1", "!10.0.0.0/8", "10.*", "0.0.0.0/0", "::/0", "gw"},
	"method": {"GET", "post", "P*", "!GET"},
	"host":   {"a.com", "*.a.com", "!b.com"},
}

var naiveValues = map[string][]string{
	"path":   {"/", "/a", "/a/", "//a", "/a/b", "/a/b/c", "/%61", "/b", "/ab", "/abc", "/x/../a", "", "/x/y/b"},
	"user":   {"ada", "bob", "anna", "b", "!x", "", "10.1.2.3", strings.Repeat("a", 300)},
	"ip":     {"10.1.2.3", "10.1.2.4", "::ffff:10.1.2.3", "2001:db8::1", "2001:db8::2", "2001:db8:0:1::2", "gw", "", "11.0.0.1", "fe80::1%lo"},
	"method": {"GET", "get", "POST", "PUT", ""},
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
		f := &File{Domain: "default", First: rapid.Bool().Draw(t, "first")}
		for range rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "exempt") {
			f.Exempt = append(f.Exempt, drawCondition(t, tb))
		}
		for range rapid.SampledFrom([]int{0, 1, 2, 3, 12}).Draw(t, "rules") {
			r := testRule(tb, fmt.Sprint("r", n))
			n++
			for range rapid.IntRange(0, 3).Draw(t, "conditions") {
				r.When = append(r.When, drawCondition(t, tb))
			}
			for range rapid.IntRange(0, 2).Draw(t, "per") {
				r.Per = append(r.Per, rapid.SliceOfNDistinct(rapid.SampledFrom(naiveAttributes), 1, 3, rapid.ID).Draw(t, "key"))
			}
			r.Shadow = rapid.IntRange(0, 4).Draw(t, "shadow") == 0
			if n > 1 && rapid.IntRange(0, 3).Draw(t, "replaces") == 0 {
				// older ones only: no cycle
				r.Replaces = []string{fmt.Sprint("r", rapid.IntRange(0, n-2).Draw(t, "replaced"))}
			}
			if len(r.Per) > 0 && rapid.Bool().Draw(t, "override") {
				o := Override{Windows: []*Window{testWindow(tb, r.Name, 77, time.Minute)}}
				for _, key := range r.Per {
					o.Values = append(o.Values, rapid.SampledFrom(slices.DeleteFunc(slices.Clone(naiveValues[key[0]]), func(s string) bool { return s == "" })).Draw(t, "value"))
				}
				r.Overrides = []Override{o}
			}
			f.Rules = append(f.Rules, r)
		}
		files = append(files, f)
	}
	return files
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
