package redis_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/redis"
	"github.com/weir-rl/weir/store/storetest"
)

// TestRegional: Redis tells and hears as the pure algorithms do.
func TestRegional(t *testing.T) {
	redistest.NeedsFunctions(t)
	server := redistest.Start(t)
	storetest.Regional(t, emptied(redis.Options{URL: server.URL()}, server))
}

func testRegionalInCluster(t *testing.T, cluster *redistest.Cluster) {
	storetest.Regional(t, emptied(redis.Options{URL: cluster.URL()}, cluster.Nodes()...))
}

// made is one call of Change that must not fail.
func made(t testing.TB, s *redis.Store, changes ...store.Change) ([]store.Changed, int64) {
	t.Helper()
	done := make([]store.Changed, len(changes))
	now, err := s.Change(t.Context(), 0, "", "", "", changes, done)
	if err != nil {
		t.Fatal(err)
	}
	return done, now
}

// TestChangeExpiry: a state that was changed goes when it makes no difference any more, no sooner,
// and without leases hardly later: the same as a state that was charged.
func TestChangeExpiry(t *testing.T) {
	redistest.NeedsFunctions(t) // it looks at the keys
	server := redistest.Start(t)
	configs := map[string]algo.Config{}
	for name, cfg := range leases() {
		configs[name+", leased"] = cfg
	}
	for _, shape := range shapes {
		if a := shape.c.Algorithm; a != algo.Concurrency && a != algo.LeakyBucket {
			configs[shape.name] = shape.c
		}
	}
	// Its states are fresh again long before what is out of it ends.
	configs["fast bucket, leased"] = algo.Config{Algorithm: algo.TokenBucket, N: 100, Window: 10 * time.Second,
		Lease: 10, LeaseFor: algo.MaxLeaseFor}
	n := 0
	for name, cfg := range configs {
		for _, group := range []uint64{0, rand.Uint64()} {
			t.Run(fmt.Sprint(name, " ", group > 0), func(t *testing.T) {
				n++
				prefix := fmt.Sprintf("change%d:", n)
				s := open(t, redis.Options{URL: server.URL(), Prefix: prefix})
				c := &rule.Counter{ID: rand.Uint64(), Group: group, Domain: "test", Limit: mustLimit(t, cfg)}
				l := c.Limit
				if l.Lease() != nil {
					c = lending(t, cfg, group)
					l = c.Limit
				}
				var st, record algo.State
				for step, units := range []int64{2, 1, -1, 1000, -2000, 3, -1} {
					if l.Lease() != nil && step == 4 {
						continue // a bucket would be fresh, and of no interest
					}
					if l.Lease() != nil && step%3 == 0 {
						h := algo.Ahead{Want: 5}
						_, now := borrow(t, s, c, "k", 0, &h)
						l.TakeAhead(&st, &record, now, algo.Ask{}, &algo.Ahead{Want: 5})
					}
					change := store.Change{Counter: c, Limit: l, Key: []byte("k"), Units: units}
					_, now := made(t, s, change)
					change.Apply(&st, &record, now)
					out := l.LentAt(&record, now)
					all, empty, at := st, record, now
					all.Ext = append([]byte(nil), st.Ext...)
					if out.Out() > 0 {
						at = out.Last
						l.Roll(&all, &empty, at)
					}
					fresh := int64(0)
					if all.B != 0 && !l.Fresh(&all, at) {
						fresh = at + l.Check(&all, at, algo.Ask{}).ResetAfter
					}
					keys, _ := server.Do("KEYS", prefix+"*").([]any)
					first, last := int64(1<<62), int64(0)
					for _, key := range keys {
						at := server.Do("PEXPIRETIME", key.(string)).(int64) * 1000
						first, last = min(first, at), max(last, at)
					}
					if cfg.Algorithm == algo.TokenBucket && out.Out() > 0 && first < out.Last {
						t.Errorf("step %d: a state goes %d µs before the last of what is out ends", step,
							out.Last-first)
					}
					if last < fresh {
						t.Errorf("step %d: it goes %d µs before it is fresh", step, fresh-last)
					}
					if l.Lease() == nil && last > fresh+2000 && units > 0 {
						t.Errorf("step %d: it goes %v after it is fresh", step,
							time.Duration(last-fresh)*time.Microsecond)
					}
					if fresh == 0 && len(keys) > 0 {
						t.Errorf("step %d: %d keys of a fresh state", step, len(keys))
					}
				}
			})
		}
	}
}

// TestChangeKeepsNeighbours: a change of one state leaves those that lie in the same value, for as
// long as they were to be kept.
func TestChangeKeepsNeighbours(t *testing.T) {
	redistest.NeedsFunctions(t) // it looks at the keys
	server := redistest.Start(t)
	s := open(t, redis.Options{URL: server.URL()})
	long, short := counterOf(t, algo.Config{Algorithm: algo.FixedWindow, N: 9, Window: algo.MaxWindow,
		FirstRequest: true}), counterOf(t, algo.Config{Algorithm: algo.TokenBucket, N: 9, Window: 10 * time.Second})
	long.Group, short.Group = 77, 77
	change := func(c *rule.Counter, units int64) store.Change {
		return store.Change{Counter: c, Limit: c.Limit, Key: []byte("k"), Units: units}
	}
	for _, calls := range [][]store.Change{{change(long, 3)}, {change(short, 2)}, {change(short, -1)},
		{change(short, 1), change(long, 1)}, {change(short, -9)}, {change(long, 1), change(short, 1)}} {
		_, now := made(t, s, calls...)
		keys := server.Do("KEYS", "*").([]any)
		if len(keys) != 1 {
			t.Fatalf("%q", keys)
		}
		if left := server.Do("PEXPIRETIME", keys[0].(string)).(int64)*1000 - now; left < (algo.MaxWindow - time.Hour).Microseconds() {
			t.Errorf("after %+v it is kept for %v", calls, time.Duration(left)*time.Microsecond)
		}
	}
	if r, _ := take(t, s, charge(long, "k", 0)); r[0].Remaining != 4 {
		t.Errorf("%+v, want 4 remaining", r)
	}
}

// TestChangeEndsRefusals: what is given back ends remembered refusals, here and on other nodes.
func TestChangeEndsRefusals(t *testing.T) {
	server := redistest.Start(t)
	s, other := open(t, redis.Options{URL: server.URL(), RememberRefusals: time.Hour}),
		open(t, redis.Options{URL: server.URL(), RememberRefusals: time.Hour})
	c := counterOf(t, algo.Config{Algorithm: algo.FixedWindow, N: 3, Window: algo.MaxWindow, FirstRequest: true})
	made(t, s, store.Change{Counter: c, Limit: c.Limit, Key: []byte("k"), Units: 3})
	refused(t, s, charge(c, "k", 1))
	refused(t, other, charge(c, "k", 1))
	made(t, s, store.Change{Counter: c, Limit: c.Limit, Key: []byte("k"), Units: -2})
	if r, _ := take(t, s, charge(c, "k", 1)); !r[0].Allowed {
		t.Errorf("where it was given back: %+v", r)
	}
	eventually(t, "another node learns of it", func() bool {
		r, _ := take(t, other, charge(c, "k", 1))
		return r[0].Allowed
	})
}

// TestWaitingHoldsUpNothing: decisions are made while readers of the log wait.
func TestWaitingHoldsUpNothing(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, redis.Options{URL: server.URL()})
	_, end, _, _, err := s.Told(t.Context(), 0, "", 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	const readers = 20
	ended := make(chan error, readers)
	for range readers {
		go func() {
			_, _, _, _, err := s.Told(ctx, 0, end, 1, time.Hour)
			ended <- err
		}()
	}
	eventually(t, "all wait", func() bool { return server.Info("blocked_clients") == fmt.Sprint(readers) })
	c := counterOf(t, algo.Config{N: 1000, Window: time.Hour})
	for range 100 {
		take(t, s, charge(c, "k", 1))
		made(t, s, store.Change{Counter: c, Limit: c.Limit, Key: []byte("k"), Units: 1})
		if _, err := s.Time(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := server.Info("blocked_clients"); n != fmt.Sprint(readers) {
		t.Errorf("%s readers wait", n)
	}
	cancel()
	for range readers {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("a reader that was given up: %v", err)
		}
	}
	// Close ends those that wait.
	go func() {
		_, _, _, _, err := s.Told(context.Background(), 0, end, 1, time.Hour)
		ended <- err
	}()
	eventually(t, "it waits", func() bool { return server.Info("blocked_clients") != "0" })
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("a reader goes on after Close")
	}
}

// TestReaderConnectsAnew: a reader of the log whose connection is forgotten on the way, so that
// nothing arrives on it any more, has another one with its next call.
func TestReaderConnectsAnew(t *testing.T) {
	server := redistest.Start(t)
	link := redistest.Proxy(t, server.Addr())
	s := open(t, redis.Options{URL: "redis://" + link.Addr(), Timeout: 500 * time.Millisecond})
	var end string
	eventually(t, "the end of the log is known", func() (ok bool) {
		var err error
		_, end, _, _, err = s.Told(t.Context(), 0, "", 1, 0)
		return err == nil
	})
	read := func() error {
		_, _, _, _, err := s.Told(t.Context(), 0, end, 1, time.Millisecond)
		return err
	}
	// On a busy machine the next call may be late too. A connection is found dead after some
	// seconds anyway, which is not meant here.
	eventually(t, "the call after one that was given up is answered", func() bool {
		eventually(t, "a call is answered", func() bool { return read() == nil })
		link.Delay(24 * time.Hour)
		err := read()
		link.Pass() // what is on its way stays there
		if err == nil {
			t.Fatal("an answer came that is on its way for a day")
		}
		return read() == nil
	})
}

// TestLogIsLost: a server that forgot its log shows a gap, and reading goes on with later entries.
// The position up to which it was heard is forgotten with the states.
func TestLogIsLost(t *testing.T) {
	redistest.NeedsFunctions(t)
	server := redistest.Start(t)
	s := open(t, redis.Options{URL: server.URL()})
	entry := func(units int64) []store.Told {
		return []store.Told{{Counter: 1, Key: []byte("k"), Units: units, At: 1}}
	}
	tell := func(units int64) {
		t.Helper()
		if err := s.Tell(t.Context(), 0, entry(units)); err != nil {
			t.Fatal(err)
		}
	}
	read := func(after string) (units int64, next string, gap bool) {
		t.Helper()
		told, next, gap, _, err := s.Told(t.Context(), 0, after, 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		if len(told) > 0 {
			units = told[0].Units
		}
		return units, next, gap
	}
	_, begin, _ := read("")
	tell(1)
	tell(2)
	_, at, _ := read(begin)
	if _, err := s.Change(t.Context(), 0, "us", "", at, nil, nil); err != nil {
		t.Fatal(err)
	}
	if ttl := server.Do("TTL", "weir:1heard:us").(int64); ttl < int64(algo.MaxWindow/time.Second) {
		t.Errorf("a position lives for %d s, less than what was told before it", ttl)
	}
	server.Do("FLUSHALL")
	// An entry is named by the millisecond: what is told in this one could have the name of
	// another.
	eventually(t, "a millisecond is over", func() bool {
		now, err := s.Time(t.Context())
		ms, _, _ := strings.Cut(at, "-")
		return err == nil && strconv.FormatInt(now/1000, 10) > ms
	})
	units, next, gap := read(at)
	if units != 0 || !gap {
		t.Errorf("without a log: %d, gap %v", units, gap)
	}
	if units, again, gap := read(next); units != 0 || gap || again != next {
		t.Errorf("the gap is told again: %d, %q, gap %v", units, again, gap)
	}
	tell(3)
	if units, _, gap := read(next); units != 3 || gap {
		t.Errorf("after the gap: %d, gap %v", units, gap)
	}
	if units, _, gap := read(at); units != 3 || !gap {
		t.Errorf("from before the gap: %d, gap %v", units, gap)
	}
	if got, err := s.Position(t.Context(), 0, "us"); got != "" || err != nil {
		t.Errorf("the position is %q, %v", got, err)
	}
	if _, err := s.Change(t.Context(), 0, "us", at, "9-9", nil, nil); !errors.Is(err, store.ErrMoved) {
		t.Errorf("from a position that is forgotten: %v", err)
	}
}

// TestLogThatWasEmpty: the position of a log in which nothing was told yet shows a gap, too, if
// what came after it is gone.
func TestLogThatWasEmpty(t *testing.T) {
	redistest.NeedsFunctions(t)
	server := redistest.Start(t)
	s := open(t, redis.Options{URL: server.URL()})
	read := func(after string) (units int64, next string, gap bool) {
		t.Helper()
		told, next, gap, _, err := s.Told(t.Context(), 0, after, 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		if len(told) > 0 {
			units = told[0].Units
		}
		return units, next, gap
	}
	_, empty, _ := read(store.Oldest)
	for units := range int64(3) {
		if err := s.Tell(t.Context(), 0, []store.Told{{Counter: 1, Key: []byte("k"), Units: units + 1, At: 1}}); err != nil {
			t.Fatal(err)
		}
	}
	if units, _, gap := read(empty); units != 1 || gap {
		t.Errorf("all is there: %d, gap %v", units, gap)
	}
	server.Do("XTRIM", "weir:1told", "MAXLEN", "2")
	units, next, gap := read(empty)
	if units != 2 || !gap {
		t.Errorf("the first one is gone: %d, gap %v", units, gap)
	}
	if units, _, gap := read(next); units != 3 || gap {
		t.Errorf("after the gap: %d, gap %v", units, gap)
	}
	if units, _, gap := read(store.Oldest); units != 2 || gap {
		t.Errorf("from the oldest: %d, gap %v", units, gap)
	}
}
