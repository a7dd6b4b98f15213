package admin

import (
	"net/http"
	"testing"

	"github.com/weir-rl/weir/internal/door/auth"
	"github.com/weir-rl/weir/internal/testkit/doortest"
)

// TestAdminGuessing: the admin port says no more after ten wrong tokens, and scrapers that send
// tokens of others are no thieves.
func TestAdminGuessing(t *testing.T) {
	tokens := doortest.Tokens[auth.Tokens](t, "sesame")
	h, _ := newTestAdmin(t, Options{Tokens: tokens, Metrics: http.NotFoundHandler()})
	status := func(path, token string) int {
		return onAdmin(h, "GET", path, "", "Authorization", "Bearer "+token).Status
	}
	for range 50 {
		status("/metrics", "of-prometheus")
		status("/readyz", "of-prometheus")
	}
	if s := status("/api/v1/rules", "sesame"); s != 200 {
		t.Fatalf("after scraping: %d", s)
	}
	for i := range 12 {
		want := 401
		if i >= 10 {
			want = 429
		}
		if s := status("/api/v1/rules", "x"); s != want {
			t.Errorf("guess %d: %d, want %d", i, s, want)
		}
	}
	a := onAdmin(h, "GET", "/api/v1/rules", "", "Authorization", "Bearer sesame")
	if a.Status != 429 || a.Header.Get("Retry-After") == "" {
		t.Errorf("the right one: %d %v", a.Status, a.Header)
	}
	if s := status("/healthz", "x"); s != 200 {
		t.Errorf("health: %d", s)
	}
}
