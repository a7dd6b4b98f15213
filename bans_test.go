package weir_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

const loginRules = `
exempt: {user: [monitoring]}
limits:
  - name: login
    when: {path: /login}
    per: [ip]
    allow: 2/min
    algorithm: sliding_log
    ban: {after: 3, within: 10m, for: 15m}
  - name: all
    per: [ip]
    allow: 1000/min
    algorithm: sliding_log
`

// banLimiter is a limiter whose bans go by the store's clock, and the calls of Take on its store.
func banLimiter(t testing.TB, c *clock, yaml string, options ...weir.Option) (*weir.Limiter, *countingStore) {
	t.Helper()
	mem, err := memory.New(memory.Options{Clock: c.read})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mem.Close() })
	store := &countingStore{Store: mem}
	l, err := weir.New(store, append(options, weir.WithRules(load(t, yaml)), weir.WithClock(c.read))...)
	if err != nil {
		t.Fatal(err)
	}
	return l, store
}

func from(ip, path string) weir.Request {
	return weir.Request{Hits: 1, Attributes: weir.Pairs{{Name: "ip", Value: ip}, {Name: "path", Value: path}}}
}

// denyUntilBanned sends requests that the login rule denies, until it bans.
func denyUntilBanned(t testing.TB, l *weir.Limiter, ip string) {
	t.Helper()
	for i := range 5 {
		if d := decide(t, l, from(ip, "/login")); d.Allowed != (i < 2) || d.Banned.Rule != nil {
			t.Fatalf("request %d: allowed %v, banned %v", i, d.Allowed, d.Banned.Rule)
		}
	}
}

func TestBan(t *testing.T) {
	c := newClock()
	l, store := banLimiter(t, c, loginRules)
	denyUntilBanned(t, l, "192.0.2.1")
	until := c.read() + (15 * time.Minute).Microseconds()
	if got := l.Bans().List(); len(got) != 1 || got[0].Rule != "login" ||
		!slices.Equal(got[0].Key, []string{"ip=192.0.2.1"}) ||
		got[0].Until.UnixMicro() != until || got[0].Manual || got[0].Reason != "3 denials within 10m0s" {
		t.Fatalf("bans: %+v", got)
	}
	c.wait(5 * time.Minute) // the limit itself is free again
	before := store.takes.Load()
	d := decide(t, l, from("192.0.2.1", "/login"))
	left := (10 * time.Minute).Microseconds()
	if d.Allowed || d.Banned.Rule == nil || d.Banned.Rule.Name != "login" || d.Banned.Until != until ||
		d.RetryAfter != left || d.Delay != 0 {
		t.Fatalf("%+v", d)
	}
	if names := d.LimitedBy(nil); !slices.Equal(names, []string{"login"}) {
		t.Errorf("limited by %v", names)
	}
	near := d.Nearest()
	if near == nil || near.Window.Name != "login" || near.Allowed || near.Remaining != 0 || near.Limit != 2 ||
		near.RetryAfter != left || near.ResetAfter != left {
		t.Errorf("nearest: %+v", near)
	}
	if len(d.Limits) != len(d.Matches.Hits) {
		t.Errorf("%d limits, %d hits", len(d.Limits), len(d.Matches.Hits))
	}
	peek := from("192.0.2.1", "/login")
	peek.Peek = true
	if d := decide(t, l, peek); d.Allowed || d.Banned.Rule == nil {
		t.Error("a peek was not told of the ban")
	}
	if got := store.takes.Load(); got != before {
		t.Errorf("the store was asked %d times about a banned key", got-before)
	}
	refund := from("192.0.2.1", "/login")
	refund.Hits = -1
	if d := decide(t, l, refund); !d.Allowed {
		t.Error("a refund was refused")
	}
	// Elsewhere the key is free, and so are other keys, and an exempt request.
	if d := decide(t, l, from("192.0.2.1", "/")); !d.Allowed {
		t.Error("refused where the rule does not apply")
	}
	if d := decide(t, l, from("192.0.2.2", "/login")); !d.Allowed {
		t.Error("another key was refused")
	}
	exempt := from("192.0.2.1", "/login")
	exempt.Attributes = append(exempt.Attributes.(weir.Pairs), rule.Pair{Name: "user", Value: "monitoring"})
	if d := decide(t, l, exempt); !d.Allowed || !d.Exempt {
		t.Error("an exempt request was refused")
	}
	// It ends to the microsecond, and refusals did not extend it.
	c.set(until - 1)
	if d := decide(t, l, from("192.0.2.1", "/login")); d.Allowed || d.RetryAfter != 1 {
		t.Errorf("a microsecond before the end: allowed %v, retry after %d", d.Allowed, d.RetryAfter)
	}
	c.now.Add(1)
	if d := decide(t, l, from("192.0.2.1", "/login")); !d.Allowed || d.Banned.Rule != nil {
		t.Error("still refused at the end")
	}
	if s := l.Bans().Stats(); s.Set != 1 || s.Requests != 3 || len(s.InForce) != 0 || s.Dropped != 0 {
		t.Errorf("%+v", s)
	}
}

// What the limit of another rule denies, peeks and refunds count nothing; a decision counts once,
// however many windows deny.
func TestWhatCountsAsDenial(t *testing.T) {
	c := newClock()
	l, _ := banLimiter(t, c, `
limits:
  - {name: two, per: [ip], allow: [1/min, 1/hour], algorithm: sliding_log, ban: {after: 3, within: 10m, for: 15m}}
  - {name: other, per: [user], allow: 0/min, ban: {after: 3, within: 10m, for: 15m}}
  - {name: dark, per: [ip], allow: 0/min, on_limit: shadow}
  - {name: some, per: [ip], allow: 0/min, enforce: 0%, ban: {after: 1, within: 10m, for: 15m}}
`)
	ask := func(hits int64, user string) *weir.Decision {
		r := weir.Request{Hits: hits, Peek: hits == 0, Attributes: weir.Pairs{{Name: "ip", Value: "192.0.2.1"}}}
		if user != "" {
			r.Attributes = append(r.Attributes.(weir.Pairs), rule.Pair{Name: "user", Value: user})
		}
		return decide(t, l, r)
	}
	for range 3 {
		if d := ask(1, "ada"); d.Allowed {
			t.Fatal("admitted")
		}
	}
	if got := l.Bans().List(); len(got) != 1 || got[0].Rule != "other" {
		t.Fatalf("the denials of one rule counted for another: %+v", got)
	}
	if d := ask(1, ""); !d.Allowed {
		t.Fatal("the rule that did not deny was charged")
	}
	for range 2 {
		ask(1, "") // both windows deny
	}
	for range 5 {
		ask(0, "")
		ask(-1, "nobody")
	}
	if n := len(l.Bans().List()); n != 1 {
		t.Fatalf("%d bans after two denials, peeks and refunds", n)
	}
	ask(2, "") // more than the limit ever admits is a denial, too
	if n := len(l.Bans().List()); n != 2 {
		t.Fatalf("%d bans after three denials", n)
	}
}

// A ban of the whole domain holds wherever the request brings the key, met by a rule or not.
func TestBanOfDomain(t *testing.T) {
	c := newClock()
	l, store := banLimiter(t, c, `
limits:
  - {name: login, when: {path: /login}, per: [ip], allow: 1/min, algorithm: sliding_log, ban: {after: 1, within: 1m, for: 1h, scope: domain}}
  - {name: api, when: {path: /api}, per: [user], allow: 5/min}
`)
	decide(t, l, from("2001:db8::1", "/login"))
	decide(t, l, from("2001:db8::1", "/login"))
	before := store.takes.Load()
	for _, path := range []string{"/login", "/api", "/"} {
		d := decide(t, l, from("2001:db8::77", path)) // of the same /64
		if d.Allowed || d.Banned.Rule == nil || !slices.Equal(d.LimitedBy(nil), []string{"login"}) ||
			d.Nearest() == nil || len(d.Limits) != 1 || len(d.Matches.Hits) != 1 {
			t.Errorf("%s: %+v", path, d)
		}
	}
	if store.takes.Load() != before {
		t.Error("the store was asked")
	}
	if d := decide(t, l, from("2001:db8:0:1::1", "/")); !d.Allowed {
		t.Error("the next network was refused")
	}
	if d := decide(t, l, weir.Request{Hits: 1, Attributes: weir.Pairs{{Name: "path", Value: "/"}}}); !d.Allowed {
		t.Error("a request without the key was refused")
	}
	if _, err := l.Bans().Lift(t.Context(), "", "login", []string{"2001:db8::5"}); err != nil {
		t.Fatal(err)
	}
	if d := decide(t, l, from("2001:db8::77", "/")); !d.Allowed {
		t.Error("refused after the ban was lifted")
	}
}

// On the RLS door a ban is the status of its descriptor, and of no other.
func TestBanOfDescriptor(t *testing.T) {
	c := newClock()
	l, _ := banLimiter(t, c, `
domain: d
descriptors:
  - {key: free, rate_limit: {unit: minute, requests_per_unit: 100}}
  - {key: ip, rate_limit: {unit: minute, requests_per_unit: 1, ban: {after: 2, within: 10m, for: 15m}}}
`)
	r := weir.Request{Domain: "d", Hits: 1, Descriptors: []rule.Descriptor{
		{Entries: []rule.Entry{{Key: "free", Value: "x"}}}, {Entries: []rule.Entry{{Key: "ip", Value: "192.0.2.1"}}},
	}}
	for range 3 {
		if d := decide(t, l, r); d.Banned.Rule != nil {
			t.Fatal("banned too soon")
		}
	}
	d := decide(t, l, r)
	if d.Allowed || d.Banned.Rule == nil || len(d.Limits) != 1 || d.Limits[0].Descriptor != 1 {
		t.Fatalf("%+v", d.Limits)
	}
	if m := d.Matches.Descriptors; m[0].Hit != -1 || m[0].Unlimited || m[1].Hit != 0 {
		t.Errorf("%+v", m)
	}
	refund := r
	refund.Descriptors = slices.Clone(r.Descriptors)
	refund.Descriptors[1].HasHits, refund.Descriptors[1].Hits = true, -1
	if d := decide(t, l, refund); !d.Allowed {
		t.Error("a descriptor's refund was refused")
	}
}

func TestSetAndLift(t *testing.T) {
	c := newClock()
	var changes []string
	l, _ := banLimiter(t, c, loginRules, weir.WithBans(weir.BanOptions{Changed: func(b *weir.Ban, lifted bool) {
		changes = append(changes, fmt.Sprintf("%s %v %v", b.Rule, b.Key, lifted))
	}}))
	end := time.UnixMicro(c.read()).Add(time.Hour)
	for name, try := range map[string]struct {
		domain, limit string
		key           []string
		until         time.Time
	}{
		"no such domain":  {"other", "login", []string{"192.0.2.1"}, end},
		"no such limit":   {"", "logins", []string{"192.0.2.1"}, end},
		"too many parts":  {"", "login", []string{"192.0.2.1", "x"}, end},
		"too few parts":   {"", "login", nil, end},
		"over already":    {"", "login", []string{"192.0.2.1"}, time.UnixMicro(c.read())},
		"some other name": {"", "login", []string{"user=ada", "x"}, end},
	} {
		if _, err := l.Bans().Set(t.Context(), try.domain, try.limit, try.key, try.until, ""); err == nil ||
			!strings.HasPrefix(err.Error(), "weir: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A rule without a ban of its own can be banned from by hand.
	b, err := l.Bans().Set(t.Context(), "default", "all", []string{"ip=192.0.2.1"}, end, strings.Repeat("é", 200))
	if err != nil || !b.Manual || len(b.Reason) != 256 || b.Until != end {
		t.Fatalf("%+v, %v", b, err)
	}
	if d := decide(t, l, from("192.0.2.1", "/x")); d.Allowed || !slices.Equal(d.LimitedBy(nil), []string{"all"}) {
		t.Error("not refused")
	}
	if _, err := l.Bans().Lift(t.Context(), "", "all", []string{"192.0.2.2"}); !errors.Is(err, weir.ErrNotFound) {
		t.Error(err)
	}
	if _, err := l.Bans().Lift(t.Context(), "", "all", []string{"192.0.2.1"}); err != nil {
		t.Fatal(err)
	}
	if d := decide(t, l, from("192.0.2.1", "/x")); !d.Allowed {
		t.Error("refused after the ban was lifted")
	}
	// Who was lifted begins afresh: one denial is not the third.
	denyUntilBanned(t, l, "192.0.2.3")
	if _, err := l.Bans().Lift(t.Context(), "", "login", []string{"192.0.2.3"}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if d := decide(t, l, from("192.0.2.3", "/login")); d.Allowed || d.Banned.Rule != nil {
			t.Fatalf("%+v", d)
		}
	}
	if len(l.Bans().List()) != 0 {
		t.Error("the denials from before the lift still count")
	}
	decide(t, l, from("192.0.2.3", "/login"))
	if len(l.Bans().List()) != 1 {
		t.Error("three denials after the lift do not ban")
	}
	want := []string{"all [ip=192.0.2.1] false", "all [ip=192.0.2.1] true", "login [ip=192.0.2.3] false",
		"login [ip=192.0.2.3] true", "login [ip=192.0.2.3] false"}
	if !slices.Equal(changes, want) {
		t.Errorf("told of %q", changes)
	}
}

// A reload keeps bans; a rule that is gone bans nobody.
func TestBanOverReload(t *testing.T) {
	c := newClock()
	l, _ := banLimiter(t, c, loginRules)
	denyUntilBanned(t, l, "192.0.2.1")
	l.SetRules(load(t, strings.Replace(loginRules, "allow: 2/min", "allow: 50/hour", 1)))
	if d := decide(t, l, from("192.0.2.1", "/login")); d.Allowed {
		t.Error("a reload lifted the ban")
	}
	l.SetRules(load(t, "limits: [{name: all, per: [ip], allow: 1000/min}]"))
	if d := decide(t, l, from("192.0.2.1", "/login")); !d.Allowed {
		t.Error("a rule that is gone bans")
	}
	if len(l.Bans().List()) != 1 {
		t.Error("the ban is not listed")
	}
	l.SetRules(load(t, loginRules))
	if d := decide(t, l, from("192.0.2.1", "/login")); d.Allowed {
		t.Error("the ban is gone")
	}
}

// The table is bounded: what ends first goes.
func TestBansAreBounded(t *testing.T) {
	c := newClock()
	l, _ := banLimiter(t, c, loginRules, weir.WithBans(weir.BanOptions{Max: 100}))
	for i := range 300 {
		// each of 1 to 300 once
		end := time.UnixMicro(c.read()).Add(time.Duration(1+(i*7919)%300) * time.Minute)
		if _, err := l.Bans().Set(t.Context(), "", "login", []string{fmt.Sprintf("10.0.%d.%d", i/256, i%256)}, end, ""); err != nil {
			t.Fatal(err)
		}
	}
	list := l.Bans().List()
	if len(list) != 100 {
		t.Fatalf("%d bans", len(list))
	}
	for _, b := range list {
		if b.Until.Before(time.UnixMicro(c.read()).Add(201 * time.Minute)) {
			t.Errorf("one that ends at %v was kept", b.Until)
		}
	}
	if s := l.Bans().Stats(); s.Evicted != 200 || s.InForce[weir.RuleName{Domain: "default", Name: "login"}] != 100 {
		t.Errorf("%+v", s)
	}
	if _, err := weir.New(memoryStore(t), weir.WithBans(weir.BanOptions{Max: -1})); err == nil {
		t.Error("a negative bound was taken")
	}
	if _, err := weir.New(memoryStore(t), weir.WithClock(nil)); err == nil {
		t.Error("no clock was taken for one")
	}
}

func memoryStore(t testing.TB) store.Store {
	store, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}

// TestBansAgainstModel holds the limiter against a model that keeps all instants.
func TestBansAgainstModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		after := rapid.Int64Range(1, 5).Draw(rt, "after")
		within := rapid.Int64Range(1, 120).Draw(rt, "within")
		length := rapid.Int64Range(1, 200).Draw(rt, "for")
		c := newClock()
		l, _ := banLimiter(t, c, fmt.Sprintf(`
limits: [{name: x, per: [ip], allow: 2/10s, algorithm: sliding_log, ban: {after: %d, within: %ds, for: %ds}}]`, after, within, length))
		type model struct {
			admitted, denied []int64
			until            int64
			rest             int64 // until when the limit itself refused as the ban began
		}
		keys := map[string]*model{"192.0.2.1": {}, "192.0.2.2": {}, "2001:db8::": {}}
		recent := func(list []int64, span int64) int64 {
			n := int64(0)
			for _, at := range list {
				if at > c.read()-span*1e6 {
					n++
				}
			}
			return n
		}
		for range rapid.IntRange(1, 120).Draw(rt, "requests") {
			c.now.Add(rapid.SampledFrom([]int64{0, 1, 999_999, 1e6, 2e6, 5e6, 30e6}).Draw(rt, "wait"))
			ip := rapid.SampledFrom([]string{"192.0.2.1", "192.0.2.2", "2001:db8::"}).Draw(rt, "ip")
			hits := rapid.SampledFrom([]int64{1, 1, 1, 0}).Draw(rt, "hits")
			m := keys[ip]
			banned, allowed := m.until > c.read(), false
			used := recent(m.admitted, 10)
			switch {
			case banned:
			case hits == 0:
				allowed = true // used never exceeds the limit
			case used < 2:
				allowed = true
				m.admitted = append(m.admitted, c.read())
			default:
				// A full log takes no more, so that a key that is denied again after a short ban is
				// banned again at once.
				n := recent(m.denied, within)
				if n < after {
					m.denied = append(m.denied, c.read())
				}
				if n+1 >= after {
					m.until = c.read() + length*1e6
					m.rest = m.admitted[len(m.admitted)-2] + 10e6
				}
			}
			r := from(ip, "/")
			r.Hits, r.Peek = hits, hits == 0
			d := decide(t, l, r)
			if d.Allowed != allowed || (d.Banned.Rule != nil) != banned {
				rt.Fatalf("at %d: allowed %v, banned %v; want %v, %v", c.read(), d.Allowed, d.Banned.Rule != nil,
					allowed, banned)
			}
			if banned && (d.RetryAfter != max(m.until, m.rest)-c.read() || d.Banned.Until != m.until) {
				rt.Fatalf("retry after %d, want %d", d.RetryAfter, max(m.until, m.rest)-c.read())
			}
		}
	})
}

// batchStore notes the costs of all charges of denials.
type batchStore struct {
	store.Store
	fail atomic.Bool

	mu    sync.Mutex
	costs [][]int64
}

func (s *batchStore) Take(ctx context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	if charges[0].Counter.Index < 0 { // of a ban
		var costs []int64
		for i := range charges {
			costs = append(costs, charges[i].Ask.Cost)
		}
		s.mu.Lock()
		s.costs = append(s.costs, costs)
		s.mu.Unlock()
		if s.fail.Load() {
			return 0, errors.New("away")
		}
	}
	return s.Store.Take(ctx, charges, results)
}

func (s *batchStore) counted() [][]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.costs)
}

// In the background the denials of a key leave as one charge, at most each 50 ms; the queue is
// bounded.
func TestDenialsInBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem, err := memory.New(memory.Options{Clock: func() int64 { return time.Now().UnixMicro() }})
		if err != nil {
			t.Fatal(err)
		}
		defer mem.Close()
		store := &batchStore{Store: mem}
		l, err := weir.New(store, weir.WithRules(load(t, strings.Replace(loginRules, "after: 3", "after: 100", 1))),
			weir.WithBans(weir.BanOptions{Async: true, Pending: 2}))
		if err != nil {
			t.Fatal(err)
		}
		for range 60 {
			decide(t, l, from("192.0.2.1", "/login"))
			decide(t, l, from("192.0.2.2", "/login"))
		}
		for range 3 {
			decide(t, l, from("192.0.2.3", "/login"))
		}
		if len(store.counted()) != 0 {
			t.Fatal("counted before the answer")
		}
		time.Sleep(50 * time.Millisecond)
		synctest.Wait()
		if got := store.counted(); len(got) != 1 || !slices.Equal(got[0], []int64{58, 58}) {
			t.Fatalf("counted %v", got)
		}
		if s := l.Bans().Stats(); s.Dropped != 1 || len(s.InForce) != 0 {
			t.Errorf("%+v", s)
		}
		for range 42 {
			decide(t, l, from("192.0.2.1", "/login"))
		}
		for range 200 { // more than can be charged
			decide(t, l, from("192.0.2.2", "/login"))
		}
		time.Sleep(50 * time.Millisecond)
		synctest.Wait()
		if n := len(l.Bans().List()); n != 2 {
			t.Fatalf("%d bans: 100 denials, and far more, in two parts", n)
		}
		if d := decide(t, l, from("192.0.2.1", "/login")); d.Banned.Rule == nil {
			t.Error("not banned")
		}
		store.fail.Store(true)
		for range 4 {
			decide(t, l, from("192.0.2.9", "/login"))
		}
		time.Sleep(time.Second)
		if s := l.Bans().Stats(); s.Dropped != 3 {
			t.Errorf("%d denials dropped, want 3: those of the store that failed", s.Dropped)
		}
		// Nothing goes on where nothing waits: else synctest would not end.
	})
}

// Who obeys Retry-After of a ban is not refused again by the limit that banned: the longer of the
// two is told.
func TestBanTellsTheLonger(t *testing.T) {
	for name, async := range map[string]bool{"at once": false, "in the background": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				wall := func() int64 { return time.Now().UnixMicro() } // the bubble's
				store, err := memory.New(memory.Options{Clock: wall})
				if err != nil {
					t.Fatal(err)
				}
				defer store.Close()
				l, err := weir.New(store, weir.WithClock(wall), weir.WithBans(weir.BanOptions{Async: async}), weir.WithRules(load(t, `limits:
  - {name: hourly, per: [ip], allow: 2/hour, algorithm: sliding_log, ban: {after: 3, within: 10m, for: 15m}}`)))
				if err != nil {
					t.Fatal(err)
				}
				for range 5 {
					decide(t, l, from("192.0.2.1", "/"))
					time.Sleep(time.Second)
				}
				time.Sleep(time.Second) // by which the background has counted
				d := decide(t, l, from("192.0.2.1", "/"))
				if d.Banned.Rule == nil {
					t.Fatal("not banned")
				}
				if got, want := d.RetryAfter, (time.Hour - 6*time.Second).Microseconds(); got != want ||
					d.Limits[0].RetryAfter != want {
					t.Fatalf("retry after %s, of the limit %s, want %s", time.Duration(got)*time.Microsecond,
						time.Duration(d.Limits[0].RetryAfter)*time.Microsecond, time.Duration(want)*time.Microsecond)
				}
				time.Sleep(time.Duration(d.RetryAfter) * time.Microsecond)
				if !decide(t, l, from("192.0.2.1", "/")).Allowed {
					t.Fatal("refused at retry_after")
				}
			})
		})
	}
}

// stuckBoard is a store whose board does not answer.
type stuckBoard struct{ *memory.Store }

func (stuckBoard) Post(ctx context.Context, _ string, _ []store.Fact) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestNobodyWaitsForAnother: an operator who gives up is answered, also while another one waits for
// the board.
func TestNobodyWaitsForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := wallStore(t, memory.Options{})
		defer m.Close()
		l, err := weir.New(stuckBoard{m}, weir.WithRules(load(t, loginRules)))
		if err != nil {
			t.Fatal(err)
		}
		set := func(ctx context.Context, ip string) {
			_, err := l.Bans().Set(ctx, "", "login", []string{ip}, time.Now().Add(time.Hour), "")
			if !errors.Is(err, weir.ErrNotShared) {
				t.Errorf("%s: %v", ip, err)
			}
		}
		var first sync.WaitGroup
		first.Go(func() { set(t.Context(), "192.0.2.1") })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		began := time.Now()
		set(ctx, "192.0.2.2")
		if took := time.Since(began); took != 100*time.Millisecond {
			t.Errorf("answered after %v", took)
		}
		first.Wait()
	})
}
