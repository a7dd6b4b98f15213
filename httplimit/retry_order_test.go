package httplimit

import (
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Requests that waited for a limit go one by one, in the pace of its quota, though the server says
// that all of it is there again.
func TestRetryPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := header("RateLimit", `"a";r=0;t=10`, "RateLimit-Policy", `"a";q=5;w=10`)
		a := &answers{t: t, list: []http.Header{told,
			header("RateLimit", `"a";r=5;t=10`, "RateLimit-Policy", `"a";q=5;w=10`)}}
		var mu sync.Mutex
		rt := newRetry(t, roundTrips(func(r *http.Request) (*http.Response, error) {
			mu.Lock()
			defer mu.Unlock()
			return a.RoundTrip(r)
		}), RetryOptions{})
		begin := time.Now()
		if _, err := rt.RoundTrip(outgoing(t, "http://a/")); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if _, err := rt.RoundTrip(outgoing(t, "http://a/")); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		slices.SortFunc(a.times, time.Time.Compare)
		for i, at := range a.times[1:] { // one each two seconds, and up to a second of jitter
			if want := 10*time.Second + time.Duration(i)*2*time.Second; at.Sub(begin) < want ||
				at.Sub(begin) > want+time.Second {
				t.Errorf("the %dth went after %v, want %v", i, at.Sub(begin), want)
			}
		}
		// Nobody waits any more: the next ones go at once.
		now := time.Now()
		for range 3 {
			if _, err := rt.RoundTrip(outgoing(t, "http://a/")); err != nil || time.Since(now) != 0 {
				t.Errorf("one that came later went after %v: %v", time.Since(now), err)
			}
		}
	})
}

// An answer that comes late does not undo what the answer to a later request told.
func TestRetryLateAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := newRetry(t, roundTrips(func(r *http.Request) (*http.Response, error) {
			h := header("RateLimit", `"a";r=0;t=10`)
			if r.URL.Path == "/slow" {
				time.Sleep(time.Second)
				h = header("RateLimit", `"a";r=4;t=10`)
			}
			return &http.Response{StatusCode: 200, Header: h, Body: http.NoBody}, nil
		}), RetryOptions{})
		begin := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = rt.RoundTrip(outgoing(t, "http://a/slow")) })
		synctest.Wait()
		_, _ = rt.RoundTrip(outgoing(t, "http://a/"))
		wg.Wait()
		if _, err := rt.RoundTrip(outgoing(t, "http://a/")); err != nil || time.Since(begin) < 10*time.Second {
			t.Errorf("sent after %v: %v", time.Since(begin), err)
		}
	})
}
