package admin

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/door/auth"
	"github.com/weir-rl/weir/internal/door/proxy/deferred"
	"github.com/weir-rl/weir/internal/observe/find"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/gather"
	"github.com/weir-rl/weir/internal/observe/recent"
	"github.com/weir-rl/weir/internal/testkit/doortest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store/memory"
)

// alone is a node without others.
type alone struct{ b *recent.Buffer }

func (alone) Self() string { return "n1" }

func (alone) List(context.Context) ([]insight.NodeState, insight.Nodes) {
	return []insight.NodeState{{Node: "n1", Self: true}}, insight.Nodes{Asked: 1, Answered: 1}
}

func (n alone) Decision(_ context.Context, id weir.DecisionID) (*recent.Entry, string, insight.Nodes) {
	if e, ok := n.b.Find(id); ok {
		return &e, "", insight.Nodes{Asked: 1, Answered: 1}
	}
	return nil, "nobody has it", insight.Nodes{Asked: 2, Answered: 1}
}

func (n alone) Decisions(_ context.Context, _ string, q recent.Query) ([]recent.Entry, insight.Nodes) {
	list := n.b.List(q)
	for i := range list {
		list[i].Node = "n1"
	}
	return list, insight.Nodes{Asked: 1, Answered: 1}
}

func (n alone) CountDecisions(_ context.Context, _ string, q recent.Query) (recent.Found, insight.Nodes) {
	found := n.b.Count(q)
	for i := range found.Decisions {
		found.Decisions[i].Node = "n1"
	}
	return found, insight.Nodes{Asked: 1, Answered: 1}
}

func (n alone) Find(_ context.Context, q find.Query) (find.Found, insight.Nodes, error) {
	b := find.NewBook(&q, n.b.Seed())
	n.b.Search(b)
	found := b.Found()
	found.Finish(&q)
	return found, insight.Nodes{Asked: 1, Answered: 1}, nil
}

func (alone) BanCounts(context.Context) (insight.BanCounts, insight.Nodes) {
	return insight.BanCounts{}, insight.Nodes{Asked: 1, Answered: 1}
}

func (alone) Outages(context.Context) ([]insight.Outage, insight.Nodes) {
	list := []insight.Outage{{Store: "redis", Kind: insight.StoreAway, Nodes: []insight.OutageNode{{Node: "n1"}}}}
	return insight.MergeOutages(list), insight.Nodes{Asked: 1, Answered: 1}
}

func (alone) Regions(context.Context) (*insight.RegionsReading, insight.Nodes) {
	return new(insight.RegionsReading), insight.Nodes{Asked: 1, Answered: 1}
}

// tried is a preview that ends at once, unless it is held.
type tried struct {
	hold chan struct{}
	slow time.Duration // to end when it is told to
}

func (p tried) Run(ctx context.Context, q insight.PreviewQuery) (*insight.PreviewResult, error) {
	q.Progress(insight.PreviewProgress{Done: 1, Of: 2, Phase: "then"})
	if p.hold != nil {
		select {
		case <-p.hold:
		case <-ctx.Done():
			time.Sleep(p.slow)
			return nil, ctx.Err()
		}
	}
	var files []string
	for _, name := range slices.Sorted(maps.Keys(q.Files)) {
		files = append(files, name+": "+q.Files[name])
	}
	return &insight.PreviewResult{
		Requests: 7, Clients: insight.PreviewClients{Examples: []insight.PreviewKey{}}, Rules: []insight.PreviewRule{},
		Tests: insight.PreviewTests{Failures: []string{}}, Problems: []insight.PreviewProblem{}, Warnings: files,
	}, nil
}

// noQueue is a queue of deferred requests that holds none.
type noQueue struct{ deferred.Queue }

func (noQueue) List(context.Context, deferred.State, int) ([]deferred.Ticket, error) { return nil, nil }

func (noQueue) Stats(context.Context) (deferred.Stats, error) { return deferred.Stats{}, nil }

func (noQueue) Ticket(context.Context, string) (deferred.Ticket, error) {
	return deferred.Ticket{}, deferred.ErrGone
}

// noSignals has no signals.
type noSignals struct{}

func (noSignals) List() []SignalState { return nil }

func (noSignals) Push(string, float64, time.Duration) error { return nil }

// whole is an admin port with all that there can be behind it.
type whole struct {
	*Handler
	limiter *weir.Limiter
	recent  *recent.Buffer
	insight *gather.Collector
	tokens  *auth.Tokens
	// followed is closed when the stream that follow opened last has ended.
	followed <-chan struct{}
}

// tokenLines are a token of each role: its name.
func tokenLines() (lines []string) {
	for _, role := range auth.Roles {
		lines = append(lines, role+"-token name="+role+"-name role="+role)
	}
	return lines
}

const seeRules = `
domain: shop
limits:
  - name: api
    when: { path: "/api/**" }
    per: [user]
    allow: 2/hour
    algorithm: sliding_log
    ban: { after: 4, within: 1h, for: 1h }
  - name: pair
    when: { kind: pair }
    per: [user, ip]
    allow: 2/hour
    algorithm: sliding_log
  - { name: trial, per: [user], allow: 1/hour, algorithm: sliding_log, on_limit: shadow }
`

func newWhole(t *testing.T, change func(*Options)) *whole {
	t.Helper()
	return newWholeBehind(t, 0, change)
}

// newWholeBehind is newWhole with a store whose clock is behind the node's.
func newWholeBehind(t *testing.T, behind time.Duration, change func(*Options)) *whole {
	t.Helper()
	w := new(whole)
	storeNow := func() time.Time { return time.Now().Add(-behind) }
	var err error
	if w.recent, err = recent.New(recent.Options{Sample: -1}); err != nil {
		t.Fatal(err)
	}
	w.insight = gather.New(gather.Options{StoreNow: storeNow})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); w.insight.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	store, err := memory.New(memory.Options{Clock: func() int64 { return storeNow().UnixMicro() }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	w.limiter, err = weir.New(store, weir.WithRules(doortest.Load(t, seeRules)),
		weir.WithHooks(weir.JoinHooks(w.recent.Hooks(), w.insight.Hooks())))
	if err != nil {
		t.Fatal(err)
	}
	w.tokens = doortest.Tokens[auth.Tokens](t, tokenLines()...)
	page := http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) {
		out.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = out.Write([]byte("the page"))
	})
	o := Options{
		Metrics: page, Source: func() RulesSource {
			return RulesSource{}
		}, Files: func() RuleFiles { return RuleFiles{} },
		Signals: noSignals{}, Audit: auditTo(t, t.Output()), Deferred: noQueue{}, Decisions: w.recent,
		Insight: w.insight, Nodes: alone{w.recent}, StoreNow: storeNow, Preview: tried{}, Versions: noVersions{}, Rollout: noRollout, Page: page, PagePaths: []string{"/", "/rules/", "/login", "/assets/"}, Tokens: w.tokens,
		Regions: &Regions{Own: "eu", Table: []Region{{"eu", 1}, {"us", 1}},
			Ceiling: func(_ *rule.Counter, l *algo.Limit) *algo.Limit {
				return l
			}},
	}
	if change != nil {
		change(&o)
	}
	w.Handler = New(w.limiter, o)
	t.Cleanup(w.Close)
	return w
}

// refuse makes clients that are refused, near, banned and granted: what their keys are is in
// secrets.
func (w *whole) refuse(t *testing.T) {
	t.Helper()
	for range 3 {
		w.decide(t, rule.Map{"user": "ada.lovelace", "path": "/api/orders/of-ada", "ip": "198.51.100.7"})
		w.decide(t, rule.Map{"user": "bob.brown", "ip": "198.51.100.8", "kind": "pair"})
	}
	for range 9 {
		w.decide(t, rule.Map{"user": "eve.adams", "path": "/api/x", "ip": "2001:db8:1:2::7"})
	}
	if _, err := w.limiter.Bans().Set(t.Context(), "shop", "pair", []string{"carol.c", "198.51.100.9"}, time.Now().Add(time.Hour), ""); err != nil {
		t.Fatal(err)
	}
	if _, err := w.limiter.Grants().Set(t.Context(), "shop", "api", []string{"dave.d"}, "9/hour", time.Now().Add(time.Hour), ""); err != nil {
		t.Fatal(err)
	}
}

// secrets are parts of the keys of refuse that nobody sees who sees keys masked.
var secrets = []string{"ada.", "lovelace", "bob.", "brown", "eve.", "adams", "carol", "dave", "100.7", "100.8", "100.9",
	"db8:1:2", "of-ada"}

func (w *whole) decide(t *testing.T, attributes rule.Map) *weir.Decision {
	t.Helper()
	var d weir.Decision
	r := weir.Request{Domain: "shop", Attributes: attributes, Hits: 1, Door: "http", MaxDelay: weir.AnyDelay}
	if err := w.limiter.Decide(t.Context(), &r, &d); err != nil {
		t.Fatal(err)
	}
	return &d
}

// as asks with the token of a role; "" is none.
func (w *whole) as(role, method, target, body string, headers ...string) doortest.Answer {
	headers = append([]string{"Content-Type", jsonText, "Accept", jsonText}, headers...)
	if role != "" {
		headers = append(headers, "Authorization", "Bearer "+role+"-token")
	}
	return onAdmin(w, method, target, body, headers...)
}

// login is the cookie that a browser gets for the token of a role.
func (w *whole) login(t *testing.T, role string) string {
	t.Helper()
	a := w.as("", "POST", "/login", `{"token": "`+role+`-token"}`)
	cookie, rest, _ := strings.Cut(a.Header.Get("Set-Cookie"), "; ")
	if a.Status != 204 || !strings.HasPrefix(cookie, auth.LoginCookie+"=1.") ||
		rest != "Path=/; Max-Age=43200; HttpOnly; SameSite=Strict" {
		t.Fatalf("login as %s: %d %s %v", role, a.Status, a.Body, a.Header)
	}
	return cookie
}

// noRollout knows no rule.
func noRollout(string, string, int) (*Rollout, error) { return nil, insight.ErrUnknown }

// noVersions is a database that accepts no change.
type noVersions struct{}

func (noVersions) List(context.Context, int) (VersionList, error) { return VersionList{}, nil }

func (noVersions) Push(context.Context, VersionChange) (Pushed, error) {
	return Pushed{}, &CheckError{Message: "version 3 came meanwhile", Conflict: true}
}

func (noVersions) Diff(context.Context, int64, int64) (VersionDiff, error) { return VersionDiff{}, nil }

func (noVersions) Rollback(context.Context, int64, string, string) (Pushed, error) {
	return Pushed{}, &CheckError{Message: "version 3 is in force"}
}
