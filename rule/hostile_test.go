package rule

import (
	"strings"
	"testing"
)

// In a union remote_address is ip for expressions too, in either way of asking.
func TestUnionAddressInCEL(t *testing.T) {
	s, err := LoadText(`
limits:
- {name: variable, allow: 1/s, if: ip == "10.0.0.1"}
- {name: map, allow: 1/s, if: 'attr["ip"] == "10.0.0.1"'}
- {name: macro, allow: 1/s, if: 'attr.exists(k, k == "ip" && attr[k] == "10.0.0.1")'}
`)
	if err != nil {
		t.Fatal(err)
	}
	for entries, want := range map[string]string{
		"remote_address=::ffff:10.0.0.1":                  "variable, map, macro",
		"ip=10.0.0.1":                                     "variable, map, macro",
		"remote_address=10.0.0.1 ip=10.0.0.2":             "",
		"remote_address=10.0.0.1,ip=":                     "",
		"remote_address=10.0.0.2 remote_address=10.0.0.1": "",
	} {
		var m Matches
		s.Match(&Query{Domain: "default", Descriptors: descriptors(entries)}, &m)
		if got := met(&m); got != want {
			t.Errorf("%s: met %q, want %q", entries, got, want)
		}
	}
}

// A descriptor whose rule is not met, for want of a part of its key, replaces nothing.
func TestUnmetDescriptorReplacesNothing(t *testing.T) {
	s, err := LoadText(`
domain: d
descriptors:
- key: a
  rate_limit: {unit: second, requests_per_unit: 1, per: [user], replaces: [{name: b}]}
- key: b
  rate_limit: {unit: second, requests_per_unit: 1, name: b}
`)
	if err != nil {
		t.Fatal(err)
	}
	for entries, want := range map[string]string{
		"a=1 b=2":        "b[b=2]",
		"a=1 b=2 user=u": "a[user=u]",
	} {
		q := &Query{Domain: "d", Descriptors: descriptors(entries)}
		var m Matches
		s.Match(q, &m)
		if got := met(&m); got != want {
			t.Errorf("%s: met %q, want %q", entries, got, want)
		}
		for _, r := range s.Explain(q) {
			if r.Applies != (len(r.Hits) > 0) {
				t.Errorf("%s: Explain says %+v of %s", entries, r, r.Rule.Name)
			}
		}
	}
}

// What a large request left behind is let go of.
func TestLargeValuesAreLetGo(t *testing.T) {
	s := testSet(t, &File{Rules: []*Rule{testRule(t, "a", "path")}})
	var m Matches
	s.Match(&Query{Domain: "default", Attributes: Pairs{{"path", strings.Repeat("//x", 1<<18)}}}, &m)
	if len(m.Hits) != 1 || cap(m.scratch) > maxKeptScratch || cap(m.buf) > maxKeptValue || m.values[0].text != "" {
		t.Errorf("%d hits; room for %d and %d bytes is kept, and a value of %d", len(m.Hits), cap(m.scratch),
			cap(m.buf), len(m.values[0].text))
	}
}

// A .. that would take a wildcard out of a pattern is refused: what is left would match something
// else, or nothing.
func TestPatternLosesWildcard(t *testing.T) {
	for _, p := range []string{"**/..", "**/../x", "!**/../x", "/a/**/../b", "/a*/%2e%2E/b"} {
		if _, err := ParsePattern("path", p); err == nil || !strings.Contains(err.Error(), "may not hold a wildcard") {
			t.Errorf("%s: %v", p, err)
		}
	}
	for _, s := range []string{"/a/../b*", "/a/./**", "**/x/../y"} {
		if _, err := ParsePattern("path", s); err != nil {
			t.Errorf("%s: %v", s, err)
		}
	}
}
