package line

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

func user(name string) rule.Pair { return rule.Pair{Name: "user", Value: name} }

// Whatever the algorithm, those whom the limit refuses are admitted later in the order in which
// they came, each at the very instant at which the limit admits it; one that comes at that instant
// stands behind them, and who cannot get in within its wait is refused as soon as that is known.
func TestFirstComeFirstServed(t *testing.T) {
	for name, test := range map[string]struct {
		rule string
		want []string // of a to f at 0, g at 1 s
	}{
		"token_bucket": {"algorithm: token_bucket, allow: {rate: 1/s, burst: 2}, on_limit: {wait: 3500ms}",
			[]string{"a@0s", "b@0s", "c@1s", "d@2s", "e@3s", "f@3s refused by q for 1s", "g@4s"}},
		"token_bucket by interval": {"algorithm: token_bucket, refill: interval, allow: {rate: 2/s, burst: 2}, on_limit: {wait: 1500ms}",
			[]string{"a@0s", "b@0s", "c@1s", "d@1s", "e@1s refused by q for 1s", "f@1s refused by q for 1s", "g@2s"}},
		"sliding_log": {"algorithm: sliding_log, allow: 2/s, on_limit: {wait: 2500ms}",
			[]string{"a@0s", "b@0s", "c@1s", "d@1s", "e@2s", "f@2s", "g@3s"}},
		"fixed_window": {"algorithm: fixed_window, allow: 2/s, on_limit: {wait: 1500ms}",
			[]string{"a@0s", "b@0s", "c@1s", "d@1s", "e@1s refused by q for 1s", "f@1s refused by q for 1s", "g@2s"}},
		"sliding_window": {"allow: 2/s, on_limit: {wait: 2s}",
			[]string{"a@0s", "b@0s", "c@1.000001s", "d@1.500001s", "e@1.500001s refused by q for 500ms",
				"f@1.500001s refused by q for 500ms", "g@2.000001s"}},
		"concurrency": {"allow: 2 concurrent, timeout: 10s, on_limit: {wait: 2500ms}",
			[]string{"a@0s", "b@0s", "c@1s", "d@1s", "e@2s", "f@2s", "g@3s"}},
		"sliding_log with a margin": {"algorithm: sliding_log, allow: 2/s, throttle: {soft: 50%}, on_limit: {wait: 2s}",
			[]string{"a@0s", "b@0s", "c@0s", "d@1s", "e@1s", "f@1s", "g@2s"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDoor(New(0), newLimiter(t, "limits: [{name: q, "+test.rule+"}]"))
				work := func() { time.Sleep(time.Second) }
				come := func(name string) {
					go d.pass(t.Context(), name, 1, work)
					synctest.Wait()
				}
				for _, name := range strings.Split("abcdef", "") {
					come(name)
				}
				time.Sleep(time.Second)
				come("g")
				time.Sleep(10 * time.Second)
				d.sort()
				if got := d.outcomes(); !slices.Equal(got, test.want) {
					t.Errorf("got  %v\nwant %v", got, test.want)
				}
				d.empty(t)
			})
		})
	}
}

// A slot that is released on this node lets the first in at once; another node's slot is found
// within 200 ms.
func TestSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, "limits: [{name: q, per: [user], allow: 1 concurrent, timeout: 10s, on_limit: {wait: 5s}}]")
		here, there := newDoor(New(0), l), newDoor(New(0), l)
		go there.pass(t.Context(), "there", 1, func() { time.Sleep(time.Second) }, user("ada"))
		synctest.Wait()
		for range 3 {
			go here.pass(t.Context(), "here", 1, func() { time.Sleep(1234567 * time.Nanosecond) }, user("ada"))
			synctest.Wait()
		}
		go here.pass(t.Context(), "other", 1, nil, user("bob"))
		synctest.Wait()
		time.Sleep(3 * time.Second)
		synctest.Wait()
		at := []time.Duration{}
		for _, o := range here.log {
			at = append(at, o.at)
		}
		if len(at) != 4 || at[0] != 0 || at[1] < time.Second || at[1] > 1200*time.Millisecond ||
			at[2] != at[1]+1234567 || at[3] != at[2]+1234567 {
			t.Errorf("admitted at %v", at)
		}
		here.empty(t)
	})
}

// A slot that is given back between a refusal and the moment at which who was refused stands in
// line is not missed.
func TestReleaseWhileAsking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d *door
		var first *Visit
		var holder weir.Decision
		l := newSpied(t, "limits: [{name: q, allow: 1 concurrent, timeout: 10s, on_limit: {wait: 5s}}]",
			func(results []algo.Result) {
				if !results[0].Allowed { // refused, and does not stand in line yet
					first.Release(t.Context(), d.limiter, &holder)
				}
			})
		d = newDoor(New(0), l)
		first = d.lines.NewVisit()
		if err := first.Decide(t.Context(), l, &weir.Request{Hits: 1}, &holder); err != nil || !holder.Allowed {
			t.Fatal(err)
		}
		if o := d.pass(t.Context(), "second", 1, nil); o.String() != "second@0s" {
			t.Errorf("got %v", o)
		}
	})
}

// Each key has a line of its own.
func TestNobodyWaitsInTheLineOfAnotherKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDoor(New(0),
			newLimiter(t,
				"limits: [{name: q, per: [user], algorithm: token_bucket, allow: {rate: 1/s, burst: 1}, on_limit: {wait: 9s}}]"))
		for i := range 9 {
			go d.pass(t.Context(), fmt.Sprint("ada", i), 1, nil, user("ada"))
			synctest.Wait()
		}
		for i := range 2 {
			go d.pass(t.Context(), fmt.Sprint("bob", i), 1, nil, user("bob"))
			synctest.Wait()
		}
		time.Sleep(1500 * time.Millisecond)
		if got := d.outcomes(); !slices.Equal(got[:2], []string{"ada0@0s", "bob0@0s"}) ||
			!slices.Contains(got, "bob1@1s") {
			t.Errorf("got %v", got)
		}
		if s := d.lines.Stats(); s.Held != 7 || s.Longest != 7 || s.Lines != 1 || s.Total != 9 {
			t.Errorf("%+v", s)
		}
		time.Sleep(10 * time.Second)
		d.empty(t)
	})
}

// Who asks for more than the line's first does not get past it, and neither does who asks for less.
func TestSmallRequestsDoNotOvertake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDoor(New(0),
			newLimiter(t,
				"limits: [{name: q, algorithm: token_bucket, allow: {rate: 1/s, burst: 5}, on_limit: {wait: 9s}}]"))
		for _, r := range []struct {
			name string
			hits int64
		}{{"four", 4}, {"five", 5}, {"one", 1}, {"three", 3}} {
			go d.pass(t.Context(), r.name, r.hits, nil)
			synctest.Wait()
		}
		time.Sleep(10 * time.Second)
		if got, want := d.outcomes(), []string{"four@0s", "five@4s", "one@5s", "three@8s"}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

// A line has room for `queue` requests, and all together for max; who finds none is refused without
// asking the store, with the time at which the line goes on.
func TestRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		set := "limits: [{name: q, per: [user], algorithm: token_bucket, allow: {rate: 1/s, burst: 1}, on_limit: {wait: 60s}}]"
		l := newSpied(t, set, func([]algo.Result) { asked.Add(1) })
		rules, _ := l.Rules()
		rules.Rules()[0].WaitQueue = 3
		d := newDoor(New(10), l)
		ctx, hangUp := context.WithCancel(t.Context())
		for i := range 4 {
			go d.pass(ctx, fmt.Sprint(i), 1, nil, user("ada"))
			synctest.Wait()
		}
		time.Sleep(250 * time.Millisecond)
		before := asked.Load()
		o := d.pass(t.Context(), "turned away", 1, nil, user("ada"))
		if o.String() != "turned away@250ms refused by q for 750ms" || asked.Load() != before {
			t.Errorf("got %v, asked %d times", o, asked.Load()-before)
		}
		if s := d.lines.Stats(); s.TurnedAway != 1 || s.Held != 3 || s.Expired != 0 {
			t.Errorf("%+v", s)
		}
		// 7 places are left. A key takes one as long as it has fewer than are left.
		rules.Rules()[0].WaitQueue = 0
		for i := range 10 {
			go d.pass(ctx, fmt.Sprint("b", i), 1, nil, user("bob"))
			synctest.Wait()
		}
		if s := d.lines.Stats(); s.Held != 7 || s.Longest != 4 {
			t.Errorf("with two keys: %+v", s)
		}
		for i := range 20 {
			go d.pass(ctx, "x", 1, nil, user(fmt.Sprint("c", i)))
			go d.pass(ctx, "x", 1, nil, user(fmt.Sprint("c", i)))
			synctest.Wait()
		}
		if s := d.lines.Stats(); s.Held != 10 || s.Lines != 5 {
			t.Errorf("with many keys: %+v", s)
		}
		hangUp()
		synctest.Wait()
		if s := d.lines.Stats(); s.HungUp != 10 || s.Total != 10 {
			t.Errorf("when all hung up: %+v", s)
		}
		d.empty(t)
	})
}

// Who cannot get in within its wait is refused at once, and not held in vain.
func TestRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDoor(New(0), newLimiter(t, `
limits:
  - {name: slow, when: {user: ada}, algorithm: sliding_log, allow: 1/min, on_limit: {wait: 59s}}
  - {name: small, when: {user: bob}, algorithm: token_bucket, allow: {rate: 1/s, burst: 1}, on_limit: {wait: 9s}}
  - {name: also, when: {user: cora}, algorithm: token_bucket, allow: {rate: 1/s, burst: 1}, on_limit: {wait: 9s}}
  - {name: hard, when: {user: cora}, algorithm: token_bucket, allow: {rate: 1/s, burst: 1}}
  - {name: leaky, when: {user: dora}, algorithm: leaky_bucket, allow: {rate: 1/s, burst: 0}, on_limit: {wait: 9s}}
  - {name: dark, when: {user: eve}, allow: 1/min, on_limit: shadow}
  - {name: light, when: {user: eve}, algorithm: token_bucket, allow: {rate: 1/s, burst: 1}, on_limit: {wait: 1s}}
`))
		for _, test := range []struct {
			user string
			hits int64
			want string
		}{
			{"ada", 1, "ada@0s"}, {"ada", 1, "ada@0s refused by slow for 1m0s"},
			{"bob", 2, "bob@0s refused by small for -1µs"},
			{"cora", 1, "cora@0s"}, {"cora", 1, "cora@0s refused by also for 1s"},
			{"dora", 1, "dora@0s"}, {"dora", 1, "dora@0s refused by leaky for 1s"},
			{"eve", 1, "eve@0s"}, {"eve", 1, "eve@1s"}, // a limit in shadow does not refuse
		} {
			if o := d.pass(t.Context(), test.user, test.hits, nil, user(test.user)); o.String() != test.want {
				t.Errorf("got %v, want %s", o, test.want)
			}
		}
	})
}

// A request that several limits refuse stands in the line of the one that refuses longest, and
// moves on to the other's; all within the shortest of their waits.
func TestSeveralLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDoor(New(0), newLimiter(t, `
limits:
  - {name: each, per: [user], algorithm: token_bucket, allow: {rate: 1/1900ms, burst: 1}, on_limit: {wait: 60s}}
  - {name: all, algorithm: token_bucket, allow: {rate: 1/s, burst: 1}, on_limit: {wait: 4s}}
`))
		for i, u := range []string{"ada", "ada", "bob", "cora", "ada"} {
			go d.pass(t.Context(), fmt.Sprint(u, i), 1, nil, user(u))
			synctest.Wait()
		}
		time.Sleep(20 * time.Second)
		// At 0 ada1 is refused by both, longer by each; the others stand in the line of all. At 1.9
		// s each would admit ada1, but all does not, and ada1 came before cora3. ada4 goes at the
		// last moment of its wait.
		want := []string{"ada0@0s", "bob2@1s", "ada1@2s", "cora3@3s", "ada4@4s"}
		if got := d.outcomes(); !slices.Equal(got, want) {
			t.Errorf("got %v\nwant %v", got, want)
		}
		d.empty(t)
	})
}

// Who comes to a line later than it came to the door stands by its arrival: before those who came
// after it, and behind those who came before. So a stream of small requests that wait for something
// else does not starve a large one.
func TestMovesToAnotherLine(t *testing.T) {
	for _, test := range []struct {
		waits [3]string // of bob's limit, of ada's, and of both together
		want  []string
	}{
		{[3]string{"60s", "60s", "60s"}, []string{"bob@6s", "ada@7s", "ada@8s", "ada@9s", "ada@10s"}},
		// Of the 5.5 s for which it may wait in all, 2 are over, and it would have to wait for 4.
		{[3]string{"60s", "60s", "5500ms"}, []string{"bob@2s refused by all for 4s", "ada@2.5s", "ada@3.5s", "ada@4.5s", "ada@5.5s"}},
		// Ada's wait is over before the first of the line may go.
		{[3]string{"60s", "5s", "60s"}, []string{"bob@6s", "ada@2.5s refused by all for 3.5s", "ada@2.5s refused by all for 3.5s",
			"ada@2.5s refused by all for 3.5s", "ada@2.5s refused by all for 3.5s"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := newDoor(New(0), newLimiter(t, fmt.Sprintf(`
limits:
  - {name: bobs, when: {user: bob}, algorithm: token_bucket, allow: {rate: 1/s, burst: 5}, on_limit: {wait: %s}}
  - {name: adas, when: {user: ada}, algorithm: token_bucket, allow: {rate: 1/s, burst: 5}, on_limit: {wait: %s}}
  - {name: all, algorithm: token_bucket, allow: {rate: 1/s, burst: 10}, on_limit: {wait: %s}}
`, test.waits[0], test.waits[1], test.waits[2])))
			come := func(who string, hits int64) {
				go d.pass(t.Context(), who, hits, nil, user(who))
				synctest.Wait()
			}
			come("bob", 5)
			// waits for bobs, until 5 s; and when it looks again, at 2 s, longer for all
			come("bob", 5)
			time.Sleep(500 * time.Millisecond)
			come("ada", 5)
			for range 5 {
				// wait for adas, which admits one each second; from 2.5 s on all would still admit
				// them, but not bob's 5
				come("ada", 1)
			}
			time.Sleep(20 * time.Second)
			got, want := d.outcomes(), append(test.want, "bob@0s", "ada@500ms", "ada@1.5s")
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("%v: got  %v\nwant %v", test.waits, got, want)
			}
			d.empty(t)
		})
	}
}

// A Visit that was held once stands behind those who came before its next request.
func TestVisitAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lines := New(0)
		l := newLimiter(t, "limits: [{name: q, algorithm: sliding_log, allow: 1/s, on_limit: {wait: 3s}}]")
		start, v := time.Now(), lines.NewVisit()
		decide := func(v *Visit) time.Duration {
			var d weir.Decision
			if err := v.Decide(t.Context(), l, &weir.Request{Hits: 1}, &d); err != nil || !d.Allowed {
				t.Error(d.Allowed, err)
			}
			return time.Since(start)
		}
		decide(v)
		if at := decide(v); at != time.Second || v.Left != 1 {
			t.Errorf("the second time: at %v, number %d", at, v.Left)
		}
		other := make(chan time.Duration, 1)
		go func() { other <- decide(lines.NewVisit()) }()
		synctest.Wait()
		if at := decide(v); at != 3*time.Second || <-other != 2*time.Second || v.Left != 3 {
			t.Errorf("the third time: at %v, number %d", at, v.Left)
		}
	})
}

// A request that waits is charged nothing, by no limit, until it is admitted.
func TestWaitingIsChargedNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, `
limits:
  - {name: day, algorithm: sliding_log, allow: 100/day}
  - {name: slots, allow: 100 concurrent}
  - {name: dark, allow: 100 concurrent, on_limit: shadow}
  - {name: q, algorithm: token_bucket, allow: {rate: 1/3s, burst: 1}, on_limit: {wait: 5s}}
`)
		d := newDoor(New(0), l)
		work := func() { time.Sleep(time.Hour) }
		for range 4 {
			go d.pass(t.Context(), "x", 1, work)
			synctest.Wait()
		}
		used := func() (n [3]int64) {
			var decision weir.Decision
			if err := l.Decide(t.Context(), &weir.Request{Peek: true}, &decision); err != nil {
				t.Fatal(err)
			}
			for i := range n {
				n[i] = 100 - decision.Limits[i].Remaining
			}
			return n
		}
		if got := used(); got != [3]int64{1, 1, 1} {
			t.Errorf("while three wait: %v", got)
		}
		time.Sleep(10 * time.Second)
		if got := used(); got != [3]int64{2, 2, 2} {
			t.Errorf("when the wait is over: %v", got)
		}
		time.Sleep(2 * time.Hour)
	})
}

// A refund from elsewhere, and new rules, are noticed within a second.
func TestLooksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		yaml := "limits: [{name: q, algorithm: sliding_log, allow: %d/min, on_limit: {wait: 90s}}]"
		l := newLimiter(t, fmt.Sprintf(yaml, 1))
		d := newDoor(New(0), l)
		for _, name := range []string{"a", "b", "c"} {
			go d.pass(t.Context(), name, 1, nil)
			synctest.Wait()
		}
		time.Sleep(1500 * time.Millisecond)
		var refund weir.Decision
		if err := l.Decide(t.Context(), &weir.Request{Hits: -1}, &refund); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		l.SetRules(load(t, fmt.Sprintf(yaml, 2)))
		time.Sleep(time.Second)
		if got, want := d.outcomes(), []string{"a@0s", "b@2s", "c@4s"}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

// Shut refuses who waits to ask, and who would have to; those with a turn keep it.
func TestShut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDoor(New(0), newLimiter(t, `
limits:
  - {name: q, when: {user: ada}, algorithm: sliding_log, allow: 1/min, on_limit: {wait: 60s}}
  - {name: turns, when: {user: bob}, algorithm: leaky_bucket, allow: {rate: 1/s, burst: 9}}
`))
		for _, u := range []string{"ada", "ada", "ada", "bob", "bob"} {
			go d.pass(t.Context(), u, 1, nil, user(u))
			synctest.Wait()
		}
		time.Sleep(500 * time.Millisecond)
		d.lines.Shut()
		synctest.Wait()
		for _, u := range []string{"ada", "bob"} {
			go d.pass(t.Context(), "late "+u, 1, nil, user(u))
			synctest.Wait()
		}
		time.Sleep(time.Second)
		got := d.outcomes()
		slices.Sort(got[2:4])
		want := []string{"ada@0s", "bob@0s", "ada@500ms refused by q for 59.5s", "ada@500ms refused by q for 59.5s",
			"late ada@500ms refused by q for 59.5s", "late bob@500ms refused by turns for 1.5s", "bob@1s"}
		if !slices.Equal(got, want) {
			t.Errorf("got  %v\nwant %v", got, want)
		}
		d.empty(t)
	})
	synctest.Test(t, func(t *testing.T) { // who may hold nobody never does
		d := newDoor(New(-1),
			newLimiter(t, "limits: [{name: turns, algorithm: leaky_bucket, allow: {rate: 1/s, burst: 9}}]"))
		for _, want := range []string{"x@0s", "x@0s refused by turns for 1s"} {
			if o := d.pass(t.Context(), "x", 1, nil); o.String() != want {
				t.Errorf("got %v, want %s", o, want)
			}
		}
	})
}

// Peeks and refunds do not wait.
func TestPeeksDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDoor(New(0),
			newLimiter(t, "limits: [{name: q, algorithm: sliding_log, allow: 1/min, on_limit: {wait: 60s}}]"))
		for range 2 {
			go d.pass(t.Context(), "x", 1, nil)
			synctest.Wait()
		}
		for _, hits := range []int64{0, -1} {
			if o := d.pass(t.Context(), "x", hits, nil); o.String() != "x@0s" {
				t.Errorf("%d hits: %v", hits, o)
			}
		}
		time.Sleep(time.Minute)
	})
}

// A Visit's Veto is asked whenever the request asks, and can end it; not while it stands behind
// others.
func TestVeto(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDoor(New(0),
			newLimiter(t,
				"limits: [{name: q, algorithm: token_bucket, allow: {rate: 1/s, burst: 1}, on_limit: {wait: 60s}}]"))
		var mu sync.Mutex
		var met []string
		for _, name := range []string{"a", "b", "c"} {
			go func() {
				v := d.lines.NewVisit()
				v.Veto = func(*weir.Decision) bool {
					mu.Lock()
					defer mu.Unlock()
					met = append(met, fmt.Sprint(name, "@", time.Since(d.start)))
					return len(met) == 5
				}
				var decision weir.Decision
				err := v.Decide(t.Context(), d.limiter, &weir.Request{Hits: 1}, &decision)
				if err != nil || v.Vetoed != (name == "c") || decision.Allowed != (name != "c") || v.HungUp {
					t.Errorf("%s: %v", name, err)
				}
			}()
			synctest.Wait()
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if want := []string{"a@0s", "b@0s", "b@1s", "c@1s", "c@2s"}; !slices.Equal(met, want) {
			t.Errorf("asked %v, want %v", met, want)
		}
		d.empty(t)
	})
}
