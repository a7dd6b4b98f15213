package rls

import (
	"testing"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe/recent"
	"github.com/weir-rl/weir/internal/testkit/doortest"
	"github.com/weir-rl/weir/store/memory"
)

// A descriptor of an RLS request is remembered with its key.
func TestDecisionOverRLS(t *testing.T) {
	store, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	b, err := recent.New(recent.Options{Sample: -1})
	if err != nil {
		t.Fatal(err)
	}
	l, err := weir.New(store, weir.WithHooks(b.Hooks()), weir.WithRules(doortest.Load(t, `
domain: d
descriptors:
- {key: tenant, rate_limit: {unit: day, requests_per_unit: 0}}
`)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(l, Options{}).ShouldRateLimit(t.Context(), parseRequest(t, "d: tenant=acme")); err != nil {
		t.Fatal(err)
	}
	list := b.List(recent.Query{})
	if len(list) != 1 || list[0].Door != "rls" || list[0].Attributes["tenant"] != "acme" || len(list[0].Limits) != 1 {
		t.Fatalf("got %+v", list)
	}
	if l := list[0].Limits[0]; l.Key != "tenant=acme" || l.Descriptor == nil || *l.Descriptor != 0 ||
		l.Name != "tenant" || !l.Refuses {
		t.Errorf("got %+v", l)
	}
}
