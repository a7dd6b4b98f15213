package gather

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/observe"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
)

// throttled takes in n commands on a key, all admitted or none.
func (b *bench) throttled(kind insight.CommandKind, key string, n int, admitted bool) {
	r := algo.Result{Limit: 16, Remaining: 4, Allowed: admitted}
	if !admitted {
		r.Remaining, r.RetryAfter = 0, 2_000_000
	}
	for range n {
		b.Command(kind, []byte(key), 1, b.µs.Load(), &r)
	}
}

func (b *bench) overviewOf(domain string) *insight.Overview {
	b.t.Helper()
	o, err := b.Overview(b.t.Context(), domain, time.Hour)
	if err != nil {
		b.t.Fatal(err)
	}
	return o
}

// Commands that bring their limit count in all, and by themselves, but in no domain; they stand
// behind the rules, and are none.
func TestCommands(t *testing.T) {
	b := newBench(t, Options{}, "domain: shop\nlimits: [{name: a, per: [user], allow: 3/min, algorithm: fixed_window}]")
	reports := func() []insight.RuleReport {
		list, _, err := b.Rules(t.Context(), "", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	if list := reports(); len(list) != 1 {
		t.Errorf("%d reports before the first command", len(list))
	}
	if o := b.overviewOf(insight.CommandDomain); o.Requests != 0 || len(o.Sentences) != 1 {
		t.Errorf("before the first command: %+v", o)
	}
	for range 4 {
		b.ask("ada")
	}
	// Drained in between: what all comes at one instant is thinned.
	b.throttled(insight.CLThrottle, "user:ada", 30, true)
	b.pass(time.Second)
	b.throttled(insight.CLThrottle, "user:ada", 10, false)
	b.throttled(insight.Throttle, "user:bob", 5, true)
	b.pass(time.Second)

	for domain, want := range map[string][2]uint64{"": {49, 11}, "shop": {4, 1}, insight.CommandDomain: {45, 10}} {
		o := b.overviewOf(domain)
		sum := uint64(0)
		for i := range o.Series.T {
			sum += uint64(o.Series.Admitted[i] + o.Series.Refused[i])
		}
		if o.Requests != want[0] || o.Refused != want[1] || sum != want[0] {
			t.Errorf("%q: %d requests, %d refused, %d over time; want %v", domain, o.Requests, o.Refused, sum, want)
		}
	}
	o := b.overviewOf("")
	said := strings.Join(o.Sentences, " ")
	if !strings.Contains(said,
		"91 % of the refusals were by commands that bring their limit (_command); in the last minute all of them hit key=user:ada.") &&
		!strings.Contains(said,
			"90.9 % of the refusals were by commands that bring their limit (_command); in the last minute all of them hit key=user:ada.") {
		t.Errorf("%q", o.Sentences)
	}
	if o.Named != "key=user:ada" || o.GoodRefused.Confidence != "" || len(o.NeedsALook) != 0 {
		t.Errorf("%+v", o)
	}

	list := reports()
	if len(list) != 2 || list[0].Command || list[0].Name != "a" {
		t.Fatalf("%+v", list)
	}
	c := list[1]
	if !c.Command || c.Domain != insight.CommandDomain || c.Name != insight.CommandRule || c.Met != 45 ||
		c.Refused != 10 || c.Keys != 2 || c.KeysRefused != 1 ||
		len(c.Verdicts) != 0 || len(c.Limits) != 0 || c.File != "" {
		t.Errorf("%+v", c)
	}
	if list, _, err := b.Rules(t.Context(), "shop", time.Hour); err != nil || len(list) != 1 {
		t.Errorf("of a domain: %+v, %v", list, err)
	}
	if _, _, err := b.Rule(t.Context(), insight.CommandDomain, insight.CommandRule, time.Hour); err != insight.ErrUnknown {
		t.Errorf("its report: %v", err)
	}

	for _, q := range []struct {
		insight.KeysQuery
		want string
	}{
		{insight.KeysQuery{By: insight.ByAsked}, "CL.THROTTLE key=user:ada 40, THROTTLE key=user:bob 5, a user=ada 4"},
		{insight.KeysQuery{By: insight.ByRefused, Over: time.Hour}, "CL.THROTTLE key=user:ada 10, a user=ada 1"},
		{insight.KeysQuery{By: insight.ByRefused, Domain: "shop"}, "a user=ada 1"},
		{insight.KeysQuery{By: insight.ByAsked, Domain: insight.CommandDomain}, "CL.THROTTLE key=user:ada 40, THROTTLE key=user:bob 5"},
		{insight.KeysQuery{By: insight.ByAsked, Limit: insight.CommandRule}, "CL.THROTTLE key=user:ada 40, THROTTLE key=user:bob 5"},
		{insight.KeysQuery{By: insight.ByAsked, Limit: "THROTTLE"}, "THROTTLE key=user:bob 5"},
		{insight.KeysQuery{By: insight.ByNear, Limit: insight.CommandRule}, ""},
		{insight.KeysQuery{By: insight.ByRefused, Limit: "shop/a"}, "a user=ada 1"},
	} {
		var got []string
		for _, k := range b.keys(q.KeysQuery) {
			got = append(got, fmt.Sprintf("%s %s %d", k.Limit, k.Key, k.Count))
		}
		if text := strings.Join(got, ", "); text != q.want {
			t.Errorf("%+v: %s", q.KeysQuery, text)
		}
	}
	k := b.keys(insight.KeysQuery{By: insight.ByRefused, Limit: insight.CommandRule})[0]
	if k.Domain != insight.CommandDomain || k.Rule != insight.CommandRule || k.RefusedShare != 0.25 ||
		math.Abs(k.Fill-17.0/16) > 1e-3 || k.Known || k.Shadow {
		t.Errorf("%+v", k)
	}
	one, _, err := b.Key(t.Context(), insight.CommandDomain, "key=user:ada")
	if err != nil || len(one.Limits) != 1 || one.Limits[0].Asked != 40 || one.Limits[0].Refused != 10 ||
		one.Limits[0].Limit != "CL.THROTTLE" {
		t.Errorf("%+v, %v", one, err)
	}
}

// They are never judged, whatever they do, and other rules do not end them.
func TestCommandsAreNotJudged(t *testing.T) {
	b := newBench(t, Options{}, "domain: shop\nlimits: [{name: a, allow: 1000/min}]")
	for range 61 {
		b.throttled(insight.CLThrottle, "loud", 40, false)
		b.ask("ada")
		b.pass(time.Minute)
	}
	b.rulesChanged(load(t, "domain: other\nlimits: [{name: b, allow: 5/min}]"), 99)
	b.throttled(insight.CLThrottle, "loud", 40, false)
	b.pass(2 * time.Minute)
	list, _, _ := b.Rules(t.Context(), "", 2*time.Hour)
	if len(list) != 2 || !list[1].Command || list[1].Met != 62*40 || len(list[1].Verdicts) != 0 {
		t.Errorf("%+v", list)
	}
	for _, j := range b.Judged() {
		if j.Domain == insight.CommandDomain {
			t.Errorf("%+v", j)
		}
	}
}

// What commands did outlasts a restart, as what rules did does.
func TestCommandsHistory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history")
	b := startBench(t, Options{}, begun, path, historyRules)
	for range 10 {
		b.throttled(insight.CLThrottle, "ada", 3, true)
		b.throttled(insight.CLThrottle, "ada", 2, false)
		b.pass(time.Minute)
		b.remember()
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	next := restart(t, b.time(), path, historyRules, &log)
	for _, domain := range []string{"", insight.CommandDomain} {
		if o := next.overviewOf(domain); o.Requests != 50 || o.Refused != 20 {
			t.Errorf("%q: %d requests, %d refused %s", domain, o.Requests, o.Refused, &log)
		}
	}
	if c := next.commands; !c.since.Equal(begun) {
		t.Errorf("since %s", c.since)
	}
}

// Nodes add up what they know, also one of them that saw no command.
func TestCommandsMerge(t *testing.T) {
	rules := "domain: shop\nlimits: [{name: a, allow: 1000/min}]"
	nodes := []*bench{newBench(t, Options{}, rules), newBench(t, Options{}, rules), newBench(t, Options{}, rules)}
	nodes[1].throttled(insight.CLThrottle, "ada", 30, true)
	nodes[2].throttled(insight.CLThrottle, "ada", 12, false)
	var list []*snapshot.Snapshot
	for _, b := range nodes {
		b.pass(2 * time.Second)
		data, err := b.Snapshot(snapshot.Want{Top: true, Over: time.Hour}).AppendBinary(nil)
		s := new(snapshot.Snapshot)
		if err != nil || s.UnmarshalBinary(data) != nil {
			t.Fatal(err)
		}
		list = append(list, s)
	}
	for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}} {
		var some []*snapshot.Snapshot
		for _, i := range order {
			some = append(some, list[i])
		}
		v := snapshot.View{Ask: func(context.Context, snapshot.Want) (*snapshot.Snapshot, insight.Nodes, error) {
			return snapshot.Merge(some...), insight.Nodes{Asked: 3, Answered: 3}, nil
		}}
		o, err := v.Overview(t.Context(), "", time.Hour)
		if err != nil || o.Requests != 42 || o.Refused != 12 {
			t.Errorf("%v: %+v, %v", order, o, err)
		}
		keys, _, err := v.Keys(t.Context(), insight.KeysQuery{By: insight.ByAsked})
		if err != nil || len(keys) != 1 || keys[0].Key != "key=ada" || keys[0].Count != 42 {
			t.Errorf("%v: %+v, %v", order, keys, err)
		}
	}
}

// Of a flood a part is looked at, and all is counted; who comes most is found.
func TestCommandsFlood(t *testing.T) {
	b := newBench(t, Options{Memory: LeastMemory}, "domain: shop\nlimits: [{name: a, allow: 1000/min}]")
	const rounds, others = 100, 3000
	for i := range rounds { // of 100 ms
		for k := range others {
			b.throttled(insight.CLThrottle, fmt.Sprint("other-", i*others+k), 1, true)
			b.throttled(insight.CLThrottle, "loud", 1, i%2 == 0)
			if k%100 == 0 {
				b.gather(false) // as a ring that is half full asks for
			}
		}
		b.pass(100 * time.Millisecond)
	}
	b.pass(time.Second)
	o := b.overviewOf(insight.CommandDomain)
	if o.Requests != 2*rounds*others || o.Refused != rounds*others/2 {
		t.Errorf("%d requests, %d refused", o.Requests, o.Refused)
	}
	if taken := b.taken.Load(); taken > rounds*others/5 {
		t.Errorf("%d of %d were looked at", taken, o.Requests)
	}
	for _, by := range []string{insight.ByAsked, insight.ByRefused} {
		if keys := b.keys(insight.KeysQuery{By: by, Limit: insight.CommandRule}); len(keys) == 0 ||
			keys[0].Key != "key=loud" {
			t.Errorf("%s: %+v", by, keys[:min(len(keys), 2)])
		}
	}
	// What is looked at stands for the rest.
	const all = rounds * others
	asked := b.keys(insight.KeysQuery{By: insight.ByAsked, Over: time.Hour})[0]
	if n := float64(asked.Count); n < 0.8*all || n > 1.2*all || asked.RefusedShare < 0.4 || asked.RefusedShare > 0.6 {
		t.Errorf("of %d, half of them refused: %+v", all, asked)
	}
}

// Keys are what clients send: any length, cut between characters.
func TestCommandKeys(t *testing.T) {
	b := newBench(t, Options{}, "domain: shop\nlimits: [{name: a, allow: 1000/min}]")
	keys := []string{"", "ä", strings.Repeat("x", 400), strings.Repeat("€", 200), "a" + strings.Repeat("€", 37),
		"b" + strings.Repeat("€", 200), "a=b, ip=192.0.2.1\x00\x1b[31m"}
	for _, key := range keys {
		b.throttled(insight.CLThrottle, key, 1, true)
	}
	b.pass(time.Second)
	got := b.keys(insight.KeysQuery{By: insight.ByAsked})
	if len(got) != len(keys) {
		t.Fatalf("%+v", got)
	}
	for _, k := range got {
		text, isCut := strings.CutSuffix(strings.TrimPrefix(k.Key, "key="), observe.CutMark)
		if !utf8.ValidString(k.Key) || len(k.Key) > keyText || !strings.HasPrefix(k.Key, "key=") {
			t.Errorf("%q", k.Key)
		}
		if !slices.ContainsFunc(keys,
			func(key string) bool { return key == text || isCut && text != "" && strings.HasPrefix(key, text) }) {
			t.Errorf("%q is no key that was sent", k.Key)
		}
	}
}

// BenchmarkCommand is what telling of a command takes, by outcome and number of keys, with Run
// beside it. docs/operating/insight.md has its figures.
func BenchmarkCommand(b *testing.B) {
	for _, keys := range []int{1, 1 << 16} {
		for _, admitted := range []bool{true, false} {
			b.Run(fmt.Sprintf("keys=%d/admitted=%v", keys, admitted), func(b *testing.B) {
				c := New(Options{})
				ctx, cancel := context.WithCancel(b.Context())
				done := make(chan struct{})
				go func() { c.Run(ctx); close(done) }()
				defer func() { cancel(); <-done }()
				names := make([][]byte, keys)
				for i := range names {
					names[i] = fmt.Appendf(nil, "user:%08d", i)
				}
				b.ReportAllocs()
				r := &algo.Result{Limit: 16, Remaining: 4, Allowed: admitted, RetryAfter: 1e6}
				for i := 0; b.Loop(); i++ {
					c.Command(insight.CLThrottle, names[i&(keys-1)], 1, 1_700_000_000_000_000+int64(i), r)
				}
			})
		}
	}
}
