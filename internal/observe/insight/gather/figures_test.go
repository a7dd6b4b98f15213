package gather

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/series"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/util/human"
	"github.com/weir-rl/weir/rule"
)

// rush is some minutes of traffic: ada asks far too often and comes back too early, 40 others ask a
// little, and a rule in shadow would refuse nearly all of it.
func rushOf(t *testing.T) *bench {
	t.Helper()
	b := newBench(t, Options{Known: []string{"user"}}, `
domain: shop
limits:
  - { name: login, per: [user], allow: 5/min, algorithm: fixed_window }
  - { name: tight, per: [user], allow: 1/min, algorithm: fixed_window, on_limit: shadow }
`)
	for second := range 120 {
		b.ask("ada")
		b.ask(fmt.Sprint("user-", second%40))
		b.pass(time.Second)
	}
	return b
}

func (b *bench) overview(over time.Duration) *insight.Overview {
	b.t.Helper()
	o, err := b.Overview(b.t.Context(), "", over)
	if err != nil {
		b.t.Fatal(err)
	}
	return o
}

func (b *bench) keys(q insight.KeysQuery) []insight.KeyCount {
	b.t.Helper()
	keys, _, err := b.Keys(b.t.Context(), q)
	if err != nil {
		b.t.Fatal(err)
	}
	return keys
}

// A rule in shadow refuses nobody, and tells nobody to come back.
func TestShadowRefusesNobody(t *testing.T) {
	b := rushOf(t)
	o := b.overview(time.Hour)
	if o.Refused != 110 || o.Clients != 41 || o.ClientsRefused != 1 || o.GoodRefused.Clients > 1 ||
		o.GoodRefused.Requests > 110 {
		t.Errorf("%d refused, %d of %d clients, good %+v", o.Refused, o.ClientsRefused, o.Clients, o.GoodRefused)
	}
	for _, over := range []time.Duration{time.Minute, time.Hour} {
		if keys := b.keys(insight.KeysQuery{By: insight.ByRefused, Over: over}); len(keys) != 1 ||
			keys[0].Rule != "login" || keys[0].Shadow {
			t.Errorf("refused most: %+v", keys)
		}
		if keys := b.keys(insight.KeysQuery{By: insight.ByRefused, Limit: "tight", Over: over}); len(keys) == 0 ||
			!keys[0].Shadow || keys[0].Key != "user=ada" {
			t.Errorf("would be refused most: %+v", keys)
		}
	}
	login, tight := b.rule("login"), b.rule("tight")
	if login.Episodes.Ended() == 0 || tight.Episodes != (insight.Episodes{}) || tight.KeysRefused != 41 {
		t.Errorf("episodes %+v, in shadow %+v; keys %d", login.Episodes, tight.Episodes, tight.KeysRefused)
	}
	key, _, err := b.Key(t.Context(), "shop", "user=ada")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range key.Limits {
		if shadow := l.Rule == "tight"; (l.WouldRefuse > 0) != shadow || (l.Refused > 0) == shadow {
			t.Errorf("ada at %+v", l)
		}
	}
}

// What a rule enforces for some keys only refuses only those.
func TestPartlyEnforced(t *testing.T) {
	b := newBench(t, Options{},
		"domain: shop\nlimits: [{name: a, per: [user], allow: 1/min, algorithm: fixed_window, enforce: 50%}]")
	refused := map[string]bool{}
	for i := range 40 {
		name := fmt.Sprint("user-", i)
		b.ask(name)
		refused["user="+name] = !b.ask(name)
	}
	b.pass(time.Second)
	n := uint64(0)
	for _, is := range refused {
		if is {
			n++
		}
	}
	if r := b.rule("a"); n == 0 || n == 40 || r.KeysRefused != n || r.Refused != n {
		t.Errorf("%d of 40 were refused; %d keys, %d refusals are told", n, r.KeysRefused, r.Refused)
	}
	for _, k := range b.keys(insight.KeysQuery{By: insight.ByRefused, Over: time.Minute}) {
		if !refused[k.Key] {
			t.Errorf("%s was never refused: %+v", k.Key, k)
		}
	}
}

// An overview says from when on there are figures, in from and in words, and who is behind it all.
func TestOverviewSaysSinceWhen(t *testing.T) {
	b := rushOf(t)
	o := b.overview(6 * time.Hour)
	if !o.From.Equal(begun) {
		t.Errorf("from %v, begun %v", o.From, begun)
	}
	want := []string{
		"Of 240 requests in the last 2 min 46 % were refused, of 1 of 41 clients.",
		"All of the refusals were by login; in the last minute all of them hit user=ada.",
	}
	if !slices.Equal(o.Sentences, want) || o.Named != "user=ada" {
		t.Errorf("%q, want %q", o.Sentences, want)
	}
	if o.PerSecond != 2 {
		t.Errorf("%v a second", o.PerSecond)
	}
	for range 8 * 60 {
		b.ask("eve")
		b.pass(time.Minute)
	}
	for over, text := range map[time.Duration]string{
		6 * time.Hour: " requests in the last 6 h none was refused.", time.Hour: " requests in the last hour none was refused.",
	} {
		o := b.overview(over)
		if o.To.Sub(o.From) > over || o.To.Sub(o.From) < over-time.Minute || len(o.Sentences) != 1 ||
			!strings.HasSuffix(o.Sentences[0], text) {
			t.Errorf("%v to %v: %q, want %q", o.From, o.To, o.Sentences, text)
		}
	}
}

// A rate covers the last 10 s or, for a server that has just started, the time since its start.
func TestPerSecond(t *testing.T) {
	b := newBench(t, Options{}, "domain: shop\nlimits: [{name: a, per: [user], allow: 5/min}]")
	b.pass(time.Second)
	for range 3 {
		for range 8 {
			b.ask("ada")
		}
		b.pass(time.Second)
	}
	b.pass(time.Second)
	if o := b.overview(time.Hour); o.PerSecond != 4.8 { // 24 in 5 s
		t.Errorf("%v a second", o.PerSecond)
	}
	b.pass(time.Minute)
	if o, r := b.overview(time.Hour), b.rule("a"); o.PerSecond != 0 || r.PerSecond != 0 {
		t.Errorf("a minute later %v and %v a second", o.PerSecond, r.PerSecond)
	}
	lean := series.New(true)
	lean.Add(begun.Unix(), &snapshot.Bucket{snapshot.LaneMet: 120})
	if n := lean.Recent(begun.Unix() + 70)[snapshot.LaneMet]; n != 20 {
		t.Errorf("%d in 10 s of a minute with 120", n)
	}
}

// No number has more digits than anybody wants to read.
func TestFewDigits(t *testing.T) {
	b := rushOf(t)
	b.judge()
	rule, _, err := b.Rule(t.Context(), "shop", "login", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	rules, _, err := b.Rules(t.Context(), "shop", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	key, _, err := b.Key(t.Context(), "shop", "user=ada")
	if err != nil {
		t.Fatal(err)
	}
	all, err := json.Marshal([]any{b.overview(time.Hour), rule, rules, key,
		b.keys(insight.KeysQuery{By: insight.ByAsked, Over: time.Minute}), b.keys(
			insight.KeysQuery{By: insight.ByNear})})
	if err != nil {
		t.Fatal(err)
	}
	if long := regexp.MustCompile(`[0-9]*\.0*[0-9]{5,}[,}\]]`).FindAll(all, 5); len(long) > 0 {
		t.Errorf("%q", long)
	}
	for x, want := range map[float64]float64{1.2000000476837158: 1.2, 0: 0, -1: -1, 0.000123456: 0.0001235,
		12345: 12345, 123456.7: 123457} {
		if got := human.Digits(x); got != want {
			t.Errorf("human.Digits(%v) = %v, want %v", x, got, want)
		}
	}
}

// What a client asked for is measured alike for a rule and for its windows.
func TestFullestClient(t *testing.T) {
	b := newBench(t, Options{},
		"domain: shop\nlimits: [{name: a, per: [user], allow: 20/min, algorithm: fixed_window}, {name: b, per: [user], allow: [100/min, 20/hour], algorithm: fixed_window}]")
	for range 86 {
		b.ask("ada")
	}
	b.pass(time.Second)
	if r := b.rule("a"); r.MaxFill != 4.3 || r.Windows[0].MaxFill != 4.3 {
		t.Errorf("rule %v, window %v", r.MaxFill, r.Windows[0].MaxFill)
	}
	if r := b.rule("b"); r.MaxFill != max(r.Windows[0].MaxFill, r.Windows[1].MaxFill) {
		t.Errorf("rule %v, windows %+v", r.MaxFill, r.Windows)
	}
}

// The curve counts good clients like the report beside it.
func TestCurveTellsTheSameGoodKeys(t *testing.T) {
	const rules = "domain: shop\nlimits: [{name: search, per: [user|ip], allow: 20/min, algorithm: fixed_window}]"
	run := func(attribute string) *insight.RuleReport {
		b := newBench(t, Options{Known: []string{"user"}}, rules)
		for range 60 { // 40 clients that all come far too often, and 10 that do not
			for i := range 40 {
				b.send(weir.Request{Attributes: rule.Pairs{{Name: attribute, Value: fmt.Sprint("192.0.2.", i)}}})
			}
			b.pass(time.Second)
		}
		for i := range 10 {
			b.send(weir.Request{Attributes: rule.Pairs{{Name: attribute, Value: fmt.Sprint("198.51.100.", i)}}})
		}
		b.pass(time.Second)
		return b.rule("search")
	}
	at := func(r *insight.RuleReport, limit int64) *insight.CurvePoint {
		i := slices.IndexFunc(r.Curve, func(p insight.CurvePoint) bool { return p.Limit == limit })
		if i < 0 {
			t.Fatalf("no limit of %d in %+v", limit, r.Curve)
		}
		return &r.Curve[i]
	}
	r := run("user")
	if p := at(r, 20); r.Good.Keys != 0 || r.Good.All != 10 || r.Good.Confidence != insight.High || p.Keys != 40 ||
		p.GoodKeys == nil || *p.GoodKeys != 0 {
		t.Errorf("good %+v, at 20: %+v", r.Good, p)
	}
	r = run("ip")
	if p := at(r, 20); r.Good != (insight.Good{}) || p.Keys != 40 || p.GoodKeys != nil {
		t.Errorf("not known: good %+v, at 20: %+v", r.Good, p)
	}
	text, err := json.Marshal(r)
	if err != nil || strings.Contains(string(text), "good_keys") ||
		strings.Contains(string(text), `"confidence":"high","refused"`) {
		t.Errorf("%s, %v", text, err)
	}
}

// A young server says that it is too early, also where nothing came yet, and is sure of nothing.
func TestTooEarlySaysSo(t *testing.T) {
	b := newBench(t, Options{}, `
domain: shop
limits:
  - { name: login, when: { path: /login }, per: [user], allow: 5/min }
  - { name: all, per: [user], allow: 500/min }
`)
	says := func(want string) {
		t.Helper()
		b.judge()
		v := b.rule("login").Verdicts
		if len(v) != 1 || v[0].Verdict != insight.TooEarly || v[0].Confidence != insight.Low || v[0].Sentence != want {
			t.Errorf("%+v, want %q", v, want)
		}
	}
	b.pass(time.Second)
	says("Too early to tell: there was no request in 1 s.")
	b.ask("ada")
	b.ask("eve")
	b.pass(time.Hour - time.Second)
	says("Too early to tell: none of 2 requests of the domain met it in 1 h so far. About 23 h more.")
	b.pass(24 * time.Hour)
	b.ask("ada")
	b.pass(time.Second)
	says(
		"Too early to tell: none of 3 requests of the domain met it in 25 h so far. From 1,000 on that says something.")
	// A rule that comes into force later is not judged by earlier requests.
	for range 50 {
		b.ask("ada")
	}
	b.pass(time.Second)
	b.limiter.SetRules(
		load(t,
			"domain: shop\nlimits: [{name: login, when: {path: /log-in}, allow: 5/min}, {name: all, per: [user], allow: 500/min}]"))
	for range 7 {
		b.ask("ada")
	}
	b.pass(2 * time.Second)
	says("Too early to tell: none of 7 requests of the domain met it in 2 s so far. About 24 h more.")
}

// Where an identity tells who behaves well and nobody does, that is known: 0 of 0.
func TestNobodyIsGood(t *testing.T) {
	b := newBench(t, Options{Known: []string{"user"}},
		"domain: shop\nlimits: [{name: a, per: [ip], allow: 1/min, algorithm: fixed_window}]")
	ask := func(ip, user string) {
		b.send(weir.Request{Attributes: rule.Pairs{{Name: "ip", Value: ip}, {Name: "user", Value: user}}})
	}
	// Half of the requests have an identity, all of clients that never wait.
	for i := range 600 {
		ask(fmt.Sprintf("192.0.2.%d", i%3), []string{"ada", ""}[i/3%2])
		b.pass(time.Second)
	}
	r := b.rule("a")
	if r.Good.All != 0 || r.KnownShare < 0.2 || r.Good.Confidence != insight.High {
		t.Errorf("%.2f known: %+v", r.KnownShare, r.Good)
	}
	if g := b.overview(time.Hour).GoodRefused; g.Clients != 0 || g.Confidence != insight.High {
		t.Errorf("overview: %+v", g)
	}
}

// The fill of a key in a list is the most that it used at once in the time of the list, not what it
// used last.
func TestFillIsAPeak(t *testing.T) {
	b := newBench(t, Options{},
		"domain: shop\nlimits: [{name: a, per: [user], allow: 10/min, algorithm: fixed_window, warn: 80%}]")
	minute := func(asks int, live, long float64) {
		t.Helper()
		for range asks {
			b.ask("ada")
		}
		b.pass(time.Second)
		for over, want := range map[time.Duration]float64{time.Minute: live, 12 * time.Hour: long} {
			if keys := b.keys(insight.KeysQuery{By: insight.ByAsked, Over: over}); len(keys) != 1 ||
				keys[0].Fill != want {
				t.Errorf("over %v: %+v, want a fill of %v", over, keys, want)
			}
		}
		b.pass(59 * time.Second)
	}
	minute(60, 1.1, 1.1)
	minute(9, 1.1, 1.1)
	minute(9, 0.9, 1.1)
	minute(8, 0.9, 1.1)
	minute(8, 0.8, 1.1)
}

// After a day a server says of a rule that it was never met, or that nobody came near it.
func TestNeverLive(t *testing.T) {
	effort.Long(t, "plays a day of traffic")
	b := newBench(t, Options{}, `
domain: shop
limits:
  - { name: login, when: { path: /login }, per: [user], allow: 5/min }
  - { name: all, per: [user], allow: 500/min }
`)
	b.pass(time.Second)
	for range 24 * 60 {
		for i := range 8 {
			b.ask(fmt.Sprint("user-", i))
		}
		b.pass(time.Minute)
	}
	for name, want := range map[string]string{
		"login": "None of 11,512 requests of the domain met it in 24 h.",
		"all":   "Of 11,512 requests none was refused; the fullest client used 0.2 % of what it may.",
	} {
		v := b.rule(name).Verdicts
		if len(v) != 1 || v[0].Confidence != insight.High || v[0].Sentence != want {
			t.Errorf("%s: %+v, want %q", name, v, want)
		}
	}
}

// What a young server says is not of its first second for the rest of the minute.
func TestYoungRulesAreJudgedAgain(t *testing.T) {
	b := newBench(t, Options{}, "domain: shop\nlimits: [{ name: a, per: [user], allow: 10/hour }]\n")
	var judged []int
	for second := range 60 {
		b.µs.Add(1e6)
		b.gather(true)
		if b.unjudged() {
			judged = append(judged, second+1)
		}
	}
	if want := []int{1, 2, 4, 8, 16, 32}; !slices.Equal(judged, want) {
		t.Errorf("judged after %v seconds, want %v", judged, want)
	}
}

// A client that comes near the limits of several rules is one.
func TestNearCountsClients(t *testing.T) {
	b := newBench(t, Options{},
		"domain: shop\nlimits:\n  - { name: a, per: [user], allow: 10/hour }\n  - { name: b, per: [ip], allow: 10/hour }\n")
	for range 9 {
		b.send(weir.Request{Attributes: rule.Pairs{{Name: "user", Value: "ada"}, {Name: "ip", Value: "192.0.2.1"}}})
	}
	b.pass(2 * time.Second)
	o, err := b.Overview(t.Context(), "shop", time.Hour)
	if err != nil || o.Near != 1 || o.Clients != 1 {
		t.Errorf("%d of %d clients near a limit, want 1 of 1 (%v)", o.Near, o.Clients, err)
	}
}

// Figures of clients cover the time of their samples. The sentences say so if the counts cover
// another time.
func TestTwoTimes(t *testing.T) {
	b := newBench(t, Options{Known: []string{"user"}}, `
domain: shop
limits:
  - { name: a, per: [user|ip], allow: 10/hour, algorithm: fixed_window }
`)
	for i := range 50 { // signed in, and refused once
		for range 11 {
			b.ask(fmt.Sprint("user-", i))
		}
		b.pass(time.Second)
	}
	b.pass(2*time.Hour - 51*time.Second)
	for range 60 {
		b.send(weir.Request{Attributes: rule.Pairs{{Name: "ip", Value: "192.0.2.1"}}})
	}
	b.pass(time.Second)
	o := b.overview(5 * time.Minute)
	want := []string{
		"Of 60 requests in the last 5 min 83 % were refused.",
		"In the last 2 h 51 of 51 clients were refused, and about 50 of 100 refusals hit clients that behave well.",
	}
	if g := o.GoodRefused; len(o.Sentences) < 2 || !slices.Equal(o.Sentences[:2], want) ||
		g != (insight.GoodRefused{Requests: 50, Of: 100, Clients: 50, Confidence: insight.High}) {
		t.Errorf("%q %+v", o.Sentences, g)
	}
	if r := b.rule("a"); r.Refused != 50 || r.Good.Refused != 50 || r.Good.Of != 100 || !r.SampledFrom.Before(r.From) {
		t.Errorf("%+v", r)
	}
	o = b.overview(6 * time.Hour)
	want = []string{"Of 610 requests in the last 2 h 16 % were refused, of 51 of 51 clients.",
		"About 50 of these refusals hit clients that behave well."}
	if len(o.Sentences) < 2 || !slices.Equal(o.Sentences[:2], want) {
		t.Errorf("%q", o.Sentences)
	}
}

// How many refusals hit good clients is known to within what is said, where the refused keys are
// more than the sample holds.
func TestGoodRefusedWithin(t *testing.T) {
	effort.Long(t, "refuses a thousand clients in each of twenty runs")
	within := 0
	const rounds = 20
	for seed := range rounds {
		b := newBench(t, Options{Known: []string{"user"}, Seed: uint64(seed) + 1}, `
domain: shop
limits:
  - { name: a, per: [user|ip], allow: 10/hour, algorithm: fixed_window }
`)
		const truth = 1000.0
		for i := range int(truth) {
			for range 11 {
				b.ask(fmt.Sprint("user-", i))
			}
			for range 11 + i%7 {
				b.send(
					weir.Request{Attributes: rule.Pairs{{Name: "ip", Value: fmt.Sprint("192.0.", i/200, ".", i%200)}}})
			}
			b.pass(time.Second)
		}
		g := b.overview(time.Hour).GoodRefused
		if g.PlusMinus == 0 || float64(g.PlusMinus) > truth/3 {
			t.Fatalf("%+v of %v", g, truth)
		}
		if math.Abs(float64(g.Requests)-truth) <= float64(g.PlusMinus) {
			within++
		}
	}
	if within < rounds*8/10 {
		t.Errorf("right in %d of %d", within, rounds)
	}
}

// The day before is of as long a time, however short that is.
func TestBefore(t *testing.T) {
	effort.Long(t, "goes through 26 hours in steps of ten seconds")
	b := newBench(t, Options{}, "domain: shop\nlimits: [{name: a, per: [user], allow: 3/min, algorithm: fixed_window}]")
	for range 26 * 360 {
		b.ask("ada")
		b.pass(10 * time.Second)
	}
	b.pass(5 * time.Second)
	for over, want := range map[time.Duration]uint64{time.Minute: 6, 5 * time.Minute: 30, 15 * time.Minute: 90,
		time.Hour: 360} {
		if x := b.overview(over).Before; x == nil || x.Requests < want*9/10 || x.Requests > want*11/10 ||
			x.Refused < want*4/10 || x.Refused > want*6/10 {
			t.Errorf("over %v: %+v, want some %d requests, half of them refused", over, x, want)
		}
	}
}

// A limit is written as rule files do: what a proposal says must be a limit that can be read.
func TestRateText(t *testing.T) {
	for text, want := range map[string]string{"5/10s": "5/10s", "5/90s": "5/1m30s", "5/10m": "5/10m", "5/30m": "5/30m",
		"5/min": "5/min", "5/2h": "5/2h", "5/day": "5/day", "5/week": "5/week"} {
		b := newBench(t, Options{}, "domain: shop\nlimits: [{name: a, per: [user], allow: "+text+
			", algorithm: fixed_window}]")
		b.ask("ada")
		b.pass(time.Second)
		s := b.Snapshot(snapshot.Want{})
		if got := s.Rules[0].Windows[0].Rate; got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		} else if _, err := rule.ParseRate(got); err != nil {
			t.Errorf("%s: %s: %v", text, got, err)
		}
	}
}

// The last minute is measured by the store's clock, which dates events. The node's own clock may be
// off.
func TestStoreClock(t *testing.T) {
	for _, ahead := range []time.Duration{0, 5 * time.Minute, 3 * time.Hour, -5 * time.Minute} {
		b := newBench(t, Options{Known: []string{"user"}},
			"domain: shop\nlimits:\n  - { name: search, per: [user], algorithm: fixed_window, allow: 10/hour }\n")
		// The node's clock is off from now on.
		b.now, b.storeNow = func() time.Time { return b.time().Add(ahead) }, b.time
		for range 10 {
			b.ask("near")
		}
		for range 30 {
			b.ask("bot")
		}
		for _, gone := range []bool{false, true} {
			b.pass(2 * time.Second)
			o, err := b.Overview(t.Context(), "", time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			r, _, err := b.Rule(t.Context(), "shop", "search", time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			keys, _, err := b.Keys(t.Context(), insight.KeysQuery{By: insight.ByRefused, Over: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			want := 1
			if gone {
				want = 0
			}
			if (o.Near > 0) == gone || (o.Named == "user=bot") == gone || (len(r.NearNow) > 0) == gone ||
				len(keys) != want {
				t.Errorf("the node is %v ahead, all is gone: %v: %d near, %d of the rule, %q named, keys %v", ahead,
					gone, o.Near, len(r.NearNow), o.Named, keys)
			}
			b.pass(3 * time.Minute)
		}
	}
}

// A list of keys tells how often each came back when it was told to.
func TestKeysObey(t *testing.T) {
	b := newBench(t, Options{}, "domain: shop\nlimits: [{name: a, per: [user], allow: 3/min, algorithm: fixed_window}]")
	for range 4 {
		b.ask("patient")
		b.ask("hasty")
	}
	b.ask("seldom")
	b.pass(time.Second)
	b.ask("hasty")
	b.pass(time.Minute)
	b.ask("patient")
	b.ask("seldom")
	b.pass(time.Second)
	want := map[string]float64{"user=patient": 1, "user=hasty": 0, "user=seldom": -1}
	list := b.keys(insight.KeysQuery{By: insight.ByAsked})
	for _, k := range list {
		if obey, ok := want[k.Key]; !ok || k.Obey != obey {
			t.Errorf("%s: %v, want %v", k.Key, k.Obey, obey)
		}
	}
	if len(list) != len(want) {
		t.Errorf("%+v", list)
	}
}

// On a server, too, a rule that refuses good clients is found, and its proposal is a patch of the
// file in force.
func TestServedRuleIsJudged(t *testing.T) {
	const rules = "domain: shop\nlimits:\n  - name: each\n    per: [user]\n    allow: 20/min   # a guess\n"
	b := newBench(t, Options{Known: []string{"user"}, Text: func(name string) string {
		if name == "shop.yaml" {
			return rules
		}
		return ""
	}}, rules)
	for i := range 1200 {
		b.ask(fmt.Sprint("u", i))
		if i%20 == 0 {
			b.pass(time.Second)
		}
	}
	for i := range 5 {
		for range 21 { // the last is refused
			b.ask(fmt.Sprint("eager", i))
		}
		b.pass(2 * time.Minute)
		b.ask(fmt.Sprint("eager", i)) // as it was told
		b.pass(time.Second)
	}
	for range 60 { // until it is steady what to propose
		b.ask("u1")
		b.pass(time.Minute)
	}
	r := b.rule("each")
	if len(r.Verdicts) == 0 || r.Verdicts[0].Verdict != insight.Strict || r.Verdicts[0].Confidence != insight.High {
		t.Fatalf("verdicts %+v", r.Verdicts)
	}
	p := r.Verdicts[0].Proposal
	if p == nil || !strings.Contains(p.Patch, "--- shop.yaml\n") ||
		!strings.Contains(p.Patch, "-    allow: 20/min   # a guess\n+    allow: 25/min   # a guess\n") {
		t.Errorf("proposal %+v", p)
	}
}
