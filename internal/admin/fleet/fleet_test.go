package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/admin/nodes"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/gather"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
	"github.com/weir-rl/weir/internal/observe/recent"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store/redis"
)

const heartbeat = 200 * time.Millisecond

// member is a node in this process.
type member struct {
	*Fleet
	limiter *weir.Limiter
	store   *redis.Store
	insight *gather.Collector
	seeds   []uint64
	regions insight.RegionsReading
}

// newMember makes a node on a Redis. It waits for answers as long as the package's tests may. The
// changes are made before it hears questions.
func newMember(t *testing.T, url, name, rules string, changes ...func(*nodes.Nodes)) *member {
	t.Helper()
	set, _, err := file.Load([]file.Source{{Name: "shop.yaml", Data: []byte(rules)}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	m := &member{}
	if m.store, err = redis.Open(redis.Options{URL: url, Timeout: time.Minute, Heartbeat: heartbeat}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.store.Close() })
	kept, err := recent.New(recent.Options{Sample: -1})
	if err != nil {
		t.Fatal(err)
	}
	m.insight = gather.New(gather.Options{Known: []string{"user"}})
	n, err := nodes.New(nodes.Options{Client: m.store.Client, Prefix: redis.DefaultPrefix, Name: name,
		Alive: m.store.Nodes, Wait: patience.Left(t)})
	if err != nil {
		t.Fatal(err)
	}
	board, err := NewRedisBoard(m.store.Client, redis.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}
	m.Fleet = New(Options{
		Name: name, Nodes: n, Recent: kept, Insight: m.insight, Board: board,
		State: func() insight.NodeState { return insight.NodeState{Version: "test", Rules: len(set.Rules())} },
		Regions: func() *insight.RegionsReading {
			r := m.regions
			r.Peers, r.Limits = slices.Clone(r.Peers), slices.Clone(r.Limits)
			return &r
		},
		Bans:   func() []weir.Ban { return m.limiter.Bans().List() },
		Seeded: func(seed uint64) { m.seeds = append(m.seeds, seed) },
		Leads: func(ctx context.Context) bool {
			names, err := m.store.NodeNames(ctx)
			return err == nil && len(names) > 0 && slices.Min(names) == m.store.Name()
		},
	})
	if m.limiter, err = weir.New(m.store, weir.WithRules(set), weir.WithHooks(weir.JoinHooks(kept.Hooks(), m.insight.Hooks()))); err != nil {
		t.Fatal(err)
	}
	for _, change := range changes {
		change(n)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { n.Listen(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return m
}

// newFleet makes nodes that hear each other.
func newFleet(t *testing.T, url string, number int, rules string) (all []*member) {
	t.Helper()
	for i := range number {
		all = append(all, newMember(t, url, fmt.Sprint("node-", i), rules))
	}
	hearEachOther(t, all...)
	return all
}

// hearEachOther waits until nodes do.
func hearEachOther(t *testing.T, all ...*member) {
	t.Helper()
	number := len(all)
	for _, m := range all {
		patience.Until(t, "all nodes are known", func() bool { return m.store.Nodes() == number })
	}
	channel := redis.DefaultPrefix + "1ask"
	c, err := all[0].store.Client()
	if err != nil {
		t.Fatal(err)
	}
	patience.Until(t, "all nodes hear questions", func() bool {
		hearing := int64(0)
		for _, server := range c.Nodes() {
			if got, err := server.Do(t.Context(), server.B().PubsubNumsub().Channel(channel).Build()).AsIntMap(); err == nil {
				hearing += got[channel]
			}
		}
		return hearing == int64(number)
	})
}

func (m *member) ask(t *testing.T, user string) *weir.Decision {
	t.Helper()
	d, err := m.limiter.Allow(t.Context(), weir.Request{Attributes: rule.Map{"user": user}})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

const shop = "limits: [{ name: search, per: [user], allow: 5/hour, algorithm: sliding_log }]"

// Each node answers for all of them: it counts the requests of all, finds a decision of any node by
// its id, and has lists in order of time.
func TestAllAsOne(t *testing.T) {
	t.Parallel()
	for kind, url := range map[string]func(t *testing.T) string{
		"server":  func(t *testing.T) string { return redistest.Start(t).URL() },
		"Cluster": func(t *testing.T) string { return redistest.StartCluster(t, 3, 0).URL() },
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			if kind != "server" {
				effort.Long(t, "starts several servers")
			}
			all := newFleet(t, url(t), 4, shop)
			var refused []*weir.Decision
			of := map[weir.DecisionID]string{}
			for i := range 80 {
				m := all[i%4]
				if d := m.ask(t, fmt.Sprint("u", i%8)); !d.Allowed {
					refused = append(refused, d)
					of[d.ID] = m.Self()
				}
			}
			if len(refused) != 40 { // 8 users, 10 requests each, 5 of them pass
				t.Fatalf("%d are refused", len(refused))
			}
			for _, m := range all[:effort.Of(2, 4)] { // so many questions are asked in a second
				m.forgetAsked()
				o, err := m.Overview(t.Context(), "", time.Hour)
				if err != nil || o.Requests != 80 || o.Refused != 40 || o.Nodes.Asked != 4 || o.Nodes.Answered != 4 {
					t.Errorf("%s: %+v, %v", m.Self(), o, err)
				}
				rules, n, err := m.Rules(t.Context(), "", time.Hour)
				if err != nil || len(rules) != 1 || rules[0].Met != 80 || rules[0].Refused != 40 || n.Answered != 4 {
					t.Errorf("%s: %+v, %v, %v", m.Self(), rules, n, err)
				}
				one, _, err := m.Rule(t.Context(), "default", "search", time.Hour)
				if err != nil || one.Met != 80 || one.Refused != 40 {
					t.Errorf("%s: %+v, %v", m.Self(), one, err)
				}
				for i, d := range refused {
					if i%7 > 0 { // questions are bounded
						continue
					}
					e, why, n := m.Decision(t.Context(), d.ID)
					if e == nil || e.ID != d.ID || e.Node != of[d.ID] || why != "" || e.Allowed {
						t.Errorf("%s: %v is found as %+v (%s, %v)", m.Self(), d.ID, e, why, n)
					}
				}
				list, n := m.Decisions(t.Context(), "", recent.Query{Outcome: "denied", N: 30})
				if len(list) != 30 || n.Answered != 4 ||
					!slices.IsSortedFunc(list, func(a, b recent.Entry) int { return b.Time.Compare(a.Time) }) {
					t.Errorf("%s: %d decisions, %v", m.Self(), len(list), n)
				}
				for i := range list {
					if want := refused[len(refused)-1-i]; list[i].ID != want.ID || list[i].Node != of[want.ID] {
						t.Fatalf("%s: the %dth is %v of %s, want %v of %s", m.Self(), i, list[i].ID, list[i].Node,
							want.ID, of[want.ID])
					}
				}
				// The decisions of one node are all counted, however many are asked for.
				next := all[(slices.Index(all, m)+1)%4].Self()
				found, n := m.CountDecisions(t.Context(), next, recent.Query{Outcome: "denied", N: 3})
				sum := 0
				for _, count := range found.Seconds {
					sum += count
				}
				if len(found.Decisions) != 3 || sum != 10 || n != alone ||
					slices.ContainsFunc(found.Decisions,
						func(e recent.Entry) bool { return e.Node != next || of[e.ID] != next }) {
					t.Errorf("%s: of %s %+v of %d, %v", m.Self(), next, found.Decisions, sum, n)
				}
				if found, n := m.CountDecisions(t.Context(), "nobody", recent.Query{N: 3}); len(found.Decisions)+
					len(found.Seconds) != 0 || n != (insight.Nodes{Asked: 1}) {
					t.Errorf("%s: of nobody %+v, %v", m.Self(), found, n)
				}
				list, n = m.Decisions(t.Context(), m.Self(), recent.Query{Outcome: "denied"})
				if len(list) != 10 || n != alone || slices.ContainsFunc(list,
					func(e recent.Entry) bool { return e.Node != m.Self() }) {
					t.Errorf("%s: of itself %+v, %v", m.Self(), list, n)
				}
				states, n := m.List(t.Context())
				if len(states) != 4 || n.Answered != 4 {
					t.Fatalf("%s: %+v", m.Self(), states)
				}
				for i, s := range states {
					if s.Node != all[i].Self() || s.Self != (s.Node == m.Self()) || s.Version != "test" ||
						s.Rules != 1 {
						t.Errorf("%s: %+v", m.Self(), s)
					}
				}
			}
			e, why, n := all[0].Decision(t.Context(), 12345)
			if e != nil || n.Answered != 4 || !strings.HasPrefix(why, "4 of 4 nodes were heard") {
				t.Errorf("%+v %q %v", e, why, n)
			}
		})
	}
}

// TestNamesakes: two nodes of one name are two in every figure and list, each is shown with its
// address, and either can be asked for alone. A third one is shown by its name.
func TestNamesakes(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	var all []*member
	for _, name := range []string{"web 10.0.0.1:6070 aaaaaa", "web 10.0.0.1:7070 bbbbbb", "db 10.0.0.2:6070 cccccc"} {
		all = append(all, newMember(t, url, name, shop))
	}
	hearEachOther(t, all...)
	shown := []string{"web 10.0.0.1:6070", "web 10.0.0.1:7070", "db"}
	for i, m := range all { // each refuses one request of six
		for range 6 {
			m.ask(t, fmt.Sprint("u", i))
		}
	}
	for i, m := range all[:effort.Of(2, 3)] { // so many questions are asked in a second
		states, n := m.List(t.Context())
		if len(states) != 3 || n.Answered != 3 {
			t.Fatalf("%+v, %v", states, n)
		}
		for j, s := range []int{2, 0, 1} { // in order of name
			if want := shown[s]; states[j].Node != want || states[j].Address == "" || states[j].Self != (s == i) {
				t.Errorf("%s: %+v, want %s", m.Self(), states[j], want)
			}
		}
		if m.Self() != shown[i] {
			t.Errorf("%s calls itself %s", shown[i], m.Self())
		}
		if o, err := m.Overview(t.Context(), "", time.Hour); err != nil || o.Requests != 18 || o.Refused != 3 ||
			o.Nodes.Answered != 3 {
			t.Errorf("%+v, %v", o, err)
		}
		for asked, want := range map[string][]string{"": shown, "web": shown[:2], shown[0]: shown[:1], shown[1]: shown[1:2],
			"db": shown[2:], "web 10.0.0.9:6070": {}} {
			list, n := m.Decisions(t.Context(), asked, recent.Query{Outcome: "denied"})
			var of []string
			for _, d := range list {
				of = append(of, d.Node)
				if e, _, _ := m.Decision(t.Context(), d.ID); e == nil || e.Node != d.Node {
					t.Errorf("%v of %s is found as %+v", d.ID, d.Node, e)
				}
			}
			if slices.Sort(of); !slices.Equal(of, slices.Sorted(slices.Values(want))) || n.Answered != len(want) {
				t.Errorf("%s: of %q are refusals of %q, %v", m.Self(), asked, of, n)
			}
		}
	}
}

// forgetAsked forgets the answers of a moment ago.
func (f *Fleet) forgetAsked() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = map[snapshot.Want]*asked{}
}

// What a node of another version gathered is left out, and the log says so, seldom.
func TestOtherVersion(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	const rules = "domain: shop\nlimits: [{name: a, allow: 9/min}]\n"
	own := newMember(t, url, "node-0", rules)
	other := newMember(t, url, "node-1", rules, func(n *nodes.Nodes) {
		for _, kind := range []string{kindSnapshot, kindDecisions} {
			n.Handle(kind, func(context.Context, []byte) ([]byte, error) { return []byte("of a version to come"), nil })
		}
	})
	hearEachOther(t, own, other)
	var log bytes.Buffer
	own.o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	for range 2 {
		s, n := own.merge(t.Context(), snapshot.Want{})
		if s.Nodes != 1 || n.Asked != 2 || n.Answered != 1 {
			t.Errorf("%d nodes, %+v", s.Nodes, n)
		}
	}
	// So it is with decisions, and with those that are too many words to ask for.
	for _, key := range []string{"", "user=" + strings.Repeat("x", nodes.MaxQuestion)} {
		found, n := own.CountDecisions(t.Context(), "node-1", recent.Query{Key: key})
		if len(found.Decisions) != 0 || n.Asked != 1 || n.Answered != 0 ||
			(key != "") != strings.Contains(n.Remark, "a question has at most 512 bytes") {
			t.Errorf("%+v, %+v", found, n)
		}
	}
	if text := log.String(); strings.Count(text, "left out") != 1 || !strings.Contains(text, "node=node-1") {
		t.Errorf("the log says %q", text)
	}
}

// A decision that one node has is told at once, though another one does not answer.
func TestDecisionBesideHung(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	hung := make(chan struct{})
	own := newMember(t, url, "node-0", shop)
	has := newMember(t, url, "node-1", shop)
	hangs := newMember(t, url, "node-2", shop, func(n *nodes.Nodes) {
		n.Handle(kindDecision,
			func(ctx context.Context, _ []byte) ([]byte, error) { close(hung); <-ctx.Done(); return nil, ctx.Err() })
	})
	hearEachOther(t, own, has, hangs)
	var d *weir.Decision
	for range 6 {
		d = has.ask(t, "ada")
	}
	// The nodes of these tests are waited for until the test's own end.
	if e, why, n := own.Decision(t.Context(), d.ID); e == nil || e.Node != "node-1" || why != "" ||
		n != (insight.Nodes{Asked: 2, Answered: 2}) {
		t.Errorf("%+v %q %+v", e, why, n)
	}
	<-hung
	st := own.o.Nodes.Stats()
	if i := slices.IndexFunc(st.Kinds, func(k nodes.KindStats) bool {
		return k.Kind == kindDecision
	}); st.Kinds[i].Incomplete != 0 || st.Missing[nodes.Cancelled] != 0 {
		t.Errorf("the one that was not waited for is missing: %+v", st)
	}
}

// answersWith makes a node answer with data that it gathered by another clock.
func answersWith(ahead time.Duration) func(*nodes.Nodes) {
	c := gather.New(gather.Options{Now: func() time.Time { return time.Now().Add(ahead) }})
	return func(n *nodes.Nodes) {
		n.Handle(kindSnapshot, func(_ context.Context, args []byte) ([]byte, error) {
			var want snapshot.Want
			if err := json.Unmarshal(args, &want); err != nil {
				return nil, err
			}
			return c.Snapshot(want).AppendBinary(nil)
		})
	}
}

// What a node gathered whose clock is off is left out, at once and in little memory, and the answer
// says whose clock that is.
func TestClocks(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	const rules = "domain: shop\nlimits: [{name: a, allow: 9/min}]\n"
	own := newMember(t, url, "node-0", rules)
	hearEachOther(t, own, newMember(t, url, "node-1", rules, answersWith(-26*365*24*time.Hour)),
		newMember(t, url, "node-2", rules, answersWith(time.Minute)))
	var log bytes.Buffer
	own.o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	before := own.Unreadable()
	o, err := own.Overview(t.Context(), "", 6*time.Hour)
	if err != nil || o.Nodes.Asked != 3 || o.Nodes.Answered != 2 || len(o.Series.T) > 363 {
		t.Fatalf("%d steps, %+v, %v", len(o.Series.T), o.Nodes, err)
	}
	if !regexp.MustCompile(
		`^1 node left out, since the clock of node-1 is 9490 d( \d+ h)? behind this node's; 1 node left out, since node-2 has no rule shop/a$`).MatchString(o.Nodes.Remark) {
		t.Errorf("the answer says %q", o.Nodes.Remark)
	}
	if n := own.Unreadable() - before; n != 1 {
		t.Errorf("%d answers count as unreadable", n)
	}
	if text := log.String(); !strings.Contains(text, "the clocks of both are too far apart") ||
		!strings.Contains(text, "node=node-1") {
		t.Errorf("the log says %q", text)
	}
	// If the node's own clock is off, the clock of Redis shows it.
	own.o.Insight = gather.New(gather.Options{Now: func() time.Time { return time.Now().Add(3 * time.Hour) }})
	s, n := own.merge(t.Context(), snapshot.Want{Over: time.Hour})
	if s.Nodes != 1 || n.Answered != 1 || !strings.HasPrefix(n.Remark,
		"2 nodes left out, since the clock of this node is ") ||
		!strings.HasSuffix(n.Remark, " ahead of that of Redis") {
		t.Errorf("%d nodes, %+v", s.Nodes, n)
	}
}

// A snapshot that could not be merged ends no program: who asked is told, and the log says why.
func TestMergeFails(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	broken := true
	c := gather.New(gather.Options{P99: func() float64 {
		if broken {
			panic("a defect")
		}
		return 0
	}})
	f := New(Options{Name: "one", Insight: c, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if o, err := f.Overview(t.Context(), "", 0); err == nil {
		t.Errorf("%+v", o)
	}
	if text := log.String(); !strings.Contains(text, `panic="a defect"`) || !strings.Contains(text, "snapshots.go") {
		t.Errorf("the log says %q", text)
	}
	broken = false
	f.asked = map[snapshot.Want]*asked{}
	if o, err := f.Overview(t.Context(), "", 0); err != nil {
		t.Errorf("%+v %v", o, err)
	}
}

// Many who ask the same at once cost the nodes one question.
func TestSharedAnswers(t *testing.T) {
	t.Parallel()
	all := newFleet(t, redistest.Start(t).URL(), 2, shop)
	all[1].ask(t, "ada")
	before := all[0].o.Nodes.Stats().Asked
	var asking sync.WaitGroup
	for range 40 {
		asking.Go(func() {
			if o, err := all[0].Overview(t.Context(), "", time.Hour); err != nil || o.Requests != 1 {
				t.Errorf("%+v, %v", o, err)
			}
		})
	}
	asking.Wait()
	// A busy machine may take longer for all of them than an answer is kept.
	if n := all[0].o.Nodes.Stats().Asked - before; n == 0 || n > 20 {
		t.Errorf("%d questions", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	all[0].forgetAsked()
	if _, err := all[0].Overview(ctx, "", time.Minute); err == nil {
		t.Error("who goes away gets an answer")
	}
}

// The nodes agree on the seed. All nodes follow a key that one of them refuses, and use the
// verdicts that the leader makes.
func TestDuties(t *testing.T) {
	t.Parallel()
	all := newFleet(t, redistest.Start(t).URL(), 3, shop)
	leaders := 0
	var leader *member
	for range 2 { // all have the seed before the first keys are told
		leaders = 0
		for _, m := range all {
			if m.look(t.Context()) {
				leaders, leader = leaders+1, m
			}
		}
	}
	if leaders != 1 {
		t.Fatalf("%d nodes lead", leaders)
	}
	for _, m := range all {
		if m.insight.Seed() != all[0].insight.Seed() || m.seeds[len(m.seeds)-1] != all[0].insight.Seed() {
			t.Errorf("%s samples by another seed", m.Self())
		}
	}
	// ada is refused at one node, and met by the others.
	for range 8 {
		all[0].ask(t, "ada")
	}
	all[1].ask(t, "bob")
	all[2].ask(t, "bob")
	refusedAt := func(m *member) (own, remote int) {
		for _, k := range m.insight.Snapshot(snapshot.Want{Samples: true}).Rules[0].Refused.Keys {
			if k.Remote {
				remote++
			} else {
				own++
			}
		}
		return own, remote
	}
	leader.look(t.Context())
	for _, m := range all {
		m.look(t.Context())
		own, remote := refusedAt(m)
		if first := m == all[0]; own+remote != 1 || first != (own == 1) {
			t.Errorf("%s follows %d keys of its own, and %d of others", m.Self(), own, remote)
		}
	}
	leader.judge(t.Context())
	for _, m := range all {
		m.look(t.Context())
		m.forgetAsked()
		rules, _, err := m.Rules(t.Context(), "", time.Hour)
		if err != nil || len(rules) != 1 || len(rules[0].Verdicts) == 0 || rules[0].Verdicts[0].Evidence["met"] != 10 {
			t.Errorf("%s: %+v, %v", m.Self(), rules, err)
		}
	}
}

// Without Redis each node answers for itself, and says why. When Redis is back, it answers for all.
func TestRedisAway(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	all := newFleet(t, server.URL(), 3, shop)
	for _, m := range all {
		m.ask(t, "ada")
	}
	server.Kill()
	m := all[1]
	o, err := m.Overview(t.Context(), "", time.Hour)
	if err != nil || o.Requests != 1 || o.Nodes.Asked != 3 || o.Nodes.Answered != 1 || o.Nodes.Remark == "" {
		t.Errorf("%+v, %v", o, err)
	}
	if list, n := m.List(t.Context()); len(list) != 1 || n.Remark == "" {
		t.Errorf("%+v, %v", list, n)
	}
	if list, n := m.Decisions(t.Context(), "node-0", recent.Query{}); len(list) != 0 || n.Asked != 1 ||
		n.Answered != 0 || n.Remark == "" {
		t.Errorf("%+v, %v", list, n)
	}
	if m.look(t.Context()) {
		t.Error("it leads without Redis")
	}
	server.Restart()
	begun := time.Now()
	patience.Until(t, "all are heard again", func() bool {
		m.forgetAsked()
		// Each try may take longer than the one before, in case that this machine is slow.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second+time.Since(begun)/8)
		defer cancel()
		list, n := m.List(ctx)
		return len(list) == 3 && n.Answered == 3
	})
	if o, err := m.Overview(t.Context(), "", time.Hour); err != nil || o.Requests != 3 {
		t.Errorf("%+v, %v", o, err)
	}
}

// A node of a store that is not shared is the only one.
func TestAlone(t *testing.T) {
	t.Parallel()
	kept, err := recent.New(recent.Options{})
	if err != nil {
		t.Fatal(err)
	}
	f := New(Options{Name: "one", Recent: kept, Insight: gather.New(gather.Options{}),
		State: func() insight.NodeState { return insight.NodeState{} }})
	f.Run(t.Context()) // it has no duties
	if list, n := f.List(t.Context()); len(list) != 1 || list[0].Node != "one" || !list[0].Self || n != alone {
		t.Errorf("%+v %v", list, n)
	}
	if e, why, n := f.Decision(t.Context(), 7); e != nil || why == "" || n != alone {
		t.Errorf("%v %q %v", e, why, n)
	}
	if list, n := f.Decisions(t.Context(), "", recent.Query{}); len(list) != 0 || n != alone {
		t.Errorf("%v %v", list, n)
	}
	if o, err := f.Overview(t.Context(), "", 0); err != nil || o.Nodes != alone {
		t.Errorf("%+v, %v", o, err)
	}
}

// If an answer with very many rules would not fit, it has fewer keys, and all rules.
func TestManyRules(t *testing.T) {
	t.Parallel()
	effort.Long(t, "makes 12,000 decisions by Redis")
	var rules strings.Builder
	rules.WriteString("limits:\n")
	for i := range 300 {
		fmt.Fprintf(&rules, "  - { name: r%d, when: { kind: k%d }, per: [user], allow: 1/hour }\n", i, i)
	}
	all := newFleet(t, redistest.Start(t).URL(), 2, rules.String())
	var d weir.Decision
	for i := range 300 {
		for u := range 40 {
			r := weir.Request{Attributes: rule.Map{"kind": fmt.Sprint("k", i),
				"user": fmt.Sprintf("user-%d-%x", u, uint64(i*u+1)*0x9e3779b97f4a7c15)}, Hits: 2}
			if err := all[1].limiter.Decide(t.Context(), &r, &d); err != nil {
				t.Fatal(err)
			}
		}
	}
	o, err := all[0].Overview(t.Context(), "", time.Hour)
	if err != nil || o.Requests != 12_000 || o.Nodes.Answered != 2 {
		t.Errorf("%+v, %v", o, err)
	}
}

// While many questions wait for an answer of all nodes, a further one gets the data of this node,
// which says so.
func TestManyUnderWay(t *testing.T) {
	t.Parallel()
	m := newMember(t, redistest.Start(t).URL(), "node-0", shop)
	m.ask(t, "ada")
	for i := range mostUnderWay {
		m.mu.Lock()
		m.asked[snapshot.Want{Over: time.Duration(i)}] = &asked{done: make(chan struct{})}
		m.mu.Unlock()
	}
	o, err := m.Overview(t.Context(), "", time.Hour)
	if err != nil || o.Requests != 1 || !strings.HasPrefix(o.Nodes.Remark,
		"only this node was asked: 32 other questions") {
		t.Errorf("%+v, %v", o, err)
	}
}
