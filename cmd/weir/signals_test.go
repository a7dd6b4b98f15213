package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// serve --check says which signals nothing feeds, and refuses the server's own admin port as a
// Prometheus.
func TestCheckSignals(t *testing.T) {
	path := filepath.Join(t.TempDir(), "shop.yaml")
	servertest.WriteRules(t, path, `
domain: shop
limits:
  - { name: a, per: [ip], allow: 7/min, throttle: { elastic: { signal: orders, curve: { 50%: 100%, 95%: 25% } } } }
  - { name: b, per: [ip], allow: 7/min, throttle: { elastic: { signal: cpu, curve: { 50%: 100%, 95%: 25% } } } }
  - { name: c, per: [ip], allow: 7/min, throttle: { elastic: { signal: in_flight, curve: { 50%: 100%, 95%: 25% } } } }
`)
	check := func(want int, args ...string) string {
		t.Helper()
		status, out, errs := runCommand(t, append([]string{"serve", "--check", "--rules=" + path}, args...)...)
		if status != want {
			t.Fatalf("%v: exit status %d: %s%s", args, status, out, errs)
		}
		return out + errs
	}
	said := check(0)
	for _, want := range []string{
		"the signal orders, which shop/a follows: weir does not measure it", "PUT /api/v1/signals/orders",
		"the signal in_flight, which shop/c follows: it needs the proxy",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("no %q in\n%s", want, said)
		}
	}
	if strings.Contains(said, "the signal cpu") {
		t.Errorf("cpu is measured:\n%s", said)
	}
	query := []string{"--signals=orders=orders_waiting", "--listen-admin=127.0.0.1:6070"}
	if said := check(0, append(query, "--prometheus-url=http://127.0.0.1:9090")...); strings.Contains(said,
		"the signal orders") {
		t.Errorf("a Prometheus is asked:\n%s", said)
	}
	for _, own := range []string{"http://127.0.0.1:6070", "http://localhost:6070/"} {
		if said := check(exitConfig, append(query, "--prometheus-url="+own)...); !strings.Contains(said,
			"own admin port") {
			t.Errorf("%s:\n%s", own, said)
		}
	}
}
