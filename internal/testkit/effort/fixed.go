package effort

import (
	"flag"
	"strconv"
	"testing"
)

// Fixed runs f, in which rapid.Check draws the same 100 examples in every run. So a test may
// require that the examples, between them, reach its subject. The test must not be parallel.
// Elsewhere rapid draws other examples in each run, and a test must hold for any.
func Fixed(t testing.TB, f func()) {
	t.Helper()
	for name, value := range map[string]string{"rapid.seed": "1", "rapid.checks": "100", "test.short": "false"} {
		known := flag.Lookup(name)
		if known == nil {
			t.Fatalf("there is no flag -%s: nothing here uses rapid", name)
		}
		before := known.Value.String()
		defer func() { _ = known.Value.Set(before) }()
		if err := known.Value.Set(value); err != nil {
			t.Fatal(err)
		}
	}
	f()
}

// Fewer lets rapid.Check draw n examples in a quick run in place of 100, until the test ends. The
// test must not be parallel. A number in the command, -rapid.checks, is left as it is.
func Fewer(t testing.TB, n int) {
	t.Helper()
	checks := flag.Lookup("rapid.checks")
	if checks == nil {
		t.Fatal("there is no flag -rapid.checks: nothing here uses rapid")
	}
	if before := checks.Value.String(); !All() && before == checks.DefValue {
		_ = checks.Value.Set(strconv.Itoa(n))
		t.Cleanup(func() { _ = checks.Value.Set(before) })
	}
}
