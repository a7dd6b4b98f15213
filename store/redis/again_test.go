package redis_test

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/redis"
	"github.com/weir-rl/weir/store/storetest"
)

// lossy is a Redis whose answers can be lost, and a store that asks it.
type lossy struct {
	t      *testing.T
	server *redistest.Server
	proxy  *redistest.FaultProxy
	s      *redis.Store
	// asks Redis beside the proxy
	witness *redis.Store
}

func startLossy(t *testing.T) *lossy {
	t.Helper()
	l := &lossy{t: t, server: redistest.Start(t)}
	l.proxy = redistest.Proxy(t, l.server.Addr())
	l.s = open(t, redis.Options{URL: "redis://" + l.proxy.Addr()})
	l.witness = open(t, redis.Options{URL: l.server.URL()})
	return l
}

// lose makes a call, and loses the answer of the function whose name ends like that. meanwhile runs
// when the answer is lost, before the connection breaks.
func (l *lossy) lose(function string, call, meanwhile func()) {
	l.t.Helper()
	before := l.proxy.Lost()
	l.proxy.LoseRepliesFrom(function)
	done := make(chan struct{})
	go func() {
		defer close(done)
		call()
	}()
	eventually(l.t, "the answer is lost", func() bool { return l.proxy.Lost() > before })
	if meanwhile != nil {
		meanwhile()
	}
	l.proxy.Pass() // which cuts the connection
	<-done
}

// used is what Redis knows of a key to be used.
func (l *lossy) used(c *rule.Counter, key string) int64 {
	l.t.Helper()
	info, ok, err := storetest.Peek(l.t.Context(), l.witness, c, []byte(key))
	if err != nil {
		l.t.Fatal(err)
	}
	if !ok {
		return 0
	}
	return info.Result.Limit - info.Result.Remaining
}

func newCounter(t testing.TB, id uint64, cfg algo.Config) *rule.Counter {
	t.Helper()
	l, err := algo.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	c := &rule.Counter{ID: id, Domain: "test", Limit: l}
	withMargin(c)
	return c
}

// TestAnswersLost: Redis has made a call, and the connection breaks before it says so. The call is
// sent again, is not made again, and its caller gets the answer that was lost.
func TestAnswersLost(t *testing.T) {
	l := startLossy(t)
	window := newCounter(t, 1, algo.Config{Algorithm: algo.FixedWindow, N: 3, Window: 366 * days})
	slots := newCounter(t, 2, algo.Config{Algorithm: algo.Concurrency, N: 3, Timeout: 24 * time.Hour})
	soft := newCounter(t, 3, algo.Config{Algorithm: algo.FixedWindow, N: 2, Window: 366 * days, Soft: 50,
		SoftFor: time.Hour})

	for i := range int64(4) {
		l.lose("_take", func() {
			if r, _ := take(t, l.s, charge(window, "k", 1)); r[0].Allowed != (i < 3) || r[0].Remaining != max(0, 2-i) {
				t.Errorf("call %d: %+v", i, r[0])
			}
		}, nil)
	}
	if n := l.used(window, "k"); n != 3 {
		t.Errorf("%d units are charged, want 3", n)
	}

	// A compare-and-swap: the key is named twice.
	l.lose("_swap", func() {
		if r, _ := take(t, l.s, charge(window, "twice", 1), charge(window, "twice", 1)); !r[0].Allowed ||
			!r[1].Allowed || r[1].Remaining != 1 {
			t.Errorf("%+v", r)
		}
	}, nil)
	if n := l.used(window, "twice"); n != 2 {
		t.Errorf("%d units are charged, want 2", n)
	}
	// Another node changes the key meanwhile: the values are others, and the swap was made all the
	// same.
	l.lose("_swap", func() {
		if r, _ := take(t, l.s, charge(window, "both", 1), charge(window, "both", 1)); !r[1].Allowed ||
			r[1].Remaining != 1 {
			t.Errorf("%+v", r)
		}
	}, func() { take(t, l.witness, charge(window, "both", 1)) })
	if n := l.used(window, "both"); n != 3 {
		t.Errorf("%d units are charged, want 3", n)
	}
	// What the soft margin admits is swapped too.
	take(t, l.s, charge(soft, "k", 2))
	l.lose("_swap", func() {
		if r, _ := take(t, l.s, charge(soft, "k", 1)); !r[0].Allowed || !r[0].Soft {
			t.Errorf("%+v", r[0])
		}
	}, nil)
	if r, _ := take(t, l.s, charge(soft, "k", 1)); r[0].Allowed {
		t.Errorf("the margin admits twice: %+v", r[0])
	}

	// Slots.
	held := charge(slots, "k", 2)
	l.lose("_take", func() {
		of := []store.Charge{held}
		if _, err := l.s.Take(t.Context(), of, make([]algo.Result, 1)); err != nil || of[0].Ask.Slot == 0 {
			t.Errorf("%+v, %v", of, err)
		}
		held = of[0]
	}, nil)
	if n := l.used(slots, "k"); n != 2 {
		t.Errorf("%d slots are held, want 2", n)
	}
	l.lose("_release", func() {
		if ok, err := l.s.Release(t.Context(), slots, []byte("k"), held.Ask.Slot); !ok || err != nil {
			t.Errorf("Release: %v, %v", ok, err)
		}
	}, nil)

	// Reservations.
	l.lose("_hold", func() {
		if err := l.s.Hold(t.Context(), "r", []byte("note"), time.Hour); err != nil {
			t.Errorf("Hold: %v", err)
		}
	}, nil)
	l.lose("_claim", func() {
		if note, ok, err := l.s.Claim(t.Context(), "r"); string(note) != "note" || !ok || err != nil {
			t.Errorf("Claim: %q, %v, %v", note, ok, err)
		}
	}, nil)
	if err := l.s.Hold(t.Context(), "r", []byte("second"), time.Microsecond); err != nil {
		t.Error(err)
	}
	l.lose("_expired", func() {
		if notes, err := l.s.Expired(t.Context(), 5); len(notes) != 1 || string(notes[0]) != "second" || err != nil {
			t.Errorf("Expired: %q, %v", notes, err)
		}
	}, nil)

	// Units that are lent.
	lends := lending(t, algo.Config{Algorithm: algo.TokenBucket, N: 100, Window: 360 * days, Lease: 10,
		LeaseFor: algo.MaxLeaseFor}, 0)
	l.lose("_take", func() {
		h := algo.Ahead{Want: 8}
		if r, _ := borrow(t, l.s, lends, "k", 1, &h); !r.Allowed || h.Got != 8 {
			t.Errorf("%+v, %+v", r, h)
		}
	}, nil)
	h := algo.Ahead{}
	if r, _ := borrow(t, l.s, lends, "k", 0, &h); h.Out != 8 || r.Remaining != 91 {
		t.Errorf("%+v, %+v", r, h)
	}

	// What another region told.
	changes, done := []store.Change{{Counter: window, Limit: window.Limit, Key: []byte("heard"), Units: 2}},
		make([]store.Changed, 1)
	l.lose("_change", func() {
		if _, err := l.s.Change(t.Context(), 0, "eu", "", "1-1", changes, done); err != nil || !done[0].Made {
			t.Errorf("Change: %+v, %v", done, err)
		}
	}, nil)
	if n := l.used(window, "heard"); n != 2 {
		t.Errorf("%d units are heard, want 2", n)
	}
	if st := l.s.Stats(); st.Again < 13 || st.Failures > 0 {
		t.Errorf("%d calls were sent again, want 13 and more; %d failed", st.Again, st.Failures)
	}
}

// TestMemoryLost: the functions have forgotten their last replies, so that the outcome of a call is
// unknown. It fails, and is not made again.
func TestMemoryLost(t *testing.T) {
	redistest.NeedsFunctions(t)
	l := startLossy(t)
	c := newCounter(t, 1, algo.Config{Algorithm: algo.FixedWindow, N: 3, Window: 366 * days})
	take(t, l.s, charge(c, "k", 1))
	l.lose("_take", func() {
		_, err := l.s.Take(t.Context(), []store.Charge{charge(c, "k", 1)}, make([]algo.Result, 1))
		if err == nil || errors.Is(err, store.ErrNotCharged) {
			t.Errorf("the error is %v, and says that nothing was charged", err)
		}
	}, func() { l.server.Do("FUNCTION", "FLUSH") })
	if n := l.used(c, "k"); n != 2 {
		t.Errorf("%d units are charged, want 2", n)
	}
	if r, _ := take(t, l.s, charge(c, "k", 1)); !r[0].Allowed || r[0].Remaining != 0 {
		t.Errorf("the next one: %+v", r[0])
	}
}

// TestConnectionsKilled: the connections of many callers are killed again and again. Each decision
// is made once, and each caller hears of it.
func TestConnectionsKilled(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, redis.Options{URL: server.URL()})
	limits := []*rule.Counter{
		newCounter(t, 1, algo.Config{Algorithm: algo.FixedWindow, N: 500, Window: 366 * days}),
		newCounter(t, 2, algo.Config{Algorithm: algo.SlidingLog, N: 500, Window: 366 * days}),
		newCounter(t, 3, algo.Config{Algorithm: algo.TokenBucket, N: 500, Window: 360 * days}),
	}
	var admitted [3]atomic.Int64
	var stop atomic.Bool
	var callers sync.WaitGroup
	for i := range 24 {
		callers.Go(func() {
			for n := i; !stop.Load(); n++ {
				c, r := limits[n%3], make([]algo.Result, 1)
				if _, err := s.Take(t.Context(), []store.Charge{charge(c, "k", 1)}, r); err != nil {
					t.Errorf("%v", err)
					return
				}
				if r[0].Allowed {
					admitted[n%3].Add(1)
				}
			}
		})
	}
	want := uint64(effort.Of(20, 300))
	eventually(t, "enough answers were lost", func() bool {
		server.Do("CLIENT", "KILL", "TYPE", "normal")
		return s.Stats().Again >= want || t.Failed()
	})
	eventually(t, "all limits are used up", func() bool {
		return admitted[0].Load() >= 500 && admitted[1].Load() >= 500 && admitted[2].Load() >= 500 || t.Failed()
	})
	stop.Store(true)
	callers.Wait()
	for i := range admitted {
		if n := admitted[i].Load(); n != 500 {
			t.Errorf("limit %d: %d were admitted, want 500", i, n)
		}
	}
	t.Logf("%d calls were sent again", s.Stats().Again)
}

// TestMasterRepointed: another server becomes the master, the name leads there from then on, and
// connections to the old one stay open, which is a replica now. All are dialled anew.
func TestMasterRepointed(t *testing.T) {
	redistest.NeedsFunctions(t)
	old, next := redistest.Start(t), redistest.Start(t)
	proxy := redistest.Proxy(t, old.Addr())
	s := open(t, redis.Options{URL: "redis://" + proxy.Addr(), Heartbeat: time.Second, RememberRefusals: time.Second})
	c := newCounter(t, 1, algo.Config{Algorithm: algo.FixedWindow, N: 10, Window: 366 * days})
	take(t, s, charge(c, "k", 1))
	follow(t, next, old)
	next.Do("REPLICAOF", "NO", "ONE")
	follow(t, old, next)
	// The new one does not have the functions for some reason: the old one forgot them too.
	for _, flush := range []bool{false, true} {
		if flush {
			next.Do("FUNCTION", "FLUSH")
		}
		proxy.Lead(next.Addr())
		if r, _ := take(t, s, charge(c, "k", 1)); !r[0].Allowed {
			t.Errorf("%+v", r[0])
		}
		// A connection that was being made meanwhile leads to the old one; it is dialled anew when
		// a call finds that.
		eventually(t, "the other connections lead to the new master", func() bool {
			return s.PingPart(t.Context(), 0) == nil
		})
		if flush {
			break
		}
		// And back again.
		old.Do("REPLICAOF", "NO", "ONE")
		follow(t, next, old)
		proxy.Lead(old.Addr())
		if r, _ := take(t, s, charge(c, "k", 1)); !r[0].Allowed {
			t.Errorf("%+v", r[0])
		}
		next.Do("REPLICAOF", "NO", "ONE")
		follow(t, old, next)
	}
	if r, _ := take(t, s, charge(c, "k", 1)); r[0].Remaining != 5 {
		t.Errorf("%+v, want 5 remaining: all of them are charged", r[0])
	}
	if n := s.Stats().Redials; n < 3 {
		t.Errorf("all connections were dialled anew %d times, want 3", n)
	}
}

// follow makes a server a replica of another one, and waits until it has all.
func follow(t *testing.T, replica, master *redistest.Server) {
	t.Helper()
	host, port, _ := strings.Cut(master.Addr(), ":")
	replica.Do("REPLICAOF", host, port)
	eventually(t, "the replica follows", func() bool {
		return replica.Info("master_link_status") == "up" &&
			replica.Info("slave_repl_offset") == master.Info("master_repl_offset")
	})
}
