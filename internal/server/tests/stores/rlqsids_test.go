//go:build linux

package stores

import (
	"net/http"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// TestQuotaIDs: requests whose bucket has an id that is not taken are refused, and no other bucket
// of their Envoy suffers, also in later reports.
func TestQuotaIDs(t *testing.T) {
	t.Parallel()
	b := newQuotaBed(t, 1, limitsOfTests)
	e := b.startEnvoy(b.ports[0])
	c := new(http.Client)
	ask := func(tenant string) bool {
		ok, err := e.ask(c, "large", tenant)
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	servertest.Eventually(t, "a bucket is served", func() bool { return ask("first") })
	for _, tenant := range []string{strings.Repeat("x", 300), "\xff\xfe", "\xc3\x28"} {
		if ask(tenant) {
			t.Errorf("%q was let through", tenant)
		}
	}
	reported := func() float64 { return b.metric("weir_rlqs_reported_total", `limit="large"`) }
	// Each report covers all buckets.
	for range 2 {
		before := reported()
		servertest.Eventually(t, "a report came", func() bool { return !ask("first") || reported() > before })
		servertest.Eventually(t, "a report was answered", func() bool { return reported() > before && ask("first") })
	}
	servertest.Eventually(t, "a new bucket is served", func() bool { return ask("second") })
	if n := b.metric("weir_rlqs_streams"); n != 1 {
		t.Errorf("%v streams, want 1", n)
	}
}
