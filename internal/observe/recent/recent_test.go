package recent

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/observe"
	"github.com/weir-rl/weir/internal/observe/find"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store/memory"
)

const shop = `
domain: shop
limits:
  - name: api
    when: { path: /api/** }
    per: [user|ip]
    allow: { rate: 2/min, burst: 2 }
    warn: 100%
  - name: all
    allow: [1000/min, 5000/hour]
    algorithm: sliding_log
  - name: trial
    per: [header.x-api-key]
    allow: 1/min
    on_limit: shadow
    algorithm: sliding_log
  - name: soft
    when: { kind: soft }
    allow: 4/min
    warn: 75%
    algorithm: sliding_log
    throttle: { soft: 25% }
`

const epoch = int64(1_767_225_600_000_000)

type clock struct{ now int64 }

func newBuffer(t testing.TB, o Options) *Buffer {
	t.Helper()
	b, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func newLimiter(t testing.TB, b *Buffer, c *clock, yaml string) *weir.Limiter {
	t.Helper()
	c.now = epoch
	store, err := memory.New(memory.Options{Clock: func() int64 { return c.now }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	set, _, err := file.Load([]file.Source{{Name: "shop.yaml", Data: []byte(yaml)}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := weir.New(store, weir.WithRules(set), weir.WithHooks(b.Hooks()))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func ask(t testing.TB, l *weir.Limiter, attributes rule.Map) *weir.Decision {
	t.Helper()
	var d weir.Decision
	r := weir.Request{Attributes: attributes, Hits: 1, Door: "test", MaxDelay: weir.AnyDelay}
	if err := l.Decide(t.Context(), &r, &d); err != nil {
		t.Fatal(err)
	}
	return &d
}

// What is remembered of a refusal is what happened.
func TestRefusalIsRemembered(t *testing.T) {
	b, c := newBuffer(t, Options{Sample: -1}), new(clock)
	l := newLimiter(t, b, c, shop)
	ada := rule.Map{"user": "ada", "path": "/api/x", "header.x-api-key": "sesame-open",
		"header.x-other": "not looked at"}
	var id weir.DecisionID
	for range 3 {
		c.now += 1e6
		id = ask(t, l, ada).ID
	}
	e, ok := b.Find(id)
	if !ok {
		t.Fatal("the refusal is not there")
	}
	if !e.Time.Equal(time.UnixMicro(epoch+3e6)) || e.Domain != "shop" || e.Door != "test" || e.Allowed || e.Banned ||
		e.Outcome != "denied" ||
		!reflect.DeepEqual(e.Marks, []string{"denied", "shadow_denied"}) || e.Hits != 1 || e.RetryAfter != 28e6 ||
		e.Generation != 1 || e.LimitsLeftOut != 0 {
		t.Errorf("got %+v", e)
	}
	hidden := e.Attributes["header.x-api-key"]
	if want := (map[string]string{"user": "ada", "path": "/api/x", "header.x-api-key": hidden}); !reflect.DeepEqual(
		e.Attributes, want) {
		t.Errorf("attributes %v", e.Attributes)
	}
	if want := string(observe.Hide([]byte("sesame-open"), 0, b.tally.Seed(), observe.ShownDigits)); hidden != want {
		t.Errorf("the key is shown as %q", hidden)
	}
	var names []string
	for _, l := range e.Limits {
		names = append(names, l.Name)
	}
	if !slices.Equal(names, []string{"api", "all:60s", "all:3600s", "trial"}) {
		t.Fatalf("limits %v", names)
	}
	want := Limit{
		Name: "api", Rule: "api", File: "shop.yaml", Line: 4, Key: "user=ada", Mode: "enforce", Refuses: true, NearLimit: true, Algorithm: "token_bucket",
		Allows: "2 per minute, burst 2", Limit: 2, SoftLimit: 2, Window: 60e6, Asked: 1, RetryAfter: 28e6, ResetAfter: 58e6,
	}
	if got := e.Limits[0]; got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if got := e.Limits[1]; got.Rule != "all" || got.Key != "" || !got.Allowed || got.Refuses || got.Remaining != 998 ||
		got.Allows != "1000 per minute" {
		t.Errorf("got %+v", got)
	}
	if got := e.Limits[3]; got.Mode != "shadow" || got.Allowed || got.Refuses || got.Key != "header.x-api-key="+hidden {
		t.Errorf("got %+v", got)
	}
	text, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "sesame") || strings.Contains(string(text), "not looked at") {
		t.Errorf("it tells what it should not: %s", text)
	}
	var back Entry
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if back.seq = e.seq; !reflect.DeepEqual(back, e) {
		t.Errorf("as JSON it becomes %+v", back)
	}
}

// The memory of the buffer holds no secret either.
func TestSecretsAreNotKept(t *testing.T) {
	b := newBuffer(t, Options{Sample: 1, Hide: []string{"user"}})
	l := newLimiter(t, b, new(clock), shop)
	for range 4 {
		ask(t, l, rule.Map{"user": "hush-user", "path": "/api/x",
			"header.x-api-key": "hush-key-" + strings.Repeat("x", 300)})
	}
	n := 0
	b.each(func(s *slot) bool {
		n += len(s.data)
		if strings.Contains(string(s.data), "hush") {
			t.Errorf("it holds %q", s.data)
		}
		return true
	})
	if n == 0 {
		t.Error("nothing is kept")
	}
	if e := b.List(Query{N: 1})[0]; e.Limits[0].Key != "user="+e.Attributes["user"] ||
		!strings.HasPrefix(e.Attributes["user"], "hidden:") {
		t.Errorf("got %+v", e)
	}
}

func TestOutcomes(t *testing.T) {
	b, c := newBuffer(t, Options{Sample: -1}), new(clock)
	l := newLimiter(t, b, c, shop)
	for range 6 { // 2 pass, 2 near the limit (the third and the fourth), 1 in the margin, 1 refused
		c.now++
		ask(t, l, rule.Map{"kind": "soft"})
	}
	var got []string
	for _, e := range b.List(Query{}) {
		got = append(got, e.Outcome)
	}
	if !slices.Equal(got, []string{"denied", "soft", "near_limit", "near_limit"}) {
		t.Errorf("got %v", got)
	}
	for outcome, n := range map[string]int{"denied": 1, "soft": 1, "near_limit": 2, "shadow_denied": 0, "allowed": 0,
		"": 4} {
		if got := len(b.List(Query{Outcome: outcome, Limit: "soft", Domain: "shop"})); got != n {
			t.Errorf("%s: %d, want %d", outcome, got, n)
		}
	}
	if got := len(b.List(Query{Limit: "all:60s"})); got != 4 {
		t.Errorf("met all:60s: %d", got)
	}
	if len(b.List(Query{Limit: "api"})) != 0 || len(b.List(Query{Domain: "other"})) != 0 ||
		len(b.List(Query{N: 2})) != 2 {
		t.Error("a filter does not filter")
	}
}

// The limit that made the outcome comes first, wherever its rule stands, and is kept when not all
// limits fit; where several did or none did, it is the fullest.
func TestMainLimit(t *testing.T) {
	const first = `domain: shop
limits:
  - { name: wide, per: [user], allow: 1000/min, algorithm: fixed_window }
  - { name: narrow, per: [user], allow: 100/min, algorithm: fixed_window }
`
	many := first
	for i := range 2 * mostLimits {
		many += fmt.Sprintf("  - { name: more-%d, allow: 1000/min, algorithm: fixed_window }\n", i)
	}
	for _, rules := range []string{first, many} {
		for outcome, last := range map[string]string{
			"denied":        "{ name: last, per: [ip], allow: 1/min, algorithm: fixed_window }",
			"shadow_denied": "{ name: last, per: [ip], allow: 1/min, algorithm: fixed_window, on_limit: shadow }",
			"soft":          "{ name: last, per: [ip], allow: 1/min, algorithm: fixed_window, throttle: { soft: 100% } }",
			"near_limit":    "{ name: last, per: [ip], allow: 50/min, algorithm: fixed_window, warn: 4% }",
			"allowed":       "{ name: last, per: [ip], allow: 2000/min, algorithm: fixed_window }",
		} {
			b := newBuffer(t, Options{Sample: 1})
			l := newLimiter(t, b, new(clock), rules+"  - "+last+"\n")
			for range 2 {
				ask(t, l, rule.Map{"user": "ada", "ip": "192.0.2.1"})
			}
			e := b.List(Query{N: 1})[0]
			want := Limit{Name: "last", Key: "ip=192.0.2.1"}
			if outcome == "allowed" {
				want = Limit{Name: "narrow", Key: "user=ada"}
			}
			if main := e.Main(); e.Outcome != outcome || main.Name != want.Name || main.Key != want.Key {
				t.Errorf("with %d limits: %s by %s of %s, want %s by %s", len(e.Limits), e.Outcome, main.Name, main.Key,
					outcome, want.Name)
			}
		}
	}
	if none := new(Entry).Main(); none != nil {
		t.Errorf("a decision that met no limit is made by %+v", none)
	}
}

// A request of a banned key is told apart from one that a limit refuses.
func TestBanIsRemembered(t *testing.T) {
	b, c := newBuffer(t, Options{Sample: -1}), new(clock)
	l := newLimiter(t, b, c,
		"limits: [{name: logins, per: [ip], allow: 1/min, algorithm: sliding_log, ban: {after: 2, within: 1m, for: 1h}}]")
	if _, err := l.Bans().Set(t.Context(), "", "logins", []string{"192.0.2.1"}, time.Now().Add(time.Hour), "a test"); err != nil {
		t.Fatal(err)
	}
	for ip, banned := range map[string]bool{"192.0.2.1": true, "192.0.2.2": false} {
		ask(t, l, rule.Map{"ip": ip})
		e, ok := b.Find(ask(t, l, rule.Map{"ip": ip}).ID)
		if !ok || e.Banned != banned || e.Outcome != "denied" || len(e.Limits) != 1 || e.Limits[0].Key != "ip="+ip ||
			e.Attributes["ip"] != ip || !e.Limits[0].Refuses {
			t.Errorf("%s: %v %+v", ip, ok, e)
		}
	}
}

// A sample of ordinary decisions is kept, and no peeks.
func TestSample(t *testing.T) {
	b := newBuffer(t, Options{Entries: 8000, Sample: 10})
	l := newLimiter(t, b, new(clock),
		"limits: [{name: a, allow: 1000000/min}, {name: b, per: [user], allow: 1000000/min}]")
	var d weir.Decision
	for i := range 5000 {
		r := weir.Request{Attributes: rule.Map{"user": fmt.Sprint(i)}, Hits: int64(i % 2), Peek: i%2 == 0}
		if err := l.Decide(t.Context(), &r, &d); err != nil {
			t.Fatal(err)
		}
	}
	// 2,500 in a binomial of 1 in 10: six standard deviations are 90.
	list := b.List(Query{Outcome: "allowed"})
	if len(list) < 160 || len(list) > 340 {
		t.Errorf("%d of 2500 are kept", len(list))
	}
	for _, e := range list {
		if found, ok := b.Find(e.ID); !ok || !reflect.DeepEqual(found, e) || e.Hits != 1 {
			t.Fatalf("%+v is found as %+v, %v", e, found, ok)
		}
	}
}

// However many there are, and however long what clients send, the buffer does not grow beyond its
// bounds, and what is newest stays.
func TestBounds(t *testing.T) {
	const entries, bytes = 128, 128 * leastBytes
	b := newBuffer(t, Options{Entries: entries, Bytes: bytes, Sample: -1})
	l := newLimiter(t, b, new(clock), `
limits:
  - { name: `+strings.Repeat("n", 200)+`, when: {path: "/**"}, per: [user, header.x-a, header.x-b], allow: [0/min, 0/hour, 0/day] }
`)
	long := strings.Repeat("ü", 5000)
	var last weir.DecisionID
	for i := range 1000 {
		last = ask(t, l, rule.Map{"path": "/" + long, "user": fmt.Sprint(i, long), "header.x-a": long[:200],
			"header.x-b": "b"}).ID
	}
	kept, held := 0, 0
	b.each(func(s *slot) bool {
		held += cap(s.data)
		if s.id.Load() != 0 {
			kept++
		}
		return true
	})
	if held > bytes || kept > entries || kept < entries/2 {
		t.Errorf("%d entries in %d bytes", kept, held)
	}
	e, ok := b.Find(last)
	if !ok || e.LimitsLeftOut == 0 && len(e.Limits) != 3 || e.LimitsLeftOut+len(e.Limits) != 3 {
		t.Fatalf("%v %+v", ok, e)
	}
	for name, value := range e.Attributes {
		if len(value) > mostValue || strings.ToValidUTF8(value, "?") != value ||
			len(value) > 20 && !strings.HasSuffix(value, observe.CutMark) {
			t.Errorf("%s is kept as %q", name, value)
		}
	}
	if l := e.Limits[0]; !strings.HasSuffix(l.Rule, observe.CutMark) || len(l.Key) > mostKey {
		t.Errorf("got %+v", l)
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{Entries: 3}, {Entries: -1}, {Entries: 1 << 30, Bytes: 1 << 60}, {Bytes: 1000},
		{Entries: 100, Bytes: 100*leastBytes - 1}} {
		if _, err := New(o); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
	b := newBuffer(t, Options{Entries: 4, Bytes: 4 * leastBytes})
	l := newLimiter(t, b, new(clock), "limits: [{name: a, allow: 0/min}]")
	for range 10 {
		if _, ok := b.Find(ask(t, l, nil).ID); !ok {
			t.Fatal("the newest is gone")
		}
	}
	if got := len(b.List(Query{})); got != 3 {
		t.Errorf("%d refusals in 3 places", got)
	}
	if _, ok := b.Find(0); ok {
		t.Error("what has no id is found")
	}
}

// The names of the attributes come from the set that decides, even while it is being replaced. A
// decision of a rule that is gone is still shown.
func TestReload(t *testing.T) {
	b := newBuffer(t, Options{Sample: -1})
	l := newLimiter(t, b, new(clock), "limits: [{name: old, when: {a: x}, per: [b], allow: 0/min}]")
	before := ask(t, l, rule.Map{"a": "x", "b": "1", "c": "2"})
	id := before.ID
	set, _, err := file.Load([]file.Source{{Name: "new.yaml",
		Data: []byte("limits: [{name: new, per: [c], allow: 0/min}]")}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l.SetRules(set)
	// As of a decision of the old set that ends now.
	r := weir.Request{Attributes: rule.Map{"a": "x", "b": "1", "c": "2"}, Hits: 1}
	before.ID = 0
	b.Decided(&r, before, observe.Facts{Outcome: observe.Unclear})
	after := ask(t, l, r.Attributes.(rule.Map)).ID
	for at, want := range map[weir.DecisionID]string{id: "map[a:x b:1] old b=1 1", before.ID: "map[a:x b:1] old b=1 1",
		after: "map[c:2] new c=2 2"} {
		e, ok := b.Find(at)
		if !ok {
			t.Fatal("gone")
		}
		if got := fmt.Sprintf("%v %s %s %d", e.Attributes, e.Limits[0].Name, e.Limits[0].Key, e.Generation); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// Writers and readers at the same time: what is found is whole.
func TestConcurrent(t *testing.T) {
	b := newBuffer(t, Options{Entries: 64, Bytes: 64 * 1024, Sample: 2})
	l := newLimiter(t, b, new(clock), shop)
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for k := range 300 {
				user := fmt.Sprint(i, "-", k%3)
				d := ask(t, l, rule.Map{"user": user, "path": "/api/x"})
				if d.ID == 0 {
					continue
				}
				if e, ok := b.Find(d.ID); ok && (e.ID != d.ID || e.Attributes["user"] != user ||
					e.Limits[0].Key != "user="+user) {
					t.Errorf("%s is found as %+v", user, e)
				}
				if k%50 == 0 {
					b.List(Query{})
				}
			}
		})
	}
	all.Wait()
}

// decode reads back what encode wrote, and nothing makes it panic.
func TestDecodeProperties(t *testing.T) {
	b, c := newBuffer(t, Options{Entries: 8, Sample: 1}), new(clock)
	l := newLimiter(t, b, c, shop)
	rapid.Check(t, func(t *rapid.T) {
		attributes := rule.Map{}
		for _, name := range []string{"user", "ip", "path", "kind", "header.x-api-key"} {
			if rapid.Bool().Draw(t, "has") {
				attributes[name] = rapid.SampledFrom([]string{"soft", "/api/x", "a", "", "192.0.2.1", "2001:db8::1",
					strings.Repeat("ü", 200)}).Draw(t, name)
			}
		}
		r := weir.Request{Attributes: attributes, Hits: rapid.Int64Range(-3, 9).Draw(t, "hits"),
			MaxDelay: weir.AnyDelay}
		r.Peek = r.Hits == 0
		var d weir.Decision
		if err := l.Decide(t.Context(), &r, &d); err != nil {
			t.Fatal(err)
		}
		e := &encoder{}
		e.encode(b, &r, &d, marksOf(&d))
		got, ok := decode(e.buf)
		if !ok || got.ID != d.ID || got.Allowed != d.Allowed || got.Hits != r.Hits ||
			int64(got.RetryAfter) != d.RetryAfter || len(got.Limits)+got.LimitsLeftOut != len(d.Limits) {
			t.Fatalf("%+v became %+v, %v", &d, got, ok)
		}
		for _, l := range got.Limits {
			i := slices.IndexFunc(d.Limits, func(r weir.LimitResult) bool { return r.Window.Name == l.Name })
			if r := d.Limits[i]; l.Limit != r.Limit || l.Remaining != r.Remaining ||
				int64(l.ResetAfter) != r.ResetAfter || l.Allowed != r.Allowed || l.Soft != r.Soft ||
				l.Refuses != d.Refuses(&d.Limits[i]) ||
				l.Key != strings.Join(hideKey(r.Window.KeyParts(d.Matches.Hits[i].Key), l.Key), ", ") {
				t.Fatalf("%+v became %+v", r, l)
			}
		}
		cut := rapid.IntRange(0, len(e.buf)-1).Draw(t, "cut")
		if _, ok := decode(e.buf[:cut]); ok {
			t.Fatalf("%d bytes of %d are a whole entry", cut, len(e.buf))
		}
	})
}

// hideKey puts what was hidden or cut in shown into the parts of a key.
func hideKey(parts []string, shown string) []string {
	if strings.Contains(shown, "hidden:") || strings.Contains(shown, observe.CutMark) {
		return strings.Split(shown, ", ")
	}
	return parts
}

func FuzzDecode(f *testing.F) {
	b := newBuffer(f, Options{})
	l := newLimiter(f, b, new(clock), shop)
	for range 3 {
		ask(f, l, rule.Map{"user": "ada", "path": "/api/x"})
	}
	b.each(func(s *slot) bool {
		if len(s.data) > 0 {
			f.Add(slices.Clone(s.data))
		}
		return true
	})
	f.Fuzz(func(t *testing.T, data []byte) {
		looking := looking{Buffer: b, book: find.NewBook(&find.Query{}, 0), came: map[cameIn]int{}, cut: map[uint64]bool{}}
		looking.entry(data, 1)
		if e, ok := decode(data); ok {
			if _, err := json.Marshal(e); err != nil && !strings.Contains(err.Error(), "year") {
				t.Fatal(err)
			}
		}
	})
}

func TestSeconds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := Seconds(rapid.Int64Range(-1<<50, 1<<50).Draw(t, "µs"))
		if rapid.IntRange(0, 9).Draw(t, "never") == 0 {
			s = algo.Never // which is −1 µs
		}
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var back Seconds
		if err := json.Unmarshal(text, &back); err != nil || back != s {
			t.Fatalf("%d became %s, and that %d (%v)", s, text, back, err)
		}
	})
}

// TestSince: what comes behind a place is told once, the newest of it if there is too much, and
// each part of a question is looked at.
func TestSince(t *testing.T) {
	b, c := newBuffer(t, Options{Sample: -1}), new(clock)
	l := newLimiter(t, b, c, shop)
	start := b.Cursor()
	var ids []weir.DecisionID
	for i := range 5 {
		c.now = epoch + int64(i)*1e6
		for range 2 {
			ask(t, l, rule.Map{"user": fmt.Sprint("u", i), "ip": "192.0.2.1", "path": "/api/x"})
		}
		ids = append(ids, ask(t, l, rule.Map{"user": fmt.Sprint("u", i), "ip": "192.0.2.1", "path": "/api/x"}).ID)
	}
	q := Query{Outcome: "denied"}
	found, fit, next := b.Since(start, q, 3)
	if len(found) != 3 || fit != 5 || found[2].ID != ids[4] || found[0].ID != ids[2] {
		t.Fatalf("%d of %d: %+v", len(found), fit, found)
	}
	if found, fit, again := b.Since(next, q, 3); len(found)+fit != 0 || again != next {
		t.Errorf("told twice: %+v", found)
	}
	// The second of each is near its limit, and remembered, too.
	if found, fit, _ := b.Since(start, Query{}, 2); len(found) != 2 || fit != 10 || found[1].ID != ids[4] ||
		found[0].Outcome != "near_limit" {
		t.Errorf("%d of %d: %+v", len(found), fit, found)
	}
	at := func(i int) time.Time { return time.UnixMicro(epoch + int64(i)*1e6) }
	for name, c := range map[string]struct {
		q    Query
		want int
	}{
		"key": {Query{Outcome: "denied", Key: "user=u3"}, 1}, "key of nobody": {Query{Key: "user=u"}, 0}, "part of a name": {Query{Key: "u3"}, 0},
		"attribute": {Query{Outcome: "denied", Key: "path=/api/x"}, 5},
		"door":      {Query{Outcome: "denied", Door: "test"}, 5}, "other door": {Query{Door: "http"}, 0},
		"after": {Query{Outcome: "denied", After: at(3)}, 2}, "after one": {Query{Outcome: "denied", After: at(3), AfterID: ids[3]}, 1},
		"before": {Query{Outcome: "denied", Before: at(3)}, 3}, "between": {Query{Outcome: "denied", After: at(1), Before: at(3)}, 2},
		"behind its domain": {Query{Outcome: "denied", Limit: "shop/api"}, 5}, "behind another": {Query{Limit: "x/api"}, 0}, "twice": {Query{Domain: "shop", Limit: "shop/api"}, 0},
	} {
		if got := len(b.List(c.q)); got != c.want {
			t.Errorf("%s: %d decisions, want %d", name, got, c.want)
		}
	}
}

// TestSinceMissesNothing: whoever reads on while decisions are remembered is told each one once.
func TestSinceMissesNothing(t *testing.T) {
	b, c := newBuffer(t, Options{}), new(clock)
	l := newLimiter(t, b, c, shop)
	r := weir.Request{Attributes: rule.Pairs{{Name: "path", Value: "/api/x"}, {Name: "user", Value: "ada"},
		{Name: "ip", Value: "192.0.2.1"}}, Hits: 1}
	const writers, each = 4, 1500
	var writing sync.WaitGroup
	told := map[weir.DecisionID]int{}
	start := b.Cursor()
	for w := range writers {
		writing.Go(func() {
			var d weir.Decision
			for range 3 { // the last is refused
				if err := l.Decide(t.Context(), &r, &d); err != nil {
					t.Error(err)
				}
			}
			for i := range each {
				d.ID = weir.DecisionID(1 + w*each + i)
				b.keep(&r, &d, uint64(d.ID)<<32)
			}
		})
	}
	done := make(chan struct{})
	go func() { writing.Wait(); close(done) }()
	read := func() {
		var found []Entry
		found, _, start = b.Since(start, Query{}, 2*writers*each) // more than there are
		for i := range found {
			told[found[i].ID]++
		}
	}
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		read()
	}
	for id := range weir.DecisionID(writers * each) {
		if told[id+1] != 1 {
			t.Errorf("decision %d was told %d times", id+1, told[id+1])
		}
	}
}
