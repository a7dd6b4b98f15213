package weir_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

const grantRules = `
limits:
  - {name: api, per: [user|ip], allow: [2/min, 5/hour], algorithm: sliding_log}
  - {name: bucket, when: {kind: bucket}, per: [user], allow: {rate: 6/min, burst: 3}, algorithm: token_bucket, throttle: {soft: {over: 50%, for: 1m}}}
  - {name: slots, when: {kind: slots}, per: [user], allow: 1, algorithm: concurrency}
`

func as(user string, more ...rule.Pair) weir.Request {
	return weir.Request{Hits: 1, MaxDelay: weir.AnyDelay,
		Attributes: append(weir.Pairs{{Name: "user", Value: user}}, more...)}
}

// admitted returns how many of n requests are admitted at once.
func admitted(t testing.TB, l *weir.Limiter, r weir.Request, n int) (admitted int) {
	t.Helper()
	for range n {
		if decide(t, l, r).Allowed {
			admitted++
		}
	}
	return admitted
}

func TestGrant(t *testing.T) {
	c := newClock()
	l, _ := banLimiter(t, c, grantRules)
	if n := admitted(t, l, as("ada"), 5); n != 2 {
		t.Fatal(n)
	}
	end := time.UnixMicro(c.read()).Add(10 * time.Minute)
	g, err := l.Grants().Set(t.Context(), "", "api", []string{"ada"}, " [50/hour, 10/min] ", end, "a big import")
	if err != nil || g.Allow != "[50/hour, 10/min]" || g.Key[0] != "user=ada" || g.Domain != "default" {
		t.Fatalf("%+v, %v", g, err)
	}
	// It holds at once, and what was used stays used.
	d := decide(t, l, as("ada"))
	if !d.Allowed || d.Limits[0].Limit != 10 || d.Limits[0].Remaining != 7 || d.Limits[1].Limit != 50 ||
		d.Limits[1].Remaining != 47 {
		t.Fatalf("%+v", d.Limits)
	}
	if hit := d.Matches.Hits[0].Limit.Config().N; hit != 10 {
		t.Errorf("the hit says %d", hit)
	}
	if n := admitted(t, l, as("bob"), 5); n != 2 {
		t.Errorf("another key has %d", n)
	}
	if got := l.Grants().List(); len(got) != 1 || got[0].Problem != "" || !got[0].Until.Equal(end) ||
		l.Bans().Stats().Grants != 1 {
		t.Errorf("%+v", got)
	}
	c.set(end.UnixMicro())
	// It has ended by itself; three of the last hour are known, of five.
	if n := admitted(t, l, as("ada"), 5); n != 2 {
		t.Errorf("%d admitted after its end", n)
	}
	if len(l.Grants().List()) != 0 {
		t.Error("it is listed after its end")
	}
}

func TestGrantForms(t *testing.T) {
	c := newClock()
	l, _ := banLimiter(t, c, grantRules)
	end := time.UnixMicro(c.read()).Add(time.Hour)
	grant := func(limit, allow string) {
		t.Helper()
		if _, err := l.Grants().Set(t.Context(), "", limit, []string{"ada"}, allow, end, ""); err != nil {
			t.Fatal(err)
		}
	}
	// A list without brackets, by other names of the same windows.
	grant("api", "1000/60s, 2000/h")
	if n := admitted(t, l, as("ada"), 30); n != 30 {
		t.Error(n)
	}
	grant("api", "unlimited")
	if d := decide(t, l, as("ada")); !d.Allowed || len(d.Limits) != 0 {
		t.Errorf("%+v", d.Limits)
	}
	bucket := as("ada", rule.Pair{Name: "kind", Value: "bucket"})
	grant("bucket", "{rate: 6/min, burst: 8}")
	if n := admitted(t, l, bucket, 30); n != 12 { // and the soft margin of half of it
		t.Errorf("%d admitted of a burst of 8", n)
	}
	grant("bucket", "20/min") // the margin is of 20 then, and 12 are used
	if n := admitted(t, l, bucket, 30); n != 18 {
		t.Errorf("%d admitted of a burst of 20", n)
	}
	grant("bucket", "1/min") // half of one is nothing: the margin goes
	if d := decide(t, l, bucket); d.Allowed || d.Limits[0].Limit != 1 {
		t.Errorf("%+v", d.Limits)
	}
	slots := as("ada", rule.Pair{Name: "kind", Value: "slots"})
	grant("slots", "3")
	if n := admitted(t, l, slots, 5); n != 3 {
		t.Errorf("%d slots", n)
	}
	if _, err := l.Grants().Revoke(t.Context(), "", "slots", []string{"ada"}); err != nil {
		t.Fatal(err)
	}
	if d := decide(t, l, slots); d.Allowed {
		t.Error("a slot of a grant that was revoked")
	}
	if _, err := l.Grants().Revoke(t.Context(), "", "slots", []string{"ada"}); !errors.Is(err, weir.ErrNotFound) {
		t.Error(err)
	}
	for _, bad := range []struct{ limit, allow, says string }{
		{"api", "1000/min", "nothing is given for requests per hour"},
		{"api", "1000/min, 5/day", `5/day is for no window of the limit "api", which has 2/minute, 5/hour; each of these needs a number`},
		{"api", "1000/min, 5/60s", "5/1m is the second for one window"},
		{"api", "1000/min, unlimited", "unlimited"},
		{"api", "[1000/min", "a ] is missing"},
		{"api", "{rate: 4/min", "a } is missing"},
		{"api", "{rate: 4/min, burst: 4}, 5/hour", "a burst does not fit"},
		{"api", "", "rate"},
		{"api", "200000/min, 5/hour", "sliding_log"},
		{"bucket", "{rate: 4/min, burst: 4, rate: 5/min}", "once each"},
		{"bucket", "{rate: 4/min, size: 4}", `unknown key "size"`},
		{"bucket", "{burst: 4}", "rate is missing"},
		{"bucket", "{rate: 4/min, burst: 4/min}", "burst: expected a number"},
		{"bucket", "{rate: 4/min} 5", "where a comma should"},
		{"bucket", "{rate: unlimited}", "unlimited has no burst"},
		{"bucket", "4", `4 is for no window of the limit "bucket", which has {rate: 6/minute, burst: 3}; did you mean 4/minute?`},
		{"slots", "4/min", `4/minute is for no window of the limit "slots", which has 1 concurrent; did you mean 4 concurrent?`},
		{"slots", strings.Repeat("1", 2000), "too long"},
	} {
		if _, err := l.Grants().Set(t.Context(), "", bad.limit, []string{"ada"}, bad.allow, end, ""); err == nil ||
			!strings.Contains(err.Error(), bad.says) {
			t.Errorf("%s, %q: %v", bad.limit, bad.allow, err)
		}
	}
	if _, err := l.Grants().Set(t.Context(), "", "slots", []string{"ada"}, "3", time.UnixMicro(c.read()), ""); err == nil {
		t.Error("a grant that is over was taken")
	}
}

// Numbers tells in the notation of rule files what holds for a key, by whatever sets it, so that it
// can be granted again; and what would hold without the grant.
func TestGrantNumbers(t *testing.T) {
	c := newClock()
	l, _ := banLimiter(t, c, `
limits:
  - {name: api, per: [user|ip], allow: [2/min, 5/hour], algorithm: sliding_log, override: {vip: [20/min, 50/hour]}}
  - {name: bucket, per: [user], allow: {rate: 6/15m, burst: 3}, algorithm: token_bucket, enforce: 0%}
  - {name: slots, per: [user, ip], allow: 4, algorithm: concurrency, ban: {after: 2, within: 1m, for: 1h}}
  - {name: night, per: [ip], allow: 10/day, schedule: [{days: mon-sun, allow: 70/day}]}
  - {name: free, per: [ip], allow: unlimited, replaces: [night]}
`)
	end := time.UnixMicro(c.read()).Add(time.Hour)
	for _, x := range []struct{ limit, key, allow, without string }{
		{"api", "user=ada", "[2/minute, 5/hour]", ""}, {"api", "user=vip", "[20/minute, 50/hour]", ""},
		{"bucket", "ada", "{rate: 6/15m, burst: 3}", ""}, {"slots", "user=ada, ip=192.0.2.1", "4 concurrent", ""},
		{"night", "192.0.2.1", "70/day", ""},
	} {
		n, err := l.Grants().Numbers("", x.limit, []string{x.key})
		if err != nil || n.Allow != x.allow || n.Without != x.allow || n.Ban != nil ||
			(n.Mode == rule.Shadow) != (x.limit == "bucket") {
			t.Errorf("%s, %s: %+v, %v", x.limit, x.key, n, err)
		}
		if _, err := l.Grants().Set(t.Context(), "", x.limit, []string{x.key}, n.Allow, end, ""); err != nil {
			t.Errorf("%s of %s cannot be granted: %v", n.Allow, x.limit, err)
		}
	}
	if _, err := l.Grants().Set(t.Context(), "", "night", []string{"192.0.2.1"}, "700/day", end, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Bans().Set(t.Context(), "", "slots", []string{"ada", "192.0.2.1"}, end, "by hand"); err != nil {
		t.Fatal(err)
	}
	if n, err := l.Grants().Numbers("", "night", []string{"192.0.2.1"}); err != nil || n.Allow != "700/day" || n.Without != "70/day" {
		t.Errorf("%+v, %v", n, err)
	}
	if n, err := l.Grants().Numbers("", "slots", []string{"ada", "192.0.2.1"}); err != nil || n.Ban == nil || n.Ban.Reason != "by hand" {
		t.Errorf("%+v, %v", n, err)
	}
	for limit, says := range map[string]string{"free": "counts nothing", "none": "no limit", "slots": "keys of 2 parts, not 1"} {
		if n, err := l.Grants().Numbers("", limit, []string{"192.0.2.1"}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %+v, %v", limit, n, err)
		}
	}
	l.SetRules(load(t, "limits: [{name: night, per: [ip], allow: 10/hour}]")) // the grant does not fit it
	if n, err := l.Grants().Numbers("", "night", []string{"192.0.2.1"}); err != nil || n.Allow != "10/hour" || n.Without != "10/hour" {
		t.Errorf("%+v, %v", n, err)
	}
}

// A grant of a key whose override has other windows replaces the override's numbers; where it
// cannot, the error says which numbers would fit.
func TestGrantOverOverride(t *testing.T) {
	c := newClock()
	l, _ := banLimiter(t, c, `
limits:
  - {name: api, per: [user], allow: [2/min, 5/hour], algorithm: sliding_log, override: {vip: 3/day, big: [6/min, 9/day], free: unlimited}}
`)
	end := time.UnixMicro(c.read()).Add(time.Hour)
	for _, x := range []struct {
		key, before, allow string
		admits             int // of 30
	}{
		{"vip", "3/day", "7/day", 7}, {"vip", "7/day", "unlimited", 30}, {"vip", "unlimited", "2 per day", 0},
		{"big", "[6/minute, 9/day]", "8/min, 20/day", 8}, {"free", "unlimited", "unlimited", 30},
	} {
		n, err := l.Grants().Numbers("", "api", []string{x.key})
		if err != nil || n.Allow != x.before {
			t.Errorf("%s: %+v, %v, want %s", x.key, n, err, x.before)
		}
		allow, err := rule.AllowNotation(x.allow)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Grants().Set(t.Context(), "", "api", []string{x.key}, allow, end, ""); err != nil {
			t.Errorf("%s: %v", x.key, err)
			continue
		}
		if n := admitted(t, l, as(x.key), 30); n != x.admits {
			t.Errorf("%s with %s: %d admitted, want %d", x.key, x.allow, n, x.admits)
		}
	}
	if _, err := l.Grants().Revoke(t.Context(), "", "api", []string{"big"}); err != nil {
		t.Fatal(err)
	}
	if n := admitted(t, l, as("big"), 30); n != 0 { // 8 are used of 6 a minute
		t.Errorf("%d admitted after its end", n)
	}
	for _, bad := range []struct{ key, allow, says string }{
		{"vip", "60/min", `60/minute is for no window of the limit "api", which has 3/day for this key by an override; did you mean 60/day?`},
		{"vip", "2/min, 5/hour", "which has 3/day for this key by an override"},
		{"big", "60/min", `nothing is given for requests per day: the limit "api" has 6/minute, 9/day for this key by an override, and each needs a number`},
		{"free", "60/min, 70/hour", "has an override that leaves this key unlimited, which a grant cannot limit: change the override"},
	} {
		_, _, err := l.Grants().Plan("", "api", []string{bad.key}, bad.allow, end, "")
		if err == nil || !strings.Contains(err.Error(), bad.says) {
			t.Errorf("%s of %s: %v, want %s", bad.allow, bad.key, err, bad.says)
		}
	}
}

// A grant follows the rules in force, and says so where it cannot.
func TestGrantOverReload(t *testing.T) {
	c := newClock()
	l, _ := banLimiter(t, c, grantRules)
	if _, err := l.Grants().Set(t.Context(), "", "api", []string{"ada"}, "10/min, 50/hour", time.UnixMicro(c.read()).Add(time.Hour), ""); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		rules, problem string
		want           int
	}{
		{strings.Replace(grantRules, "sliding_log", "fixed_window", 1), "", 10},
		{strings.Replace(grantRules, "[2/min, 5/hour]", "2/min", 1), "50/hour is for no window", 2},
		{"limits: [{name: other, per: [user], allow: 4/min}]", "no rule in force", 4},
		{grantRules, "", 10},
	} {
		c.wait(2 * time.Hour / 60)
		l.SetRules(load(t, step.rules))
		if n := admitted(t, l, as("ada"), 20); n != step.want {
			t.Errorf("%s: %d admitted, want %d", step.rules, n, step.want)
		}
		if got := l.Grants().List(); len(got) != 1 || !strings.HasPrefix(got[0].Problem, step.problem) ||
			step.problem == "" && got[0].Problem != "" {
			t.Errorf("%+v, want the problem %q", got, step.problem)
		}
	}
}

func FuzzGrant(f *testing.F) {
	for _, s := range []string{"10/min, 50/hour", "[10/min, 50/hour]", "{rate: 4/min, burst: 20}", "unlimited", "25",
		"{rate: '4/min'},", "[,]", "{}"} {
		f.Add(s)
	}
	c := newClock()
	l, _ := banLimiter(f, c, grantRules)
	end := time.UnixMicro(c.read()).Add(time.Hour)
	f.Fuzz(func(t *testing.T, allow string) {
		for _, limit := range []string{"api", "bucket", "slots"} {
			g, err := l.Grants().Set(context.Background(), "", limit, []string{"ada"}, allow, end, "")
			if err != nil {
				continue
			}
			if _, err := l.Grants().Set(context.Background(), "", limit, []string{"bob"}, g.Allow, end, ""); err != nil {
				t.Errorf("%q was taken, and is not as it is listed: %v", allow, err)
			}
		}
	})
}

// follower is a Limiter over a store that follows its board until the test ends.
func follower(t *testing.T, store store.Store, yaml string, options ...weir.Option) *weir.Limiter {
	t.Helper()
	l, err := weir.New(store, append(options, weir.WithRules(load(t, yaml)))...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Follow(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l
}

// followers are Limiters over one store that follow its board, in a synctest bubble.
func followers(t *testing.T, store store.Store, n int, yaml string) []*weir.Limiter {
	t.Helper()
	list := make([]*weir.Limiter, n)
	for i := range list {
		list[i] = follower(t, store, yaml)
	}
	synctest.Wait()
	return list
}

func wallStore(t *testing.T, o memory.Options) *memory.Store {
	t.Helper()
	o.Clock = func() int64 { return time.Now().UnixMicro() }
	store, err := memory.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// flaky is a board that can be away.
type flaky struct {
	*memory.Store
	away atomic.Bool
}

func (f *flaky) Post(ctx context.Context, kind string, facts []store.Fact) error {
	if f.away.Load() {
		return errors.New("away")
	}
	return f.Store.Post(ctx, kind, facts)
}

func (f *flaky) Remove(ctx context.Context, kind string, ids []string) error {
	if f.away.Load() {
		return errors.New("away")
	}
	return f.Store.Remove(ctx, kind, ids)
}

// What one node sets or lifts holds on all; what could not be told is told when it can be, as
// things stand then.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &flaky{Store: wallStore(t, memory.Options{})}
		t.Cleanup(func() { _ = store.Close() })
		rules := loginRules + "  - {name: api, per: [user], allow: 2/min, algorithm: sliding_log}\n"
		nodes := followers(t, store, 2, rules)
		a, b := nodes[0], nodes[1]
		if err := a.Follow(t.Context()); err == nil {
			t.Error("a second Follow began")
		}
		denyUntilBanned(t, a, "192.0.2.1")
		synctest.Wait()
		if d := decide(t, b, from("192.0.2.1", "/login")); d.Banned.Rule == nil ||
			d.RetryAfter != (15*time.Minute).Microseconds() {
			t.Fatalf("the other node: %+v", d.Banned)
		}
		x, y := a.Bans().List(), b.Bans().List()
		if x[0].Refused != 0 || y[0].Refused != 1 { // each counts what it refuses itself
			t.Errorf("refused %d and %d", x[0].Refused, y[0].Refused)
		}
		if y[0].Refused = 0; fmt.Sprint(x) != fmt.Sprint(y) {
			t.Errorf("%v and %v", x, y)
		}
		if _, err := b.Bans().Lift(t.Context(), "", "login", []string{"192.0.2.1"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(a.Bans().List()) != 0 {
			t.Error("lifted on one node, and not on the other")
		}
		if _, err := b.Grants().Set(t.Context(), "", "api", []string{"ada"}, "7/min", time.Now().Add(time.Hour), ""); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := admitted(t, a, as("ada"), 10); n != 7 {
			t.Errorf("%d admitted by a grant of 7", n)
		}
		if _, err := a.Grants().Revoke(t.Context(), "", "api", []string{"ada"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(b.Grants().List()) != 0 {
			t.Error("revoked on one node, and not on the other")
		}

		store.away.Store(true)
		if _, err := a.Bans().Set(t.Context(), "", "login", []string{"192.0.2.7"}, time.Now().Add(time.Hour), ""); !errors.Is(err, weir.ErrNotShared) {
			t.Errorf("Ban: %v", err)
		}
		denyUntilBanned(t, a, "192.0.2.8")
		if _, err := a.Bans().Set(t.Context(), "", "login", []string{"192.0.2.9"}, time.Now().Add(time.Hour), ""); !errors.Is(err, weir.ErrNotShared) {
			t.Errorf("Ban: %v", err)
		}
		if _, err := a.Bans().Lift(t.Context(), "", "login", []string{"192.0.2.9"}); !errors.Is(err,
			weir.ErrNotShared) {
			t.Errorf("Unban: %v", err)
		}
		time.Sleep(10 * time.Second)
		if len(a.Bans().List()) != 2 || len(b.Bans().List()) != 0 {
			t.Errorf("%d and %d bans while the board is away", len(a.Bans().List()), len(b.Bans().List()))
		}
		store.away.Store(false)
		time.Sleep(time.Second)
		synctest.Wait()
		if x := b.Bans().List(); len(x) != 2 {
			t.Errorf("told when it was back: %v", x)
		}
		time.Sleep(time.Hour)
		if len(a.Bans().List())+len(b.Bans().List()) != 0 {
			t.Error("they do not end")
		}
	})
}

// Bans and grants outlive the process where the counters do, and no longer than they would have
// lasted.
func TestFactsOverRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := memory.Options{Snapshot: t.TempDir() + "/weir.snapshot"}
		one := func(do func(l *weir.Limiter)) {
			store := wallStore(t, o)
			l, err := weir.New(store, weir.WithRules(load(t, loginRules)))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- l.Follow(ctx) }()
			synctest.Wait()
			do(l)
			synctest.Wait()
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			if err := store.Close(); err != nil {
				t.Error(err)
			}
		}
		one(func(l *weir.Limiter) {
			denyUntilBanned(t, l, "192.0.2.1")
			if _, err := l.Bans().Set(t.Context(), "", "login", []string{"192.0.2.2"}, time.Now().Add(time.Hour), "by hand"); err != nil {
				t.Fatal(err)
			}
			if _, err := l.Grants().Set(t.Context(), "", "all", []string{"192.0.2.3"}, "5/min", time.Now().Add(time.Hour), ""); err != nil {
				t.Fatal(err)
			}
		})
		time.Sleep(10 * time.Minute)
		one(func(l *weir.Limiter) {
			if d := decide(t, l, from("192.0.2.1", "/login")); d.RetryAfter != (5 * time.Minute).Microseconds() {
				t.Errorf("retry after %d", d.RetryAfter)
			}
			if len(l.Bans().List()) != 2 || len(l.Grants().List()) != 1 || l.Grants().List()[0].Problem != "" {
				t.Errorf("%+v %+v", l.Bans().List(), l.Grants().List())
			}
			if n, err := l.Grants().Numbers("", "all", []string{"192.0.2.3"}); err != nil || n.Allow != "5/min" || n.Without == n.Allow {
				t.Errorf("%+v, %v", n, err)
			}
			if n := admitted(t, l, from("192.0.2.3", "/"), 10); n != 5 {
				t.Errorf("%d admitted by the grant", n)
			}
			if _, err := l.Bans().Lift(t.Context(), "", "login", []string{"192.0.2.2"}); err != nil {
				t.Fatal(err)
			}
		})
		time.Sleep(6 * time.Minute)
		one(func(l *weir.Limiter) {
			if len(l.Bans().List()) != 0 {
				t.Errorf("%+v", l.Bans().List())
			}
		})
	})
}

// What other programs wrote on the board, later versions among them, is passed over where it is not
// understood.
func TestFactsThatAreOdd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := wallStore(t, memory.Options{})
		t.Cleanup(func() { _ = s.Close() })
		l := followers(t, s, 1, grantRules)[0]
		id := "\x00\x01\x02\x03\x04\x05\x06\x07key"
		for i, data := range []string{"", "null", "[]", "{", `{"v": 2, "domain": "default", "limit": "api"}`,
			`{"v": "1"}`, "\xff"} {
			for _, kind := range []string{"ban", "grant"} {
				if err := s.Post(t.Context(), kind, []store.Fact{{ID: fmt.Sprint(id, i), Data: []byte(data), TTL: time.Hour}}); err != nil {
					t.Fatal(err)
				}
			}
		}
		good := []byte(`{"v": 1, "domain": "default", "limit": "api", "key": ["user=\ufffd"], "reason": "` +
			strings.Repeat("x", 1000) + `", "allow": "{", "more": 1}`)
		for _, kind := range []string{"ban", "grant"} {
			facts := []store.Fact{{ID: "short", Data: good, TTL: time.Hour}, {ID: id, Data: good, TTL: time.Hour}}
			if err := s.Post(t.Context(), kind, facts); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		bans, grants := l.Bans().List(), l.Grants().List()
		if len(bans) != 1 || len(bans[0].Reason) != 256 || bans[0].Key[0] != "user=\ufffd" {
			t.Errorf("%+v", bans)
		}
		if len(grants) != 1 || grants[0].Problem == "" {
			t.Errorf("%+v", grants)
		}
		if err := s.Remove(t.Context(), "ban", []string{id, "short"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if bans := l.Bans().List(); len(bans) != 0 {
			t.Errorf("%+v", bans)
		}
	})
}

// A store that is no board shares nothing, and says so.
func TestFollowWithoutBoard(t *testing.T) {
	l, _ := banLimiter(t, newClock(), loginRules) // its store hides what it wraps
	if err := l.Follow(t.Context()); !errors.Is(err, store.ErrNoBoard) {
		t.Errorf("got %v", err)
	}
	<-l.Followed() // there is nothing to wait for
}

// slowBoard is a store whose board is not read before its gate opens.
type slowBoard struct {
	*memory.Store
	gates map[string]chan struct{} // by kind
}

func (s slowBoard) Watch(ctx context.Context, kind string, changed func(facts []store.Fact, anew bool)) error {
	select {
	case <-s.gates[kind]:
	case <-ctx.Done():
		return ctx.Err()
	}
	return s.Store.Watch(ctx, kind, changed)
}

// Who waits for Followed refuses banned keys from the first request on: it is closed when both
// kinds of facts are known, and not before.
func TestFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := wallStore(t, memory.Options{})
		defer store.Close()
		first, err := weir.New(store, weir.WithRules(load(t, loginRules)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := first.Bans().Set(t.Context(), "", "login", []string{"192.0.2.1"}, time.Now().Add(time.Hour), "by hand"); err != nil {
			t.Fatal(err)
		}
		if _, err := first.Grants().Set(t.Context(), "", "all", []string{"192.0.2.3"}, "5/min", time.Now().Add(time.Hour), ""); err != nil {
			t.Fatal(err)
		}
		slow := slowBoard{store, map[string]chan struct{}{"ban": make(chan struct{}), "grant": make(chan struct{})}}
		l, err := weir.New(slow, weir.WithRules(load(t, loginRules)))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		waiting := l.Followed()
		closed := func() bool {
			synctest.Wait()
			select {
			case <-waiting:
				return true
			default:
				return false
			}
		}
		go func() { done <- l.Follow(ctx) }()
		if closed() {
			t.Error("nothing has been read")
		}
		close(slow.gates["grant"])
		if closed() {
			t.Error("no bans have been read")
		}
		close(slow.gates["ban"])
		if !closed() {
			t.Error("all has been read")
		}
		if d := decide(t, l, from("192.0.2.1", "/login")); d.Allowed {
			t.Error("the banned key passed")
		}
		if n := admitted(t, l, from("192.0.2.3", "/"), 10); n != 5 {
			t.Errorf("%d admitted by the grant", n)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// The other nodes report of a ban the same end as the one that it came from: the limit's own
// refusal where that is longer.
func TestFollowTellsTheLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := wallStore(t, memory.Options{})
		t.Cleanup(func() { _ = store.Close() })
		nodes := followers(t, store, 2, strings.Replace(loginRules, "allow: 2/min", "allow: 2/hour", 1))
		denyUntilBanned(t, nodes[0], "192.0.2.1")
		synctest.Wait()
		for i, node := range nodes {
			if d := decide(t, node, from("192.0.2.1", "/login")); d.Banned.Rule == nil ||
				d.RetryAfter != time.Hour.Microseconds() {
				t.Errorf("node %d: %+v, retry after %d", i+1, d.Banned, d.RetryAfter)
			}
		}
	})
}
