package line

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

const oneQueue = "limits: [{name: q, algorithm: leaky_bucket, allow: {rate: 1/s, burst: 100}}]"

// answers is a store that admits each request with the next of its turns.
type answers struct {
	mu    sync.Mutex
	turns []turn
	given int
	err   error
}

type turn struct {
	at    int64 // µs
	delay time.Duration
}

func (a *answers) Take(_ context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if charges[0].Ask.Cost < 0 {
		a.given++
		results[0] = algo.Result{Allowed: true}
		return 0, a.err
	}
	next := a.turns[0]
	a.turns = a.turns[1:]
	results[0] = algo.Result{Limit: 101, Allowed: true, Delay: next.delay.Microseconds()}
	return next.at - results[0].Delay, nil
}
func (*answers) Release(context.Context, *rule.Counter, []byte, uint64) (bool, error) {
	return false, nil
}
func (*answers) Close() error { return nil }

// Requests of one line leave in the order of their turns, even when the timers fire in another;
// those that hang up make way.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &answers{turns: []turn{
			{2e6, 1 * time.Second}, // its timer is the first to fire
			{1e6, 3 * time.Second},
			{3e6, 5 * time.Second},
			{4e6, 4 * time.Second}, // stands behind the third until that gives up
		}}
		d := newDoor(New(0), over(t, store, oneQueue))
		impatient, giveUp := context.WithCancel(t.Context())
		for _, name := range []string{"second", "first", "third", "fourth"} {
			ctx := t.Context()
			if name == "third" {
				ctx = impatient
			}
			go d.pass(ctx, name, 1, nil)
			synctest.Wait()
		}
		time.AfterFunc(4500*time.Millisecond, giveUp)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		want := []outcome{{name: "first", at: 3 * time.Second, left: 1}, {name: "second", at: 3 * time.Second, left: 2},
			{name: "third", at: 4500 * time.Millisecond, left: 3, hungUp: true},
			{name: "fourth", at: 4500 * time.Millisecond, left: 4}}
		slices.SortFunc(d.log, func(a, b outcome) int { return cmp.Compare(a.left, b.left) })
		for i, o := range d.log {
			w := want[i]
			if o.name != w.name || o.at != w.at || o.left != w.left || o.hungUp != w.hungUp || o.allowed == w.hungUp {
				t.Errorf("got %+v, want %+v", o, w)
			}
		}
		if store.given != 1 {
			t.Errorf("%d turns were given back, want that of the third", store.given)
		}
		d.empty(t)
		if s := d.lines.Stats(); s.Total != 4 || s.HungUp != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// Where the context ends behind others, its error is told, and one of the store that could not take
// the turn back, too.
func TestTurnGivenUpBehindOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := errors.New("away")
		d := newDoor(New(0), over(t, &answers{turns: []turn{{1e6, time.Hour}, {2e6, time.Second}}, err: away},
			oneQueue))
		var told error
		d.failed = func(err error) { told = err }
		go d.pass(t.Context(), "first", 1, nil)
		synctest.Wait()
		// due after a second, but the first is not
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if o := d.pass(ctx, "second", 1, nil); !errors.Is(o.err, context.DeadlineExceeded) || !o.hungUp ||
			!errors.Is(told, away) {
			t.Errorf("got %+v, told %v", o, told)
		}
		time.Sleep(time.Hour)
		d.empty(t)
	})
}

// Where there is no room to hold it, a request is given no turn, and told when one would come.
func TestNoRoomForATurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, "limits: [{name: q, per: [user], algorithm: leaky_bucket, allow: {rate: 1/s, burst: 100}}]")
		d := newDoor(New(4), l)
		for range 5 {
			go d.pass(t.Context(), "ada", 1, nil, user("ada"))
			synctest.Wait()
		}
		if got, want := d.outcomes(), []string{"ada@0s", "ada@0s refused by q for 3s", "ada@0s refused by q for 3s"}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		var peek weir.Decision
		if err := l.Decide(t.Context(), &weir.Request{Attributes: rule.Pairs{user("ada")}, Peek: true}, &peek); err != nil || peek.Limits[0].Remaining != 98 {
			t.Errorf("%d remaining of 101, %v; want room for all but the three who have turns",
				peek.Limits[0].Remaining, err)
		}
		time.Sleep(10 * time.Second)
		d.empty(t)
	})
	// Those who get a turn at the same moment as the one who takes the last place give it back.
	synctest.Test(t, func(t *testing.T) {
		inside := make(chan bool)
		store, err := memory.New(memory.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		var pause atomic.Bool
		told := map[bool]int{}
		var mu sync.Mutex
		l := over(t, &spied{store, func([]algo.Result) {
			if pause.Load() {
				<-inside
			}
		}}, oneQueue, weir.WithHooks(weir.Hooks{Decided: func(_ *weir.Request, d *weir.Decision) {
			mu.Lock()
			defer mu.Unlock()
			told[d.Allowed]++
		}}))
		d := newDoor(New(1), l)
		d.pass(t.Context(), "leaves", 1, nil)
		pause.Store(true)
		for range 3 {
			go d.pass(t.Context(), "x", 1, nil)
			synctest.Wait()
		}
		pause.Store(false)
		close(inside)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		got := d.outcomes()
		refused := 0
		for _, o := range d.log {
			if !o.allowed && o.retry > 0 {
				refused++
			}
		}
		if s := d.lines.Stats(); len(got) != 4 || refused != 2 || s.TurnedAway != 2 || s.Total != 1 {
			t.Errorf("got %v, %+v", got, s)
		}
		if want := (map[bool]int{true: 2, false: 2}); !maps.Equal(told, want) {
			t.Errorf("hooks were told of %v, want %v", told, want)
		}
	})
}

// In real time, too, requests leave in the order of their turns, each once. All are decided at one
// instant of the store's clock, and stand in line before the first turn; else a busy machine tries
// again.
func TestOrderInRealTime(t *testing.T) {
	patience.Until(t, "all stand in line before the first turn", func() bool { return orderInRealTime(t) })
}

func orderInRealTime(t *testing.T) (inTime bool) {
	const n = 1000
	now := time.Now().UnixMicro()
	store, err := memory.New(memory.Options{Clock: func() int64 { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	l := over(t, store, "limits: [{name: q, algorithm: leaky_bucket, allow: {rate: 2000/s, burst: 1000}}]")
	var d weir.Decision
	const first = 250 * time.Millisecond // the first turn
	if err := l.Decide(t.Context(), &weir.Request{Hits: 500, MaxDelay: weir.AnyDelay}, &d); err != nil || !d.Allowed {
		t.Fatal(err)
	}
	goroutines := runtime.NumGoroutine()
	lines := New(2 * n)
	type gone struct{ turn, left int64 }
	var (
		mu      sync.Mutex
		went    []gone
		refused int
		stood   time.Duration // when the last one stood in line
		wg      sync.WaitGroup
	)
	begun := time.Now()
	for range n {
		wg.Go(func() {
			v := lines.NewVisit()
			v.Held = func(ctx context.Context) (context.Context, context.CancelFunc) {
				mu.Lock()
				defer mu.Unlock()
				stood = time.Since(begun)
				return ctx, func() {}
			}
			var d weir.Decision
			if err := v.Decide(t.Context(), l, &weir.Request{Hits: 1, MaxDelay: weir.RuleDelay}, &d); err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if d.Allowed {
				went = append(went, gone{d.Delay, v.Left})
			} else if refused++; d.RetryAfter != 500 {
				t.Errorf("refused for %d µs", d.RetryAfter)
			}
		})
	}
	wg.Wait()
	slices.SortFunc(went, func(a, b gone) int { return cmp.Compare(a.left, b.left) })
	inTime = stood < first
	for i, g := range went {
		if want := (gone{int64(500+i) * 500, int64(i + 1)}); g != want && inTime {
			t.Fatalf("as number %d left %+v, want %+v", i, g, want)
		}
	}
	if len(went) != 501 || refused != 499 {
		t.Errorf("%d went, %d were refused", len(went), refused)
	}
	if s := lines.Stats(); s.Held != 0 || s.Lines != 0 || s.Total != 501 {
		t.Errorf("%+v", s)
	}
	patience.Until(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= goroutines })
	return inTime
}

// A turn in one limit comes after the wait for another, and a slot that came with it is given back
// by who hangs up.
func TestTurnAfterWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, `
limits:
  - {name: q, algorithm: leaky_bucket, allow: {rate: 1/3s, burst: 9}}
  - {name: slots, allow: 3 concurrent}
  - {name: each, algorithm: token_bucket, allow: {rate: 1/s, burst: 1}, on_limit: {wait: 9s}}
`)
		d := newDoor(New(0), l)
		ctx, hangUp := context.WithCancel(t.Context())
		for i := range 4 {
			c := t.Context()
			if i == 3 {
				c = ctx
			}
			go d.pass(c, fmt.Sprint(i), 1, nil)
			synctest.Wait()
		}
		// each has admitted all by now; 2 has its turn at 6 s, 3 at 9 s
		time.Sleep(3500 * time.Millisecond)
		hangUp()
		synctest.Wait()
		var peek weir.Decision
		if err := l.Decide(t.Context(), &weir.Request{Peek: true}, &peek); err != nil ||
			peek.Limits[0].Remaining != 8 || peek.Limits[1].Remaining != 2 {
			t.Errorf("turns and slots that are left: %d and %d, %v; only 2 has some", peek.Limits[0].Remaining,
				peek.Limits[1].Remaining, err)
		}
		time.Sleep(10 * time.Second)
		if got, want := d.outcomes(), []string{"0@0s", "1@3s", "3@3.5s gone", "2@6s"}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		d.empty(t)
	})
}
