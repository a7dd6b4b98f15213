package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/httplimit"
)

// costlyRules have an expression that takes too long on any request, and one that does not.
var costlyRules = func() string {
	list := "[" + strings.TrimSuffix(strings.Repeat("1, ", 100), ", ") + "]"
	return fmt.Sprintf(`
domain: same
limits:
  - name: before
    when: {path: /costly}
    allow: 1000/min
  - name: costly
    when: {path: /costly}
    per: [door]
    allow: 1000/min
    if: &long "%[1]s.all(a, %[1]s.all(b, %[1]s.all(c, a + b + c < 10)))"
  - name: priced
    when: {path: /priced}
    per: [door]
    allow: 1000/min
    cost: "%[1]s.all(a, %[1]s.all(b, %[1]s.all(c, a + b + c < 10))) ? 1 : 2"
  - name: trial
    when: {path: /trial}
    allow: 1000/min
    if: *long
    on_limit: shadow
  - name: beside-trial
    when: {path: /trial}
    allow: 1000/min
    if: 1 + 1 == 2
`, list)
}()

// A request on which an expression takes too long is refused by its rule at every door, for good,
// and nothing is charged. A rule in shadow refuses nothing, and takes nothing from others.
func TestCostlyExpressionsAtEachDoor(t *testing.T) {
	t.Parallel()
	var clock standing
	limiter, store := limiterOf(t, costlyRules, &clock)
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
	r := weir.Request{Domain: "same", Attributes: weir.Pairs{{Name: "path", Value: "/costly"}, {Name: "door", Value: "x"}}}
	if err := limiter.Decide(t.Context(), &r, &d); err != nil {
		t.Fatal(err)
	}
	if d.Allowed || d.Matches.TooCostly == nil || fmt.Sprint(d.LimitedBy(nil)) != "[costly]" || len(d.Limits) != 1 || d.Matches.CELErrors != 1 {
		t.Errorf("%v by %v with %d limits: %d failed", d.Allowed, d.LimitedBy(nil), len(d.Limits), d.Matches.CELErrors)
	}
	r.Attributes = weir.Pairs{{Name: "path", Value: "/trial"}}
	if err := limiter.Decide(t.Context(), &r, &d); err != nil {
		t.Fatal(err)
	}
	if !d.Allowed || d.Matches.TooCostly != nil || d.Matches.CELErrors != 1 || len(d.Limits) != 1 || d.Limits[0].Window.Rule.Name != "beside-trial" {
		t.Errorf("/trial: %v, %d limits, %d failed", d.Allowed, len(d.Limits), d.Matches.CELErrors)
	}
}

// What a client says that its request costs counts as 1 at least.
func TestCostsThatClientsName(t *testing.T) {
	t.Parallel()
	var clock standing
	limiter, _ := limiterOf(t, `
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

// What is refused so says why: to the client, and in an explanation.
func TestCostlyExpressionsInWords(t *testing.T) {
	t.Parallel()
	var clock standing
	limiter, _ := limiterOf(t, costlyRules, &clock)
	identity, err := httplimit.ParseIdentity(map[string]string{"door": "header:User-Agent"}, "")
	if err != nil {
		t.Fatal(err)
	}
	limit, err := httplimit.New(limiter, httplimit.Options{Identity: identity})
	if err != nil {
		t.Fatal(err)
	}
	door := httptest.NewServer(limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	defer door.Close()
	status, header, body := get(t, door.URL+"/priced")
	if status != http.StatusTooManyRequests || header.Get("Retry-After") != "" || !strings.Contains(body, `The limit \"priced\" takes too long to look at all of this request. Send fewer or shorter headers`) {
		t.Errorf("%d %v %s", status, header, body)
	}
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	writeRules(t, rules, costlyRules)
	for _, c := range []struct{ flag, want string }{{"--rules=" + rules, "It is refused by priced: expressions take too long on it."}, {"--json", `"too_costly": "priced"`}} {
		var out, errs strings.Builder
		if got := Run(t.Context(), []string{"explain", "--rules=" + rules, c.flag, "path=/priced", "door=x"}, nil, strings.NewReader(""), &out, &errs); got != 0 || !strings.Contains(out.String(), c.want) {
			t.Errorf("explain ends with %d, and says %s%s", got, out.String(), errs.String())
		}
	}
}
