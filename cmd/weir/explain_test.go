package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// What is refused so says why: to the client, and in an explanation.
func TestCostlyExpressionsInWords(t *testing.T) {
	t.Parallel()
	var clock servertest.Standing
	limiter, _ := servertest.LimiterOf(t, servertest.CostlyRules, &clock)
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
	status, header, body := servertest.Get(t, door.URL+"/priced")
	if status != http.StatusTooManyRequests || header.Get("Retry-After") != "" ||
		!strings.Contains(body,
			`The limit \"priced\" takes too long to look at all of this request. Send fewer or shorter headers`) {
		t.Errorf("%d %v %s", status, header, body)
	}
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	servertest.WriteRules(t, rules, servertest.CostlyRules)
	for _, c := range []struct{ flag, want string }{{"--rules=" + rules,
		"It is refused by priced: expressions take too long on it."}, {"--json", `"too_costly": "priced"`}} {
		var out, errs strings.Builder
		if got := Run(t.Context(), []string{"explain", "--rules=" + rules, c.flag, "path=/priced", "door=x"}, nil, strings.NewReader(""), &out, &errs); got != 0 || !strings.Contains(out.String(), c.want) {
			t.Errorf("explain ends with %d, and says %s%s", got, out.String(), errs.String())
		}
	}
}

// explain --server shows what a running server has counted for the same request.
func TestExplainServer(t *testing.T) {
	dir := t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "shop.yaml"), `
domain: shop
limits:
  - { name: odd-key, per: [user, path], allow: [5/day, 20/year], algorithm: sliding_log }
  - { name: everybody, allow: 100/day, algorithm: sliding_log }
`)
	p := start(t, "serve", "--rules", dir)
	defer p.End()
	admin := p.Addr("admin")
	for range 2 {
		if status, _, body := servertest.Get(t, "http://"+p.Addr("http")+"/api/v1/limit?"+url.Values{"user": {"a,b/c d"}, "path": {"/x"}}.Encode()); status != 200 {
			t.Fatalf("status %d: %s", status, body)
		}
	}
	ask := func(user string, want ...string) {
		t.Helper()
		out, errs := servertest.NewOutput(), servertest.NewOutput()
		if status := Run(context.Background(), []string{"explain", "--rules", dir, "--server", "http://" + admin, "user=" + user, "path=/x"}, nil, strings.NewReader(""), out, errs); status != 0 {
			t.Fatalf("status %d: %s", status, errs)
		}
		for _, w := range want {
			if !strings.Contains(out.String(), w) {
				t.Errorf("no %q in\n%s", w, out)
			}
		}
	}
	ask("a,b/c d", "for user=a,b/c d, path=/x", "now: used 2 of 5, 3 remaining, as fresh in",
		"now: used 2 of 20, 18 remaining", "now: used 2 of 100, 98 remaining")
	ask("new", "now: nothing counted", "now: used 2 of 100")

	// A port that is no admin port is named.
	out, errs := servertest.NewOutput(), servertest.NewOutput()
	if status := Run(context.Background(), []string{"explain", "--rules", dir, "--server", "http://" + p.Addr("http"), "user=a", "path=/x"}, nil, strings.NewReader(""), out, errs); status == 0 {
		t.Errorf("the decision port passes for an admin port:\n%s", out)
	}
}

// explain --server reports a ban before all else, with the denials that led to it: also where the
// limits that the request meets have other keys, and count nothing.
func TestExplainBan(t *testing.T) {
	rules := filepath.Join(t.TempDir(), "shop.yaml")
	servertest.WriteRules(t, rules, `
domain: shop
limits:
  - { name: api, when: { path: /api/** }, per: [user], allow: 5/hour }
  - { name: login, when: { path: /login }, per: [ip], allow: 3/hour, algorithm: sliding_log, ban: { after: 2, within: 10m, for: 15m, scope: domain } }
  - { name: form, when: { path: /form }, per: [ip], allow: 1/hour, algorithm: sliding_log, ban: { after: 1, within: 10m, for: 15m } }
`)
	p := start(t, "serve", "--rules", rules)
	defer p.End()
	ask := func(query string) int {
		status, _, _ := servertest.Get(t, "http://"+p.Addr("http")+"/api/v1/limit?"+query)
		return status
	}
	explained := func(attributes ...string) string {
		t.Helper()
		out, errs := servertest.NewOutput(), servertest.NewOutput()
		args := append([]string{"explain", "--rules", rules, "--server", "http://" + p.Addr("admin")}, attributes...)
		if status := Run(context.Background(), args, nil, strings.NewReader(""), out, errs); status != 0 {
			t.Fatalf("status %d: %s", status, errs)
		}
		return out.String()
	}
	if out := explained("ip=192.0.2.1", "user=eve", "path=/api/x"); strings.Contains(out, "banned") {
		t.Errorf("before there was a ban:\n%s", out)
	}
	for range 5 { // three pass, two are denied
		ask("ip=192.0.2.1&path=/login")
	}
	for range 2 {
		ask("ip=192.0.2.2&path=/form")
	}
	for _, c := range []struct{ attributes, says string }{
		{"ip=192.0.2.1 user=eve path=/api/x", `^domain shop\n\nnow: ip=192\.0\.2\.1 is banned until 20\S+Z by login \(2 denials within 10m0s\) since 20\S+Z: it is refused everywhere in the domain\n\nmeets:\n.*user=eve\n.*now: nothing counted`},
		{"ip=192.0.2.1 path=/other", `^domain shop\n\nnow: ip=192\.0\.2\.1 is banned until 20\S+Z by login .* everywhere in the domain\n\ndoes not apply`},
		{"ip=192.0.2.2 path=/form", `^domain shop\n\nnow: ip=192\.0\.2\.2 is banned until 20\S+Z by form \(1 denial within 10m0s\) since 20\S+Z: it is refused wherever form applies\n\nmeets:\n`},
	} {
		says := regexp.MustCompile(c.says)
		servertest.Eventually(t, "the ban is known",
			func() bool { return says.MatchString(explained(strings.Fields(c.attributes)...)) })
	}
}

// explain --token-file takes the very file that the server has as auth.tokens_file.
func TestExplainTokenFile(t *testing.T) {
	dir := t.TempDir()
	rules, tokens := filepath.Join(dir, "shop.yaml"), filepath.Join(dir, "tokens")
	servertest.WriteRules(t, rules, "domain: shop\nlimits: [{ name: a, per: [user], allow: 5/min }]\n")
	servertest.WriteRules(t, tokens, "# operators\nsesame\nopen\n")
	p := start(t, "serve", "--rules", rules, "--auth-tokens-file", tokens)
	defer p.End()
	for file, want := range map[string]int{tokens: 0, rules: 2, "": 2} {
		out, errs := servertest.NewOutput(), servertest.NewOutput()
		args := []string{"explain", "--rules", rules, "--server", "http://" + p.Addr("admin"), "--token-file", file,
			"user=ada"}
		if status := Run(context.Background(), args, nil, strings.NewReader(""), out, errs); status != want {
			t.Errorf("token file %q: status %d, want %d: %s%s", file, status, want, out, errs)
		}
	}
}

// explain says what a rule does beyond its numbers, and what of a schedule holds now.
func TestExplainKinds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "shop.yaml")
	servertest.WriteRules(t, path, `
domain: shop
limits:
  - name: api
    per: [ip]
    allow: 7/min
    throttle: { soft: { over: 50%, for: 5m }, elastic: { signal: cpu, curve: { 50%: 200%, 95%: 25% } } }
    schedule: [{ between: "00:00-24:00", allow: 9/min }]
    ban: { after: 20, within: 10m, for: 15m, scope: domain, at: nftables }
    priority: critical
    cost_after: int(response.header["x-tokens"])
  - { name: off, allow: 7/min, schedule: [{ allow: unlimited }] }
  - { name: wait, allow: 10/min, on_limit: { wait: { max: 2s, queue: 5 } } }
  - { name: queue, allow: 10/min, algorithm: leaky_bucket, on_limit: { wait: 2s }, priority: sheddable }
  - { name: later, allow: 10/min, on_limit: { defer: orders } }
`)
	out, errs := servertest.NewOutput(), servertest.NewOutput()
	if status := Run(context.Background(), []string{"explain", "--rules", path, "ip=192.0.2.1"}, nil, strings.NewReader(""), out, errs); status != 0 {
		t.Fatalf("status %d: %s", status, errs)
	}
	for _, want := range []string{
		"9 per minute, soft margin 50 % for 5 min (sliding window) at this time of its schedule for ip=192.0.2.1",
		"schedule: always: 9/min",
		"elastic: follows the signal cpu: 200 % at 50 %, 25 % at 95 % of the limit",
		"ban: 20 denials within 10 min refuse the key for 15 min everywhere in the domain, and by nftables",
		"priority: critical", "priority: sheddable",
		`the real cost is known afterwards: int(response.header["x-tokens"])`,
		"not limited at this time of its schedule\n",
		"refused requests wait for up to 2 s, up to 5 of a key", "requests wait for up to 2 s",
		"refused requests are deferred to the queue orders",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// Without --rules, explain --server explains by the rules that are in force on the server, not by
// the folder here, nor by broken files on the server's disk. It shows their present counts.
func TestExplainByRulesOfServer(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for _, folder := range []string{"rules", "there"} {
		if err := os.Mkdir(folder, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	servertest.WriteRules(t, "rules/a.yaml", "domain: here\nlimits: [{ name: local, per: [user], allow: 1/min }]\n")
	servertest.WriteRules(t, "there/shop.yaml", `
domain: shop
limits:
  - { name: api, per: [user], allow: 10/hour, throttle: { elastic: { signal: mood, curve: { 20%: 100%, 60%: 20% } } } }
  - { name: wide, per: [ip], allow: 1000/hour, ban: { after: 5, within: 1h, for: 1h } }
`)
	servertest.WriteRules(t, "there/blog.yaml",
		"domain: blog\nlimits: [{ name: posts, per: [user], allow: 7/min, algorithm: token_bucket }]\n")
	p := start(t, "serve", "--rules", "there", "--client-ip-ipv6-prefix=48")
	defer p.End()
	server := "http://" + p.Addr("admin")
	must := func(args ...string) {
		t.Helper()
		if status, out, errs := runWeir(args...); status != 0 {
			t.Fatalf("%v: status %d: %s%s", args, status, out, errs)
		}
	}
	must("grant", "set", "api", "user=ada", "--domain=shop", "--allow=30/hour", "--for=1h", "--server", server)
	must("ban", "set", "wide", "ip=2001:db8::1", "--domain=shop", "--for=1h", "--reason=test", "--server", server)
	if status := put(t, server+"/api/v1/signals/mood", `{"value": 60}`); status/100 != 2 {
		t.Fatalf("the signal: %d", status)
	}
	// What lies there now is broken, and not in force.
	servertest.WriteRules(t, "there/shop.yaml", "domain: shop\nlimits: nonsense\n")
	p.Stderr.Await(t, "rules not loaded")

	ask := func(want []string, args ...string) {
		t.Helper()
		status, out, errs := runWeir(append([]string{"explain", "--server", server}, args...)...)
		if status != 0 {
			t.Fatalf("%v: status %d: %s", args, status, errs)
		}
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("%v: no %q in\n%s", args, w, out)
			}
		}
	}
	ask([]string{
		"domain shop, by the rules in force on " + server + "\n", "10 per hour (sliding window) for user=bob",
		"now: the signal mood stands at 60 %, so 20 % of the limit hold",
		"for ip=2001:db8::/48", "banned until",
	}, "--domain=shop", "user=bob", "ip=2001:db8:0:77::5")
	ask([]string{"granted 30/hour until"}, "--domain=shop", "user=ada")
	ask([]string{"7 per minute, burst 7 (token bucket) for user=ada"}, "--domain=blog", "user=ada")
	ask([]string{"domain here\n", "1 per minute (sliding window) for user=ada",
		"now: the server does not have this limit"}, "--rules=rules", "user=ada")
	status, out, errs := runWeir("explain", "--server", server, "--json", "--domain=shop", "user=ada", "ip=2001:db8::1")
	var x explained
	if err := json.Unmarshal([]byte(out), &x); status != 0 || err != nil || len(x.Bans) != 1 ||
		x.Bans[0].Rule != "wide" || len(x.Meets) != 2 ||
		x.Meets[0].Now == nil || x.Meets[0].Now.Grant == nil || x.Meets[0].Allows != "10 per hour (sliding window)" ||
		!strings.Contains(x.Meets[0].Elastic, "20 %") {
		t.Errorf("as JSON: status %d, %v: %s%s", status, err, out, errs)
	}
	status, _, errs = runWeir("explain", "--server", server, "user=ada")
	if status != 2 || !strings.Contains(errs,
		"the rules of "+server+" hold several domains: choose one of blog, shop") {
		t.Errorf("status %d: %s", status, errs)
	}
}

// put sends a body, and returns the status of the answer.
func put(t *testing.T, url, body string) int {
	t.Helper()
	r, err := http.NewRequest(http.MethodPut, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	a.Body.Close()
	return a.StatusCode
}

// An id that no node remembers is told so, with one reason; what is no id, why it is none.
func TestExplainForgottenID(t *testing.T) {
	servertest.InFolder(t, servertest.Hourly)
	p := start(t, "serve", "--rules=rules.yaml")
	server := "--server=http://" + p.Addr("admin")
	for id, c := range map[string]struct {
		status int
		errs   string
	}{
		"4vq8r2mxw0c7e": {1, "weir: id: no such decision is kept: it may have been pushed out by newer ones, or been made by another node\n"},
		"zzzzzzzzzzzzz": {exitUsage, `weir: --id: no decision has the id "zzzzzzzzzzzzz": ids begin with 0 to 9 or a to f, and are not 0` + "\n"},
		"4vq8r2mxw0c7":  {exitUsage, `weir: --id: "4vq8r2mxw0c7" is no id of a decision: that has 13 letters and digits, and this has 12; a refusal has it as X-RateLimit-Decision` + "\n"},
	} {
		if status, _, errs := runCommand(t, "explain", "--id", id, server); status != c.status || errs != c.errs {
			t.Errorf("%s: exit status %d, %s", id, status, errs)
		}
	}
	p.End()
}
