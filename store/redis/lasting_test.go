package redis_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/redis"
)

// TestLasting: an error that does not pass by itself says what to do about it: to a check, to a
// probe and to a decision.
func TestLasting(t *testing.T) {
	redistest.NeedsFunctions(t)
	t.Parallel()
	// A Redis that must run no code of others answers as one does that has no such command.
	bare := redistest.Start(t, `rename-command FUNCTION ""`, `rename-command FCALL ""`, `rename-command EVALSHA ""`)
	barest := redistest.Start(t, `rename-command FUNCTION ""`, `rename-command FCALL ""`, `rename-command SCRIPT ""`)
	server := redistest.Start(t)
	server.Do("ACL", "SETUSER", "calls", "on", ">p", "~weir:*", "&weir:*", "+function|load", "+fcall")
	server.Do("ACL", "SETUSER", "loads", "on", ">p", "~weir:*", "&weir:*", "+function|load")
	server.Do("CONFIG", "SET", "requirepass", "secret")
	at := func(user string) string { return "redis://" + user + "@" + server.Addr() }
	for name, test := range map[string]struct{ url, advice string }{
		"no EVALSHA":                  {bare.URL(), "neither functions"},
		"no SCRIPT":                   {barest.URL(), "neither functions"},
		"no password":                 {"redis://" + server.Addr(), "correct the user and the password"},
		"wrong password":              {at("calls:bad"), "correct the user and the password"},
		"may not call":                {at("loads:p"), "the permissions that docs/operating/redis.md lists"},
		"functions may do too little": {at("calls:p"), "the permissions that docs/operating/redis.md lists"},
		"no such database":            {at(":secret") + "/99", "databases"},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, redis.Options{URL: test.url})
			c := counterOf(t, algo.Config{Algorithm: algo.FixedWindow, N: 3, Window: 60e9})
			ask := map[string]func() error{
				"a decision": func() error {
					_, err := s.Take(t.Context(),
						[]store.Charge{{Counter: c, Limit: c.Limit, Key: []byte("k"), Ask: algo.Ask{Cost: 1}}},
						make([]algo.Result, 1))
					return err
				},
				"a check": func() error {
					return redis.Check(t.Context(), redis.Options{URL: test.url, Timeout: 30 * time.Second})
				},
			}
			if name != "functions may do too little" { // a probe reads
				ask["a probe"] = func() error { return s.PingPart(t.Context(), 0) }
			}
			for what, f := range ask {
				err := f()
				fault, ok := errors.AsType[*store.LastingError](err)
				if !ok || !strings.Contains(fault.Advice, test.advice) || strings.Contains(err.Error(), "#!lua") ||
					strings.Contains(fault.Advice, "secret") {
					t.Errorf("%s: %v", what, err)
				}
			}
		})
	}
	if err := redis.Check(t.Context(), redis.Options{URL: at(":secret")}); err != nil {
		t.Error(err)
	}
}

// TestWrongType: where another program has written what Weir keeps reservations in, that does not
// pass by itself either. (What lies where a counter should be is overwritten.)
func TestWrongType(t *testing.T) {
	redistest.NeedsFunctions(t)
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, redis.Options{URL: server.URL()})
	hold := func(id string) error { return s.Hold(t.Context(), id, []byte("note"), time.Hour) }
	if err := hold("A"); err != nil {
		t.Fatal(err)
	}
	keys, ok := server.Do("KEYS", "weir:*").([]any)
	if !ok || len(keys) == 0 {
		t.Fatalf("%v", keys)
	}
	for _, key := range keys {
		server.Do("SET", fmt.Sprint(key), "x")
	}
	if err := hold("B"); !strings.Contains(fmt.Sprint(err), "delete that key") {
		t.Errorf("%v", err)
	}
	for _, key := range keys {
		server.Do("DEL", fmt.Sprint(key))
	}
	if err := hold("C"); err != nil {
		t.Error(err)
	}
}
