package snapshot

import (
	"reflect"
	"testing"

	"github.com/weir-rl/weir/internal/observe/insight"
)

// Figures of a node that restarted begin later, and so do figures of a rule that changed on one
// node. Nodes that started a few seconds apart, and a rule that changed on all, are not told.
func TestApart(t *testing.T) {
	const now, start, changed = 100_000, 80_000, 90_000
	of := func(node string, began, search, api int64) *Snapshot {
		return &Snapshot{Node: node, From: 50_000, Time: now, Domains: []Domain{{Name: "shop", Since: began}},
			Rules: []Rule{
				{Domain: "shop", Name: "search", Since: search}, {Domain: "shop", Name: "api", Since: api},
				{Domain: "shop", Name: "request_override", Since: changed, Brought: true}}}
	}
	a, b := of("a", start, start, changed), of("b", start+20, start+20, changed+1)
	if got := Apart([]*Snapshot{a, b}, nil); got != nil {
		t.Errorf("%+v", got)
	}
	restarted, other := of("c", changed, changed, changed), of("d", start+5, changed+7, changed)
	broken := of("e", start, start, changed)
	broken.Broken = "shop.yaml:3:1: no rules"
	got := Apart([]*Snapshot{a, b, restarted, other, broken}, nil)
	want := &insight.Apart{
		Broken: []insight.BrokenRules{{Node: "e", Error: broken.Broken}},
		Later: []insight.CountedSince{{Node: "c", Since: unixTime(changed)},
			{Node: "d", Domain: "shop", Rule: "search", Since: unixTime(changed + 7)}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	for _, s := range []*Snapshot{a, restarted, other} {
		s.From = changed + 60 // all of them count all of the time
	}
	if got := Apart([]*Snapshot{a, restarted, other}, nil); got != nil {
		t.Errorf("%+v", got)
	}
}

// A node that restarted has its figures from a file. A rule that the file does not know begins
// then; one that changed later is told.
func TestApartAfterRestart(t *testing.T) {
	const now, start, restart = 100_000, 80_000, 90_000
	of := func(node string, started, search, api int64) *Snapshot {
		return &Snapshot{Node: node, From: 50_000, Time: now, Started: started,
			Domains: []Domain{{Name: "shop", Since: start}},
			Rules:   []Rule{{Domain: "shop", Name: "search", Since: search}, {Domain: "shop", Name: "api", Since: api}}}
	}
	got := Apart([]*Snapshot{of("a", start, start, start), of("b", restart, restart+1, restart+500)}, nil)
	want := &insight.Apart{Later: []insight.CountedSince{
		{Node: "b", Domain: "shop", Rule: "api", Since: unixTime(restart + 500)}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}
