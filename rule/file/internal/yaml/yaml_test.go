package yaml

import "testing"

// TestYAMLShapes reads the same text in the ways that YAML has to write it.
func TestYAMLShapes(t *testing.T) {
	for _, c := range []struct{ yaml, want string }{
		{"k: abc", "abc"},
		{"k:   abc   # comment", "abc"},
		{"k: abc#not", "abc#not"},
		{"# before\nk: abc\n# behind", "abc"},
		{"k:\n  # between\n  abc", "abc"},
		{"k: 'it''s'", "it's"},
		{`k: "a\tb\u00e9\n"`, "a\tbé\n"},
		{"k: abc\r\n", "abc"},
		{"k: a b\n  c", "a b c"},
		{"k: >\n  a\n  b\n", "a b\n"},
		{"k: >-\n  a\n  b\n", "a b"},
		{"k: |\n  a\n    b\n", "a\n  b\n"},
		{"k: |-\n  a: b # no comment\n", "a: b # no comment"},
		{"k: ~^/a.*b$", "~^/a.*b$"},
		{"k: 1e3", "1e3"},
		{"k: 0x1F", "0x1F"},
		{"k: 010", "010"},
		{"k: +12", "+12"},
		{"k: 1_000", "1_000"},
		{"k: 12:30:45", "12:30:45"},
		{"k: 2001:db8::/32", "2001:db8::/32"},
		{"k: ::1", "::1"},
		{"k: http://x/y?z=1&a=2", "http://x/y?z=1&a=2"},
		{"k: a, b", "a, b"},
		{"k: yes", "yes"},
		{"k: True", "True"},
		{"k: .5", ".5"},
		{"k: a - b", "a - b"},
		{"k: \"null\"", "null"},
		{"k: ''", ""},
		{"k: !!str 5", "5"},
		{"{k: abc}", "abc"},
		{"{k: abc, l: d}", "abc"},
		{"{ \"k\": \"abc\" }", "abc"},
		{"{k: 10%}", "10%"},
		{"{\n  k: /api/**,\n  l: d\n}", "/api/**"},
		{"{k: a/*b}", "a/*b"},
		{"? k\n: abc", "abc"},
		{"'k': abc", "abc"},
		{"l: &x abc\nk: *x", "abc"},
		{"---\nk: abc\n...\n", "abc"},
		{"%YAML 1.2\n---\nk: abc\n", "abc"},
		{"k: ünï→", "ünï→"},
		{"k: abc\nl:\n  - a\n  -\n  - b: c\n    d:\n", "abc"},
	} {
		documents, _, misread, failure := Parse("", c.yaml)
		if failure != nil || len(misread) > 0 || len(documents) != 1 {
			t.Errorf("%q: %d documents, %v, %v", c.yaml, len(documents), misread, failure)
			continue
		}
		got := documents[0].Get("k")
		if got == nil || got.Kind != Scalar || got.Text != c.want {
			t.Errorf("%q: got %+v, want %q", c.yaml, got, c.want)
		}
	}
	for _, text := range []string{"k: !!binary aGk=", "k: !x y", "k: !!map [a]", "k: !!seq {a: b}", "k: !!str [a]",
		"k: !!int [a]", "k: *x", "k: &x [*x]", "<<: a", "<<: [a]"} {
		documents, _, misread, failure := Parse("", text)
		if failure == nil && len(misread) != 1 {
			t.Errorf("%q: %+v, %+v", text, documents, misread)
		}
	}
	for _, text := range []string{"k: !!map {a: b}", "k: !!seq [a]", "k: !!int 5", "k: !!bool true", "k: !!float 1.5",
		"k: !!timestamp 2020-01-01"} {
		documents, _, misread, failure := Parse("", text)
		if failure != nil || len(misread) > 0 || len(documents) != 1 || documents[0].Get("k").Kind == Null {
			t.Errorf("%q: %+v, %+v, %v", text, documents, misread, failure)
		}
	}
	for _, text := range []string{"k:", "k: null", "k: ~", "k: Null", "{k: }", "{k}", "k: # comment", "k: !!null x"} {
		documents, _, _, failure := Parse("", text)
		if failure != nil || len(documents) != 1 || documents[0].Get("k") == nil || documents[0].Get("k").Kind != Null {
			t.Errorf("%q: %v, %v", text, documents, failure)
		}
	}
	documents, _, _, failure := Parse("", "k: [a, [b], {c: d}, ]\nl:\n- x\n- y\nm:\n  - x\n")
	if failure != nil {
		t.Fatal(failure)
	}
	if k, l, m := documents[0].Get("k"), documents[0].Get("l"), documents[0].Get("m"); len(k.Items) != 3 ||
		k.Items[2].Get("c").Text != "d" || len(l.Items) != 2 || len(m.Items) != 1 {
		t.Errorf("lists are read as %+v, %+v, %+v", k, l, m)
	}
}
