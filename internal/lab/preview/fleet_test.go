package preview

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/record"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

// fleet are nodes that count in one store: each has a recorder and a preview of its own.
type fleet struct {
	*world
	nodes    []*world
	silent   int // a node that does not answer; below 0 for none
	dies     int // a node that does so after its first page
	asked    int // questions
	lost     int // which answer gets lost; 0 is none
	answered int
}

// newFleet makes nodes on the store of a world, and previews over all of them.
func newFleet(t *testing.T, n int, rules string, o record.Options) *fleet {
	f := &fleet{world: newWorld(t, rules, o), silent: -1, dies: -1}
	for i := range n {
		w := &world{t: t, now: begin}
		o := o
		o.Clock = func() int64 { return f.now }
		if o.PerSecond == 0 {
			o.PerSecond = 1 << 30
		}
		var err error
		if w.recorder, err = record.NewRecorder(o); err != nil {
			t.Fatal(err)
		}
		w.recorder.SetSeed(7)
		if w.limiter, err = weir.New(f.store, weir.WithRules(load(t, rules)), weir.WithClock(o.Clock), weir.WithHooks(w.recorder.Hooks())); err != nil {
			t.Fatal(err)
		}
		w.preview = New(w.recorder, func() *rule.Set { set, _ := w.limiter.Rules(); return set }, file.Options{})
		w.preview.SetOthers(record.Others{Nodes: func() int { return n },
			Ask: func(ctx context.Context, q []byte, take func(string, []byte) bool) insight.Nodes {
				tally := insight.Nodes{Asked: n, Answered: 1}
				f.asked++
				var asked struct {
					Page int `json:"p"`
				}
				if err := json.Unmarshal(q, &asked); err != nil {
					t.Error(err)
				}
				for k := range n {
					if k == i || k == f.silent || k == f.dies && asked.Page > 0 {
						continue
					}
					text, err := f.nodes[k].recorder.Answer(ctx, q)
					if err != nil {
						continue
					}
					if f.answered++; f.answered == f.lost {
						continue
					}
					tally.Answered++
					if take(f.names(k), text) {
						break
					}
				}
				return tally
			}})
		f.nodes = append(f.nodes, w)
	}
	return f
}

func (f *fleet) names(k int) string { return fmt.Sprint("node-", k) }

// ask decides a request at one of the nodes.
func (f *fleet) ask(node int, user string) *weir.Decision {
	f.t.Helper()
	return f.nodes[node].ask(&weir.Request{Attributes: rule.Map{"user": user,
		"path": fmt.Sprint("/", rand.Uint64(), rand.Uint64(), rand.Uint64())}})
}

func (f *fleet) at(node int, rules string, over time.Duration) *insight.PreviewResult {
	f.t.Helper()
	return f.nodes[node].here(rules, over)
}

// here previews rules in this process.
func (w *world) here(rules string, over time.Duration) *insight.PreviewResult {
	w.t.Helper()
	res, err := w.preview.Run(w.t.Context(),
		insight.PreviewQuery{Files: map[string]string{"shop.yaml": rules}, Over: over})
	if err != nil || len(res.Problems) > 0 {
		w.t.Fatal(err, res)
	}
	return res
}

// TestFleet: clients spread their requests over three nodes. A preview counts the same at each
// node: what one node that had all requests would count.
func TestFleet(t *testing.T) {
	f := newFleet(t, 3, fmt.Sprintf(perMinute, 6), record.Options{Fresh: true})
	all := newWorld(t, fmt.Sprintf(perMinute, 6), record.Options{Fresh: true})
	for range 10 {
		for k := range 36 {
			for c := range 20 {
				f.now++
				all.now = f.now
				user := fmt.Sprint("client-", c)
				got, want := f.ask((k+c)%3, user), all.ask(&weir.Request{Attributes: rule.Map{"user": user}})
				if got.Allowed != want.Allowed {
					t.Fatalf("minute, request %d of %s: allowed %t, on one node %t", k, user, got.Allowed, want.Allowed)
				}
			}
		}
		f.now = begin + (f.now-begin+60e6-1)/60e6*60e6
	}
	for _, over := range []time.Duration{0, 5 * time.Minute} {
		want := all.here(fmt.Sprintf(perMinute, 10), over)
		for i := range f.nodes {
			got := f.at(i, fmt.Sprintf(perMinute, 10), over)
			if got.Nodes != (insight.Nodes{Asked: 3, Answered: 3}) {
				t.Errorf("%+v", got.Nodes)
			}
			if over == 0 {
				// The first minute only warms up, since nobody knows when several nodes began to
				// count.
				if got.Requests != 9*20*36 || got.Now.Refused != 9*20*30 || got.Then.Refused != 9*20*26 {
					t.Errorf("at node %d: %+v", i, got)
				}
			} else if got.Requests != want.Requests || got.Now.Refused != want.Now.Refused ||
				got.Then.Refused != want.Then.Refused || want.Then.Refused == 0 {
				t.Errorf("at node %d over %v: %+v; on one node %+v", i, over, got, want)
			}
		}
	}
}

// TestFleetAnswers: a node that does not answer is named as missing, and no part of what it
// recorded is taken; a page that gets lost is asked for again; a node that samples other clients,
// or sends nonsense, is left out.
func TestFleetAnswers(t *testing.T) {
	f := newFleet(t, 3, fmt.Sprintf(perMinute, 6), record.Options{})
	for i := range 20_000 {
		f.now += 20_000
		f.ask(i/500%3, fmt.Sprint("client-", i%500))
	}
	full := f.at(0, fmt.Sprintf(perMinute, 6), 0)
	if pages := f.answered; full.Nodes.Answered != 3 || pages < 4 {
		t.Fatalf("%+v in %d pages", full.Nodes, pages)
	}
	f.answered, f.lost = 0, 4
	if res := f.at(0, fmt.Sprintf(perMinute, 6), 0); res.Nodes.Answered != 3 || res.Requests != full.Requests {
		t.Errorf("with a lost page: %+v, %d requests of %d", res.Nodes, res.Requests, full.Requests)
	}
	partial := func(name string) {
		t.Helper()
		res := f.at(0, fmt.Sprintf(perMinute, 6), 0)
		if res.Nodes.Answered != 2 || res.Nodes.Asked != 3 || res.Requests >= full.Requests ||
			!slices.ContainsFunc(res.Warnings, func(s string) bool {
				return strings.HasPrefix(s, "2 of 3 nodes answered. What came to other nodes is missing")
			}) {
			t.Errorf("%s: %+v, %d requests, %q", name, res.Nodes, res.Requests, res.Warnings)
		}
	}
	f.lost, f.silent = 0, 2
	partial("silent")
	f.silent = -1
	pages := func() int { f.asked = 0; f.at(0, fmt.Sprintf(perMinute, 6), 0); return f.asked }
	before := pages()
	f.dies = 2
	if got := pages(); got > before+1 {
		t.Errorf("%d questions while a node dies, and %d while none does", got, before)
	}
	partial("dies")
	f.dies = -1
	f.nodes[2].recorder.SetSeed(8)
	partial("other clients")
}

// TestFleetBounds: what nodes send is bounded. All of them leave out the same clients then, and the
// counts are multiplied.
func TestFleetBounds(t *testing.T) {
	f := newFleet(t, 3, fmt.Sprintf(perMinute, 6), record.Options{Bytes: 64 << 20})
	text := make([]byte, 400)
	random := rand.NewChaCha8([32]byte{1})
	for i := range 60_000 {
		f.now += 10_000
		_, _ = random.Read(text)
		f.nodes[i%3].ask(&weir.Request{Attributes: rule.Map{"user": fmt.Sprint("client-", i%1000),
			"path": string(text)}})
	}
	var first *insight.PreviewResult
	for i := range f.nodes {
		res := f.at(i, fmt.Sprintf(perMinute, 2), 5*time.Minute)
		if first == nil {
			first = res
		}
		if res.Sampled < 2 || res.Nodes.Answered != 3 || res.Requests < 15_000 || res.Requests > 45_000 ||
			res.Requests != first.Requests || res.Then.Refused != first.Then.Refused {
			t.Errorf("at node %d: %+v", i, res)
		}
	}
}

// TestOver: what counts are the requests of the time that was asked for, however long the windows
// are, as far as the record reaches; where it does not, the answer says what is counted.
func TestOver(t *testing.T) {
	const hourly = "limits: [{ name: search, per: [user], allow: 30/hour }, { name: all, allow: 100000/day }]"
	w := newWorld(t, hourly, record.Options{})
	for range 600 {
		w.now += 6e6 // an hour in all
		w.ask(&weir.Request{Attributes: rule.Map{"user": "ada"}})
	}
	says := func(res *insight.PreviewResult, what string) bool {
		return slices.ContainsFunc(res.Warnings, func(s string) bool { return strings.Contains(s, what) })
	}
	for _, over := range []time.Duration{time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute,
		50 * time.Minute} {
		res := w.here(hourly, over)
		if got := res.To.Sub(res.From); got != over || res.Requests != uint64(over/(6*time.Second))+1 ||
			says(res, "The records reach back") {
			t.Errorf("over %v: %v, %d requests, %q", over, got, res.Requests, res.Warnings)
		}
		if !says(res, "The longest window is 24 h, and the records hold "+fmt.Sprint(60-int(over.Minutes()))+" min") {
			t.Errorf("over %v: %q", over, res.Warnings)
		}
	}
	if res := w.here(hourly, 2*time.Hour); !says(res,
		"The records reach back 1 h, not 2 h: the last 30 min are counted.") || res.Requests < 299 ||
		res.Requests > 301 {
		t.Errorf("%d requests, %q", res.Requests, res.Warnings)
	}
}
