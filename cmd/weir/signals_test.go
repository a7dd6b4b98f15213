package main

import (
	"bytes"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/host/load"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

// serve --check says which signals nothing feeds, and refuses the server's own admin port as a
// Prometheus.
func TestCheckSignals(t *testing.T) {
	path := filepath.Join(t.TempDir(), "shop.yaml")
	writeRules(t, path, `
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
	if said := check(0, append(query, "--prometheus-url=http://127.0.0.1:9090")...); strings.Contains(said, "the signal orders") {
		t.Errorf("a Prometheus is asked:\n%s", said)
	}
	for _, own := range []string{"http://127.0.0.1:6070", "http://localhost:6070/"} {
		if said := check(exitUsage, append(query, "--prometheus-url="+own)...); !strings.Contains(said, "own admin port") {
			t.Errorf("%s:\n%s", own, said)
		}
	}
}

// A signal that does not come is warned of once, after a while, and logged when it comes.
func TestWatchSignals(t *testing.T) {
	var logged bytes.Buffer
	p := &program{log: slog.New(slog.NewTextHandler(&logged, nil))}
	set := ruleSetOf(t, `
domain: shop
limits:
  - { name: a, per: [ip], allow: 7/min, throttle: { elastic: { signal: orders, curve: { 50%: 100%, 95%: 25% } } } }
  - { name: b, per: [ip], allow: 7/min, throttle: { elastic: { signal: cpu, curve: { 50%: 100%, 95%: 25% } } } }
  - { name: c, per: [ip], allow: 7/min, throttle: { elastic: { signal: in_flight, curve: { 50%: 100%, 95%: 25% } } } }
`)
	w := signalWatch{since: map[string]time.Time{}, told: map[string]bool{}}
	now := time.Unix(0, 0)
	list := []load.Info{
		{Name: "orders", Kind: load.Queried, Used: true, Stale: true, Error: errors.New("no such host").Error()},
		{Name: "cpu", Kind: load.Measured, Used: true, Seen: true}, {Name: "memory", Stale: true},
	}
	look := func(after time.Duration, want ...string) {
		t.Helper()
		now = now.Add(after)
		logged.Reset()
		w.look(p, now, list, set)
		if lines := strings.Count(logged.String(), "\n"); lines != min(len(want), 1) {
			t.Errorf("%d lines:\n%s", lines, logged.String())
		}
		for _, text := range want {
			if !strings.Contains(logged.String(), text) {
				t.Errorf("no %q in\n%s", text, logged.String())
			}
		}
	}
	look(0)
	look(signalGrace - 1)
	look(1, "WARN", "has never come", "signal=orders", "limits=shop/a", `error="no such host"`)
	look(time.Hour)
	list[0].Seen = true
	look(time.Second, "INFO", "has come", "signal=orders")
	look(time.Hour)
	list[0].Seen, list[0].Used = false, false
	look(time.Hour)
	list[0].Used = true
	look(0)
	look(signalGrace, "WARN")
}

func ruleSetOf(t *testing.T, yaml string) *rule.Set {
	t.Helper()
	set, _, err := file.Load([]file.Source{{Name: "test.yaml", Data: []byte(yaml)}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return set
}
