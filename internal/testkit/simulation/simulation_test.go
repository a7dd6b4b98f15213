package simulation

import (
	"crypto/sha256"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/effort"
)

// The seeds that run if none are asked for. scripts/soak sim asks for more.
const (
	firstSeed = 1
	someSeeds = 40
)

// number reads a number from the environment.
func number(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// TestSeeds runs seeds, WEIR_SIM_SEEDS of them or for WEIR_SIM_SECONDS, from WEIR_SIM_SEED on.
// Where one fails, it tells how to run that one again. WEIR_SIM_TRACE is a file for the trace of
// the last.
func TestSeeds(t *testing.T) {
	seed, n := number(t, "WEIR_SIM_SEED", firstSeed), number(t, "WEIR_SIM_SEEDS", effort.Of(uint64(8), someSeeds))
	lasts := time.Duration(number(t, "WEIR_SIM_SECONDS", 0)) * time.Second
	began := time.Now()
	var sum counts
	failed, ran := 0, uint64(0)
	for ; lasts > 0 && time.Since(began) < lasts || lasts == 0 && ran < n; ran++ {
		out := run(t, seed+ran, none, nil)
		sum.add(&out.seen)
		if path := os.Getenv("WEIR_SIM_TRACE"); path != "" {
			if err := os.WriteFile(path, []byte(out.trace), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if len(out.problems) == 0 {
			continue
		}
		t.Errorf("seed %d (%v, %d nodes, quiet %v) fails; again: WEIR_SIM_SEEDS=1 scripts/soak sim - %d", seed+ran,
			out.plan.mode, out.plan.nodes, out.plan.quiet, seed+ran)
		for _, problem := range out.problems {
			t.Log("  " + problem)
		}
		if failed++; failed == 10 {
			break
		}
	}
	t.Logf("%d seeds from %d on: %+v", ran, seed, sum)
	if ran >= someSeeds && (sum.Local == 0 || sum.Lost == 0 || sum.Late == 0 || sum.Banned == 0 || sum.Honest == 0 ||
		sum.Debts == 0 || sum.Settled == 0 || sum.Trips == 0 || sum.Leased == 0) {
		t.Error("the runs do not see what they are there for")
	}
}

// TestSameSeed: a seed is a run. Two runs of it have the same trace, and another seed has another.
func TestSameSeed(t *testing.T) {
	traces := map[[32]byte]uint64{}
	for seed := uint64(1000); seed < 1012; seed++ {
		force := in(exact, seed%4 == 0)
		first, again := run(t, seed, none, force), run(t, seed, none, force)
		if first.trace != again.trace {
			t.Errorf("seed %d: two runs differ: %s", seed, difference(first.trace, again.trace))
		}
		sum := sha256.Sum256([]byte(first.trace))
		if was, had := traces[sum]; had {
			t.Errorf("seeds %d and %d have the same trace", was, seed)
		}
		traces[sum] = seed
	}
}

// difference shows where two traces part.
func difference(a, b string) string {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	part := func(s string) string { return s[max(0, i-200):min(len(s), i+200)] }
	return "\n" + part(a) + "\n\nand\n\n" + part(b)
}
