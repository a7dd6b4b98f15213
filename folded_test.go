package weir_test

import (
	"testing"
	"time"

	"github.com/weir-rl/weir"
)

// A ban holds for each spelling of a path, a grant of more for the one that it names, and one of
// less for all.
func TestOrdersOnSpelledPaths(t *testing.T) {
	at := func(path string) weir.Request {
		return weir.Request{Hits: 1, MaxDelay: weir.AnyDelay,
			Attributes: weir.Pairs{{Name: "path", Value: path}, {Name: "method", Value: "HEAD"}}}
	}
	c := newClock()
	l, _ := banLimiter(t, c,
		`limits: [{name: api, when: {path: /Api/*}, per: [path, method], allow: 2/min, algorithm: sliding_log}]`)
	end := time.UnixMicro(c.read()).Add(10 * time.Minute)
	if _, err := l.Grants().Set(t.Context(), "", "api", []string{"/Api/aB", "HEAD"}, "4/min", end, ""); err != nil {
		t.Fatal(err)
	}
	if n := admitted(t, l, at("/api/aB/"), 5); n != 2 {
		t.Errorf("%d admitted in another spelling than the grant has", n)
	}
	if n := admitted(t, l, at("/Api/aB"), 5); n != 2 {
		t.Errorf("%d more admitted in the spelling of the grant, of which two are used", n)
	}
	if g, err := l.Grants().Of("", "api", []string{"/Api/aB", "HEAD"}); err != nil || g.Key[0] != "path=/Api/aB" ||
		g.Key[1] != "method=HEAD" {
		t.Errorf("%+v, %v", g, err)
	}
	if _, err := l.Grants().Revoke(t.Context(), "", "api", []string{"/Api/aB", "HEAD"}); err != nil {
		t.Error(err)
	}

	if g, err := l.Grants().Set(t.Context(), "", "api", []string{"/Api/slow/", "HEAD"}, "1/min", end, ""); err != nil ||
		g.Key[0] != "path=/api/slow" {
		t.Errorf("%+v, %v", g, err)
	}
	for _, path := range []string{"/api/slow", "/API/slow/"} {
		if n := admitted(t, l, at(path), 2); n != map[string]int{"/api/slow": 1}[path] {
			t.Errorf("%s: %d admitted by a grant of one", path, n)
		}
	}
	if _, err := l.Grants().Revoke(t.Context(), "", "api", []string{"/API/slow", "GET"}); err != nil {
		t.Error(err)
	}

	if _, err := l.Bans().Set(t.Context(), "", "api", []string{"/API/x/", "GET"}, end, ""); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{"/api/x": 0, "/Api/x/": 0, "/api/X": 1} {
		if n := admitted(t, l, at(path), 1); n != want {
			t.Errorf("%s: %d of a banned path admitted", path, n)
		}
	}
}
