package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/lab/accesslog"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/rule"
)

// replayText replays a log that is given as text.
func replayText(t testing.TB, log string, o ReplayOptions, rules ...string) *Report {
	t.Helper()
	l, err := accesslog.Open([]string{"-"}, strings.NewReader(log), accesslog.Options{Reorder: 900_000_000})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var sets []RuleSet
	for i, text := range rules {
		set := load(t, text)
		sets = append(sets, RuleSet{Name: fmt.Sprint("rules", i), Domain: set.Domains()[0], Set: set})
	}
	rep, err := Replay(context.Background(), l, sets, o)
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

// suggests are options to propose limits from a log that is given as text.
func suggests(t testing.TB, log string) ReplayOptions {
	return ReplayOptions{Suggest: &SuggestOptions{
		Open: func() (*accesslog.Log, error) {
			return accesslog.Open([]string{"-"}, strings.NewReader(log), accesslog.Options{Reorder: 900_000_000})
		},
		Load: func(text string) (*rule.Set, error) { return load(t, text), nil },
	}}
}

// line makes one line of a combined log, n seconds into the year 2024.
func line(n int, client, user, request string) string {
	return fmt.Sprintf("%s - %s [01/Jan/2024:%02d:%02d:%02d +0000] \"%s\" 200 12 \"-\" \"curl/8\"\n", client, user,
		n/3600, n/60%60, n%60, request)
}

// Paths are normalised, absolute targets reduced, addresses grouped, parameters and headers found,
// and an exempt client never counts. What the log holds steers no terminal through the error of an
// expression, and fills no page.
func TestHarmless(t *testing.T) {
	long := harmless("no such key: \x1b[2Jb\u202eob\xff " + strings.Repeat("ä", 500))
	if !strings.HasPrefix(long, `no such key: \x1b[2Jb\u202eob`) || len(long) > 210 || !strings.HasSuffix(long, "ä…") {
		t.Errorf("got %q", long)
	}
}

// A misspelt name is found in attributes and in descriptors, and each name is judged once.
func TestCheckAttributes(t *testing.T) {
	set := load(t, "domain: shop\ndescriptors: [{key: tenant, rate_limit: {unit: day, requests_per_unit: 1}}]\n")
	f, err := ParseTests("x_test.yaml", []byte(`
tests:
  - name: x
    steps:
      - send: { descriptors: [{tenant: "1"}, {remote_address: 192.0.2.1}] }
      - send: { descriptors: [{tennant: "1"}] }
      - send: { zzz: a }
`))
	if err != nil {
		t.Fatal(err)
	}
	err = f.CheckAttributes(set, "shop")
	for _, want := range []string{
		`reads the descriptor key "tennant" (did you mean "tenant"?)`, `reads the attribute "zzz" (the rules read tenant)`,
	} {
		if err == nil || strings.Count(err.Error(), want) != 1 || strings.Contains(err.Error(), "remote") {
			t.Errorf("no %q in %v", want, err)
		}
	}
	read := readBy(set, "shop")
	read.judge("tennant")
	if len(read.judged) != 1 || !read.judge("tennant").unread {
		t.Errorf("judged %v", read.judged)
	}
}

func TestReplayAttributes(t *testing.T) {
	log := line(0, "192.0.2.1", "-", "POST /login HTTP/1.1") +
		line(1, "192.0.2.1", "-", "post //%6cogin?x=y HTTP/1.1") +
		line(2, "::ffff:192.0.2.1", "-", "POST http://shop.example/./login HTTP/1.1") +
		line(3, "2001:db8::1", "ada", "GET /search?q=a%20b&key=k1 HTTP/1.1") +
		line(4, "2001:db8::2", "ada", "GET /search?key=k1&q=c HTTP/1.1") +
		line(5, "2001:db8:0:1::2", "bob", "GET /search?key=k2 HTTP/1.1") +
		line(6, "10.0.0.1", "-", "POST /login HTTP/1.1") +
		line(7, "host.example", "-", "GET /other HTTP/1.1")
	rep := replayText(t, log, ReplayOptions{}, `
exempt: { ip: [10.0.0.0/8] }
limits:
  - { name: login, when: { method: POST, path: /login }, per: [ip], allow: 1/hour }
  - { name: search, when: { path: /search, "query.key": "*" }, per: [query.key], allow: 1/hour, on_limit: shadow }
  - { name: network, when: { path: /search }, per: [ip], allow: 5/hour }
  - { name: shop, when: { host: shop.example }, allow: 9/hour }
  - { name: curl, when: { header.user-agent: "curl/*" }, per: [user], allow: 100/hour }
`)
	want := map[string]Limit{
		"login":   {Allowed: 1, Denied: 2, Keys: 1, KeysDenied: 1},
		"search":  {Allowed: 2, Denied: 1, Keys: 2, KeysDenied: 1},
		"network": {Allowed: 3, Denied: 0, Keys: 2},
		"shop":    {Allowed: 1, Denied: 0, Keys: 1},
		"curl":    {Allowed: 3, Denied: 0, Keys: 2},
	}
	for _, l := range rep.Limits {
		if w := want[l.Name]; l.Allowed != w.Allowed || l.Denied != w.Denied || l.Keys != w.Keys ||
			l.KeysDenied != w.KeysDenied {
			t.Errorf("%s: %+v, want %+v", l.Name, l, w)
		}
	}
	if rep.Requests != 8 || rep.Denied != 2 || rep.Allowed != 6 || rep.Exempt != 1 || rep.Unlimited != 1 {
		t.Errorf("report %+v", rep)
	}
	if p := rep.Paths[0]; p.Value != "/login" || p.Requests != 4 || p.Denied != 2 {
		t.Errorf("busiest path %+v, want /login with 4 requests, 2 denied", p)
	}
	// An address is one client, in whatever form it stands there.
	if d := rep.TopDenied; len(d) != 1 || d[0].Value != "192.0.2.1" || d[0].Denied != 2 {
		t.Errorf("refused clients %+v", d)
	}
}

func TestReplayCompare(t *testing.T) {
	var log strings.Builder
	for i := range 100 {
		log.WriteString(line(i, fmt.Sprintf("192.0.2.%d", i%2), "-", "GET / HTTP/1.1"))
	}
	rep := replayText(t, log.String(), ReplayOptions{},
		"limits: [{ name: each, per: [ip], allow: 10/hour, algorithm: sliding_log }]",
		"limits: [{ name: all, allow: 30/hour, algorithm: sliding_log }]")
	c := rep.Compare
	if c == nil || rep.Denied != 80 || c.Denied != 70 || c.Both != 70 || c.OnlyFirst != 10 || c.OnlySecond != 0 {
		t.Errorf("first %+v, second %+v", rep.Outcome, c)
	}
	if got := slices.Max(rep.Timeline.DeniedOther); got == 0 ||
		len(rep.Timeline.DeniedOther) != len(rep.Timeline.Denied) {
		t.Errorf("the second set's timeline is %v", rep.Timeline.DeniedOther)
	}
	if rep.TopDenied[0].Denied != 40 || rep.TopDenied[0].DeniedOther != 35 || c.TopDenied[0].Denied != 35 ||
		c.TopDenied[0].DeniedOther != 40 {
		t.Errorf("refused clients %+v and %+v", rep.TopDenied, c.TopDenied)
	}
}

// A path with parameters is counted under the path without them, too, as at the doors.
func TestReplayPathParameters(t *testing.T) {
	log := line(0, "192.0.2.1", "-", "GET /login HTTP/1.1") + line(1, "192.0.2.1", "-", "GET /login;a=b HTTP/1.1") +
		line(2, "192.0.2.1", "-", "GET /x/..;/login HTTP/1.1")
	rules := "limits: [{ name: login, when: { path: /login }, per: [ip], allow: 1/hour, algorithm: sliding_log }]"
	rep := replayText(t, log, ReplayOptions{}, rules, "paths: exact\n"+rules)
	if rep.Denied != 2 || rep.Compare == nil || rep.Compare.Denied != 0 {
		t.Errorf("refused %d, with exact paths %+v", rep.Denied, rep.Compare)
	}
}

func TestReplayEmptyLog(t *testing.T) {
	rep := replayText(t, "", suggests(t, ""), "limits: [{ name: a, allow: 1/min }]")
	if rep.Requests != 0 || !rep.From.IsZero() || len(rep.Limits) != 1 || len(rep.Timeline.Requests) != 0 ||
		rep.Suggestions.YAML != "" {
		t.Errorf("report of an empty log: %+v", rep)
	}
}

func TestReplayLeakyBucketTellsDelays(t *testing.T) {
	log := strings.Repeat(line(0, "a", "-", "GET / HTTP/1.1"), 6)
	rep := replayText(t, log, ReplayOptions{},
		"limits: [{ name: q, allow: { rate: 1/s, burst: 4 }, algorithm: leaky_bucket }]")
	if rep.Denied != 1 || rep.Delayed != 4 || rep.MaxDelay != 4 {
		t.Errorf("denied %d, delayed %d, longest %v; want 1, 4, 4", rep.Denied, rep.Delayed, rep.MaxDelay)
	}
	rep = replayText(t, log, ReplayOptions{},
		"limits: [{ name: q, allow: { rate: 1/s, burst: 4 }, algorithm: leaky_bucket, on_limit: { wait: 2s } }]")
	if rep.Denied != 3 || rep.MaxDelay != 2 {
		t.Errorf("with wait: denied %d, longest %v; want 3, 2", rep.Denied, rep.MaxDelay)
	}
}

// What is suggested loads, and limits each kind of key at the promised percentile: replayed over
// the same log, it refuses no more keys than the comment says.
func TestSuggest(t *testing.T) {
	var log strings.Builder
	rng := rand.New(rand.NewPCG(7, 7))
	for i := range 20_000 {
		client := rng.ExpFloat64() * 20
		request := "GET /a HTTP/1.1"
		if i%7 == 0 {
			request = "POST /b HTTP/1.1"
		}
		log.WriteString(line(i, fmt.Sprintf("192.0.2.%d", int(client)), fmt.Sprint("u", i%40), request))
	}
	rep := replayText(t, log.String(), suggests(t, log.String()))
	s := rep.Suggestions
	for _, name := range []string{"per-client", "writes-per-client", "per-user"} {
		if !strings.Contains(s.YAML, "name: "+name) {
			t.Errorf("no limit %s in\n%s", name, s.YAML)
		}
	}
	for _, p := range s.Peaks {
		if !(p.P50 <= p.P90 && p.P90 <= p.P99 && p.P99 <= p.P999 && p.P999 <= p.Max && p.P50 > 0) {
			t.Errorf("percentiles out of order: %+v", p)
		}
		// A limit at the busiest key's peak refuses nobody; one below refuses that one.
		unit := map[string]string{"minute": "min", "hour": "hour", "day": "day"}[p.Window]
		when := ""
		if p.Scope == "writes-per-client" {
			when = "when: { method: POST }, "
		}
		for n, refuses := range map[int64]bool{p.Max: false, p.Max - 1: true} {
			r := replayText(t, log.String(), ReplayOptions{},
				fmt.Sprintf("limits: [{ name: x, %sper: [%s], allow: %d/%s }]", when, p.Per, n, unit))
			if (r.Denied > 0) != refuses {
				t.Errorf("%s per %s: at %d/%s %d requests are refused, the peak is %d", p.Scope, p.Per, n, unit,
					r.Denied, p.Max)
			}
		}
	}
	again := replayText(t, log.String(), ReplayOptions{}, s.YAML)
	if again.Denied > rep.Requests/20 {
		t.Errorf("the suggested limits refuse %d of %d requests:\n%s", again.Denied, rep.Requests, s.YAML)
	}
	one := line(0, "a", "-", "GET / HTTP/1.1")
	if lone := replayText(t, one, suggests(t, one)); lone.Suggestions.YAML != "" {
		t.Errorf("one client proposes\n%s", lone.Suggestions.YAML)
	}
}

func TestRoundUp(t *testing.T) {
	for n, want := range map[int64]int64{1: 1, 9: 9, 10: 10, 11: 15, 29: 30, 95: 95, 99: 100, 100: 100, 101: 110,
		999: 1000, 1234: 1300} {
		if got := roundUp(n); got != want {
			t.Errorf("roundUp(%d) = %d, want %d", n, got, want)
		}
	}
}

func TestKeySet(t *testing.T) {
	s := keySet{bound: 1000}
	rng := rand.New(rand.NewPCG(1, 1))
	exact := map[uint64]bool{}
	for range 500 {
		h := rng.Uint64() &^ 1
		exact[h] = exact[h] || h%4 == 0
		s.add(h, h%4 == 0)
		s.add(h, false)
	}
	denied := int64(0)
	for _, d := range exact {
		if d {
			denied++
		}
	}
	if keys, d, estimated := s.counts(); keys != int64(len(exact)) || d != denied || estimated {
		t.Errorf("below the bound: %d, %d, %v; want %d, %d, exact", keys, d, estimated, len(exact), denied)
	}
	for range 200_000 {
		h := rng.Uint64()
		s.add(h, h&2 == 0)
		s.add(h, h&2 == 0)
	}
	keys, d, estimated := s.counts()
	if !estimated || keys < 160_000 || keys > 240_000 || d < 80_000 || d > 120_000 {
		t.Errorf("far past the bound: about %d keys, %d denied, %v", keys, d, estimated)
	}
	if len(s.table) > 4096 {
		t.Errorf("a table of %d for a bound of 1000", len(s.table))
	}
}

func TestTally(t *testing.T) {
	x := newTally(100)
	var denied [maxSets]bool
	for i := range 100_000 {
		x.at(fmt.Sprint("rare", i)).count(&denied)
		x.at(fmt.Sprint("often", i%10)).count(&denied)
		if i%100 == 0 {
			x.at("refused").count(&[maxSets]bool{true})
		}
	}
	if len(x.entries) > 100 || !x.pruned {
		t.Errorf("%d entries kept of 100", len(x.entries))
	}
	for _, e := range x.top(10, func(e *tallyEntry) int64 { return e.requests }) {
		if !strings.HasPrefix(e.value, "often") || e.requests != 10_000 {
			t.Errorf("top entry %+v", e)
		}
	}
	if top := x.top(5, func(e *tallyEntry) int64 { return e.denied[0] }); len(top) != 1 || top[0].denied[0] != 1000 {
		t.Errorf("refused %+v", top)
	}
	if e := x.at(strings.Repeat("x", 5000)); len(e.value) != maxValue {
		t.Errorf("a value of %d bytes is kept", len(e.value))
	}
}

func TestTimeline(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	for range 200 {
		var x timeline
		c := x.column()
		now := rng.Int64N(2e15)
		n := 1 + rng.IntN(2000)
		span := int64(1) << (10 + rng.IntN(38))
		var instants []int64
		for range n {
			now += rng.Int64N(span) / int64(n)
			instants = append(instants, now)
			x.columns[c][x.at(now)]++
		}
		first := instants[0]
		if x.used > maxBuckets || x.first*x.width() > first {
			t.Fatalf("%d buckets from %d for a start of %d", x.used, x.first*x.width(), first)
		}
		want := make([]int64, x.used)
		for _, at := range instants {
			want[at/x.width()-x.first]++
		}
		if !slices.Equal(x.columns[c][:x.used], want) {
			t.Fatalf("buckets of %d µs from %d:\n%v, want\n%v", x.width(), x.first, x.columns[c][:x.used], want)
		}
		if x.step > 0 && (now-first)/x.width() < maxBuckets/10-1 {
			t.Errorf("only %d buckets for a span of %d", (now-first)/x.width()+1, now-first)
		}
	}
}

const nasaRules = `
limits:
  - { name: per-client, per: [ip], allow: [20/min, 200/hour] }
  - { name: images, when: { path: "/images/**" }, per: [ip], allow: 10/min, algorithm: token_bucket }
`

// The memory of a replay is the same for a log and for thirty times that log, whether the days
// follow each other or all claim to be the same one (then nearly all lines are late).
func TestReplayMemoryIsFlat(t *testing.T) {
	effort.Long(t, "replays a log thirty times over")
	lines := nasaLines(t)
	set := load(t, nasaRules)
	highest := func(times int, shift bool) (uint64, *Report) {
		path := repeated(t, lines, times, shift)
		log, err := accesslog.Open([]string{path}, nil, accesslog.Options{Reorder: 900_000_000})
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		r := &replay{clients: newTally(clientBound), paths: newTally(pathBound), options: ReplayOptions{Top: 10}}
		r.requests = r.timeline.column()
		defer r.close()
		if err := r.addSet(0, RuleSet{Name: "rules", Domain: "default", Set: set}); err != nil {
			t.Fatal(err)
		}
		var most uint64
		var m runtime.MemStats
		for n := 1; ; n++ {
			e, err := log.Next()
			if err != nil {
				break
			}
			if err := r.step(e); err != nil {
				t.Fatal(err)
			}
			if n%(len(lines)/3) == 0 {
				runtime.GC()
				runtime.ReadMemStats(&m)
				most = max(most, m.HeapAlloc)
			}
		}
		return most, r.report(log.Stats())
	}
	once, rep := highest(1, true)
	if rep.Requests != int64(len(lines)) {
		t.Fatalf("%d of %d lines", rep.Requests, len(lines))
	}
	for _, shift := range []bool{true, false} {
		often, rep := highest(30, shift)
		if rep.Requests != 30*int64(len(lines)) {
			t.Fatalf("%d of %d lines", rep.Requests, 30*len(lines))
		}
		t.Logf("heap %.1f MiB once, %.1f MiB thirty times (days follow each other: %v, late %d)", float64(once)/(1<<20),
			float64(often)/(1<<20), shift, rep.Late)
		if often > once+once/4+16<<20 {
			t.Errorf("heap %d once, %d thirty times (days follow each other: %v)", once, often, shift)
		}
	}
}

// BenchmarkReplayNASA replays the trace thirty times over on one core, end to end: reading,
// ordering, deciding, counting.
func BenchmarkReplayNASA(b *testing.B) {
	lines := nasaLines(b)
	path := repeated(b, lines, 30, true)
	same := repeated(b, lines, 30, false)
	info, err := os.Stat(path)
	if err != nil {
		b.Fatal(err)
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for name, c := range map[string]struct{ path, rules string }{
		"one limit":             {path, "limits: [{ name: per-client, per: [ip], allow: 20/min }]"},
		"three limits":          {path, nasaRules},
		"three limits same day": {same, nasaRules},
	} {
		b.Run(filepath.Base(strings.ReplaceAll(name, " ", "-")), func(b *testing.B) {
			set := load(b, c.rules)
			b.SetBytes(info.Size())
			b.ReportAllocs()
			used := cpuTime()
			for b.Loop() {
				log, err := accesslog.Open([]string{c.path}, nil, accesslog.Options{Reorder: 900_000_000})
				if err != nil {
					b.Fatal(err)
				}
				rep, err := Replay(context.Background(), log, []RuleSet{{Name: "rules", Domain: "default", Set: set}},
					ReplayOptions{})
				if err != nil {
					b.Fatal(err)
				}
				log.Close()
				if rep.Requests != 30*int64(len(lines)) {
					b.Fatalf("%d requests", rep.Requests)
				}
			}
			total := float64(30*len(lines)) * float64(b.N)
			b.ReportMetric(total/b.Elapsed().Seconds(), "lines/s")
			if used = cpuTime() - used; used > 0 {
				b.ReportMetric(total/used.Seconds(), "lines/cpu-s")
			}
		})
	}
}

var _ rule.Attributes = (*attributes)(nil)
