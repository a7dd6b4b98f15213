package door

import (
	"maps"
	"testing"

	"github.com/weir-rl/weir/rule"
)

func TestWithoutParameters(t *testing.T) {
	for path, want := range map[string]string{
		"/login;a=b": "/login", "/login;": "/login", "/;/login": "/login", "/;a=b/login": "/login", "/x/..;/login": "/login", "/x/..;a=b/login;c/": "/login/",
		"/a;x=1/b;y=2;z=3/c": "/a/b/c", "/;": "/", "/a/.;/b": "/a/b", "/a/...;/b": "/a/.../b", "/a%3Bb;c": "/a",
	} {
		if got, ok := WithoutParameters(path); got != want || !ok {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
	if got, ok := WithoutParameters("/a/b%3Ac"); got != "/a/b%3Ac" || ok {
		t.Errorf("%s, %t", got, ok)
	}
}

func TestReadParameters(t *testing.T) {
	first, second := rule.Map{"path": "/a;b", "user": "ada"}, rule.Map{"path": "/a;b", "user": "bob"}
	got := ReadParameters(first, "/a;b", []rule.Attributes{second})
	want := []rule.Map{second, {"path": "/a", "user": "ada"}, {"path": "/a", "user": "bob"}}
	if len(got) != len(want) {
		t.Fatalf("%d readings, want %d", len(got), len(want))
	}
	for i := range want {
		if all := maps.Collect(got[i].All()); !maps.Equal(all, want[i]) {
			t.Errorf("reading %d: %v, want %v", i, all, want[i])
		}
		if path, _ := got[i].Attribute("path"); path != want[i]["path"] {
			t.Errorf("reading %d: %s", i, path)
		}
		if user, _ := got[i].Attribute("user"); user != want[i]["user"] {
			t.Errorf("reading %d: %s", i, user)
		}
	}
	if got := ReadParameters(first, "/a", nil); got != nil {
		t.Errorf("%v", got)
	}
}
