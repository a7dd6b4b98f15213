// Package effort says how much a test is to do. Tests run at three levels:
//
//   - Quick: go test ./... and scripts/test. Seconds for each package, whatever is installed.
//   - All: scripts/test --all, which CI runs and which sets WEIR_TEST=all. Full lengths and every
//     real part. The race detector makes everything several times as slow, so that it has a quick
//     run of its own; scripts/soak race is at full length.
//   - Soak: scripts/soak NAME, for tests that are statistical, take real time or need a quiet
//     machine. Such tests are in files with the build tag soak, with which All is true.
package effort

import (
	"os"
	"testing"
)

// All reports whether the tests run at full length, as soaks do.
func All() bool { return soak || os.Getenv("WEIR_TEST") == "all" }

// Of returns quick in a quick run, and all at full length.
func Of[T any](quick, all T) T {
	if All() {
		return all
	}
	return quick
}

// Long skips a test that a quick run does without. Why says what takes so long: "waits for a real
// failover".
func Long(t testing.TB, why string) {
	t.Helper()
	if !All() {
		t.Skipf("long: %s; scripts/test --all runs it, and so does WEIR_TEST=all go test", why)
	}
}
