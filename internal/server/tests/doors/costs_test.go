package doors

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// A request on which an expression takes too long is refused by its rule at every door, for good,
// and nothing is charged. A rule in shadow refuses nothing, and takes nothing from others.
func TestCostlyExpressionsAtEachDoor(t *testing.T) {
	t.Parallel()
	var clock servertest.Standing
	limiter, store := servertest.LimiterOf(t, servertest.CostlyRules, &clock)
	for _, d := range tellers(t, limiter, store) {
		for _, path := range []string{"/costly", "/priced"} {
			if got := d.ask(t, path); got.allowed || got.retryAfter != algo.Never {
				t.Errorf("%s through %s: %+v", path, d.name, got)
			}
		}
		if got := d.ask(t, "/trial"); !got.allowed {
			t.Errorf("/trial through %s: %+v", d.name, got)
		}
	}
	var d weir.Decision
	r := weir.Request{Domain: "same", Attributes: weir.Pairs{{Name: "path", Value: "/costly"},
		{Name: "door", Value: "x"}}}
	if err := limiter.Decide(t.Context(), &r, &d); err != nil {
		t.Fatal(err)
	}
	if d.Allowed || d.Matches.TooCostly == nil || fmt.Sprint(d.LimitedBy(nil)) != "[costly]" || len(d.Limits) != 1 ||
		d.Matches.CELErrors != 1 {
		t.Errorf("%v by %v with %d limits: %d failed", d.Allowed, d.LimitedBy(nil), len(d.Limits), d.Matches.CELErrors)
	}
	r.Attributes = weir.Pairs{{Name: "path", Value: "/trial"}}
	if err := limiter.Decide(t.Context(), &r, &d); err != nil {
		t.Fatal(err)
	}
	if !d.Allowed || d.Matches.TooCostly != nil || d.Matches.CELErrors != 1 || len(d.Limits) != 1 ||
		d.Limits[0].Window.Rule.Name != "beside-trial" {
		t.Errorf("/trial: %v, %d limits, %d failed", d.Allowed, len(d.Limits), d.Matches.CELErrors)
	}
}

// What a client says that its request costs counts as 1 at least.
func TestCostsThatClientsName(t *testing.T) {
	t.Parallel()
	var clock servertest.Standing
	limiter, _ := servertest.LimiterOf(t, `
limits:
  - {name: tokens, when: {path: /tokens}, allow: 10/hour, cost: 'int(header["x-tokens"])'}
  - {name: free, when: {path: /free}, allow: 10/hour, cost: 'int(header["x-tokens"])', cost_min: 0}
  - {name: dear, when: {path: /dear}, allow: 10/hour, cost: 'int(query["n"])', cost_min: 3}
  - {name: own, when: {path: /own}, allow: 10/hour, cost: 'path == "/own" ? 0 : 1'}
`, &clock)
	limit, err := httplimit.New(limiter, httplimit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	door := httptest.NewServer(limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	defer door.Close()
	for _, c := range []struct {
		path   string
		passed int
	}{{"/tokens", 10}, {"/free", 28}, {"/dear?n=1", 3}, {"/own", 28}} {
		passed := 0
		for i := range 28 {
			r, _ := http.NewRequest(http.MethodGet, door.URL+c.path, nil)
			r.Header.Set("X-Tokens", []string{"0", "-5", "-9223372036854775808", "00"}[i%4])
			answer, err := http.DefaultTransport.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				passed++
			}
		}
		if passed != c.passed {
			t.Errorf("%s: %d of 28 passed, want %d", c.path, passed, c.passed)
		}
	}
}
