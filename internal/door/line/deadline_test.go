package line

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir"
)

// A request whose client wants no answer any more when it would pass is refused at once, as far as
// that is known, and takes no turn from others. The answer says when to come back.
func TestRefusedBeforeTheDeadline(t *testing.T) {
	type came struct {
		name   string
		within time.Duration // 0 for no deadline
	}
	for name, test := range map[string]struct {
		rule string
		come []came // all at 0
		want []string
	}{
		"leaky_bucket": {"algorithm: leaky_bucket, allow: {rate: 1/s, burst: 100}",
			[]came{{"a", 0}, {"b", 0}, {"early", 1500 * time.Millisecond}, {"exact", 2 * time.Second},
				{"c", 2100 * time.Millisecond}, {"d", 0}},
			[]string{"a@0s", "early@0s refused by q for 523.605ms", "exact@0s refused by q for 20.289ms", "b@1s",
				"c@2s", "d@3s"}},
		"leaky_bucket with a wait": {"algorithm: leaky_bucket, allow: {rate: 1/s, burst: 100}, on_limit: {wait: 1500ms}",
			[]came{{"a", time.Hour}, {"b", time.Hour}, {"c", time.Hour}, {"early", 100 * time.Millisecond}},
			[]string{"a@0s", "c@0s refused by q for 500ms", "early@0s refused by q for 1.901434s", "b@1s"}},
		"token_bucket": {"algorithm: token_bucket, allow: {rate: 1/s, burst: 1}, on_limit: {wait: 10s}",
			[]came{{"a", 0}, {"early", 500 * time.Millisecond}, {"exact", time.Second}, {"b", 1100 * time.Millisecond},
				{"c", 0}},
			[]string{"a@0s", "early@0s refused by q for 1s", "exact@0s refused by q for 1s", "b@1s", "c@2s"}},
		"behind a line": {"algorithm: sliding_log, allow: 1/s, on_limit: {wait: 10s}",
			[]came{{"a", 0}, {"b", 0}, {"early", 500 * time.Millisecond}, {"c", 0}},
			[]string{"a@0s", "early@0s refused by q for 1s", "b@1s", "c@2s"}},
		"seen when it asks again": {"algorithm: sliding_log, allow: 1/s, on_limit: {wait: 10s}",
			[]came{{"a", 0}, {"b", 0}, {"c", 1500 * time.Millisecond}, {"d", 0}},
			[]string{"a@0s", "b@1s", "c@1s refused by q for 1s", "d@2s"}},
		"slots": {"allow: 1 concurrent, timeout: 1m, on_limit: {wait: 10s}",
			[]came{{"a", 0}, {"b", 500 * time.Millisecond}, {"c", 1500 * time.Millisecond}},
			[]string{"a@0s", "b@500ms gone", "c@1s"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDoor(New(0), newLimiter(t, "limits: [{name: q, "+test.rule+"}]"))
				for _, c := range test.come {
					ctx := t.Context()
					if c.within > 0 {
						var cancel context.CancelFunc
						ctx, cancel = context.WithTimeout(ctx, c.within)
						defer cancel()
					}
					work := func() {}
					if name == "slots" {
						work = func() { time.Sleep(time.Second) }
					}
					go d.pass(ctx, c.name, 1, work)
					synctest.Wait()
				}
				time.Sleep(10 * time.Second)
				synctest.Wait()
				d.sort()
				if got := d.outcomes(); !slices.Equal(got, test.want) {
					t.Errorf("got  %v\nwant %v", got, test.want)
				}
				d.empty(t)
			})
		})
	}
}

// A deadline that a door knows counts as one of the context does, and the earlier of the two holds.
func TestDeadlineOfTheDoor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, oneQueue)
		lines := New(0)
		var d weir.Decision
		v := lines.NewVisit()
		decide := func(within, ofContext time.Duration) bool {
			t.Helper()
			v.Deadline = time.Time{}
			if within > 0 {
				v.Deadline = time.Now().Add(within)
			}
			ctx, cancel := context.WithTimeout(t.Context(), ofContext)
			defer cancel()
			if err := v.Decide(ctx, l, &weir.Request{MaxDelay: weir.AnyDelay}, &d); err != nil {
				t.Fatal(err)
			}
			return d.Allowed
		}
		if !decide(0, time.Hour) || decide(500*time.Millisecond, time.Hour) || decide(time.Hour, 500*time.Millisecond) {
			t.Error("the earlier deadline does not hold")
		}
		if start := time.Now(); !decide(2*time.Second, time.Hour) || time.Since(start) != time.Second {
			t.Errorf("it was held for %v", time.Since(start))
		}
	})
}
