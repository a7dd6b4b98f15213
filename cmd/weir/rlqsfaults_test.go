//go:build linux

package main

import (
	"os"
	"syscall"
	"testing"
	"time"
)

// TestQuotaFaults: whatever dies or stands still, no more is let through than is promised, and it
// goes on afterwards. WEIR_QUOTA_FAULTS is how long each fault lasts (8s); scripts/soak-rlqs sets
// longer ones.
func TestQuotaFaults(t *testing.T) {
	lasts := 8 * time.Second
	if text := os.Getenv("WEIR_QUOTA_FAULTS"); text != "" {
		var err error
		if lasts, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	t.Parallel()
	for _, f := range []struct {
		name  string
		extra int64 // what may be let through beyond the limit
		fault func(b *quotaBed) (end func())
	}{
		// What a Weir has assigned lives on, and counts until it ends.
		{"a Weir dies", 0, func(b *quotaBed) func() {
			b.weirs[0].signal(syscall.SIGKILL)
			b.weirs[0].wait()
			b.weirs[0] = nil
			return func() { b.startWeir(0) }
		}},
		{"a Weir stands still", 0, func(b *quotaBed) func() {
			b.weirs[0].signal(syscall.SIGSTOP)
			return func() { b.weirs[0].signal(syscall.SIGCONT) }
		}},
		// What it had when it stopped may come later than it was paid.
		{"an Envoy stands still", 270, func(b *quotaBed) func() {
			b.envoys[0].Signal(syscall.SIGSTOP)
			return func() { b.envoys[0].Signal(syscall.SIGCONT) }
		}},
		// Each Weir has its share of the limit meanwhile, of a state of its own.
		{"Redis is away", 600, func(b *quotaBed) func() {
			b.redis.Kill()
			return b.redis.Restart
		}},
	} {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			b := newQuotaBed(t, 2, limitsOfTests)
			first, second := b.startEnvoy(b.ports[0], b.ports[1]), b.startEnvoy(b.ports[1], b.ports[0])
			flows := []*flow{first.load(t, "units", "tenant", 30), second.load(t, "units", "tenant", 30)}
			pause := func(d time.Duration) { <-time.After(d) }
			pause(12 * time.Second)
			end := f.fault(b)
			pause(lasts)
			end()
			back := time.Now()
			pause(15 * time.Second)
			var answered []int64
			for _, l := range flows {
				answered = append(answered, l.stop())
			}
			one, other := first.admitted(t, "tenant", answered[0]), second.admitted(t, "tenant", answered[1])
			all := b.obeys("units", "tenant", f.extra, one, other)
			now := time.Now()
			t.Logf("%d in all, %d of 150 after the fault, by the first Envoy %d", len(all), between(all, back, now), between(one, back, now))
			if len(all) < 300 {
				t.Errorf("%d were let through, want 300 and more", len(all))
			}
			// How they share it is not promised: what comes back may go to the first that asks.
			if late := between(all, back, now); late < 75 {
				t.Errorf("%d were let through after the fault, want 150", late)
			}
		})
	}
}
