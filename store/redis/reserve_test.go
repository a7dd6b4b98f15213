package redis_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
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
)

// TestReservations: a note is handed out once, by whoever asks first, to whom its id is known or
// when its time is over; also when the node that made it is gone.
func TestReservations(t *testing.T) {
	testReservations(t, redistest.Start(t).URL())
}

func testReservations(t *testing.T, url string) {
	ctx := t.Context()
	var clock atomic.Int64
	clock.Store(1767225600_000000)
	o := redis.Options{URL: url, Clock: clock.Load}
	gone, here, there := open(t, o), open(t, o), open(t, o)
	note := func(i int) []byte { return fmt.Appendf(nil, "\x00note %d\xff", i) }
	const n = 60
	for i := range n {
		if err := gone.Hold(ctx, fmt.Sprint("id ", i), note(i), time.Duration(1+i)*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	if err := gone.Hold(ctx, "id 3", note(0), time.Second); !errors.Is(err, store.ErrNotCharged) {
		t.Errorf("an id that is taken: %v", err)
	}
	_ = gone.Close()
	if _, ok, err := here.Claim(ctx, "nobody's"); ok || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
	if got, ok, err := here.Claim(ctx, "id 7"); !ok || err != nil || !bytes.Equal(got, note(7)) {
		t.Errorf("%q, %v, %v", got, ok, err)
	}
	if _, ok, err := there.Claim(ctx, "id 7"); ok || err != nil {
		t.Errorf("handed out twice: %v, %v", ok, err)
	}
	if notes, err := here.Expired(ctx, 10); err != nil || len(notes) > 0 {
		t.Errorf("before their time: %q, %v", notes, err)
	}
	clock.Add(int64(30 * time.Second / time.Microsecond)) // 0 to 29 are over
	var mu sync.Mutex
	var wg sync.WaitGroup
	var got []string
	for i := range 12 {
		wg.Go(func() {
			s := []*redis.Store{here, there}[i%2]
			for {
				notes, err := s.Expired(ctx, 4)
				if err != nil || len(notes) > 4 {
					t.Errorf("%d notes, %v", len(notes), err)
				}
				if len(notes) == 0 {
					return
				}
				mu.Lock()
				for _, note := range notes {
					got = append(got, string(note))
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	var want []string
	for i := range 30 {
		if i != 7 {
			want = append(want, string(note(i)))
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("handed out: %q", got)
	}
	if got, ok, err := there.Claim(ctx, "id 59"); !ok || err != nil || !bytes.Equal(got, note(59)) {
		t.Errorf("%q, %v, %v", got, ok, err)
	}
	// What cannot be held.
	for _, bad := range []struct {
		id   string
		note int
		d    time.Duration
	}{{"", 1, 1}, {strings.Repeat("x", 257), 1, 1}, {"large", 64<<10 + 1, 1}, {"no time", 1, 0}} {
		if err := here.Hold(ctx, bad.id, make([]byte, bad.note), bad.d); !errors.Is(err, store.ErrNotCharged) {
			t.Errorf("%q, %d bytes, %v: %v", bad.id, bad.note, bad.d, err)
		}
	}
	if err := here.Hold(ctx, "empty", nil, time.Hour); err != nil {
		t.Error(err)
	}
	if got, ok, err := there.Claim(ctx, "empty"); !ok || err != nil || len(got) > 0 {
		t.Errorf("%q, %v, %v", got, ok, err)
	}
}

// TestReservationsExpire: what nobody asks for any more does not stay for ever.
func TestReservationsExpire(t *testing.T) {
	redistest.NeedsFunctions(t) // it looks at the keys
	server := redistest.Start(t)
	store := open(t, redis.Options{URL: server.URL(), Prefix: "r:"})
	if err := store.Hold(t.Context(), "id", []byte("note"), time.Second); err != nil {
		t.Fatal(err)
	}
	keys, _ := server.Do("KEYS", "r:*").([]any)
	if len(keys) != 2 {
		t.Fatalf("%q", keys)
	}
	for _, key := range keys {
		if left := server.Do("PTTL", key.(string)).(int64); left < 365*24*3600*1000 || left > 367*24*3600*1000 {
			t.Errorf("%q goes in %d ms", key, left)
		}
	}
}

// TestSettle: the real cost of a request takes the place of the reserved one, as algo has it,
// whatever else goes on.
func TestSettle(t *testing.T) {
	server := redistest.Start(t)
	rnd := rand.New(rand.NewPCG(redis.Seed(t), 0))
	now := int64(1767225600_000000)
	s := open(t, redis.Options{URL: server.URL(), Clock: func() int64 { return now }})
	for _, shape := range shapes {
		for _, soft := range []int{0, 50} {
			c := shape.c
			if soft > 0 && c.Algorithm == algo.Concurrency {
				continue
			}
			if soft > 0 {
				c.Soft, c.SoftFor = soft, time.Minute
			}
			one, other := counterOf(t, c), counterOf(t, c)
			other.Group = one.ID
			one.Group = one.ID
			var states, margins [2]algo.State
			type charged struct {
				of       int
				at, cost int64
			}
			var open []charged
			for range effort.Of(40, 150) {
				now += rnd.Int64N(c.Window.Microseconds()/20 + 1000)
				for i, counter := range []*rule.Counter{one, other} {
					ask := charge(counter, "k", 1+rnd.Int64N(5))
					r, _ := take(t, s, ask)
					want := counter.Limit.TakeWith(&states[i], &margins[i], now,
						algo.Ask{Cost: ask.Ask.Cost, MaxDelay: -1, Slot: uint64(now)})
					if r[0] != want {
						t.Fatalf("%s: got %+v, want %+v", shape.name, r[0], want)
					}
					if want.Allowed {
						open = append(open, charged{i, now, ask.Ask.Cost})
					}
				}
				now += rnd.Int64N(c.Window.Microseconds()/50 + 1000)
				var list []store.Settlement
				for len(open) > 0 && rnd.IntN(3) > 0 {
					i := rnd.IntN(len(open))
					o := open[i]
					open = slices.Delete(open, i, i+1)
					counter := []*rule.Counter{one, other}[o.of]
					e := store.Settlement{Counter: counter, Limit: counter.Limit, Key: []byte("k"), At: o.at,
						Reserved: o.cost, Actual: rnd.Int64N(8)}
					list = append(list, e)
					counter.Limit.Settle(&states[o.of], nil, now, e.At, e.Reserved, e.Actual)
				}
				if err := s.Settle(t.Context(), list); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if err := s.Settle(t.Context(), []store.Settlement{{Reserved: 2, Actual: 1}}); !errors.Is(err,
		store.ErrNotCharged) {
		t.Errorf("a settlement of nothing: %v", err)
	}
}

// TestSettleTogether: settlements of many goroutines on two nodes go together, and each is made
// once. A refusal that they end is forgotten on both nodes.
func TestSettleTogether(t *testing.T) {
	server := redistest.Start(t)
	stores := []*redis.Store{
		open(t, redis.Options{URL: server.URL(), RememberRefusals: time.Hour}),
		open(t, redis.Options{URL: server.URL(), RememberRefusals: time.Hour}),
	}
	counter := counterOf(t, algo.Config{Algorithm: algo.FixedWindow, N: 100_000, Window: 100 * days})
	const callers, each = 32, 40
	_, at := take(t, stores[0], charge(counter, "k", 100_000))
	ask := charge(counter, "k", 1)
	for _, s := range stores {
		refused(t, s, ask)
	}
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for j := range each {
				e := store.Settlement{Counter: counter, Limit: counter.Limit, Key: []byte("k"), At: at, Reserved: 10,
					Actual: 3}
				if j%2 == 0 {
					e.Reserved, e.Actual = 2, 7
				}
				if err := stores[i%2].Settle(t.Context(), []store.Settlement{e}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if n, want := used(t, stores[0], counter, "k"), int64(100_000+callers*each/2*(5-7)); n != want {
		t.Errorf("%d are charged, want %d", n, want)
	}
	for i, s := range stores {
		eventually(t, fmt.Sprintf("node %d hears of it", i), func() bool {
			r, _ := take(t, s, ask)
			return r[0].Allowed
		})
	}
	if swaps := stores[0].Stats().Swaps + stores[1].Stats().Swaps; swaps > callers*each {
		t.Errorf("%d swaps for %d settlements", swaps, callers*each)
	}
}
