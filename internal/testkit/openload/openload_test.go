package openload

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// askerFunc is an Asker.
type askerFunc func(ctx context.Context, key int) (bool, error)

func (f askerFunc) Ask(ctx context.Context, key int) (bool, error) { return f(ctx, key) }

func askers(n int, f askerFunc) (list []Asker) {
	for range n {
		list = append(list, f)
	}
	return list
}

// wait is a server that takes a time for an answer.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// While a server stands still for a second, each request that was due meanwhile waits for its end.
func TestOpenLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		var asked atomic.Int64
		r, err := Run(t.Context(), &Options{Rate: 100, For: 10 * time.Second, Callers: 2, Keys: 10, Draw: Uniform},
			askers(2, func(ctx context.Context, key int) (bool, error) {
				asked.Add(1)
				if at := time.Since(begun); at > 3*time.Second && at < 4*time.Second {
					return true, wait(ctx, 4*time.Second-at)
				}
				return key%2 == 0, wait(ctx, time.Millisecond)
			}), nil)
		if err != nil {
			t.Fatal(err)
		}
		if n := r.Answered(); n != 1000 || asked.Load() != 1000 || r.Unsent != 0 || r.Failed != 0 {
			t.Fatalf("%d answers, %d not sent, %d failed", n, r.Unsent, r.Failed)
		}
		// A tenth was due in that second. Half of these waited for more than half of it.
		if late := r.Latency.Between(500*time.Millisecond, time.Hour); late < 40 || late > 60 {
			t.Errorf("%v requests waited for half a second or longer", late)
		}
		if p50 := r.Latency.Quantile(0.5); p50 < time.Millisecond || p50 > 2*time.Millisecond {
			t.Errorf("half of the requests took no longer than %v", p50)
		}
		if r.Allowed == 0 || r.Refused == 0 {
			t.Errorf("%d allowed, %d refused", r.Allowed, r.Refused)
		}
	})
}

// What a server has no room for is told, and no load goes on beyond its time.
func TestOverload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		r, err := Run(t.Context(), &Options{Rate: 1000, For: time.Second, Callers: 4, Keys: 1, Draw: InTurn},
			askers(4, func(ctx context.Context, _ int) (bool, error) { return true, wait(ctx, 100*time.Millisecond) }),
			nil)
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); took != time.Second+patience {
			t.Errorf("it took %v", took)
		}
		// Forty a second, until patience is over.
		if n := r.Answered(); n < 230 || n > 240 || r.Unsent != 1000-n {
			t.Errorf("%d answers, %d not sent", n, r.Unsent)
		}
	})
}

// Without a rate a caller asks as soon as it is answered.
func TestClosedLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := Run(t.Context(), &Options{For: time.Second, Callers: 3, Keys: 5, Draw: Zipf},
			askers(3, func(ctx context.Context, _ int) (bool, error) { return true, wait(ctx, 10*time.Millisecond) }),
			nil)
		if err != nil {
			t.Fatal(err)
		}
		if r.Allowed != 300 || r.Unsent != 0 || r.Latency.Longest() != 10*time.Millisecond {
			t.Errorf("%d answers, %v at most", r.Allowed, r.Latency.Longest())
		}
	})
}

// Keys in turn are drawn equally often, by any callers.
func TestInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		seen := map[int]int{}
		_, err := Run(t.Context(), &Options{Rate: 100, For: time.Second, Callers: 8, Keys: 20, Draw: InTurn},
			askers(8, func(_ context.Context, key int) (bool, error) {
				mu.Lock()
				defer mu.Unlock()
				seen[key]++
				return true, nil
			}), nil)
		if err != nil {
			t.Fatal(err)
		}
		for key := range 20 {
			if seen[key] != 5 {
				t.Errorf("key %d was drawn %d times", key, seen[key])
			}
		}
	})
}

func TestFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := errors.New("connection refused")
		o := &Options{Rate: 1000, For: time.Minute, Callers: 1, Keys: 1, Draw: Uniform}
		_, err := Run(t.Context(), o, askers(1, func(context.Context, int) (bool, error) { return false, gone }), nil)
		if !errors.Is(err, gone) || !strings.Contains(err.Error(), "again and again") {
			t.Errorf("%v", err)
		}
		n := 0
		r, err := Run(t.Context(), o, askers(1, func(context.Context, int) (bool, error) {
			if n++; n%2 == 0 {
				return false, gone
			}
			return true, nil
		}), nil)
		if err != nil || r.Failed != 30_000 || r.Allowed != 30_000 || !errors.Is(r.Failure, gone) {
			t.Errorf("%v: %d failed, %d allowed; %v", err, r.Failed, r.Allowed, r.Failure)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Second, cancel)
		if _, err := Run(ctx, o, askers(1, func(context.Context, int) (bool, error) {
			return true, nil
		}), nil); !errors.Is(err, context.Canceled) {
			t.Errorf("a load that was stopped: %v", err)
		}
	})
}

// blind is a context that does not say that its deadline has passed.
type blind struct {
	context.Context
	end time.Time
}

func (c blind) Deadline() (time.Time, bool) { return c.end, true }

// TestEnd: what comes to nothing since the time is over is no failure of the server, though the
// context does not say so yet.
func TestEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := blind{t.Context(), time.Now().Add(time.Second)}
		r, err := Run(ctx, &Options{Rate: 1000, For: time.Minute, Callers: 1, Keys: 1, Draw: Uniform},
			askers(1, func(ctx context.Context, _ int) (bool, error) {
				time.Sleep(10 * time.Millisecond)
				if end, _ := ctx.Deadline(); !time.Now().Before(end) {
					return false, context.DeadlineExceeded
				}
				return true, nil
			}), nil)
		if err != nil || r.Failed != 0 || r.Answered() == 0 || r.Unsent == 0 {
			t.Errorf("%v: %d answers, %d failed, %d not sent", err, r.Answered(), r.Failed, r.Unsent)
		}
	})
}

func TestCheck(t *testing.T) {
	good := Options{Rate: 1, For: time.Second, Callers: 1, Keys: 1, Draw: Uniform}
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Options){
		"rate": func(o *Options) { o.Rate = -1 }, "time": func(o *Options) { o.For = 0 }, "callers": func(o *Options) { o.Callers = 5000 },
		"keys": func(o *Options) { o.Keys = 0 }, "drawn": func(o *Options) { o.Draw = "gauss" },
	} {
		o := good
		if change(&o); o.Check() == nil || !strings.Contains(o.Check().Error(), name) {
			t.Errorf("%s: %v", name, o.Check())
		}
	}
}
