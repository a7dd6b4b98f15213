//go:build soak && linux

package stores

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/leasecheck"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// soakRegion is a region of TestRegionsSoak: two Weirs on a Redis, and an Envoy.
type soakRegion struct {
	*quotaBed
	name  string
	link  *redistest.FaultProxy // to the Redis of the other region
	envoy *quotaEnvoy
}

// soakRule is one limit for all at once: over two regions, leased by their servers, and assigned to
// Envoys.
const soakRule = `
domain: edge
limits:
  - name: units
    per: [tenant]
    when: { plan: units }
    allow: { rate: 3000/min, burst: 1500 }
    algorithm: token_bucket
    on_store_error: deny
    consistency: { lease: 50%, for: 11s, regions: { over: 20% } }
`

// TestRegionsSoak: two regions with two Weirs, an Envoy and a Redis each share one limit that is
// leased by servers and assigned to Envoys, at some four times what it admits, for
// WEIR_REGIONS_SOAK (10m). Meanwhile links are cut, lose, swallow and delay, Weirs die and stand
// still, Redis stands still, and streams of Envoys are silent, up to four of these at once. No more
// is let through than the bound; and after it all the regions are near the limit again.
// WEIR_REGIONS_SEED repeats the faults of a run.
func TestRegionsSoak(t *testing.T) {
	lasts, seed := 10*time.Minute, uint64(time.Now().UnixNano())
	var err error
	if text := os.Getenv("WEIR_REGIONS_SOAK"); text != "" {
		if lasts, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	if text := os.Getenv("WEIR_REGIONS_SEED"); text != "" {
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 15))
	regions := startSoakRegions(t)
	var flows []*flow
	var envoys []*flow
	for _, r := range regions {
		for i := range r.weirs {
			flows = append(flows, r.loadRLS(i, "units", "tenant", 30))
		}
		envoys = append(envoys, r.envoy.load(t, "units", "tenant", 60))
	}
	began := time.Now()
	rounds, faults := 0, map[string]int{}
	for time.Since(began) < lasts {
		soakRound(regions, rnd, faults)
		rounds++
	}
	// Redis, servers and Envoys find each other again, and what was out comes back.
	<-time.After(40 * time.Second)
	from := time.Now()
	<-time.After(20 * time.Second)
	ended := time.Now()
	asked, lists := int64(0), [][]leasecheck.Admission{}
	for _, f := range flows {
		asked += f.stop()
		lists = append(lists, f.admitted)
	}
	byEnvoys := 0
	for i, r := range regions {
		n := envoys[i].stop()
		asked += n
		list := r.envoy.admitted(t, "tenant", n)
		byEnvoys += len(list)
		lists = append(lists, list)
	}
	bound := algo.Config{Algorithm: algo.TokenBucket, N: 3600, Window: time.Minute, Burst: 1800}
	regions[0].limits = map[string]algo.Config{"units": bound}
	all := regions[0].obeys("units", "tenant", 0, lists...)
	late := float64(between(all, from, ended)) / ended.Sub(from).Seconds()
	var text []string
	for _, f := range soakFaults {
		text = append(text, fmt.Sprintf("%s %d", f.name, faults[f.name]))
	}
	t.Logf(
		"%d asked, %d let through, %d of them by Envoys, in %v; bound 60 a second; in the last %v %.1f a second of 50\n%d rounds: %s",
		asked, len(all), byEnvoys, ended.Sub(began).Round(time.Second), ended.Sub(from).Round(time.Second), late,
		rounds, strings.Join(text, ", "))
	for _, r := range regions {
		t.Logf("%s: decided from leases %.0f, borrowed %.0f, heard %.0f, beyond the limit %.0f, assigned %.0f", r.name,
			r.metric("weir_lease_decisions_total", `by="local"`),
			r.metric("weir_region_units_total", `what="borrowed"`),
			r.metric("weir_region_units_total", `what="heard"`), r.metric("weir_region_over_units_total"),
			r.metric("weir_rlqs_assigned_units_total"))
		if n := r.metric("weir_lease_late_total"); n != 0 {
			t.Errorf("%s: %v units may have been used after their end", r.name, n)
		}
		if n := r.metric("weir_redis_disagreements_total"); n != 0 {
			t.Errorf("%s: Lua and Go disagreed %v times", r.name, n)
		}
	}
	if late < 35 || byEnvoys == 0 {
		t.Errorf("after the faults %.1f a second were let through, want some 50; by Envoys %d in all", late, byEnvoys)
	}
}

// startSoakRegions starts eu and us.
func startSoakRegions(t *testing.T) []*soakRegion {
	t.Helper()
	program := servertest.BuildProgram(t)
	var list []*soakRegion
	for _, name := range []string{"eu", "us"} {
		r := &soakRegion{name: name, quotaBed: &quotaBed{t: t, program: program, dir: t.TempDir(),
			redis: redistest.Start(t), weirs: make([]*servertest.Process, 2)}}
		if err := os.MkdirAll(r.dir+"/rules", 0o755); err != nil {
			t.Fatal(err)
		}
		r.writeRules(soakRule)
		list = append(list, r)
	}
	for i, r := range list {
		other := list[1-i]
		r.link = redistest.Proxy(t, other.redis.Addr())
		r.flags = []string{"--region=" + r.name, "--regions-weights=eu=1,us=1",
			"--regions-stores=" + other.name + "=redis://" + r.link.Addr()}
		for i := range r.weirs {
			r.ports = append(r.ports, servertest.FreePort(t))
			r.startWeir(i)
		}
		r.proxy = redistest.Proxy(t, "127.0.0.1:"+r.ports[0])
		_, port, _ := strings.Cut(r.proxy.Addr(), ":")
		r.envoy = r.startEnvoy(port, r.ports[1])
	}
	return list
}

// soakFaults are what happens to a region; each returns what ends it.
var soakFaults = []struct {
	name  string
	begin func(r *soakRegion, rnd *rand.Rand) (end func())
}{
	{"link cut", func(r *soakRegion, _ *rand.Rand) func() { r.link.Refuse(); r.link.Cut(); return r.link.Pass }},
	{"link swallows", func(r *soakRegion, _ *rand.Rand) func() { r.link.BlackHole(); return r.link.Pass }},
	{"link loses replies", func(r *soakRegion, _ *rand.Rand) func() { r.link.LoseReplies(); return r.link.Pass }},
	{"link delays", func(r *soakRegion, rnd *rand.Rand) func() {
		r.link.Delay(time.Duration(rnd.IntN(1500)) * time.Millisecond)
		return r.link.Pass
	}},
	{"Weir dies", func(r *soakRegion, rnd *rand.Rand) func() {
		i := rnd.IntN(len(r.weirs))
		r.weirs[i].Signal(syscall.SIGKILL)
		r.weirs[i].Wait()
		r.weirs[i] = nil
		return func() { r.startWeir(i) }
	}},
	{"Weir stands still", func(r *soakRegion, rnd *rand.Rand) func() {
		p := r.weirs[rnd.IntN(len(r.weirs))]
		if p == nil { // it has just died
			return func() {}
		}
		p.Signal(syscall.SIGSTOP)
		return func() { p.Signal(syscall.SIGCONT) }
	}},
	{"Redis stands still", func(r *soakRegion, _ *rand.Rand) func() { r.redis.Pause(); return r.redis.Resume }},
	{"stream silent", func(r *soakRegion, _ *rand.Rand) func() { r.proxy.BlackHole(); return r.proxy.Pass }},
}

// soakRound has up to four faults happen at once.
func soakRound(regions []*soakRegion, rnd *rand.Rand, counts map[string]int) {
	var ends []func()
	happens := map[string]bool{} // of a link, or a server of a region, at most one
	for range 1 + rnd.IntN(4) {
		r, f := regions[rnd.IntN(len(regions))], soakFaults[rnd.IntN(len(soakFaults))]
		what, _, _ := strings.Cut(f.name, " ")
		if happens[r.name+what] {
			continue
		}
		happens[r.name+what] = true
		counts[f.name]++
		ends = append(ends, f.begin(r, rnd))
	}
	<-time.After(time.Duration(1000+rnd.IntN(9000)) * time.Millisecond)
	for _, end := range ends {
		end()
	}
	<-time.After(time.Duration(1000+rnd.IntN(6000)) * time.Millisecond)
}
