//go:build linux

package stores

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/leasing/broker"
	"github.com/weir-rl/weir/internal/testkit/leasecheck"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// TestQuotaFaults: whatever dies or stands still, no more is let through than is promised, and it
// goes on afterwards. WEIR_QUOTA_FAULTS is how long each fault lasts (6s, more than the 5 s between
// two reports of an Envoy); the soak of quotas sets others.
func TestQuotaFaults(t *testing.T) {
	lasts := 6 * time.Second
	if text := os.Getenv("WEIR_QUOTA_FAULTS"); text != "" {
		var err error
		if lasts, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	t.Parallel()
	for _, f := range []struct {
		name    string
		extra   int64 // what may be let through beyond the limit
		proxied bool  // the first Envoy reaches the first Weir by way of quotaBed.proxy
		fault   func(b *quotaBed) (end func())
	}{
		// What a Weir has assigned lives on, and counts until it ends.
		{"a Weir dies", 0, false, func(b *quotaBed) func() {
			b.weirs[0].Signal(syscall.SIGKILL)
			b.weirs[0].Wait()
			b.weirs[0] = nil
			return func() { b.startWeir(0) }
		}},
		{"a Weir stands still", 0, false, func(b *quotaBed) func() {
			b.weirs[0].Signal(syscall.SIGSTOP)
			return func() { b.weirs[0].Signal(syscall.SIGCONT) }
		}},
		// What it had when it stopped may come later than it was paid.
		{"an Envoy stands still", 270, false, func(b *quotaBed) func() {
			b.envoys[0].Pause()
			return b.envoys[0].Resume
		}},
		// Each Weir has its share of the limit meanwhile, of a state of its own.
		{"Redis is away", 600, false, func(b *quotaBed) func() {
			b.redis.Kill()
			return b.redis.Restart
		}},
		// What it had counts until it ends, and then the other one gets all that comes back.
		{"an Envoy dies", 0, false, func(b *quotaBed) func() {
			b.envoys[0].Kill()
			return func() {}
		}},
		// Its Weir hears nothing more of it; it finds the other one by its keepalive.
		{"a stream stands still", 0, true, func(b *quotaBed) func() {
			b.proxy.BlackHole()
			return b.proxy.Pass
		}},
		// Assignments are in force later than they are taken to be.
		{"a stream is slow", 270, true, func(b *quotaBed) func() {
			b.proxy.Delay(2 * broker.Delay)
			return b.proxy.Pass
		}},
	} {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			b := newQuotaBed(t, 2, limitsOfTests)
			port := b.ports[0]
			if f.proxied {
				b.proxy = redistest.Proxy(t, "127.0.0.1:"+port)
				_, port, _ = strings.Cut(b.proxy.Addr(), ":")
			}
			first, second := b.startEnvoy(port, b.ports[1]), b.startEnvoy(b.ports[1], b.ports[0])
			flows := []*flow{first.load(t, "units", "tenant", 30), second.load(t, "units", "tenant", 30)}
			began := time.Now()
			servertest.Eventually(t, "all that may come at once has come",
				func() bool { return flows[0].since(began)+flows[1].since(began) >= 300 })
			end := f.fault(b)
			<-time.After(lasts)
			end()
			back := time.Now()
			servertest.Eventually(t, "what comes back after the fault is let through",
				func() bool { return flows[0].since(back)+flows[1].since(back) >= 75 })
			var answered []int64
			for _, l := range flows {
				answered = append(answered, l.stop())
			}
			one, other := flows[0].admitted, second.admitted(t, "tenant", answered[1])
			if !first.Ended() { // else the end of its log is lost
				one = first.admitted(t, "tenant", answered[0])
			}
			all := b.obeys("units", "tenant", f.extra, one, other)
			now := time.Now()
			t.Logf("%d in all, %d of %.0f after the fault, by the first Envoy %d", len(all), between(all, back, now),
				10*now.Sub(back).Seconds(), between(one, back, now))
			if len(all) < 300 {
				t.Errorf("%d were let through, want 300 and more", len(all))
			}
			if at := firstAfter(one, back); at > 0 {
				t.Logf("the first Envoy let something through %v after the end of the fault", at)
			}
		})
	}
}

// firstAfter returns how long after an instant the first admission was; 0 if there was none.
func firstAfter(list []leasecheck.Admission, at time.Time) (d time.Duration) {
	for _, a := range list {
		if after := time.Duration(a.Lo-at.UnixMicro()) * time.Microsecond; after >= 0 && (d == 0 || after < d) {
			d = after
		}
	}
	return d
}
