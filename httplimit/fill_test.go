package httplimit

import (
	"maps"
	"net/http"
	"slices"
	"testing"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/httplimit/internal/limitfields"
	"github.com/weir-rl/weir/rule"
)

// For any limits that a request that passes has met, Fill makes the fields that Write wrote, in
// each combination of families; and none that Write never writes.
func TestFillTiesToWrite(t *testing.T) {
	l := newLimiter(t, new(clock), `
domain: d
limits:
  - {name: daily, when: {kind: [daily, both]}, allow: 100/day, algorithm: sliding_log}
  - {name: brief, when: {kind: [brief, both]}, allow: 1000/100ms}
  - {name: soft, when: {kind: soft}, allow: 1/day, algorithm: sliding_log, throttle: {soft: 100%}}
  - {name: near, when: {kind: near}, allow: 2/day, algorithm: sliding_log}
  - {name: shadow, when: {kind: shadow}, allow: 1/day, on_limit: shadow}
`)
	var decisions []*weir.Decision
	for _, kind := range []string{"none", "daily", "brief", "both", "soft", "soft", "near", "near", "shadow",
		"shadow"} {
		var d weir.Decision
		if err := l.Decide(t.Context(), &weir.Request{Domain: "d", Attributes: rule.Map{"kind": kind}, Hits: 1}, &d); err != nil || !d.Allowed {
			t.Fatal(kind, err, d.Allowed)
		}
		decisions = append(decisions, &d)
	}
	for f := range Headers(1 << len(families)) {
		if f.check() != nil {
			continue
		}
		var want []string
		written := map[string]bool{}
		for _, d := range decisions {
			h := http.Header{}
			f.Write(h, d)
			for name := range h {
				written[name] = true
			}
			before := h.Clone()
			f.Fill(h)
			for name := range before {
				if !slices.Equal(before[name], h[name]) {
					t.Fatalf("%v: Fill changed %s", f, name)
				}
			}
			got := slices.Sorted(maps.Keys(h))
			if want == nil {
				want = got
			}
			if !slices.Equal(got, want) {
				t.Errorf("%v: the fields are %q, and were %q", f, got, want)
			}
		}
		for _, name := range want {
			if !written[name] {
				t.Errorf("%v: nothing ever writes %s", f, name)
			}
		}
	}
	// A reset that never comes is not written.
	h := http.Header{}
	XEpoch.Write(h, &weir.Decision{Allowed: true,
		Limits: []weir.LimitResult{{Window: decisions[1].Limits[0].Window,
			Result: algo.Result{Allowed: true, ResetAfter: algo.Never}}}})
	if h[limitfields.Reset] != nil {
		t.Fatal("it was to have no reset")
	}
	if XEpoch.Fill(h); !slices.Equal(h[limitfields.Reset], unsaid) {
		t.Error("no field for a reset that never comes")
	}
}
