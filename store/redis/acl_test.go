package redis_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/admin/nodes"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/redis"
	"github.com/weir-rl/weir/store/storetest"
)

// TestLeastPrivilege: a user with the permissions that docs/operating/redis.md lists can do all
// that a node does.
func TestLeastPrivilege(t *testing.T) {
	redistest.NeedsFunctions(t)
	testLeastPrivilege(t, redistest.Start(t), false)
}

// testLeastPrivilege is TestLeastPrivilege on a server, which is older than Redis 7 or not.
func testLeastPrivilege(t *testing.T, server *redistest.Server, old bool) {
	t.Helper()
	doc, err := os.ReadFile("../../docs/operating/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile("An ACL\\s+needs\\s+`([^`]+)`").FindSubmatch(doc)
	if list == nil {
		t.Fatal("docs/operating/redis.md does not say what an ACL needs")
	}
	permissions := string(list[1])
	if old {
		row := regexp.MustCompile(`\| an ACL \|[^|]*\| (.*) in place of (.*) \|\n`).FindSubmatch(doc)
		if row == nil {
			t.Fatal("docs/operating/redis.md does not say what an ACL of Redis 6 needs")
		}
		names := regexp.MustCompile("`([^`]+)`")
		for _, name := range names.FindAllSubmatch(row[2], -1) {
			taken := strings.ReplaceAll(string(name[1]), `\|`, "|")
			if !slices.Contains(strings.Fields(permissions), taken) {
				t.Errorf("the list of Redis 7 has no %s", taken)
			}
			permissions = strings.Join(slices.DeleteFunc(strings.Fields(permissions),
				func(p string) bool { return p == taken }), " ")
		}
		for _, name := range names.FindAllSubmatch(row[1], -1) {
			permissions += " " + strings.ReplaceAll(string(name[1]), `\|`, "|")
		}
	}
	server.Do(append([]string{"ACL", "SETUSER", "weir", "on", ">secret", "~weir:*", "resetchannels", "&weir:1opened", "&weir:1board",
		"&weir:1ask", "-@all"}, strings.Fields(permissions+
		" +publish +subscribe +scan +role +dbsize +config|get")...)...)
	var logged strings.Builder
	s := open(t, redis.Options{
		URL: "redis://weir:secret@" + server.Addr(), RememberRefusals: 1e9, Heartbeat: 1e9,
		Logger: slog.New(logFunc(func(line string) { logged.WriteString(line) })),
	})
	if err := s.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	for id, cfg := range []algo.Config{
		{N: 3, Window: 60e9}, {N: 3, Window: 60e9, Buckets: 6}, {Algorithm: algo.SlidingLog, N: 3, Window: 60e9}, {Algorithm: algo.FixedWindow, N: 3, Window: 60e9},
		{Algorithm: algo.TokenBucket, N: 3, Window: 60e9}, {Algorithm: algo.LeakyBucket, N: 3, Window: 60e9}, {Algorithm: algo.Concurrency, N: 3},
		{N: 3, Window: 60e9, Soft: 50, SoftFor: 60e9}, {Algorithm: algo.SlidingLog, N: 3, Window: 60e9, Soft: 50, SoftFor: 60e9},
	} {
		limit, err := algo.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		c := &rule.Counter{ID: uint64(id + 1), Limit: limit}
		withMargin(c)
		for _, cost := range []int64{1, 1, 1, 1, 0, -1, 1, -3} {
			charges := []store.Charge{{Counter: c, Limit: limit, Key: []byte("k"),
				Ask: algo.Ask{Cost: cost, MaxDelay: -1}}}
			if _, err := s.Take(t.Context(), charges, make([]algo.Result, 1)); err != nil {
				t.Errorf("%v: %v", limit, err)
			}
			if slot := charges[0].Ask.Slot; slot != 0 {
				if ok, err := s.Release(t.Context(), c, []byte("k"), slot); !ok || err != nil {
					t.Errorf("Release: %v, %v", ok, err)
				}
			}
		}
		if _, _, err := storetest.Peek(t.Context(), s, c, []byte("k")); err != nil {
			t.Error(err)
		}
		v := &store.View{Counter: c, Limit: func([]byte) *algo.Limit { return limit }}
		if _, err := s.Scan(t.Context(), v, "", 1000, func(store.KeyState) {}); err != nil {
			t.Error(err)
		}
		if _, err := s.Reset(t.Context(), c, []byte("k")); err != nil {
			t.Error(err)
		}
	}
	for _, cfg := range leases() {
		for _, group := range []uint64{0, 1} {
			c := lending(t, cfg, group)
			h := algo.Ahead{Want: 5}
			borrow(t, s, c, "k", 1, &h)
			told := algo.Ahead{Told: [2]algo.Told{{End: h.Until, Used: 1, Returned: 1}}, Want: 2}
			borrow(t, s, c, "k", 1, &told)
			if _, err := s.Reset(t.Context(), c, []byte("k")); err != nil {
				t.Error(err)
			}
		}
	}
	if err := s.Hold(t.Context(), "id", []byte("note"), time.Microsecond); err != nil {
		t.Error(err)
	}
	eventually(t, "a reservation is over", func() bool {
		notes, err := s.Expired(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		return len(notes) == 1
	})
	if _, _, err := s.Claim(t.Context(), "id"); err != nil {
		t.Error(err)
	}
	if err := s.Hold(t.Context(), "id", []byte("note"), time.Hour); err != nil {
		t.Error(err)
	}
	if _, ok, err := s.Claim(t.Context(), "id"); !ok || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
	limit, err := algo.New(algo.Config{N: 3, Window: 60e9})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Settle(t.Context(), []store.Settlement{{Counter: &rule.Counter{ID: 100, Limit: limit}, Limit: limit, Key: []byte("k"), Reserved: 1, Actual: 3}}); err != nil {
		t.Error(err)
	}
	if err := s.Post(t.Context(), "ban", []store.Fact{{ID: "x", TTL: time.Hour}, {ID: "y", TTL: time.Nanosecond * 1000}}); err != nil {
		t.Error(err)
	}
	if err := s.Remove(t.Context(), "ban", []string{"x"}); err != nil {
		t.Error(err)
	}
	if !old {
		tellAndHear(t, s, s)
	}
	heard := make(chan struct{}, 10)
	watching, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Watch(watching, "ban", func([]store.Fact, bool) { heard <- struct{}{} }) }()
	<-heard
	cancel()
	<-ended
	askAll(t, s)
	if refused, err := server.Try("ACL", "LOG"); err != nil || len(refused.([]any)) > 0 {
		t.Errorf("ACL LOG: %v, %v", refused, err)
	}
	if text := logged.String(); text != "" && !(old && strings.Count(text, "redis store:") == 1 &&
		strings.Contains(text, "older than Redis 7")) {
		t.Errorf("logged: %s", text)
	}
}

// tellAndHear tells by one store, and reads it by another, which is charged with it.
func tellAndHear(t *testing.T, s, reader *redis.Store) {
	t.Helper()
	_, from, _, _, err := reader.Told(t.Context(), 0, "", 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	limit := mustLimit(t, algo.Config{N: 3, Window: 60e9})
	c := &rule.Counter{ID: 200, Limit: limit}
	if err := s.Tell(t.Context(), 0, []store.Told{{Counter: c.ID, Key: []byte("k"), Units: 2, At: 1}}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		told, next, gap, _, err := reader.Told(t.Context(), 0, from, 10, time.Hour)
		if err != nil || gap || len(told) != 1 {
			t.Fatalf("told %+v, gap %v, %v", told, gap, err)
		}
		if told, _, _, _, err := reader.Told(t.Context(), 0, next, 10, 2*time.Millisecond); err != nil ||
			len(told) != 0 {
			t.Fatalf("told %+v, %v", told, err)
		}
	}
	for _, cfg := range leases() {
		of := lending(t, cfg, 1)
		for _, units := range []int64{2, 100, -1} {
			at, err := s.Position(t.Context(), 0, "us")
			if err != nil {
				t.Fatal(err)
			}
			changes := []store.Change{{Counter: c, Limit: limit, Key: []byte("k"), Units: units},
				{Counter: of, Limit: of.Limit, Key: []byte("k"), Units: units}}
			if _, err := s.Change(t.Context(), 0, "us", at, at+"1", changes, make([]store.Changed, 2)); err != nil {
				t.Errorf("%v: %v", of.Limit, err)
			}
		}
	}
	for _, term := range []time.Duration{time.Second, 0} {
		if _, err := s.Lead(t.Context(), "hear", "a", term); err != nil {
			t.Error(err)
		}
	}
}

// TestPeersPrivilege: a user with the permissions that docs/operating/redis.md lists for other
// regions can read what this one used, and lease units of its limits, and little else.
func TestPeersPrivilege(t *testing.T) {
	redistest.NeedsFunctions(t)
	doc, err := os.ReadFile("../../docs/operating/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile(
		"units\\s+of\\s+its\\s+limits,\\s+needs\\s+`([^`]+)`\\s+on\\s+the\\s+keys\\s+`([^`]+)`,\\s+`([^`]+)`\\s+on\\s+the\\s+channel\\s+`([^`]+)`").FindSubmatch(doc)
	if list == nil {
		t.Fatal("docs/operating/redis.md does not say what a user for other regions needs")
	}
	server := redistest.Start(t)
	server.Do(append([]string{"ACL", "SETUSER", "weir-peer", "on", ">secret", "~" + string(list[2]), "resetchannels",
		"&" + string(list[4]), "-@all", string(list[3])}, strings.Fields(string(list[1]))...)...)
	own := open(t, redis.Options{URL: server.URL()})
	var logged strings.Builder
	peer := open(t, redis.Options{
		URL:    "redis://weir-peer:secret@" + server.Addr(),
		Logger: slog.New(logFunc(func(line string) { logged.WriteString(line) })),
	})
	if err := own.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := peer.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(logged.String(), "may not load functions") {
		t.Errorf("logged: %q", logged.String())
	}
	server.Do("ACL", "LOG", "RESET")
	tellAndHear(t, own, peer)
	seen := make(chan string, 10)
	watching, stop := context.WithCancel(t.Context())
	watched := make(chan error, 1)
	go func() {
		watched <- peer.Watch(watching, "ban", func(facts []store.Fact, _ bool) {
			for i := range facts {
				seen <- facts[i].ID
			}
		})
	}()
	if err := own.Post(t.Context(), "ban", []store.Fact{{ID: "x", TTL: time.Hour}}); err != nil {
		t.Fatal(err)
	}
	if id := patience.Receive(t, "a ban that the peer sees", seen); id != "x" {
		t.Errorf("the peer sees %q", id)
	}
	stop()
	if err := <-watched; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	server.Do("ACL", "LOG", "RESET") // the peer may have watched before the board was there
	var leased algo.Config
	for _, cfg := range leases() {
		leased = cfg
		for _, group := range []uint64{0, 1} {
			c := lending(t, cfg, group)
			h := algo.Ahead{Want: 5}
			borrow(t, peer, c, "k", 0, &h)
			told := algo.Ahead{Told: [2]algo.Told{{End: h.Until, Used: 1, Returned: 1}}, Want: 2}
			borrow(t, peer, c, "k", 1, &told)
		}
	}
	if refused, err := server.Try("ACL", "LOG"); err != nil || len(refused.([]any)) > 0 {
		t.Errorf("ACL LOG: %v, %v", refused, err)
	}
	if err := peer.Tell(t.Context(), 0, []store.Told{{Counter: 1, Units: 1}}); err == nil ||
		!strings.Contains(err.Error(), "NOPERM") {
		t.Errorf("a peer tells: %v", err)
	}
	if err := peer.Hold(t.Context(), "id", []byte("note"), time.Hour); err == nil {
		t.Error("a peer holds a reservation")
	}
	if err := peer.Post(t.Context(), "ban", []store.Fact{{ID: "x", TTL: time.Hour}}); err == nil {
		t.Error("a peer bans")
	}
	client, err := peer.Client()
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{
		"SET other:key x", "XADD weir:1told * t x", "XTRIM weir:1told MAXLEN 0", "XDEL weir:1told 1-1", "PUBLISH weir:1opened x", "KEYS *", "SCAN 0", "FLUSHALL",
		"CONFIG SET maxmemory 1", "FUNCTION FLUSH", "FUNCTION LOAD x", "HSET weir:1notes a b", "ZADD weir:1due 1 a", "ACL LIST", "EVAL return 0",
	} {
		words := strings.Fields(command)
		err := client.Do(t.Context(), client.B().Arbitrary(words...).Build()).Error()
		if err == nil || !strings.Contains(err.Error(), "NOPERM") && !strings.Contains(err.Error(), "ermission") {
			t.Errorf("a peer may do %s: %v", command, err)
		}
	}
	// Where no node of this build has loaded the functions, nothing is charged.
	server.Do("FUNCTION", "FLUSH")
	h := algo.Ahead{Want: 5}
	c := lending(t, leased, 1)
	charges := []store.Charge{{Counter: c, Limit: c.Limit, Key: []byte("k")}}
	if _, _, err := peer.TakeAhead(t.Context(), 0, 0, charges, []algo.Ahead{h}, make([]algo.Result, 1)); !errors.Is(err,
		store.ErrNotCharged) {
		t.Errorf("without functions: %v", err)
	}
	if _, _, _, _, err := peer.Told(t.Context(), 0, "", 1, 0); err != nil {
		t.Errorf("without functions nothing is heard: %v", err)
	}
}

// askAll asks two nodes on the connection of a store.
func askAll(t *testing.T, s *redis.Store) {
	t.Helper()
	eventually(t, "the node is registered", func() bool {
		names, err := s.NodeNames(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(names) == 1 && names[0] == s.Name()
	})
	listening, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	var asking *nodes.Nodes
	for _, name := range []string{"other", s.Name()} {
		n, err := nodes.New(nodes.Options{Client: s.Client, Prefix: redis.DefaultPrefix, Name: name,
			Alive: func() int { return 2 }})
		if err != nil {
			t.Fatal(err)
		}
		n.Handle("who", func(context.Context, []byte) ([]byte, error) { return []byte(name), nil })
		if name == "other" {
			go func() { defer close(ended); n.Listen(listening) }()
		}
		asking = n
	}
	eventually(t, "both answer", func() bool {
		tally, err := asking.Ask(t.Context(), "who", nil, func(nodes.Answer) {})
		return err == nil && tally.Answered == 2
	})
	stop()
	<-ended
}
