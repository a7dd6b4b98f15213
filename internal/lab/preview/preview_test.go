package preview

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/record"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store/memory"
)

// world is a limiter in virtual time with a recorder behind it.
type world struct {
	t        testing.TB
	now      int64
	limiter  *weir.Limiter
	recorder *record.Recorder
	store    *memory.Store
	preview  *Preview // in this process
	apart    *Preview // in one of its own
	staged   int
}

const begin = 1_780_000_000_000_000 // a full minute

func load(t testing.TB, text string) *rule.Set {
	t.Helper()
	set, _, err := file.Load([]file.Source{{Name: "shop.yaml", Data: []byte(text)}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func newWorld(t testing.TB, rules string, o record.Options) *world {
	t.Helper()
	w := &world{t: t, now: begin}
	clock := func() int64 { return w.now }
	if o.PerSecond == 0 {
		o.PerSecond = 1 << 30
	}
	o.Clock = clock
	var err error
	if w.recorder, err = record.NewRecorder(o); err != nil {
		t.Fatal(err)
	}
	w.recorder.SetSeed(7) // the same clients in each run
	if w.store, err = memory.New(memory.Options{Clock: clock}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.store.Close() })
	if w.limiter, err = weir.New(w.store, weir.WithRules(load(t, rules)), weir.WithClock(clock), weir.WithHooks(w.recorder.Hooks())); err != nil {
		t.Fatal(err)
	}
	inForce := func() *rule.Set { set, _ := w.limiter.Rules(); return set }
	w.preview, w.apart = New(w.recorder, inForce, file.Options{}), New(w.recorder, inForce, file.Options{})
	w.apart.SetProcess([]string{replayProcess}, slog.New(slog.NewTextHandler(complains{t}, nil)))
	return w
}

// replayProcess makes this program what Preview starts. What may follow is how long it may use the
// processor, and how long of that for tests of rules.
const replayProcess = "replay-process"

func TestMain(m *testing.M) {
	if len(os.Args) < 2 || os.Args[1] != replayProcess {
		os.Exit(m.Run())
	}
	for i, text := range os.Args[2:] {
		*[]*time.Duration{&mostSpent, &mostTested}[i], _ = time.ParseDuration(text)
	}
	if err := Replay(context.Background(), os.Stdin, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// complains is a log that must stay empty.
type complains struct{ t testing.TB }

func (c complains) Write(line []byte) (int, error) {
	if !onlyUnlowered(c.t, string(line)) {
		c.t.Errorf("it logged %s", line)
	}
	return len(line), nil
}

// onlyUnlowered reports whether a log says no more than that the priority could not be lowered, in
// a sandbox that denies it.
func onlyUnlowered(t testing.TB, text string) bool {
	for line := range strings.Lines(text) {
		if !strings.Contains(line, "the priority could not be lowered") || noLowering() == nil {
			return false
		}
		t.Logf("not checked here (%v): %s", noLowering(), line)
	}
	return true
}

// both returns the result of a preview in this process, once one in a process of its own had the
// same.
func (w *world) both(ctx context.Context, q insight.PreviewQuery) (*insight.PreviewResult, error) {
	w.t.Helper()
	res, err := w.preview.Run(ctx, q)
	if other, otherErr := w.apart.Run(ctx, q); !reflect.DeepEqual(res, other) ||
		fmt.Sprint(err) != fmt.Sprint(otherErr) {
		w.t.Fatalf("in this process %+v, %v; in another one %+v, %v", res, err, other, otherErr)
	}
	return res, err
}

// ask decides one request at the instant of the world.
func (w *world) ask(r *weir.Request) *weir.Decision {
	w.t.Helper()
	d := new(weir.Decision)
	w.askInto(r, d)
	return d
}

func (w *world) askInto(r *weir.Request, d *weir.Decision) {
	if err := w.limiter.Decide(context.Background(), r, d); err != nil {
		w.t.Fatal(err)
	}
	if w.staged++; w.staged%64 == 0 {
		w.recorder.Gather(context.Background(), record.Others{}, time.Microsecond) // moves what was staged
	}
}

func (w *world) run(rules string, over time.Duration) *insight.PreviewResult {
	w.t.Helper()
	res, err := w.both(context.Background(),
		insight.PreviewQuery{Files: map[string]string{"shop.yaml": rules}, Over: over})
	if err != nil {
		w.t.Fatal(err)
	}
	if len(res.Problems) > 0 {
		w.t.Fatalf("problems: %+v", res.Problems)
	}
	return res
}

// The rules in force, replayed, decide every single request as they did, whatever the rules and the
// requests are.
func TestExact(t *testing.T) {
	effort.Fewer(t, 4)
	rapid.Check(t, func(t *rapid.T) {
		algorithms := []string{"sliding_window", "sliding_log", "fixed_window", "token_bucket"}
		var text strings.Builder
		text.WriteString("limits:\n")
		for i := range rapid.IntRange(1, 4).Draw(t, "rules") {
			fmt.Fprintf(&text, "  - { name: r%d, algorithm: %s, allow: %d/%s", i,
				rapid.SampledFrom(algorithms).Draw(t, "algorithm"),
				rapid.IntRange(0, 6).Draw(t, "n"), rapid.SampledFrom([]string{"s", "10s", "min", "hour"}).Draw(t,
					"window"))
			if per := rapid.SampledFrom([]string{"", "user", "ip", "user|ip", "user, ip", "header.x-api-key", "plan"}).Draw(t, "per"); per != "" {
				fmt.Fprintf(&text, ", per: [%s]", strings.ReplaceAll(per, "user|ip", `"user|ip"`))
			}
			switch rapid.IntRange(0, 4).Draw(t, "when") {
			case 0:
				text.WriteString(`, when: { path: "/a/**" }`)
			case 1:
				text.WriteString(`, when: { method: POST }`)
			case 2:
				text.WriteString(`, if: 'user.startsWith("a")'`)
			}
			switch rapid.IntRange(0, 6).Draw(t, "kind") {
			case 0:
				text.WriteString(", shadow: true")
			case 1:
				text.WriteString(", soft: 50%")
			case 2:
				text.WriteString(", ban: { after: 3, within: 1m, for: 2m }")
			case 3:
				text.WriteString(", cost: 2")
			}
			text.WriteString(" }\n")
		}
		rules := text.String()
		if _, _, err := file.Load([]file.Source{{Name: "shop.yaml", Data: []byte(rules)}}, file.Options{}); err != nil {
			t.Skip(err)
		}
		w := newWorld(&quiet{t: t}, rules, record.Options{Fresh: true})
		defer w.close()
		var happened []bool
		refused := uint64(0)
		requests := rapid.IntRange(1, 300).Draw(t, "requests")
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		pick := func(of ...string) string { return of[random.IntN(len(of))] }
		for range requests {
			w.now += [...]int64{0, 0, 1, 1000, 300_000, 5_000_000, 70_000_000}[random.IntN(7)]
			attributes := rule.Map{"path": pick("/a/b", "/c", "/a/b/c?x=1"), "method": pick("GET", "POST"),
				"plan": pick("free", "gold", "")}
			for _, of := range [][]string{{"user", "ada", "bob", ""}, {"ip", "192.0.2.1", "2001:db8::1", "2001:db8::2"},
				{"header.x-api-key", "k1", "k2"}} {
				if random.IntN(4) > 0 {
					attributes[of[0]] = pick(of[1:]...)
				}
			}
			r := weir.Request{Attributes: attributes, Hits: int64(pick("\x00", "\x01", "\x02")[0])}
			if random.IntN(20) == 0 {
				r.Hits = -1
			}
			if random.IntN(20) == 0 {
				r.Peek = true
			}
			for random.IntN(4) == 0 { // a cookie with several values
				other := maps.Clone(attributes)
				other["user"], other["plan"] = pick("ada", "bob", "eve"), pick("free", "gold", "")
				r.Also = append(r.Also, other)
			}
			d := w.ask(&r)
			if !r.Peek {
				happened = append(happened, d.Allowed)
				if !d.Allowed && r.Hits >= 0 {
					refused++
				}
			}
		}
		n := 0
		w.preview.each = func(e *record.Request, now, then *weir.Decision) {
			if n < len(happened) && (now.Allowed != happened[n] || then.Allowed != happened[n] ||
				e.Allowed() != happened[n]) {
				t.Fatalf("request %d of %d was allowed: %t; replayed: %t, %t\n%s", n, len(happened), happened[n],
					now.Allowed, then.Allowed, rules)
			}
			n++
		}
		q := insight.PreviewQuery{Files: map[string]string{"shop.yaml": rules}}
		res, err := w.both(context.Background(), q)
		if errors.Is(err, insight.ErrNotRecorded) && len(happened) == 0 {
			return
		}
		if err != nil || n != len(happened) || res.Now.Refused != refused || res.Then.Refused != refused ||
			res.OnlyNow+res.OnlyThen+res.Clients.More+res.Clients.Fewer != 0 || res.Now.PlusMinus != 0 ||
			res.Sampled != 1 {
			t.Fatalf("%d of %d requests replayed, %d were refused: %+v, %v", n, len(happened), refused, res, err)
		}
		for _, r := range res.Rules {
			if r.Change != "same" || r.Now != r.Then || r.Estimate {
				t.Fatalf("%+v", r)
			}
		}
	})
}

// change makes previews work on a record that was changed.
func (w *world) change(change func(*record.Record)) {
	for _, p := range []*Preview{w.preview, w.apart} {
		p.gather = func(ctx context.Context, o record.Others, back time.Duration) *record.Gathered {
			g := w.recorder.Gather(ctx, o, back)
			change(g.Records[0])
			return g
		}
	}
}

// quiet is a testing.TB for code inside a rapid property.
type quiet struct {
	testing.TB
	t       *rapid.T
	cleanup []func()
}

func (q *quiet) Helper()           {}
func (q *quiet) Fatal(args ...any) { q.t.Fatal(args...) }
func (q *quiet) Cleanup(f func())  { q.cleanup = append(q.cleanup, f) }

func (q *quiet) Errorf(format string, args ...any) { q.t.Errorf(format, args...) }
func (q *quiet) Fatalf(format string, args ...any) { q.t.Fatalf(format, args...) }

func (w *world) close() {
	if q, ok := w.t.(*quiet); ok {
		for _, f := range q.cleanup {
			f()
		}
	}
}

const perMinute = "limits: [{ name: search, per: [user], allow: %d/min, algorithm: fixed_window }]"

// A tighter limit refuses more, and it is told whom.
func TestChange(t *testing.T) {
	w := newWorld(t, fmt.Sprintf(perMinute, 4), record.Options{Fresh: true})
	// ada sends 6 in a minute, bob 3, and cid 2, over ten minutes.
	for range 10 {
		for user, n := range map[string]int{"ada": 6, "bob": 3, "cid": 2} {
			for range n {
				w.now++
				w.ask(&weir.Request{Attributes: rule.Map{"user": user}})
			}
		}
		w.now += 60e6
	}
	res := w.run(fmt.Sprintf(perMinute, 2), 0)
	if res.Requests != 110 || res.Now.Refused != 20 || res.Then.Refused != 50 || res.OnlyThen != 30 ||
		res.OnlyNow != 0 || res.Now.ClientsRefused != 1 || res.Then.ClientsRefused != 2 {
		t.Errorf("%+v", res)
	}
	want := insight.PreviewClients{More: 1, GoodMore: 1,
		Examples: []insight.PreviewKey{{Key: "user=bob", Then: 10, Good: true}}}
	if c := res.Clients; c.More != want.More || c.Fewer != 0 || c.GoodMore != 1 ||
		!slices.Equal(c.Examples, want.Examples) {
		t.Errorf("%+v", c)
	}
	if r := res.Rules[0]; r != (insight.PreviewRule{Rule: "search", Domain: "default", Now: 20, Then: 50, MetNow: 110,
		MetThen: 110, Change: "changed"}) {
		t.Errorf("%+v", r)
	}
	sum := func(list []uint64) (n uint64) {
		for _, v := range list {
			n += v
		}
		return n
	}
	if s := res.Series; sum(s.All) != 110 || sum(s.Now) != 20 || sum(s.Then) != 50 || len(s.T) != len(s.All) ||
		s.T[0] > begin/1e6 || s.T[0]+int64(s.Step) <= begin/1e6 {
		t.Errorf("%+v", s)
	}
	for _, p := range []*Preview{w.preview, w.apart} {
		p.SetOthers(record.Others{Nodes: func() int { return 3 }})
	}
	if text := strings.Join(w.run(fmt.Sprintf(perMinute, 2), 0).Warnings, "\n"); !strings.Contains(text,
		"1 of 3 nodes answered. What came to other nodes is missing") {
		t.Errorf("no warning of other nodes: %s", text)
	}
	// Looser, with another name: the old rule is removed, and nobody is refused.
	res = w.run("limits: [{ name: find, per: [user], allow: 100/min }]", 0)
	if res.Then.Refused != 0 || res.OnlyNow != 20 || res.Clients.Fewer != 1 || len(res.Rules) != 2 ||
		res.Rules[0].Change != "added" || res.Rules[1].Change != "removed" || res.Rules[1].Now != 20 ||
		res.Rules[1].MetThen != 0 {
		t.Errorf("%+v", res)
	}
}

// A limit over several regions is replayed as if one region had all of it, and the result says so.
// Such a rule counts as changed, whatever it refuses.
func TestRegions(t *testing.T) {
	w := newWorld(t, fmt.Sprintf(perMinute, 4), record.Options{Fresh: true})
	for range 3 {
		for range 6 {
			w.now++
			w.ask(&weir.Request{Attributes: rule.Map{"user": "ada"}})
		}
		w.now += 60e6
	}
	for _, of := range []string{"{ over: 0% }", "{ over: 20%, tell: 5% }", "sync"} {
		consistency := ", consistency: { regions: " + of + " } }]"
		res := w.run(strings.Replace(fmt.Sprintf(perMinute, 4), " }]", consistency, 1), 0)
		if res.Requests != 18 || res.Now.Refused != 6 || res.Then.Refused != 6 || res.OnlyThen+res.OnlyNow != 0 ||
			res.Rules[0].Change != "changed" {
			t.Errorf("%s: %+v", of, res)
		}
		if text := strings.Join(res.Warnings, "\n"); strings.Count(text,
			"search holds over several regions: what came to this one was replayed, against all of the limit.") != 1 {
			t.Errorf("%s: %s", of, text)
		}
	}
	two := "limits: [{ name: a, allow: 9/min, consistency: { regions: sync } }, { name: b, allow: 9/min, consistency: { regions: sync } }, { name: c, allow: 9/min }]"
	if text := strings.Join(w.run(two, 0).Warnings, "\n"); !strings.Contains(text,
		"a and b hold over several regions:") {
		t.Errorf("of two rules: %s", text)
	}
}

// What was answered badly is no good client. An outage is nobody's fault: 5xx speak against no
// client, nor does 429.
func TestGoodClients(t *testing.T) {
	w := newWorld(t, fmt.Sprintf(perMinute, 3), record.Options{Fresh: true})
	for minute := range 5 {
		for _, user := range []string{"good", "bad", "outage", "limited"} {
			for range 3 {
				w.now++
				r := &weir.Request{Attributes: rule.Map{"user": user}}
				d := w.ask(r)
				status := 200
				switch {
				case user == "bad":
					status = 404
				case user == "outage" && minute < 3:
					status = 503
				case user == "limited" && minute < 3:
					status = 429
				}
				w.limiter.Phases().Answered(r, d, weir.Answer{Status: status})
			}
		}
		w.now = begin + int64(minute+1)*60e6
	}
	res := w.run(fmt.Sprintf(perMinute, 2), 0)
	if c := res.Clients; c.More != 4 || c.GoodMore != 3 {
		t.Errorf("%+v", c)
	}
}

// A client that is refused already is good if it waits as it was told: what it asks of other rules
// meanwhile is no matter, it is one refusal however often it knocks, and who gave up did not knock.
// Where nothing says who clients are, it must have been seen to wait, and not have asked for far
// too much.
func TestGoodRefusedClients(t *testing.T) {
	const rules = "limits: [{ name: search, per: [%s], when: { path: /search }, allow: %d/min, algorithm: fixed_window }, { name: home, per: [%[1]s], when: { path: /home }, allow: 1000/min }]"
	for _, who := range []string{"user", "ip"} {
		w := newWorld(t, fmt.Sprintf(rules, who, 2), record.Options{Fresh: true})
		ask := func(client, path string, times int) {
			for range times {
				w.now++
				r := &weir.Request{Attributes: rule.Map{who: client, "path": path}}
				if d := w.ask(r); d.Allowed {
					w.limiter.Phases().Answered(r, d, weir.Answer{Status: 200})
				}
			}
		}
		for minute := range 40 {
			w.now = begin + int64(minute)*60e6
			if minute < 8 {
				ask("hammers", "/search", 12)
			}
			// Knocks three times after one refusal, and waits after two.
			if minute < 4 {
				ask("knocks", "/search", []int{3, 6, 3, 2}[minute])
			}
			// Goes on elsewhere while it waits.
			if minute < 8 {
				ask("waits", "/search", 3)
				ask("waits", "/home", 5)
			}
			// Comes back after ten minutes only.
			if minute == 0 || minute == 20 {
				ask("leaves", "/search", 3)
			}
			// Asks for fifty times its limit, and waits then.
			if minute == 0 {
				r := &weir.Request{Attributes: rule.Map{who: "greedy", "path": "/search"}, Hits: 100}
				w.ask(r)
			} else if minute < 5 {
				ask("greedy", "/search", 1)
			}
		}
		res := w.run(fmt.Sprintf(rules, who, 1000), 0)
		good := map[string]bool{}
		for _, c := range res.Clients.Examples {
			good[c.Key] = c.Good
		}
		want := map[string]bool{"hammers": false, "knocks": true, "waits": true, "leaves": who == "user",
			"greedy": who == "user"}
		if res.Clients.Fewer != 5 || len(good) != 5 {
			t.Fatalf("by %s: %+v", who, res.Clients)
		}
		for client, is := range want {
			if got := good[who+"="+client]; got != is {
				t.Errorf("by %s: %s is good: %t", who, client, got)
			}
		}
	}
}

// Where neither an identity nor an answer tells, nobody is called good; and what makes a client
// known is what insight.known says.
func TestNothingTellsGood(t *testing.T) {
	for _, known := range [][]string{nil, {"header.x-account"}} {
		w := newWorld(t, strings.ReplaceAll(fmt.Sprintf(perMinute, 3), "user", "ip"),
			record.Options{Fresh: true, Known: known})
		for range 3 {
			w.now++
			w.ask(&weir.Request{Attributes: rule.Map{"ip": "192.0.2.1", "header.x-account": "7"}})
		}
		res := w.run(strings.ReplaceAll(fmt.Sprintf(perMinute, 2), "user", "ip"), 0)
		if c := res.Clients; c.More != 1 || c.GoodMore != uint64(len(known)) {
			t.Errorf("known by %q: %+v", known, c)
		}
	}
}

// Errors have their place, tests are run, and lint warns.
func TestCandidate(t *testing.T) {
	w := newWorld(t, fmt.Sprintf(perMinute, 4), record.Options{Fresh: true})
	w.ask(&weir.Request{Attributes: rule.Map{"user": "ada"}})
	try := func(files map[string]string) *insight.PreviewResult {
		t.Helper()
		var phases []string
		res, err := w.both(t.Context(), insight.PreviewQuery{Files: files,
			Progress: func(p insight.PreviewProgress) { phases = append(phases, p.Phase) }})
		if half := len(phases) / 2; err != nil || half == 0 || phases[0] != "load" ||
			!slices.Equal(phases[:half], phases[half:]) {
			t.Fatalf("%v, %v", err, phases)
		}
		return res
	}
	broken := try(map[string]string{"a.yaml": "limits:\n  - { name: x, allow: 3/min, alow: 4 }\n",
		"b.yaml": "limits: [{ name: y, allow: 3/fortnight }]", "c.txt": ""})
	if len(broken.Problems) != 3 || broken.Problems[0].File != "c.txt" || broken.Problems[1].Line != 2 ||
		broken.Problems[1].Column == 0 || broken.Problems[2].File != "b.yaml" || broken.Requests != 0 {
		t.Errorf("%+v", broken.Problems)
	}
	tests := `tests:
  - name: passes
    steps: [{ send: { user: ada }, expect: { allowed: true } }]
  - name: fails
    steps:
      - { send: { user: ada, times: 3 }, expect: { allowed: true } }
`
	res := try(map[string]string{"shop.yaml": fmt.Sprintf(perMinute, 2), "shop_test.yaml": tests})
	if res.Tests.Passed != 1 || res.Tests.Failed != 1 || len(res.Tests.Failures) != 1 ||
		!strings.HasPrefix(res.Tests.Failures[0], "shop_test.yaml:6: fails: ") || res.Requests != 1 {
		t.Errorf("%+v", res.Tests)
	}
	bad := try(map[string]string{"shop.yaml": fmt.Sprintf(perMinute, 2),
		"x_test.yaml": "tests: [{ name: x, steps: [{ sent: 1 }] }]"})
	if len(bad.Problems) == 0 || bad.Problems[0].File != "x_test.yaml" {
		t.Errorf("%+v", bad.Problems)
	}
	res = try(map[string]string{"shop.yaml": `limits:
  - { name: plan, per: [header.x-plan], allow: 9/min }
  - { name: never, per: [user], when: { cookie.session: abc }, allow: 9/min }
  - { name: under-way, per: [user], algorithm: concurrency, allow: 3 }
  - { name: follows, per: [user], allow: 3/min, throttle: { elastic: { signal: cpu, curve: { 80: 100%, 100: 10% } } } }
`})
	all := strings.Join(res.Warnings, "\n")
	for _, part := range []string{"header.x-plan", "cookie.session", "under-way", "signal cpu"} {
		if !strings.Contains(all, part) {
			t.Errorf("no warning of %s:\n%s", part, all)
		}
	}
}

// Lint knows the configuration in any process.
func TestLint(t *testing.T) {
	const leased = `limits: [{ name: leased, per: [user], allow: 60000/min, algorithm: token_bucket, consistency: { lease: 5% } }]`
	w := newWorld(t, fmt.Sprintf(perMinute, 4), record.Options{Fresh: true})
	w.ask(&weir.Request{Attributes: rule.Map{"user": "ada"}})
	for _, why := range []string{"", "nothing is lent here"} {
		w.preview.SetLint(file.LintOptions{NoLeases: why})
		w.apart.SetLint(file.LintOptions{NoLeases: why})
		res, err := w.both(t.Context(), insight.PreviewQuery{Files: map[string]string{"shop.yaml": leased}})
		if err != nil {
			t.Fatal(err)
		}
		if warns := slices.ContainsFunc(res.Warnings, func(s string) bool {
			return strings.Contains(s, "no effect: nothing is lent here")
		}); warns != (why != "") {
			t.Errorf("with %q: %q", why, res.Warnings)
		}
	}
}

// Before anything is recorded there is nothing to tell, and a preview that is no longer wanted
// ends.
func TestNothing(t *testing.T) {
	w := newWorld(t, fmt.Sprintf(perMinute, 4), record.Options{})
	q := insight.PreviewQuery{Files: map[string]string{"shop.yaml": fmt.Sprintf(perMinute, 2)}}
	for _, p := range []*Preview{w.preview, w.apart} {
		if _, err := p.Run(t.Context(), q); !errors.Is(err, insight.ErrNotRecorded) {
			t.Error(err)
		}
	}
	for i := range 10_000 {
		w.now += 1000
		w.ask(&weir.Request{Attributes: rule.Map{"user": fmt.Sprint(i % 100)}})
	}
	for _, p := range []*Preview{w.preview, w.apart} {
		ctx, cancel := context.WithCancel(t.Context())
		q.Progress = func(p insight.PreviewProgress) {
			if p.Phase == "then" {
				cancel()
			}
		}
		if _, err := p.Run(ctx, q); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

// A record of some clients, each of them complete, gives figures for all clients, within its
// bounds.
func TestSample(t *testing.T) {
	w := newWorld(t,
		"limits: [{ name: search, per: [user], allow: 4/min, algorithm: fixed_window }, { name: all, allow: 1500/min, algorithm: fixed_window }]", record.Options{Fresh: true})
	w.change(func(c *record.Record) { c.Leave(2) })
	random := rand.New(rand.NewPCG(1, 2))
	refused := uint64(0)
	then := map[string]int{}
	for range 10 {
		for range 2000 {
			w.now += 20_000
			user := fmt.Sprint("u", random.IntN(2000))
			if !w.ask(&weir.Request{Attributes: rule.Map{"user": user}}).Allowed {
				refused++
			}
			then[user]++
		}
		w.now = begin + (w.now-begin+60e6-1)/60e6*60e6
	}
	res := w.run(
		"limits: [{ name: search, per: [user], allow: 2/min, algorithm: fixed_window }, { name: all, allow: 1500/min, algorithm: fixed_window }]", 0)
	if res.Sampled != 4 || res.Requests < 16_000 || res.Requests > 24_000 {
		t.Errorf("of 20000 requests there are %d", res.Requests)
	}
	share := float64(refused) / 20_000
	if e := res.Now.Share - share; e > 0.1 || e < -0.1 || res.Now.PlusMinus <= 0 {
		t.Errorf("refused were %v, it says %+v", share, res.Now)
	}
	for _, r := range res.Rules {
		if r.Estimate != (r.Rule == "all") {
			t.Errorf("%+v", r)
		}
	}
}

// Of more requests than the record has bytes for, the preview takes fewer clients, and reaches back
// as far as was asked.
func TestThinned(t *testing.T) {
	const rules = `limits: [{ name: a, per: [user], allow: 5/min }]`
	w := newWorld(t, rules, record.Options{Bytes: record.MinBytes, Reach: time.Hour})
	random := rand.NewChaCha8([32]byte{3})
	var d weir.Decision
	text := make([]byte, 20)
	for i := range 60_000 {
		w.now += 100_000 // 6,000 s in all
		_, _ = random.Read(text)
		w.askInto(&weir.Request{Attributes: rule.Map{"user": fmt.Sprint("user-", i*7919%4000),
			"path": string(text)}}, &d)
	}
	res := w.run(rules, 30*time.Minute)
	if res.Sampled == 1 || res.From.After(time.UnixMicro(w.now).Add(-29*time.Minute)) || res.Requests < 9000 ||
		res.Requests > 27_000 {
		t.Errorf("1 in %d since %v: %d requests of 18000", res.Sampled, res.From, res.Requests)
	}
}

// The result says so if requests came faster than they could be recorded.
func TestGaps(t *testing.T) {
	w := newWorld(t, fmt.Sprintf(perMinute, 4), record.Options{})
	for range 10 {
		w.now += 1e6
		w.ask(&weir.Request{Attributes: rule.Map{"user": "ada"}})
	}
	w.change(func(c *record.Record) {
		c.Gaps = []record.Gap{{From: begin, To: begin + 2e6}, {From: begin + 4e6, To: begin + 6e6}}
	})
	if text := strings.Join(w.run(fmt.Sprintf(perMinute, 4), 0).Warnings, "\n"); !strings.Contains(text,
		"Within 3 s in all, requests came faster than they could be recorded.") {
		t.Errorf("%s", text)
	}
}

// A request that has several readings is replayed with each of them, as the door charges it.
func TestReadings(t *testing.T) {
	const rules = `limits: [{ name: session, per: [visitor], allow: %d/hour }, { name: secret, per: [cookie.token], allow: 100/hour }]`
	w := newWorld(t, fmt.Sprintf(rules, 100), record.Options{Fresh: true, Known: []string{"visitor"}})
	for i := range 6 {
		w.ask(&weir.Request{Attributes: rule.Map{"path": "/", "visitor": fmt.Sprint("other-", i), "cookie.token": "hush"},
			Also: []rule.Attributes{rule.Map{"path": "/", "visitor": "ada", "cookie.token": "hush-hush"}}})
		w.now += 1000
	}
	if res := w.run(fmt.Sprintf(rules, 2), 0); res.Now.Refused != 0 || res.Then.Refused != 4 {
		t.Errorf("refused now %d, then %d; want 0 and 4", res.Now.Refused, res.Then.Refused)
	}
}
