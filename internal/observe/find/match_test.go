package find

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-rl/weir"
)

func query(text string) *Query { return &Query{Text: []byte(text)} }

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		text, key string
		want      match
	}{
		{"batch", "user=batch-17", begins},
		{"BATCH", "user=batch-17", begins},
		{"batch-17", "user=batch-17", whole},
		{"17", "user=batch-17", inside},
		{"user=batch", "user=batch-17", begins},
		{"USER=BATCH-17", "user=batch-17", whole},
		{"user=17", "user=batch-17", inside},
		{"ip=batch", "user=batch-17", 0},
		{"user", "user=batch-17", 0},
		{"", "user=batch-17", begins},
		{"  batch-17 ", "user=batch-17", whole},
		{"user=", "user=batch-17", begins},
		{"ada", "user=ada, ip=192.0.2.1", whole},
		{"192.0", "user=ada, ip=192.0.2.1", begins},
		{"user=ada, ip=192.0.2.1", "user=ada, ip=192.0.2.1", whole},
		{"user=ada, ip=192", "user=ada, ip=192.0.2.1", begins},
		{"b, c", "user=a, b, c", inside},
		{"x=1", "user=x=1", whole},
		{"x=1", "user=wx=12", inside},
		{"ÅNGSTRÖM", "user=ångström", whole},
		{"\u212a", "user=k", whole},
		{"2001:DB8:0:0::7", "ip=2001:db8::7", whole},
		{"2001:db8::7", "ip=2001:db8::/64", whole},
		{"2001:db8:1::7", "ip=2001:db8::/64", 0},
		{"::ffff:192.0.2.1", "ip=192.0.2.1", whole},
		{"ip=192.0.2.1", "user=192.0.2.1", 0},
		{"\xff", "user=\xff\xfe", begins},
		{"x", "global", 0},
		{"x", "", 0},
	} {
		m := newMatcher(query(c.text), 0)
		if got := m.matchKey([]byte(c.key)); got != c.want {
			t.Errorf("%q and %q: %d, want %d", c.text, c.key, got, c.want)
		}
		full := newMatcher(&Query{Text: []byte(c.text), Whole: true}, 0)
		if got := full.matchKey([]byte(c.key)); (got == whole) != (c.want == whole) || got != 0 && got != whole {
			t.Errorf("%q and %q, in full: %d", c.text, c.key, got)
		}
	}
	for attribute, want := range map[string]match{"path=/login": 0, "method=log": 0, "plan=login": begins} {
		m := newMatcher(query("log"), 0)
		if got := m.matchAttribute([]byte(attribute)); got != want {
			t.Errorf("%s: %d, want %d", attribute, got, want)
		}
	}
	m := newMatcher(query("path=/log"), 0)
	if got := m.matchAttribute([]byte("path=/login")); got != begins {
		t.Errorf("a path by its name: %d", got)
	}
}

// A part of a value is found in it, whatever its case.
func TestMatchProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.StringOf(rapid.RuneFrom([]rune("abcXYZ019-_. ÅåßΣσς€"))).Draw(t, "value")
		runes := []rune(value)
		from := rapid.IntRange(0, len(runes)).Draw(t, "from")
		part := string(runes[from:rapid.IntRange(from, len(runes)).Draw(t, "to")])
		if rapid.Bool().Draw(t, "upper") {
			part = strings.ToUpper(part)
		}
		m := newMatcher(query(part), 0)
		if part == strings.TrimSpace(part) && m.matchKey([]byte("user="+value)) == 0 {
			t.Fatalf("%q is not found in %q", part, value)
		}
		absent := part + "!"
		if m = newMatcher(query(absent), 0); m.matchKey([]byte("user="+value)) != 0 {
			t.Fatalf("%q is found in %q", absent, value)
		}
	})
}

// TestIDs: the beginning of an id finds each id that begins so.
func TestIDs(t *testing.T) {
	const id = 0x123456789abcdef0
	text := weir.DecisionID(id).String()
	for n := range text {
		m := newMatcher(query(text[:n]), 0)
		if got := m.ID(id); got != (n >= leastID) {
			t.Errorf("%s: %v", text[:n], got)
		}
		if n >= leastID && m.ID(id^1<<(5*(idLength-n))) {
			t.Errorf("%s is taken for the beginning of another id", text[:n])
		}
	}
	m := newMatcher(query(strings.ToUpper(text[:4]+"-"+text[4:8])), 0)
	if !m.ID(id) {
		t.Error("not as people write it")
	}
	for _, bad := range []string{"zzzz", "user", "1u23", "0000", text} {
		if m := newMatcher(query(bad), 0); m.ID(id) {
			t.Errorf("%s is taken for the beginning of an id", bad)
		}
	}
}
