// Package check tests the common behaviour of the examples.
package check

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// Handler tests a server that is built as the examples are. Its handlers are these, behind
// demo.Authenticate and the middleware, in a framework that turns a panic into a 500: /orders/{id}
// answers "order" and the id; /exports/{id} panics; /chat puts its cost, 10, into X-Words, and
// answers 201.
func Handler(t *testing.T, h http.Handler) {
	t.Helper()
	server := httptest.NewServer(h)
	defer server.Close()
	ask := func(method, path, token string, header ...string) (*http.Response, string) {
		t.Helper()
		r, err := http.NewRequest(method, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp, string(body)
	}

	// Each user has ten requests an hour, whatever the order's number; the rules see the real path,
	// not the route's pattern.
	for i := range 10 {
		resp, body := ask("GET", fmt.Sprintf("/orders/%d", i), "ada-token")
		if resp.StatusCode != 200 || body != fmt.Sprintf("order %d", i) ||
			resp.Header.Get("X-RateLimit-Remaining") != fmt.Sprint(9-i) {
			t.Errorf("order %d: %d %q %v", i, resp.StatusCode, body, resp.Header)
		}
	}
	resp, body := ask("GET", "/orders/10", "ada-token", "Origin", "https://shop.example")
	var problem struct {
		Status   int
		Violated []string `json:"violated-policies"`
	}
	if err := json.Unmarshal([]byte(body), &problem); err != nil || resp.StatusCode != 429 || problem.Status != 429 ||
		!slices.Equal(problem.Violated, []string{"orders-per-user"}) {
		t.Errorf("the eleventh: %d %q (%v)", resp.StatusCode, body, err)
	}
	if h := resp.Header; h.Get("Retry-After") == "" || h.Get("RateLimit") == "" ||
		h.Get("Access-Control-Allow-Origin") != "https://shop.example" ||
		!strings.Contains(h.Get("Access-Control-Expose-Headers"), "RateLimit") {
		t.Errorf("the headers of a refusal: %v", h)
	}
	if resp, body := ask("GET", "/orders/4", "bob-token"); resp.StatusCode != 200 || body != "order 4" {
		t.Errorf("another user: %d %q", resp.StatusCode, body)
	}
	preflight := []string{"Origin", "https://shop.example", "Access-Control-Request-Method", "DELETE"}
	if resp, _ := ask("OPTIONS", "/orders/4", "ada-token", preflight...); resp.StatusCode == 429 {
		t.Errorf("a preflight request: %d", resp.StatusCode)
	}
	// The headers of a preflight request make none of another: a guest has ten orders with them,
	// too.
	passed := 0
	for range 25 {
		if resp, _ := ask("GET", "/orders/4", "", preflight...); resp.StatusCode == 200 {
			passed++
		}
	}
	if passed != 10 {
		t.Errorf("%d of 25 requests with the headers of a preflight request passed a limit of 10", passed)
	}

	// A handler that panics gives its slot back, and the framework's recovery sees the panic.
	for i := range 3 {
		if resp, _ := ask("GET", "/exports/1", ""); resp.StatusCode != 500 {
			t.Errorf("export %d: %d", i, resp.StatusCode)
		}
	}

	// The cost of an answer replaces the estimate of 50 words: ten of them fit into 100.
	for i := range 11 {
		want := 201
		if i > 5 { // 5 × 10 and the estimate of the next are 100; then an estimate is too much
			want = 429
		}
		if resp, _ := ask("POST", "/chat", "ada-token"); resp.StatusCode != want {
			t.Errorf("chat %d: %d, want %d", i, resp.StatusCode, want)
		}
	}
}
