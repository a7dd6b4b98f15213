package redis_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/fallback"
	"github.com/weir-rl/weir/store/memory"
	"github.com/weir-rl/weir/store/redis"
	"github.com/weir-rl/weir/store/storetest"
)

func TestBoard(t *testing.T) {
	server := redistest.Start(t)
	storetest.Board(t, func(t *testing.T, clock func() int64) store.Board {
		return open(t, redis.Options{URL: server.URL(), Clock: clock})
	})
}

func testBoardInCluster(t *testing.T, cluster *redistest.Cluster) {
	storetest.Board(t, func(t *testing.T, clock func() int64) store.Board {
		return open(t, redis.Options{URL: cluster.URL(), Clock: clock})
	})
}

// What the board holds takes no room in Redis once it is over.
func TestBoardLeavesNothing(t *testing.T) {
	redistest.NeedsFunctions(t) // it looks at the keys
	server := redistest.Start(t)
	s := open(t, redis.Options{URL: server.URL()})
	now := func() int64 {
		us, err := s.Time(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return us / 1000
	}
	before := now()
	if err := s.Post(t.Context(), "ban", []store.Fact{{ID: "x", TTL: time.Hour}, {ID: "y", TTL: 30 * time.Minute}}); err != nil {
		t.Fatal(err)
	}
	after := now()
	for _, key := range server.Do("KEYS", "*").([]any) {
		ends := server.Do("PEXPIRETIME", key.(string)).(int64)
		if ends < before+3600_000 || ends > after+3661_000 {
			t.Errorf("%s lasts for %d ms", key, ends-before)
		}
	}
}

const banRules = `
limits:
  - {name: login, when: {path: /login}, per: [ip], allow: 2/min, algorithm: sliding_log, ban: {after: 3, within: 10m, for: 15m}}
  - {name: api, per: [user], allow: 2/min, algorithm: sliding_log}
`

// banNode is a node over store that follows its board.
func banNode(t *testing.T, store store.Store) *weir.Limiter {
	t.Helper()
	set, _, err := file.Load([]file.Source{{Name: "test.yaml", Data: []byte(banRules)}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := weir.New(store, weir.WithRules(set))
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

func ask(t *testing.T, l *weir.Limiter, attributes weir.Map) *weir.Decision {
	t.Helper()
	d, err := l.Allow(t.Context(), weir.Request{Attributes: attributes})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func login(ip string) weir.Map { return weir.Map{"path": "/login", "ip": ip} }

func banned(t *testing.T, l *weir.Limiter, ip string) func() bool {
	return func() bool { return ask(t, l, login(ip)).Banned.Rule != nil }
}

// Denials on two nodes count together, and the ban holds on both; lifts and grants do, too, and a
// grant at once where refusals are remembered.
func TestBansOfNodes(t *testing.T) {
	server := redistest.Start(t)
	node := func() *weir.Limiter {
		return banNode(t, open(t, redis.Options{URL: server.URL(), RememberRefusals: time.Second}))
	}
	a, b := node(), node()
	ask(t, a, login("192.0.2.1"))
	ask(t, b, login("192.0.2.1"))
	ask(t, a, login("192.0.2.1"))
	ask(t, a, login("192.0.2.1"))
	ask(t, b, login("192.0.2.1"))
	eventually(t, "both nodes ban", func() bool { return banned(t, a, "192.0.2.1")() && banned(t, b, "192.0.2.1")() })
	// Both may have banned it by themselves, one later than the other: then the longer one holds.
	var x, y []weir.Ban
	eventually(t, "both say the same of the ban", func() bool {
		x, y = a.Bans().List(), b.Bans().List()
		return len(x) == 1 && len(y) == 1 && x[0].Until.Sub(y[0].Until).Abs() <= time.Second
	})
	if x[0].Reason != y[0].Reason {
		t.Errorf("%+v and %+v", x[0], y[0])
	}
	if _, err := b.Bans().Lift(t.Context(), "", "login", []string{"192.0.2.1"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the lift is heard", func() bool { return len(a.Bans().List()) == 0 })

	user := weir.Map{"user": "ada"}
	for range 5 {
		ask(t, a, user)
	}
	if _, err := b.Grants().Set(t.Context(), "", "api", []string{"ada"}, "9/min", time.Now().Add(time.Hour), ""); err != nil {
		t.Fatal(err)
	}
	if d := ask(t, b, user); !d.Allowed {
		t.Error("refused where the grant was made")
	}
	eventually(t, "the grant is heard", func() bool { return len(a.Grants().List()) == 1 })
	if d := ask(t, a, user); !d.Allowed || d.Limits[0].Limit != 9 {
		t.Errorf("%+v", d.Limits)
	}
}

// Messages can be lost: what changed is found by asking. And a Redis that has lost everything is
// told again.
func TestBoardWithoutMessages(t *testing.T) {
	redistest.NeedsFunctions(t)
	server := redistest.Start(t)
	server.Do("ACL", "SETUSER", "weir", "on", ">secret", "~*", "resetchannels", "+@all")
	url := "redis://weir:secret@" + server.Addr()
	quiet := slog.New(slog.DiscardHandler)
	a, b := banNode(t, open(t, redis.Options{URL: url, Logger: quiet})),
		banNode(t, open(t, redis.Options{URL: url, Logger: quiet}))
	set := func(ip string) {
		t.Helper()
		if _, err := a.Bans().Set(t.Context(), "", "login", []string{ip}, time.Now().Add(time.Hour), ""); err != nil {
			t.Fatal(err)
		}
	}
	set("192.0.2.1")
	eventually(t, "the other node asks", banned(t, b, "192.0.2.1"))
	server.Do("FLUSHALL")
	server.Do("FUNCTION", "FLUSH")
	c := banNode(t, open(t, redis.Options{URL: url, Logger: quiet}))
	eventually(t, "a node that knew of nothing hears what an emptied Redis was told again", banned(t, c, "192.0.2.1"))
}

// While Redis is away each node acts by its own knowledge, and informs the others when it is back.
func TestBansWithoutRedis(t *testing.T) {
	server := redistest.Start(t)
	node := func() *weir.Limiter {
		local, err := memory.New(memory.Options{})
		if err != nil {
			t.Fatal(err)
		}
		primary := open(t, redis.Options{URL: server.URL(), Logger: slog.New(slog.DiscardHandler),
			Timeout: time.Second})
		store, err := fallback.New(primary, fallback.Options{Local: local, Deadline: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = store.Close() })
		return banNode(t, store)
	}
	a, b := node(), node()
	if _, err := a.Bans().Set(t.Context(), "", "login", []string{"192.0.2.1"}, time.Now().Add(time.Hour), ""); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the ban is heard", banned(t, b, "192.0.2.1"))
	server.Stop()
	for range 8 {
		ask(t, a, login("192.0.2.2"))
	}
	eventually(t, "this node bans alone", banned(t, a, "192.0.2.2"))
	if !banned(t, b, "192.0.2.1")() {
		t.Error("a ban that was known has gone with Redis")
	}
	if _, err := b.Bans().Set(t.Context(), "", "login", []string{"192.0.2.3"}, time.Now().Add(time.Hour), ""); !errors.Is(err, weir.ErrNotShared) {
		t.Errorf("Ban: %v", err)
	}
	if _, err := b.Bans().Lift(t.Context(), "", "login", []string{"192.0.2.1"}); !errors.Is(err, weir.ErrNotShared) {
		t.Errorf("Unban: %v", err)
	}
	server.Restart() // it comes back empty
	eventually(t, "both know all", func() bool {
		for _, ip := range []string{"192.0.2.2", "192.0.2.3"} {
			if !banned(t, a, ip)() || !banned(t, b, ip)() {
				return false
			}
		}
		return true
	})
}

// An attack that this node refuses from memory costs Redis little: the denials of a key are counted
// in groups.
func TestDenialsCostLittle(t *testing.T) {
	server := redistest.Start(t)
	store := open(t, redis.Options{URL: server.URL(), RememberRefusals: time.Second})
	set, _, err := file.Load([]file.Source{{Name: "test.yaml", Data: []byte(`
limits: [{name: login, per: [ip], allow: 1/h, algorithm: sliding_log, ban: {after: 100000, within: 1h, for: 15m}}]`)}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := weir.New(store, weir.WithRules(set))
	if err != nil {
		t.Fatal(err)
	}
	const attacks = 20_000
	begun := time.Now()
	before := store.Stats().Calls
	for range attacks {
		ask(t, l, login("192.0.2.1"))
	}
	c := set.BanRules("default")[0].Ban.Counter
	key, err := set.BanRules("default")[0].Windows[0].AppendKey(nil, []string{"ip=192.0.2.1"})
	if err != nil {
		t.Fatal(err)
	}
	looks := uint64(0)
	eventually(t, "all denials are counted", func() bool {
		looks++
		info, ok, err := storetest.Peek(t.Context(), store, c, key)
		return err == nil && ok && info.Result.Limit-info.Result.Remaining == attacks-1
	})
	// One call each 50 ms, one a second for remembered refusals, and the test's own questions. That
	// may be more than little on a machine that is so slow that the attack takes long.
	took := time.Since(begun)
	if calls, most := store.Stats().Calls-before, uint64(took/(50*time.Millisecond)+took/time.Second+20)+looks; calls > max(most, attacks/20) {
		t.Errorf("%d calls for %d refusals in %v, expected about %d", calls, attacks, took, most)
	}
	if d := l.Bans().Stats().Dropped; d != 0 {
		t.Errorf("%d denials dropped", d)
	}
}
