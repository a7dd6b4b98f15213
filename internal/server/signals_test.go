package server

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/host/load"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

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
