package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/door/auth"
	"github.com/weir-rl/weir/internal/door/httpapi"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/gather"
	"github.com/weir-rl/weir/internal/observe/recent"
	"github.com/weir-rl/weir/internal/testkit/doortest"
	"github.com/weir-rl/weir/store/memory"
)

// newRemembering is the decision API and the admin API over one limiter, with a buffer of recent
// decisions.
func newRemembering(t *testing.T, o Options, rules string) (api, admin http.Handler) {
	t.Helper()
	clock := &doortest.Clock{US: 1_767_225_600_000_000}
	store, err := memory.New(memory.Options{Clock: clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	b, err := recent.New(recent.Options{Sample: -1})
	if err != nil {
		t.Fatal(err)
	}
	l, err := weir.New(store, weir.WithRules(doortest.Load(t, rules)), weir.WithHooks(b.Hooks()))
	if err != nil {
		t.Fatal(err)
	}
	o.Decisions = b
	return httpapi.New(l, httpapi.Options{}), New(l, o)
}

// The id that a client gets with a refusal leads the operator to what happened.
func TestDecisionByID(t *testing.T) {
	api, admin := newRemembering(t, Options{}, doortest.ShopRules)
	question := `{"attributes": {"user": "ada", "kind": "two", "unasked": "x"}}`
	var refusal doortest.Answer
	for range 3 {
		refusal = doortest.Ask(api, doortest.Stranger, "POST", "/api/v1/limit", question)
	}
	var told struct{ Decision string }
	if err := json.Unmarshal([]byte(refusal.Body), &told); err != nil || refusal.Status != 429 ||
		len(told.Decision) != 13 || refusal.Header.Get("X-RateLimit-Decision") != told.Decision {
		t.Fatalf("%d %v %s", refusal.Status, refusal.Header, refusal.Body)
	}
	a := onAdmin(admin, "GET", "/api/v1/decisions/"+told.Decision, "")
	if a.Status != 200 {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	doortest.EqualJSON(t, a.Body, `{"decision": "`+told.Decision+`", "time": "2026-01-01T00:00:00Z", "domain": "shop", "door": "http", "allowed": false, "outcome": "denied", "marks": ["denied"],
		"hits": 1, "retry_after": 60, "delay": 0, "generation": 1, "attributes": {"kind": "two", "user": "ada"}, "limits": [
		{"name": "two:60s", "rule": "two", "file": "0.yaml", "line": 8, "key": "user=ada", "mode": "enforce", "allowed": false, "refuses": true, "near_limit": true, "soft_exceeded": false,
		 "algorithm": "sliding_log", "allows": "2 per minute", "limit": 2, "soft_limit": 2, "window": 60, "asked": 1, "remaining": 0, "retry_after": 60, "reset_after": 60, "delay": 0},
		{"name": "two:3600s", "rule": "two", "file": "0.yaml", "line": 8, "key": "user=ada", "mode": "enforce", "allowed": true, "refuses": false, "near_limit": false, "soft_exceeded": false,
		 "algorithm": "sliding_log", "allows": "500 per hour", "limit": 500, "soft_limit": 500, "window": 3600, "asked": 1, "remaining": 498, "retry_after": 0, "reset_after": 3600, "delay": 0}]}`)

	// A batch tells the ids of its items.
	batch := doortest.Ask(api, doortest.Stranger, "POST", "/api/v1/limit/batch",
		`{"requests": [`+question+`, {"attributes": {"user": "bob", "kind": "two"}}]}`)
	var items struct{ Responses []struct{ Decision string } }
	if err := json.Unmarshal([]byte(batch.Body), &items); err != nil || len(items.Responses) != 2 ||
		items.Responses[1].Decision != "" {
		t.Fatalf("%v %s", err, batch.Body)
	}
	if a := onAdmin(admin, "GET", "/api/v1/decisions/"+strings.ToUpper(items.Responses[0].Decision), ""); a.Status != 200 {
		t.Errorf("%d %s", a.Status, a.Body)
	}

	for path, status := range map[string]int{
		"/api/v1/decisions/0000000000001":   404,
		"/api/v1/decisions/nonsense":        400,
		"/api/v1/decisions/":                400,
		"/api/v1/decisions?n=0":             400,
		"/api/v1/decisions?n=1001":          400,
		"/api/v1/decisions?n=x":             400,
		"/api/v1/decisions?outcome=refused": 400,
		"/api/v1/decisions?limit=nothing":   404,
	} {
		if a := onAdmin(admin, "GET", path, ""); a.Status != status {
			t.Errorf("%s: %d %s, want %d", path, a.Status, a.Body, status)
		}
	}
	for _, method := range []string{"POST", "DELETE", "PUT"} {
		if a := onAdmin(admin, method, "/api/v1/decisions/"+told.Decision, "", "Content-Type", "application/json"); a.Status != 405 {
			t.Errorf("%s: %d", method, a.Status)
		}
	}
}

func TestDecisionsList(t *testing.T) {
	api, admin := newRemembering(t, Options{}, doortest.ShopRules)
	for range 12 {
		// 8 near the limit from the eighth on: 10 in the limit, 1 in the margin, 1 refused
		doortest.Ask(api, doortest.Stranger, "POST", "/api/v1/limit", `{"attributes": {"kind": "soft"}}`)
	}
	for range 3 { // 1 near its limit, 2 that a limit in shadow would refuse
		doortest.Ask(api, doortest.Stranger, "POST", "/api/v1/limit", `{"attributes": {"kind": "shadow"}}`)
	}
	for query, want := range map[string]string{
		"":                                   "shadow_denied shadow_denied denied soft near_limit near_limit near_limit",
		"?outcome=denied":                    "denied",
		"?outcome=soft":                      "soft",
		"?limit=gentle&n=2":                  "denied soft",
		"?limit=seen":                        "shadow_denied shadow_denied",
		"?limit=seen&outcome=denied":         "",
		"?domain=shop&limit=gentle&n=1":      "denied",
		"?outcome=shadow_denied&domain=shop": "shadow_denied shadow_denied",
	} {
		a := onAdmin(admin, "GET", "/api/v1/decisions"+query, "")
		var got struct{ Decisions []recent.Entry }
		if err := json.Unmarshal([]byte(a.Body), &got); err != nil || a.Status != 200 || got.Decisions == nil {
			t.Fatalf("%s: %d %s: %v", query, a.Status, a.Body, err)
		}
		counted := map[string]int{}
		for _, e := range got.Decisions {
			counted[e.Outcome]++
		}
		expected := map[string]int{}
		for _, o := range strings.Fields(want) {
			expected[o]++
		}
		if fmt.Sprint(counted) != fmt.Sprint(expected) {
			t.Errorf("%s: %v, want %v", query, counted, expected)
		}
	}
}

// Decisions are about clients: with tokens configured, nobody sees them without one.
func TestDecisionsNeedAToken(t *testing.T) {
	tokens := &auth.Tokens{}
	file := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(file, []byte("sesame\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := tokens.Load(file); err != nil {
		t.Fatal(err)
	}
	_, admin := newRemembering(t, Options{Tokens: tokens, Insight: gather.New(gather.Options{})}, doortest.ShopRules)
	for _, path := range []string{"/api/v1/decisions", "/api/v1/decisions/0000000000001", "/api/v1/candidates"} {
		if a := onAdmin(admin, "GET", path, ""); a.Status != 401 {
			t.Errorf("%s without a token: %d", path, a.Status)
		}
		if a := onAdmin(admin, "GET", path, "", "Authorization", "Bearer sesame"); a.Status == 401 {
			t.Errorf("%s with a token: %d", path, a.Status)
		}
	}
	// Without a buffer there is no such endpoint.
	l, _, _ := doortest.NewLimiter(t, doortest.ShopRules)
	for _, path := range []string{"/api/v1/decisions", "/api/v1/decisions/0000000000001", "/api/v1/candidates"} {
		if a := onAdmin(New(l, Options{}), "GET", path, ""); a.Status != 404 {
			t.Errorf("%s: %d", path, a.Status)
		}
	}
}

// TestTurnedOff: what a setting turns off says which one, and nothing else does.
func TestTurnedOff(t *testing.T) {
	l, _, _ := doortest.NewLimiter(t, doortest.ShopRules)
	for path, want := range map[string]string{
		"/api/v1/candidates": "insight.memory is 0", "/api/v1/insight": "insight.memory is 0", "/api/v1/insight/rules": "insight.memory is 0",
		"/api/v1/insight/rules/shop/api": "insight.memory is 0", "/api/v1/preview": "insight.record is 0", "/api/v1/preview/1": "insight.record is 0",
		"/api/v1/insights": "there is nothing at /api/v1/insights",
	} {
		if a := onAdmin(New(l, Options{}), "GET", path, ""); a.Status != 404 || !strings.Contains(a.Body, want) {
			t.Errorf("%s: %d %s, want %q", path, a.Status, a.Body, want)
		}
	}
}

// theseCandidates is a Reader that knows candidates.
type theseCandidates struct {
	*gather.Collector
	asked *string
	list  []insight.Candidate
}

func (c theseCandidates) Candidates(_ context.Context, domain string) ([]insight.Candidate, insight.Nodes, error) {
	*c.asked = domain
	return c.list, insight.Nodes{Asked: 2, Answered: 2}, nil
}

func TestCandidatesEndpoint(t *testing.T) {
	l, _, _ := doortest.NewLimiter(t, doortest.ShopRules)
	asked := ""
	h := New(l, Options{Insight: theseCandidates{gather.New(gather.Options{}), &asked, []insight.Candidate{
		{Domain: "shop", Limit: "seen", Since: time.Unix(1, 0).UTC(), WouldRefuse: 3, Share: 0.25, KeysRefused: 2, Top: []insight.CandidateKey{}},
	}}})
	a := onAdmin(h, "GET", "/api/v1/candidates?domain=shop", "")
	doortest.EqualJSON(t, a.Body, `{"nodes": {"asked": 2, "answered": 2}, "candidates": [{"domain": "shop", "limit": "seen", "enforce_percent": 0, "since": "1970-01-01T00:00:01Z", "would_refuse": 3, "would_admit": 0,
		"both_refuse": 0, "both_admit": 0, "share_would_refuse": 0.25, "keys_would_refuse": 2, "enforced_admitted": 0, "enforced_refused": 0, "enforced_keys_refused": 0, "top": []}]}`)
	if asked != "shop" {
		t.Errorf("asked for the domain %q", asked)
	}
	none := New(l, Options{Insight: gather.New(gather.Options{})})
	doortest.EqualJSON(t, onAdmin(none, "GET", "/api/v1/candidates", "").Body,
		`{"nodes": {"asked": 1, "answered": 1}, "candidates": []}`)
}
