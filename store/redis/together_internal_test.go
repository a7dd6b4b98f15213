package redis

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/redistest"
)

// openRandom opens a store on a Redis of its own, with the clock now, for a test of random calls,
// and returns what these are drawn from, by Seed.
func openRandom(t *testing.T, now *int64) (*redistest.Server, *Store, *rand.Rand) {
	t.Helper()
	server := redistest.Start(t)
	s, err := Open(Options{URL: server.URL(), Clock: func() int64 { return *now }, Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return server, s, rand.New(rand.NewPCG(Seed(t), 1))
}

// Seed is what random tests draw from: always the same, so that none fails by the draw, or what
// WEIR_SEED says, a number or "new".
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := uint64(1)
	switch text := os.Getenv("WEIR_SEED"); text {
	case "":
	case "new":
		seed = rand.Uint64()
	default:
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("WEIR_SEED: %v", err)
		}
	}
	t.Logf("seed %d", seed)
	return seed
}

// atLeast is how many random calls a test makes at least: usual, few in a quick run, or what a
// variable of the environment says.
func atLeast(t *testing.T, variable string, usual, few int) int {
	t.Helper()
	text := os.Getenv(variable)
	switch {
	case text != "":
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatalf("%s: %q is no number of calls", variable, text)
		}
		return n
	case !effort.All():
		return few
	}
	return usual
}
