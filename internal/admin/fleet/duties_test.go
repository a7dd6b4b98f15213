package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/admin/nodes"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/gather"
	"github.com/weir-rl/weir/internal/observe/insight/judge"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store/memory"
)

// desk is a board in this process, whose values expire as in Redis.
type desk struct {
	values map[string][]byte
	until  map[string]time.Time
	away   bool
}

func (b *desk) Get(_ context.Context, key string) ([]byte, error) {
	if b.away {
		return nil, errors.New("the board is away")
	}
	if !time.Now().Before(b.until[key]) {
		return nil, nil
	}
	return b.values[key], nil
}

func (b *desk) Set(ctx context.Context, key string, value []byte, ttl time.Duration, once bool) error {
	have, err := b.Get(ctx, key)
	if err == nil && (have == nil || !once) {
		b.values[key], b.until[key] = value, time.Now().Add(ttl)
	}
	return err
}

// newDuties makes a node with a board that knows the rule search, which was met once.
func newDuties(t *testing.T) (*Fleet, *desk) {
	t.Helper()
	set, _, err := file.Load([]file.Source{{Name: "shop.yaml",
		Data: []byte("domain: shop\nlimits: [{ name: search, per: [user], allow: 5/hour }]\n")}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c := gather.New(gather.Options{})
	store, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	l, err := weir.New(store, weir.WithRules(set), weir.WithHooks(c.Hooks()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Allow(t.Context(), weir.Request{Attributes: rule.Map{"user": "ada"}}); err != nil {
		t.Fatal(err)
	}
	b := &desk{values: map[string][]byte{}, until: map[string]time.Time{}}
	return New(Options{Name: "a", Insight: c, Board: b, Leads: func(context.Context) bool { return false }}), b
}

// Verdicts of the leader are shown for as long as they last on the board, and not for good: when
// nobody makes them any more, or Redis is away, a node shows its own.
func TestVerdictsExpire(t *testing.T) {
	for name, away := range map[string]bool{"the leader is gone": false, "Redis is away": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, b := newDuties(t)
				r := f.o.Insight.Snapshot(snapshot.Want{}).Rules[0]
				text, err := json.Marshal([]ruleVerdicts{{Domain: "shop", Rule: "search", Definition: r.Definition,
					Verdicts: []insight.Verdict{{Verdict: insight.Strict, Rule: "search", Sentence: "of the leader"}}}})
				if err != nil {
					t.Fatal(err)
				}
				if err := b.Set(t.Context(), verdictsKey, text, verdictsTTL, false); err != nil {
					t.Fatal(err)
				}
				shown := func() bool {
					f.look(t.Context())
					time.Sleep(2 * keptFor)
					list, _, err := f.Rules(t.Context(), "", time.Hour)
					if err != nil || len(list) != 1 {
						t.Fatal(list, err)
					}
					return len(list[0].Verdicts) == 1 && list[0].Verdicts[0].Sentence == "of the leader"
				}
				if !shown() {
					t.Error("the leader's verdict is not shown")
				}
				b.away = away
				time.Sleep(verdictsTTL / 2)
				if !shown() {
					t.Error("it is not shown while it lasts")
				}
				time.Sleep(verdictsTTL/2 + lookEvery)
				if shown() {
					t.Error("it is shown for longer than it lasts")
				}
			})
		})
	}
}

// When Redis has lost the seed that all nodes share, they go on with it, and forget no key.
func TestSeedStays(t *testing.T) {
	f, b := newDuties(t)
	f.look(t.Context())
	seed := f.o.Insight.Seed()
	clear(b.values)
	clear(b.until)
	f.look(t.Context())
	if f.o.Insight.Seed() != seed {
		t.Error("there is another seed")
	}
	if keys := f.o.Insight.Snapshot(snapshot.Want{Samples: true}).Rules[0].All.Keys; len(keys) != 1 {
		t.Errorf("%d keys are known", len(keys))
	}
}

// The hour for which a proposal has to be steady goes on when another node leads: what the leader
// remembers lies on the board with its verdicts.
func TestNextLeaderRemembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set, _, err := file.Load([]file.Source{{Name: "shop.yaml",
			Data: []byte("domain: shop\nlimits: [{ name: search, per: [user], allow: 5/hour }]\n")}}, file.Options{})
		if err != nil {
			t.Fatal(err)
		}
		c := gather.New(gather.Options{Known: []string{"user"}})
		store, err := memory.New(memory.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		l, err := weir.New(store, weir.WithRules(set), weir.WithHooks(c.Hooks()))
		if err != nil {
			t.Fatal(err)
		}
		ask := func(user string) {
			if _, err := l.Allow(t.Context(), weir.Request{Attributes: rule.Map{"user": user}}); err != nil {
				t.Fatal(err)
			}
		}
		for range 6 { // the last is refused
			for _, user := range []string{"ada", "bob", "eve", "joe"} {
				ask(user)
				time.Sleep(time.Second)
				c.Snapshot(snapshot.Want{}) // takes in events, in their order
			}
		}
		b := &desk{values: map[string][]byte{}, until: map[string]time.Time{}}
		var nodes [2]*Fleet
		for i := range nodes {
			nodes[i] = New(Options{Name: string(rune('a' + i)), Insight: c, Board: b,
				Leads: func(context.Context) bool { return true }})
		}
		for minute := 0; minute <= 65; minute += 5 {
			leader := nodes[0]
			if minute >= 45 {
				leader = nodes[1]
			}
			leader.look(t.Context())
			leader.judge(t.Context())
			for i, f := range nodes {
				f.look(t.Context())
				time.Sleep(2 * keptFor)
				list, _, err := f.Rules(t.Context(), "", time.Hour)
				if err != nil || len(list) != 1 || len(list[0].Verdicts) == 0 ||
					list[0].Verdicts[0].Verdict != insight.Strict {
					t.Fatal(list, err)
				}
				if p := list[0].Verdicts[0].Proposal; (p != nil) != (minute >= 60) {
					t.Errorf("minute %d, node %d: proposal %+v", minute, i, p)
				}
			}
			ask("ada")
			time.Sleep(5*time.Minute - 4*keptFor - judgePause)
		}
	})
}

// If the verdicts do not all fit on the board, those that need attention do, with what the next
// leader has to remember.
func TestFullBoard(t *testing.T) {
	var all []ruleVerdicts
	const urgent = 3_000
	for i := range urgent + 2 {
		v := ruleVerdicts{Domain: "shop", Rule: fmt.Sprint("rule-", i), Definition: uint64(i),
			Verdicts: []insight.Verdict{{Verdict: insight.Reserve, Sentence: strings.Repeat("x", 500)}}}
		switch i {
		case urgent:
			v.Verdicts[0].Verdict = insight.Strict
		case urgent + 1:
			v.Memory.Candidates = []judge.Candidate{{Verdict: insight.NeverBinding}}
		}
		all = append(all, v)
	}
	text, left := boardOf(all)
	f, _ := newDuties(t)
	f.takeVerdicts(text)
	if len(text) > mostBoard || len(text) < mostBoard*9/10 || len(f.verdicts)+left != len(all) {
		t.Errorf("%d bytes, %d verdicts, and %d left out", len(text), len(f.verdicts), left)
	}
	for i := uint64(urgent); i < urgent+2; i++ {
		if _, ok := f.verdicts[ruleID{"shop", fmt.Sprint("rule-", i), i}]; !ok {
			t.Errorf("rule-%d is left out", i)
		}
	}
	if text, left := boardOf(nil); string(text) != "[]" || left != 0 {
		t.Errorf("of no rules: %s, %d", text, left)
	}
}

// A verdict from the data of all nodes stays while one of them does not answer, for as long as it
// lasts.
func TestVerdictsOfAllStay(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	var silent atomic.Bool
	var other atomic.Pointer[member]
	leader := newMember(t, server.URL(), "node-0", shop)
	other.Store(newMember(t, server.URL(), "node-1", shop, func(n *nodes.Nodes) {
		n.Handle(kindSnapshot, func(ctx context.Context, args []byte) ([]byte, error) {
			if silent.Load() {
				return []byte("rubbish"), nil
			}
			return other.Load().answerSnapshot(ctx, args)
		})
	}))
	hearEachOther(t, leader, other.Load())
	leader.send(t, "user", "ada")
	other.Load().send(t, "user", "bob")
	met := func() float64 {
		leader.judge(t.Context())
		for id, v := range leader.verdicts {
			if id.rule == "search" {
				return v.Verdicts[0].Evidence["met"]
			}
		}
		return 0
	}
	if got := met(); got != 2 {
		t.Fatalf("judged by %v requests of both", got)
	}
	silent.Store(true)
	if got := met(); got != 2 {
		t.Errorf("while one is silent, judged by %v requests", got)
	}
	for id, v := range leader.verdicts {
		v.Memory.At -= int64(verdictsTTL.Seconds())
		leader.verdicts[id] = v
	}
	if got := met(); got != 1 {
		t.Errorf("when the verdict is old, judged by %v requests", got)
	}
}
