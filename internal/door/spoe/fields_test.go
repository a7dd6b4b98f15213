package spoe

import (
	"strings"
	"testing"

	"github.com/weir-rl/weir/httplimit"
)

// What has one value and comes twice is refused where a rule in force reads it, as at the other
// doors. HAProxy passes a second line as a second argument of the name.
func TestRepeatedArguments(t *testing.T) {
	const rules = `
limits:
  - { name: key, per: [header.x-api-key], allow: 3/day }
  - { name: page, when: { query.page: "1" }, allow: 9/day }
  - { name: token, when: { header.authorization: "Bearer *" }, allow: 99/day }
  - { name: trial, when: { header.x-trial: "1" }, allow: 9/day, on_limit: shadow }
`
	guard := &httplimit.FieldGuard{}
	p := dial(t, serve(t, New(newLimiter(t, rules), Options{Fields: guard})))
	p.greet()
	for _, c := range []struct {
		items   []any
		refused bool
	}{
		{[]any{"header.x-api-key", "a"}, false},
		{[]any{"header.x-api-key", "a", "header.x-api-key", nil}, false}, // there is one line
		{[]any{"header.x-api-key", "a", "header.x-api-key", "a"}, false}, // as two messages with one line
		{[]any{"header.x-api-key", "a", "header.X-Api-Key", "b"}, true},
		{[]any{"header.x-trial", "1", "header.x-trial", "2"}, false},
		{[]any{"path", "/", "query", "page=1&x=1&x=2"}, false},
		{[]any{"path", "/", "query", "page=2&page=1"}, true},
		{[]any{"path", "/", "query", "Page=1"}, true},
		{[]any{"header.authorization", "bearer \t k"}, false},
		{[]any{"header.authorization", "Bearer k k"}, true},
		{[]any{"header.x-api-key", "eyJ1c2VyIjoiYWRhIn0.aOgTgA.Jr2lXk8-bQ0tYp_5vNfZ1cDmRsE"}, false},
		{[]any{"header.x-api-key", "eyJ1c2VyIjoiYWRhIn0.aOgTgA.Jr2lXk8-bQ0tYp_5vNfZ1cDmRsE~"}, true},
		{[]any{"path", "/", "query", "page[size]=1"}, false},
		{[]any{"path", "/", "query", "page=eyJ1c2VyIjoiYWRhIn0.aOgTgA.Jr2lXk8-bQ0tYp_5vNfZ1cDmRsE!"}, true},
	} {
		v := p.ask(c.items...)
		told, _ := v["error"].(string)
		if refused := v["status"] == int64(400); refused != c.refused || refused != strings.Contains(told, " ") {
			t.Errorf("%v: %v", c.items, v)
		}
	}
	if s := guard.Stats(); s.Repeated != 2 || s.Lookalike != 1 || s.Unreadable != 3 {
		t.Errorf("%+v", s)
	}
	all := dial(t,
		serve(t, New(newLimiter(t, `limits: [{ name: a, if: 'header.exists(k, header[k] == "x")', allow: 9/day }]`),
			Options{Fields: guard})))
	all.greet()
	for _, c := range []struct {
		items   []any
		refused bool
	}{
		{[]any{"header.x-a", "x", "header.x-a", "y"}, true},
		{[]any{"header.x-a", "x", "header.x-b", "y", "header.accept", "a", "header.accept", "b"}, false},
		{[]any{"path", "/", "query", "a=1&a=2"}, false},
	} {
		if v := all.ask(c.items...); (v["status"] == int64(400)) != c.refused {
			t.Errorf("all of them: %v: %v", c.items, v)
		}
	}
	keep := dial(t,
		serve(t,
			New(newLimiter(t, rules), Options{Fields: &httplimit.FieldGuard{Repeated: httplimit.KeepRepeatedFields}})))
	keep.greet()
	if v := keep.ask("header.x-api-key", "a", "header.x-api-key", "b"); v["deny"] != false {
		t.Errorf("kept: %v", v)
	}
}

// A path with parameters counts as the path without them, too.
func TestPathParameters(t *testing.T) {
	p := dial(t,
		serve(t, New(newLimiter(t, `limits: [{ name: login, when: { path: /login }, allow: 1/day }]`), Options{})))
	p.greet()
	for i, path := range []string{"/login;c", "/login;a=b", "/login"} {
		if v := p.ask("path", path); (v["status"] == int64(429)) != (i > 0) {
			t.Errorf("%s: %v", path, v)
		}
	}
}
