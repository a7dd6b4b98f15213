//go:build soak && linux

package stores

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// TestQuotaScheduleSoak: where the schedule of a limit turns, a real Envoy gets what the next entry
// allows, and little of it before. It waits for the start of a minute.
func TestQuotaScheduleSoak(t *testing.T) {
	b := newQuotaBed(t, 1, limitsOfTests)
	e := b.startEnvoy(b.ports[0])
	turn := time.Now().UTC().Add(30 * time.Second).Truncate(time.Minute).Add(time.Minute)
	for left := time.Until(turn); left > 70*time.Second; left = time.Until(turn) {
		turn = turn.Add(-time.Minute)
	}
	b.writeRules(fmt.Sprintf(`domain: edge
limits:
  - { name: timed, per: [tenant], when: { plan: timed }, allow: 100000/30d, algorithm: token_bucket, consistency: { lease: 90%%, for: 11s }, timezone: UTC, schedule: [ { between: "%s-%s", allow: 1000000/30d } ] }
`, turn.Format("15:04"), turn.Add(time.Hour).Format("15:04")))
	c := new(http.Client)
	ask := func() bool {
		ok, err := e.ask(c, "timed", "tenant")
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	rls := b.rls(0)
	servertest.Eventually(t, "the limit is used up at another door", func() bool {
		ok, err := rls(t.Context(), "timed", "tenant", 100_000)
		if err != nil {
			t.Fatal(err)
		}
		return !ok
	})
	early := 0
	patience.Until(t, "the schedule turns", func() bool {
		if left := time.Until(turn); ask() && left > time.Second {
			early++
		}
		return time.Until(turn) <= 0
	})
	if early > 10 { // some come back by and by
		t.Errorf("%d were let through before the turn", early)
	}
	let, first := 0, time.Time{}
	servertest.Eventually(t, "the next entry of the schedule is in force", func() bool {
		if ask() {
			if let++; let == 1 {
				first = time.Now()
			}
		}
		return let >= 20
	})
	t.Logf("the schedule turned: 1 let through after %v, 20 after %v", first.Sub(turn), time.Since(turn))
}
