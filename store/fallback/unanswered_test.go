package fallback

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// TestUnanswered: what is decided here while the primary counts as there is counted, and reported
// once a minute; what is decided while the breaker is open is not.
func TestUnanswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var all []Unanswered
		reported := func() []Unanswered {
			mu.Lock()
			defer mu.Unlock()
			return all
		}
		s, p := newTest(t, Options{Unanswered: func(u Unanswered) {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, u)
		}})
		c := perHour(t, 100)
		began := time.Now()
		take(t, s, charge(c, "k", 1))
		if st := s.Stats(); st.Unanswered != 0 {
			t.Errorf("%+v", st)
		}
		p.set(hangs)
		take(t, s, charge(c, "k", 3))
		take(t, s, charge(c, "k", 0))
		deny := charge(c, "k", 1)
		deny.OnStoreError = rule.DenyAll
		p.set(refuses)
		if _, err := s.Take(t.Context(), []store.Charge{deny}, make([]algo.Result, 1)); err == nil {
			t.Error("admitted")
		}
		if st := s.Stats(); st.Unanswered != 3 || st.UnansweredUnits != 3 {
			t.Errorf("%+v", st)
		}
		time.Sleep(firstReport)
		synctest.Wait()
		reports := reported()
		if len(reports) != 1 || reports[0].Decisions != 3 || reports[0].Units != 3 || reports[0].Cause == nil ||
			reports[0].Since.Before(began) {
			t.Fatalf("%+v", reports)
		}
		for range 5 {
			take(t, s, charge(c, "k", 1))
		}
		if state, _, _ := s.State(); state != Open {
			t.Fatal(state)
		}
		before := s.Stats().Unanswered
		take(t, s, charge(c, "k", 1))
		if n := s.Stats().Unanswered; n != before {
			t.Errorf("%d more while the breaker is open", n-before)
		}
		time.Sleep(nextReport - time.Second)
		synctest.Wait()
		if reports = reported(); len(reports) != 1 {
			t.Fatalf("within a minute: %+v", reports)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if reports = reported(); len(reports) != 2 || reports[1].Decisions != before-3 {
			t.Errorf("%+v, want another %d", reports, before-3)
		}
	})
}
