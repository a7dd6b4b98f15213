package redis

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/effort"
	"github.com/weir-rl/weir/internal/redistest"
)

// openRandom opens a store on a Redis of its own, with the clock now, for a test of random calls,
// and returns what these are drawn from. The seed is logged.
func openRandom(t *testing.T, now *int64) (*redistest.Server, *Store, *rand.Rand) {
	t.Helper()
	server := redistest.Start(t)
	s, err := Open(Options{URL: server.URL(), Clock: func() int64 { return *now }, Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return server, s, rand.New(rand.NewPCG(seed, 1))
}

// atLeast is how many random calls a test makes at least: usual, few with -short, or what a
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
