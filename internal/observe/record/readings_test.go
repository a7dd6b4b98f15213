package record

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe"
	"github.com/weir-rl/weir/rule"
)

const sessionRules = `limits: [{ name: session, per: [visitor], allow: %d/hour }, { name: secret, per: [cookie.token], allow: 100/hour }]`

// A request that has several readings is recorded with each of them.
func TestReadings(t *testing.T) {
	w := newWorld(t, fmt.Sprintf(sessionRules, 100), Options{Fresh: true, Known: []string{"visitor"}})
	for i := range 6 {
		first := rule.Map{"path": "/", "visitor": fmt.Sprint("other-", i), "cookie.token": "hush"}
		w.ask(&weir.Request{Attributes: first, Also: []rule.Attributes{
			rule.Map{"path": "/", "visitor": "ada", "cookie.token": "hush-hush"},
			rule.Map{"path": "/", "visitor": strings.Repeat("long", 200), "cookie.token": "hush"},
		}})
		w.now += 1000
	}
	list := w.recorder.drained(t)
	if len(list) != 6 || len(list[2].readings()) != 2 {
		t.Fatalf("%+v", list)
	}
	value := func(a rule.Attributes, name string) string { v, _ := a.Attribute(name); return v }
	first, all := &list[2], list[2].readings()
	if value(first, "visitor") != "other-2" || value(all[0], "visitor") != "ada" ||
		value(all[1], "visitor") != strings.Repeat("long", 128) || value(all[0], "path") != "/" {
		t.Errorf("%+v with %q", list[2], list[2].also)
	}
	hidden, other := value(first, "cookie.token"), value(all[0], "cookie.token")
	if !strings.HasPrefix(hidden, observe.HiddenMark) || !strings.HasPrefix(other, observe.HiddenMark) ||
		hidden == other || value(all[1], "cookie.token") != hidden {
		t.Errorf("hidden as %q and %q", hidden, other)
	}
	if !list[2].Cut() {
		t.Error("nothing tells that a value was cut")
	}
}

// However long the names are that a client chooses, an entry holds as many values as names.
func TestLongNames(t *testing.T) {
	w := newWorld(t, `limits: [{ name: all, if: 'size(header) > 0', allow: 5/hour }]`, Options{Fresh: true})
	many := rule.Map{"user": "ada"}
	for i := range 30 {
		many[fmt.Sprintf("header.%d-%s", i, strings.Repeat("x", 400))] = ""
		many[fmt.Sprintf("header.%d", i)] = strings.Repeat("v", 60)
	}
	w.ask(&weir.Request{Attributes: many})
	w.ask(&weir.Request{Attributes: rule.Map{"user": "bob", "header.a": "b"}})
	list := w.recorder.drained(t)
	if len(list) != 2 {
		t.Fatalf("%d entries", len(list))
	}
	for i := range list {
		if e := &list[i]; len(e.values) != len(e.shape.names) || len(e.values) == 0 {
			t.Errorf("%d values of %d names", len(e.values), len(e.shape.names))
		}
	}
}
