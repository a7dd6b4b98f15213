package redis_test

import (
	"context"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/nodes"
	"github.com/weir-rl/weir/internal/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/redis"
	"github.com/weir-rl/weir/store/storetest"
)

// TestLeastPrivilege: a user with the permissions that docs/distributed.md lists can do all that a
// node does.
func TestLeastPrivilege(t *testing.T) {
	doc, err := os.ReadFile("../../docs/distributed.md")
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile("An ACL\\s+needs\\s+`([^`]+)`").FindSubmatch(doc)
	if list == nil {
		t.Fatal("docs/distributed.md does not say what an ACL needs")
	}
	server := redistest.Start(t)
	server.Do(append([]string{"ACL", "SETUSER", "weir", "on", ">secret", "~weir:*", "&weir:1opened", "&weir:1board", "&weir:1ask", "-@all"}, strings.Fields(string(list[1])+" +publish +subscribe +scan +role +dbsize +config|get")...)...)
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
			charges := []store.Charge{{Counter: c, Limit: limit, Key: []byte("k"), Ask: algo.Ask{Cost: cost, MaxDelay: -1}}}
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
	if logged.Len() > 0 {
		t.Errorf("logged: %s", logged.String())
	}
}

// askAll asks two nodes on the connection of a store.
func askAll(t *testing.T, s *redis.Store) {
	t.Helper()
	if names, err := s.NodeNames(t.Context()); err != nil || len(names) != 1 || names[0] != s.Name() {
		t.Errorf("the nodes are %q, %v", names, err)
	}
	listening, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	var asking *nodes.Nodes
	for _, name := range []string{"other", s.Name()} {
		n, err := nodes.New(nodes.Options{Client: s.Client, Prefix: redis.DefaultPrefix, Name: name, Alive: func() int { return 2 }})
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
