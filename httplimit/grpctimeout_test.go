package httplimit

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// A gRPC call through the middleware whose turn comes after its deadline is refused at once.
func TestRefusedBeforeTheDeadlineOfItsClient(t *testing.T) {
	limit, err := New(wallLimiter(t, "limits: [{name: q, algorithm: leaky_bucket, allow: {rate: 1/hour, burst: 5}}]"),
		Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	t.Cleanup(s.Close)
	for i, want := range []int{http.StatusOK, http.StatusTooManyRequests, http.StatusTooManyRequests} {
		r, err := http.NewRequest(http.MethodPost, s.URL+"/shop.Orders/Create", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Grpc-Timeout", "10M")
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want || (resp.Header.Get("Retry-After") != "") != (want != http.StatusOK) {
			t.Errorf("request %d: %s, %v", i, resp.Status, resp.Header)
		}
	}
}
