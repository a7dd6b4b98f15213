package weir_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store/memory"
)

// A program says all of its limits by itself: no rule file is read.
func ExampleLimit_several() {
	store, err := memory.New(memory.Options{})
	if err != nil {
		panic(err)
	}
	defer store.Close()
	limiter, err := weir.New(store,
		weir.Limit("per-user", "100/day", "user").Algorithm(algo.TokenBucket),
		weir.Limit("logins", "2/day", "ip").Soft(50).
			Ban(rule.Ban{After: 2, Within: time.Hour, For: 24 * time.Hour}),
	)
	if err != nil {
		panic(err)
	}
	for range 6 {
		d, err := limiter.Allow(context.Background(), weir.Request{
			Attributes: weir.Map{"user": "ada", "ip": "192.0.2.1"},
		})
		if err != nil {
			panic(err)
		}
		fmt.Println(d.Allowed, d.LimitedBy(nil), "soft:", d.SoftExceeded(), "banned:", d.Banned.Rule != nil)
	}
	// Output:
	// true [] soft: false banned: false
	// true [] soft: false banned: false
	// true [] soft: true banned: false
	// false [logins] soft: false banned: false
	// false [logins] soft: false banned: false
	// false [logins] soft: false banned: true
}

// TestLimitsTogether: several limits are charged all or none.
func TestLimitsTogether(t *testing.T) {
	l := newLimiter(t, newClock(), weir.Limit("all", "3/min"), weir.Limit("user", "1/min", "user"))
	if d := allow(t, l, as("ada")); !d.Allowed || len(d.Limits) != 2 {
		t.Fatalf("%+v", d)
	}
	if d := allow(t, l, as("ada")); d.Allowed || d.Limits[0].Remaining != 2 {
		t.Fatalf("a refused request was charged: %+v", d.Limits)
	}
	if d := allow(t, l, as("bob")); !d.Allowed || d.Limits[0].Remaining != 1 {
		t.Fatalf("%+v", d.Limits)
	}
}

// TestLimitIsAValue: the options of a limit leave the one that they are called on as it is, and a
// limit may be given to several Limiters.
func TestLimitIsAValue(t *testing.T) {
	ban := rule.Ban{After: 1, Within: time.Minute, For: time.Hour}
	plain := weir.Limit("x", "1/min", "user")
	queue := plain.Algorithm(algo.LeakyBucket)
	banning := plain.Ban(ban)
	ban.After = 0
	for range 2 {
		l := newLimiter(t, newClock(), plain)
		allow(t, l, as("ada"))
		if d := allow(t, l, as("ada")); d.Allowed || d.Limits[0].Window.Limit.Algorithm() != algo.SlidingWindow {
			t.Errorf("plain: %+v", d)
		}
		l = newLimiter(t, newClock(), queue)
		if d := allow(t, l, as("ada")); !d.Allowed || d.Limits[0].Window.Limit.Algorithm() != algo.LeakyBucket {
			t.Errorf("queue: %+v", d)
		}
		c := newClock()
		l = newLimiter(t, c, banning, weir.WithClock(c.read))
		allow(t, l, as("ada"))
		allow(t, l, as("ada"))
		if list := l.Bans().List(); len(list) != 1 || list[0].Until.Sub(list[0].Since) != time.Hour {
			t.Errorf("banning: %+v", list)
		}
	}
}
