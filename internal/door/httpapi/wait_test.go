package httpapi

import (
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/doortest"
)

// Only a leaky bucket has a delay to tell: several hits take as many turns in a row, the request
// leaves at the first of them, and max_delay is for that one. What the doors that hold requests do
// for other limits with a wait, a decision API does not: it answers at once, refused, with the time
// to come back.
func TestWaitingIsTheAskers(t *testing.T) {
	l, _, clock := doortest.NewLimiter(t, `
limits:
  - {name: queue, when: {kind: queue}, algorithm: leaky_bucket, allow: {rate: 1/s, burst: 9}, on_limit: {wait: 2s}}
  - {name: bucket, when: {kind: bucket}, algorithm: token_bucket, allow: {rate: 1/s, burst: 1}, on_limit: {wait: 60s}}
  - {name: log, when: {kind: log}, algorithm: sliding_log, allow: 1/s, on_limit: {wait: 60s}}
  - {name: fixed, when: {kind: fixed}, algorithm: fixed_window, allow: 1/s, on_limit: {wait: 60s}}
  - {name: window, when: {kind: window}, allow: 1/s, on_limit: {wait: 60s}}
  - {name: slots, when: {kind: slots}, allow: 1 concurrent, timeout: 30s, on_limit: {wait: 60s}}
`)
	h := New(l, Options{})
	for i, step := range []struct {
		body   string
		after  time.Duration // before the request
		status int
		has    string
	}{
		{body: `{"attributes":{"kind":"queue"},"hits":3,"max_delay":0}`, status: 200, has: `"delay":0}`},
		{body: `{"attributes":{"kind":"queue"},"hits":2,"max_delay":2.5}`, status: 429, has: `"retry_after":0.5,`},
		{body: `{"attributes":{"kind":"queue"},"hits":2,"max_delay":3}`, status: 200, has: `"delay":3}`},
		// the wait of the rule is not the asker's
		{body: `{"attributes":{"kind":"queue"},"hits":4}`, status: 200, has: `"delay":5}`},
		// no room: 9 of 10 are taken
		{body: `{"attributes":{"kind":"queue"},"hits":2,"max_delay":60}`, status: 429, has: `"retry_after":1,`},
		{body: `{"attributes":{"kind":"queue"},"hits":2,"max_delay":8}`, after: time.Second, status: 200, has: `"delay":8}`},
		{body: `{"attributes":{"kind":"bucket"}}`, status: 200, has: `"delay":0}`},
		{body: `{"attributes":{"kind":"bucket"},"max_delay":60}`, status: 429, has: `"retry_after":1,`},
		{body: `{"attributes":{"kind":"log"}}`, status: 200, has: `"delay":0}`},
		{body: `{"attributes":{"kind":"log"},"max_delay":60}`, status: 429, has: `"retry_after":1,`},
		{body: `{"attributes":{"kind":"fixed"}}`, status: 200, has: `"delay":0}`},
		{body: `{"attributes":{"kind":"fixed"},"max_delay":60}`, status: 429, has: `"retry_after":1,`},
		{body: `{"attributes":{"kind":"window"}}`, status: 200, has: `"delay":0}`},
		{body: `{"attributes":{"kind":"window"},"max_delay":60}`, status: 429, has: `"retry_after":1.000001,`},
		{body: `{"attributes":{"kind":"slots"}}`, status: 200, has: `"slot":"`},
		{body: `{"attributes":{"kind":"slots"},"max_delay":60}`, status: 429, has: `"retry_after":30,`},
	} {
		clock.US += step.after.Microseconds()
		a := doortest.Ask(h, "192.0.2.1:1", "POST", "/api/v1/limit", step.body)
		if a.Status != step.status || !strings.Contains(a.Body, step.has) {
			t.Errorf("step %d, %s: %d %s, want %d and %s", i, step.body, a.Status, a.Body, step.status, step.has)
		}
		if step.status == 429 && (a.Header.Get("Retry-After") == "" || strings.Contains(a.Body, `"delay":0.`) ||
			!strings.Contains(a.Body, `"delay":0`)) {
			t.Errorf("step %d: %v %s", i, a.Header, a.Body)
		}
	}
	// A query says the same.
	if a := doortest.Ask(h, "192.0.2.1:1", "GET", "/api/v1/limit?kind=queue&hits=1&max_delay=9.5", ""); a.Status != 429 || !strings.Contains(a.Body, `"retry_after":1,`) {
		t.Errorf("by GET: %d %s", a.Status, a.Body)
	}
}
