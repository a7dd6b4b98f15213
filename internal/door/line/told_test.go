package line

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir"
)

// The hooks hear once of a request that waits, when its outcome is known. It is charged once by the
// limits that are charged whatever the others say: those in shadow, and those that count denied
// requests.
func TestToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		var d *door
		l := newLimiter(t, `
limits:
  - {name: counted, algorithm: sliding_log, allow: 100/day, count_denied: true}
  - {name: dark, algorithm: sliding_log, allow: 100/day, on_limit: shadow}
  - {name: slots, allow: 100 concurrent, on_limit: shadow}
  - {name: q, allow: 1 concurrent, on_limit: {wait: 3s}}
`, weir.WithHooks(weir.Hooks{Decided: func(r *weir.Request, decision *weir.Decision) {
			if r.Hits > 0 {
				told = append(told, fmt.Sprint(time.Since(d.start), decision.Allowed, decision.LimitedBy(nil),
					decision.ID != 0))
			}
		}}))
		d = newDoor(New(3), l)
		for range 4 {
			go d.pass(t.Context(), "x", 1, func() { time.Sleep(2 * time.Second) })
			synctest.Wait()
		}
		used := func() (n [3]int64) {
			var peek weir.Decision
			if err := l.Decide(t.Context(), &weir.Request{Peek: true}, &peek); err != nil {
				t.Fatal(err)
			}
			for i := range n {
				n[i] = 100 - peek.Limits[i].Remaining
			}
			return n
		}
		if got, want := used(), [3]int64{2, 2, 1}; got != want {
			// the third and the fourth have not asked
			t.Errorf("charged %v, want %v", got, want)
		}
		time.Sleep(10 * time.Second)
		if got, want := used(), [3]int64{3, 3, 0}; got != want {
			t.Errorf("in the end charged %v, want %v", got, want)
		}
		want := []string{"0s true [] false", "0s false [q] true", "2s true [] false", "3s false [q] true"}
		if !slices.Equal(told, want) {
			t.Errorf("told of %q, want %q", told, want)
		}
	})
}
