//go:build !race

package httplimit

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
)

// Under the race detector a sync.Pool drops what it holds at random.

func TestMiddlewareAllocations(t *testing.T) {
	l := newLimiter(t, &clock{}, `limits: [{name: a, when: {path: /x}, per: [ip, user], allow: 1000000/min}]`)
	g, err := NewGate(l, Options{Headers: Off, CORS: CORS{Origins: []string{"*"}},
		Attributes: map[string]func(*http.Request) string{"user": userOf}})
	if err != nil {
		t.Fatal(err)
	}
	w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/x", nil)
	r = r.WithContext(context.WithValue(r.Context(), userKey{}, "ada"))
	if n := testing.AllocsPerRun(200, func() {
		p := g.Enter(w, r)
		p.WriteHeaders(w.Header())
		p.Leave()
	}); n > 0.5 {
		t.Errorf("%v allocations for a request that passes", n)
	}
}

func TestLimitTransportAllocations(t *testing.T) {
	l := newLimiter(t, &clock{}, `limits: [{name: a, when: {host: a}, per: [header.x-user], allow: 1000000/min}]`)
	answer := &http.Response{StatusCode: 200, Body: http.NoBody}
	lt := newLimited(t, l, roundTrips(func(*http.Request) (*http.Response, error) { return answer, nil }),
		LimitOptions{})
	r := outgoing(t, "http://a/x")
	r.Header.Set("X-User", "ada")
	if n := testing.AllocsPerRun(200, func() {
		if _, err := lt.RoundTrip(r); err != nil {
			t.Fatal(err)
		}
	}); n > 0.5 {
		t.Errorf("%v allocations for a request that is sent", n)
	}
}
