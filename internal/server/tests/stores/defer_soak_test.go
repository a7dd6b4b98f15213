//go:build soak && unix

package stores

import (
	"os"
	"strconv"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// TestDeferredMany is TestDeferred with 10,000 requests on a file and on Redis, and 2,000 on
// PostgreSQL, or with as many as WEIR_DEFERRED says.
func TestDeferredMany(t *testing.T) {
	t.Parallel()
	program := servertest.BuiltProgram(t)
	of := func(t *testing.T, orders int) int {
		if s := os.Getenv("WEIR_DEFERRED"); s != "" {
			n, err := strconv.Atoi(s)
			if err != nil || n < 1 {
				t.Fatalf("WEIR_DEFERRED=%s is no number of requests", s)
			}
			return n
		}
		return orders
	}
	// All of them wait for the rate more than for the machine.
	t.Run("file", func(t *testing.T) {
		t.Parallel()
		testDeferred(t, program, deferredOnFile(of(t, 10_000), 500, 5))
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		testDeferred(t, program, deferredOnRedis(t, of(t, 10_000), 500, 5))
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		testDeferred(t, program, deferredOnPostgres(t, of(t, 2000), 5))
	})
}
