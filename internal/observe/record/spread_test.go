package record

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
)

// Spread gives some of the requests that came under the rules in force, from their beginning to
// their end, as rules saw them.
func TestSpread(t *testing.T) {
	const rules = "limits: [{ name: a, per: [user], when: { kind: x }, allow: 1/min }]"
	w := newWorld(t, rules, Options{Bytes: MinBytes})
	if list := w.recorder.Spread(10); len(list) != 0 {
		t.Errorf("of nothing: %v", list)
	}
	send := func(n int, kind string) {
		for i := range n {
			w.ask(&weir.Request{Attributes: rule.Map{"user": fmt.Sprint("u", i), "kind": kind,
				"path": fmt.Sprint("/", i)}})
			w.now += int64(time.Second / time.Microsecond)
			if i%100 == 0 {
				w.recorder.drain()
			}
		}
		w.recorder.drain()
		w.recorder.drain()
	}
	send(5000, "old")
	w.limiter.SetRules(load(t, rules))
	send(5000, "new")
	w.ask(
		&weir.Request{Domain: "default",
			Descriptors: []rule.Descriptor{{Entries: []rule.Entry{{Key: "k", Value: "v"}}}}})
	w.recorder.drain()
	w.recorder.drain()
	for _, n := range []int{1, 20, 200} {
		list := w.recorder.Spread(n)
		if len(list) > n || len(list) < n*3/4 {
			t.Errorf("%d of %d requests", len(list), n)
		}
		early, late := 0, 0
		for _, q := range list {
			if q.Attributes == nil {
				continue
			}
			kind, _ := q.Attributes.Attribute("kind")
			path, _ := q.Attributes.Attribute("path")
			user, _ := q.Attributes.Attribute("user")
			var at int
			if _, err := fmt.Sscanf(path, "/%d", &at); err != nil || kind != "new" || user != fmt.Sprint("u", at) ||
				q.Domain != "default" {
				t.Fatalf("%v", q)
			}
			if at < 2500 {
				early++
			} else {
				late++
			}
		}
		if n > 1 && (early == 0 || late == 0) {
			t.Errorf("of %d there are %d early ones and %d late ones", n, early, late)
		}
	}
}
