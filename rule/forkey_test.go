package rule

import (
	"slices"
	"testing"
)

const forKeyRules = `
limits:
  - {name: user, per: [user], allow: [10/min, 100/hour], override: {ada: [1000/min, 5000/hour], bob: unlimited, eve: 7/day}}
  - {name: either, per: [user|ip, path], allow: 10/min, override: {"ada,/x": 20/min, "192.0.2.1,/x": 30/min, "2001:db8::/64,/x": 40/min}}
  - {name: all, allow: 10/min}
`

// For each key that Match makes, WindowFor finds the window that Match found.
func TestWindowFor(t *testing.T) {
	set, err := LoadText(forKeyRules)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[*Window]bool{}
	for _, a := range []Map{
		{"user": "ada", "path": "/x"}, {"user": "bob", "path": "/x"}, {"user": "eve", "path": "/x"}, {"user": "zoe", "path": "/y"},
		{"ip": "192.0.2.1", "path": "/x"}, {"ip": "192.0.2.2", "path": "/x"}, {"ip": "2001:db8::7", "path": "/x"},
	} {
		var m Matches
		set.Match(&Query{Domain: set.Domains()[0], Attributes: a}, &m)
		for _, h := range m.Hits {
			seen[h.Window] = true
			if w := h.Window.Rule.WindowFor(h.Window.Counter.ID, h.Key); w != h.Window {
				t.Errorf("%v: %s has %v, want %v", a, h.Window.Name, w, h.Window)
			}
		}
	}
	if len(seen) != 10 {
		t.Errorf("%d windows were met", len(seen))
	}
	user := set.Rules()[0]
	key := func(name string) []byte { return appendText(nil, 0, name) }
	if w := user.WindowFor(user.Windows[0].Counter.ID, key("bob")); w != nil {
		t.Errorf("bob has no limit, got %v", w)
	}
	if w := user.WindowFor(user.Windows[0].Counter.ID, key("eve")); w != nil {
		t.Errorf("eve has no limit of a minute, got %v", w)
	}
	if w := user.WindowFor(1, key("zoe")); w != nil {
		t.Errorf("a counter of nobody has %v", w)
	}
}

// FuzzWindowFor: a key may come from anywhere.
func FuzzWindowFor(f *testing.F) {
	set, err := LoadText(forKeyRules)
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(nil))
	f.Add(appendText(nil, 0, "ada"))
	f.Add(appendText(appendText(nil, 0, "ada"), 0, "/x"))
	f.Add([]byte{0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Add([]byte{3, 1, 2})
	f.Fuzz(func(t *testing.T, key []byte) {
		for _, r := range set.Rules() {
			for _, w := range r.Windows {
				was := slices.Clone(key)
				got := r.WindowFor(w.Counter.ID, key)
				if !slices.Equal(was, key) || got != nil && got.Counter != w.Counter {
					t.Errorf("%q: %v", key, got)
				}
			}
		}
	})
}
