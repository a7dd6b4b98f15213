package doors

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/door/proxy"
	"github.com/weir-rl/weir/internal/testkit/servertest"
	"github.com/weir-rl/weir/rule"
)

// failureRules have a path for each algorithm, on which five failures a minute are allowed.
const failureRules = `
domain: same
limits:
  - {name: log, when: {path: /log}, per: [door], allow: 5/min, algorithm: sliding_log, cost: 0, cost_after: &failed "response.status == 401 ? 1 : 0"}
  - {name: bucket, when: {path: /bucket}, per: [door], allow: 5/min, algorithm: token_bucket, cost: 0, cost_after: *failed}
  - {name: interval, when: {path: /interval}, per: [door], allow: 5/min, algorithm: token_bucket, refill: interval, cost: 0, cost_after: *failed}
  - {name: fixed, when: {path: /fixed}, per: [door], allow: 5/min, algorithm: fixed_window, cost: 0, cost_after: *failed}
  - {name: counted, when: {path: /counted}, per: [door], allow: 5/min, algorithm: fixed_window, count_denied: true, cost: 0, cost_after: *failed}
  - {name: window, when: {path: /window}, per: [door], allow: 5/min, algorithm: sliding_window, cost: 0, cost_after: *failed}
  - {name: buckets, when: {path: /buckets}, per: [door], allow: 5/min, algorithm: sliding_window, buckets: 12, cost: 0, cost_after: *failed}
`

// A limit on failures that charges nothing before the answer refuses once they are used up, by each
// algorithm, and every door tells the time until one more is allowed.
func TestFailuresAtEachDoor(t *testing.T) {
	t.Parallel()
	var clock servertest.Standing
	limiter, store := servertest.LimiterOf(t, failureRules, &clock)
	doors := tellers(t, limiter, store)
	for _, path := range []string{"/log", "/bucket", "/interval", "/fixed", "/counted", "/window", "/buckets"} {
		for _, door := range append([]string{"reference"}, names(doors)...) {
			for i := range 5 {
				var d weir.Decision
				r := weir.Request{Domain: "same", Attributes: weir.Pairs{{Name: "path", Value: path},
					{Name: "door", Value: door}}}
				if err := limiter.Decide(t.Context(), &r, &d); err != nil || !d.Allowed {
					t.Fatalf("%s, %s: failure %d: %v, %v", path, door, i+1, d.Allowed, err)
				}
				if err := limiter.Settle(t.Context(), &d, func(*rule.Rule, int64) (int64, bool) {
					return 1, true
				}); err != nil {
					t.Fatal(err)
				}
			}
		}
		want := decided(t, limiter, path, "reference")
		if want.allowed || want.retryAfter <= 0 {
			t.Errorf("%s: after five failures %+v", path, want)
		}
		for _, d := range doors {
			got, want := d.ask(t, path), want.in(d.unit)
			if d.unsaid {
				want.remaining = untold
			}
			if got != want {
				t.Errorf("%s through %s: %+v, want %+v", path, d.name, got, want)
			}
		}
		clock.Add(want.retryAfter)
		for _, d := range doors {
			if got := d.ask(t, path); !got.allowed {
				t.Errorf("%s through %s: refused after the time that it told", path, d.name)
			}
		}
	}
}

func names(doors []teller) (list []string) {
	for _, d := range doors {
		list = append(list, d.name)
	}
	return list
}

// Twenty failed logins through the proxy: the sixth is refused, and a client that waits as long as
// it is told is let in again at once.
func TestFailedLogins(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []string{"token_bucket", "sliding_log", "sliding_window", "fixed_window"} {
		var clock servertest.Standing
		limiter, _ := servertest.LimiterOf(t, fmt.Sprintf(`
limits:
  - name: failed-logins
    when: {path: /login}
    per: [ip]
    allow: 5/hour
    algorithm: %s
    cost: 0
    cost_after: "response.status == 401 ? 1 : 0"
    ban: {after: 14, within: 1h, for: 1h}
`, algorithm), &clock)
		var reached atomic.Int64
		upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			reached.Add(1)
			w.WriteHeader(http.StatusUnauthorized)
		}))
		defer upstream.Close()
		at, err := url.Parse(upstream.URL)
		if err != nil {
			t.Fatal(err)
		}
		p, err := proxy.New(limiter, proxy.Options{Upstream: at})
		if err != nil {
			t.Fatal(err)
		}
		door := httptest.NewServer(p)
		defer door.Close()
		login := func() (status int, retryAfter string) {
			answer, err := http.Post(door.URL+"/login", "", nil)
			if err != nil {
				t.Fatal(err)
			}
			answer.Body.Close()
			return answer.StatusCode, answer.Header.Get("Retry-After")
		}
		refused, wait := 0, ""
		for range 18 {
			status, retryAfter := login()
			if status == http.StatusTooManyRequests {
				refused, wait = refused+1, retryAfter
			}
		}
		if reached.Load() != 5 || refused != 13 {
			t.Errorf("%s: %d of 18 failed logins reached the upstream, %d were refused", algorithm, reached.Load(),
				refused)
		}
		seconds, err := time.ParseDuration(wait + "s")
		if err != nil || seconds < 10*time.Second {
			t.Errorf("%s: Retry-After: %s", algorithm, wait)
		}
		clock.Add(seconds.Microseconds())
		if status, _ := login(); status != http.StatusUnauthorized {
			t.Errorf("%s: %d after the wait", algorithm, status)
		}
	}
}
