package file

import (
	"slices"
	"strings"
	"testing"

	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/lint"
)

// limitsMet returns the names of the limits that a request meets, with the costs that are not 1.
func limitsMet(set *rule.Set, attributes rule.Map) string {
	var m rule.Matches
	set.Match(&rule.Query{Domain: rule.DefaultDomain, Attributes: attributes}, &m)
	if m.Exempt {
		return "exempt"
	}
	var names []string
	for _, h := range m.Hits {
		name := h.Window.Name
		if h.Cost != 1 {
			name += " at " + string(rune('0'+h.Cost))
		}
		if n := h.Limit.Config().N; n != 100 {
			name += " of " + string(rune('0'+n))
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}

// Expressions see the path as it came, and if that says no, folded: as constants that they compare
// it with are folded too.
func TestFoldedExpressions(t *testing.T) {
	paths := []string{"/login", "/LOGIN", "/login/", "/Login/", "/api/x", "/API/X/", "/x"}
	for expression, want := range map[string]string{
		`path == "/login"`:                    "/login /LOGIN /login/ /Login/",
		`path == "/Login/"`:                   "/login /LOGIN /login/ /Login/",
		`"/Login" == path`:                    "/login /LOGIN /login/ /Login/",
		`attr.path == "/Login"`:               "/login /LOGIN /login/ /Login/",
		`attr["path"] in ["/Login", "/y"]`:    "/login /LOGIN /login/ /Login/",
		`path.startsWith("/API/")`:            "/api/x /API/X/",
		`path.endsWith("X/")`:                 "/api/x /API/X/ /x",
		`path.contains("Ogi")`:                "/login /LOGIN /login/ /Login/",
		`path.matches("^/(Login|SIGNIN)$")`:   "/login /LOGIN /login/ /Login/",
		`path != "/login"`:                    "/LOGIN /login/ /Login/ /api/x /API/X/ /x",
		`!path.startsWith("/api/")`:           "/login /LOGIN /login/ /Login/ /API/X/ /x",
		`path.size() > 6`:                     "/login/ /Login/ /API/X/",
		`method == "GET" && path == "/Login"`: "/login /LOGIN /login/ /Login/",
	} {
		for _, method := range []string{"GET", "HEAD"} {
			set, _, err := load(t, "x.yaml", "limits: [{name: a, if: '"+expression+
				"', allow: 100/min}, {name: b, paths: exact, if: '"+expression+"', allow: 100/min}]")
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, path := range paths {
				met := limitsMet(set, rule.Map{"path": path, "method": method})
				if strings.HasPrefix(met, "a") {
					got = append(got, path)
				}
				exact, _, err := load(t, "x.yaml", "paths: exact\nlimits: [{name: b, if: '"+expression+
					"', allow: 100/min}]")
				if err != nil {
					t.Fatal(err)
				}
				if only := limitsMet(exact, rule.Map{"path": path, "method": method}); only != "" &&
					!strings.HasSuffix(met, "b") || only == "b" && met != "a, b" {
					t.Errorf("%s: %s %s meets %q, where paths are exact %q", expression, method, path, met, only)
				}
			}
			if strings.Join(got, " ") != want {
				t.Errorf("%s with %s: met by %q, want %q", expression, method, got, want)
			}
		}
	}
}

// Folding only tightens: what loosens holds only as it is written, and what it excludes it
// excludes in any spelling.
func TestFoldingOnlyTightens(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       map[string]string // by path
	}{
		{"exempt", "exempt: {path: /Health}\nlimits: [{name: a, allow: 100/min}]", map[string]string{"/Health": "exempt", "/health": "a", "/Health/": "a"}},
		{"exempt but for", "exempt: {path: '!/pay'}\nlimits: [{name: a, allow: 100/min}]", map[string]string{"/x": "exempt", "/pay": "a", "/PAY": "a", "/pay/": "a"}},
		{"exempt but for, exact", "paths: exact\nexempt: {path: '!/pay'}\nlimits: [{name: a, allow: 100/min}]", map[string]string{"/pay": "a", "/PAY": "exempt"}},
		{"a negation", "limits: [{name: a, when: {path: '!/health'}, allow: 100/min}]", map[string]string{"/health": "", "/HEALTH": "a", "/health/": "a"}},
		{"unlimited", "limits: [{name: a, allow: 100/min}, {name: b, when: {path: /free}, allow: unlimited, replaces: [a]}]", map[string]string{"/free": "", "/FREE": "a", "/free/": "a"}},
		{"unlimited but for", "limits: [{name: a, allow: 100/min}, {name: b, when: {path: [/api/**, '!/api/pay']}, allow: unlimited, replaces: [a]}]",
			map[string]string{"/api/x": "", "/api/pay": "a", "/api/PAY": "a", "/api/pay/": "a", "/API/x": "a"}},
		{"unlimited by an expression", `limits: [{name: a, allow: 100/min}, {name: b, if: 'path == "/Free" || path.startsWith("/x") && path != "/x/y"', allow: unlimited, replaces: [a]}]`,
			map[string]string{"/Free": "", "/free": "a", "/x/z": "", "/x/y": "a", "/x/Y": "a", "/x/y/": "a"}},
		{"replaces", "limits: [{name: a, allow: 100/min}, {name: b, when: {path: /big}, allow: 9/min, replaces: [a]}]",
			map[string]string{"/big": "b of 9", "/BIG": "a, b of 9", "/big/": "a, b of 9"}},
		{"groups", "groups: first\nlimits: [{name: b, when: {path: /Big}, allow: 9/min}, {name: a, allow: 100/min}]",
			map[string]string{"/Big": "b of 9", "/big": "b of 9, a", "/BIG/": "b of 9, a"}},
		{"an override that loosens", "limits: [{name: a, per: [path], allow: 5/min, override: {/Big: 9/min}}]",
			map[string]string{"/Big": "a of 9", "/big": "a of 5", "/Big/": "a of 5", "/x": "a of 5"}},
		{"an override that tightens", "limits: [{name: a, per: [path], allow: 9/min, override: {/Big: 5/min}}]",
			map[string]string{"/Big": "a of 5", "/big": "a of 5", "/Big/": "a of 5", "/x": "a of 9"}},
		{"an override of an unlimited rule", "limits: [{name: a, per: [path], allow: unlimited, override: {/big: 5/min}}]",
			map[string]string{"/big": "a:60s of 5", "/BIG": "a:60s of 5", "/x": ""}},
		{"an override without a limit", "limits: [{name: a, per: [path], allow: 9/min, override: {/big: unlimited}}]",
			map[string]string{"/big": "", "/BIG": "a of 9"}},
		{"overrides of two spellings", "limits: [{name: a, per: [path], allow: 9/min, override: {/big: 7/min, /Big: 5/min}}]",
			map[string]string{"/big": "a of 7", "/Big": "a of 5", "/BIG": "a of 5"}},
		{"a cost", `limits: [{name: a, allow: 100/min, cost: 'path == "/Big" ? 3 : 1'}]`, map[string]string{"/Big": "a at 3", "/big": "a at 3", "/BIG/": "a at 3", "/x": "a"}},
		{"priorities", "limits: [{name: a, when: {path: /x}, priority: critical, allow: 100/min}]", map[string]string{"/X": "a"}},
		{"exact", "limits: [{name: a, paths: exact, when: {path: /Big}, per: [path], allow: 100/min}]", map[string]string{"/Big": "a", "/big": "", "/Big/": ""}},
		{"folded in a file of exact ones", "paths: exact\nlimits: [{name: a, paths: folded, when: {path: /Big}, per: [path], allow: 100/min}]", map[string]string{"/Big": "a", "/big": "a"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			set, _, err := load(t, "x.yaml", c.text)
			if err != nil {
				t.Fatal(err)
			}
			for path, want := range c.want {
				if got := limitsMet(set, rule.Map{"path": path}); got != want {
					t.Errorf("%s meets %q, want %q", path, got, want)
				}
				// Explain says of each limit what Match does.
				for _, r := range set.Explain(&rule.Query{Domain: rule.DefaultDomain,
					Attributes: rule.Map{"path": path}}) {
					met := slices.Contains(strings.FieldsFunc(want,
						func(c rune) bool { return c == ' ' || c == ',' || c == ':' }), r.Rule.Name)
					if r.Applies != met && len(r.Rule.Windows) > 0 && !strings.Contains(c.text, "unlimited") {
						t.Errorf("%s: Explain says %v of %s (%s)", path, r.Applies, r.Rule.Name, r.Why)
					}
				}
			}
		})
	}
	var m rule.Matches
	set, _, err := load(t, "x.yaml", "limits: [{name: a, when: {path: /x}, priority: critical, allow: 100/min}]")
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]rule.Priority{"/x": rule.Critical, "/X": rule.DefaultPriority} {
		if set.Match(&rule.Query{Domain: rule.DefaultDomain, Attributes: rule.Map{"path": path}}, &m); m.Priority != want {
			t.Errorf("%s has the priority %v", path, m.Priority)
		}
	}
}

// Rules of the Lyft form match paths to the letter, and say so.
func TestLyftPathsAreExact(t *testing.T) {
	text := "domain: default\ndescriptors: [{key: path, value: /login, rate_limit: {unit: day, requests_per_unit: 9}}, {key: method, value: GET, rate_limit: {unit: day, requests_per_unit: 9}}]"
	set, _, err := load(t, "x.yaml", text)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"/login": "path_/login of 9", "/LOGIN": "", "/login/": ""} {
		if got := limitsMet(set, rule.Map{"path": path, "method": "HEAD"}); got != want {
			t.Errorf("%s meets %q", path, got)
		}
	}
	notes := Notes(set)
	if len(notes) != 1 || !strings.Contains(notes[0].Message, "descriptors match a path to the letter") {
		t.Errorf("%v", notes)
	}
	for text, want := range map[string]string{
		"limits: [{name: a, when: {method: GET}, allow: 1/s}, {name: b, when: {method: [GET, POST]}, allow: 1/s}]":        "a and b: method GET is met by HEAD too",
		"limits: [{name: a, when: {method: [GET, HEAD]}, allow: 1/s}, {name: b, when: {method: POST}, allow: 1/s}]":       "",
		`limits: [{name: a, when: {method: [GET, "!HEAD"]}, allow: 1/s}, {name: c, when: {method: "!POST"}, allow: 1/s}]`: "",
	} {
		set, _, err := load(t, "x.yaml", text)
		if err != nil {
			t.Fatal(err)
		}
		if notes := Notes(set); want == "" && len(notes) > 0 ||
			want != "" && (len(notes) != 1 || !strings.Contains(notes[0].Message, want)) {
			t.Errorf("%s: %v", text, notes)
		}
	}
	for text, want := range map[string]string{
		"domain: d\ndescriptors: [{key: path, rate_limit: {unit: day, requests_per_unit: 9, paths: exact}}]": "descriptors match paths to the letter in any case",
		"limits: [{name: a, paths: loose, allow: 1/s}]":                                                      "paths: expected folded, exact",
	} {
		if _, _, err := load(t, "x.yaml", text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, warnings, err := load(t, "x.yaml", "domain: d\npaths: exact\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 9}}]"); err != nil || len(warnings) != 1 || warnings[0].Name != lint.NoEffect {
		t.Errorf("%v, %v", warnings, err)
	}
}

// An expression that is decided by one value alone sees the spellings of the others, too.
func TestFoldedTogether(t *testing.T) {
	for expression, cost := range map[string]string{
		`if: 'method == "GET" && path == "/login"'`:                "",
		`if: 'path == "/login" && method == "GET"'`:                "",
		`cost: 'method == "GET" && path == "/login" ? 7 : 1'`:      " at 7",
		`cost: 'path != "/login" || method != "GET" ? 1 : 7'`:      " at 7",
		`when: {method: GET}, cost: 'path == "/login" ? 7 : 1'`:    " at 7",
		`when: {path: /login}, cost: 'method == "GET" ? 7 : 1'`:    " at 7",
		`when: {path: /Login/}, if: 'method in ["GET", "DELETE"]'`: "",
	} {
		set, _, err := load(t, "x.yaml", "limits: [{name: a, "+expression+", allow: 100/min}]")
		if err != nil {
			t.Fatal(err)
		}
		for _, method := range []string{"GET", "HEAD"} {
			for _, path := range []string{"/login", "/Login", "/login/", "/LOGIN/"} {
				if got := limitsMet(set, rule.Map{"path": path, "method": method}); got != "a"+cost {
					t.Errorf("%s: %s %s meets %q", expression, method, path, got)
				}
			}
		}
	}
}
