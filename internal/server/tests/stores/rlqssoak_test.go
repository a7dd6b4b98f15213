//go:build soak && linux

package stores

import (
	"os"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
)

// TestQuotaSoak: two Envoys and two Weirs at three times the limits, for WEIR_QUOTA_SOAK (3m). One
// limit is 60,000 a minute, of which numbers of requests are assigned; the other is 1,000 a second,
// of which a rate is. The machine should have nothing else to do.
func TestQuotaSoak(t *testing.T) {
	lasts := 3 * time.Minute
	if text := os.Getenv("WEIR_QUOTA_SOAK"); text != "" {
		var err error
		if lasts, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	for _, plan := range []string{"units", "pace"} {
		t.Run(plan, func(t *testing.T) {
			l := quotaLimits{
				units: algo.Config{Algorithm: algo.TokenBucket, N: 60_000, Window: time.Minute},
				pace:  algo.Config{Algorithm: algo.TokenBucket, N: 1000, Window: time.Second},
			}
			b := newQuotaBed(t, 2, l)
			first, second := b.startEnvoy(b.ports[0]), b.startEnvoy(b.ports[1])
			began := time.Now()
			flows := []*flow{first.load(t, plan, "tenant", 1500), second.load(t, plan, "tenant", 1500)}
			<-time.After(lasts)
			ended := time.Now()
			answered := []int64{flows[0].stop(), flows[1].stop()}
			extra := int64(0)
			if plan == "pace" {
				// One second for an assignment on its way.
				extra = int64(0.9 * 2 * 1000)
			}
			all := b.obeys(plan, "tenant", extra, first.admitted(t, "tenant", answered[0]),
				second.admitted(t, "tenant", answered[1]))
			// The burst of the units ends before the last minute.
			from := ended.Add(-min(time.Minute, lasts/3))
			late := float64(between(all, from, ended)) / ended.Sub(from).Seconds()
			t.Logf("%d asked, %d let through in %v; in the last %v %.0f a second of 1000; over %v",
				answered[0]+answered[1], len(all), ended.Sub(began), ended.Sub(from), late,
				b.metric("weir_rlqs_over_units_total"))
			if plan == "pace" {
				if late < 800 { // lease 90%, and a little of each second
					t.Errorf("%.0f a second were let through, want 800 and more", late)
				}
				return
			}
			if late < 900 {
				t.Errorf("%.0f a second were let through, want 900 and more", late)
			}
			if over := b.metric("weir_rlqs_over_units_total"); over != 0 {
				t.Errorf("%v units were reported that nobody had paid", over)
			}
		})
	}
}
