//go:build unix

package stores

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

const sharedRules = `
limits:
  - { name: exact, when: { key: exact }, per: [key], allow: 300/day, algorithm: sliding_log }
  - { name: few, when: { key: [few, more] }, per: [key], allow: 20/day, algorithm: sliding_log }
  - { name: rest, per: [key], allow: 100000/day }
`

// TestNodes: two processes on one Redis enforce one limit as one would; while it is gone, each goes
// on with its share; and when it is back, it knows what was admitted meanwhile.
func TestNodes(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t, "appendonly yes", "appendfsync always")
	program, dir := servertest.BuiltProgram(t), t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "rules.yaml"), sharedRules)
	var processes []*servertest.Process
	var nodes []*servertest.Node
	for range 2 {
		p := servertest.Launch(t, program, dir,
			append([]string{"serve", "--rules=rules.yaml", "--store=" + redis.URL()}, servertest.Patient...)...)
		processes = append(processes, p)
		nodes = append(nodes, servertest.NodeOf(t, p.Stderr, p.Addr))
		p.Stderr.Await(t, `the counters live in Redis" store=`+redis.URL())
	}

	var admitted atomic.Int64
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() { admitted.Add(int64(nodes[i%2].Admitted(50, "key=exact"))) })
	}
	all.Wait()
	if n := admitted.Load(); n != 300 {
		t.Errorf("of 400 attempts at two nodes %d were admitted by a limit of 300", n)
	}
	for _, n := range nodes {
		n.AwaitNodes(2)
		if m := n.Metric("weir_redis_calls_total"); m == "0" {
			t.Error("no round trips are counted")
		}
		servertest.Eventually(t, "both nodes are heard, and that is counted", func() bool {
			servertest.Get(t, n.Admin+"/api/v1/nodes")
			return n.Metric(`weir_nodes_questions_total{kind="state",result="complete"}`) != "0" &&
				n.Metric("weir_nodes_answers_total") != "0" &&
				n.Metric("weir_nodes_question_seconds_count") != "0"
		})
		servertest.Eventually(t, "what was asked is recorded", func() bool {
			return n.Metric("weir_insight_record_taken_total") != "0" &&
				n.Metric("weir_insight_record_reach_seconds") != "0" &&
				n.Metric("weir_insight_record_sampled_ratio") == "1"
		})
	}
	for _, n := range nodes {
		if got := n.Metric(`weir_nodes_heard_total{outcome="answered"}`); got == "0" {
			t.Error("no answer to another node is counted")
		}
	}

	redis.Kill()
	for _, n := range nodes {
		n.AwaitAway()
		away := regexp.MustCompile(
			`^ok, without the store since \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ \(.+\): limits are shared among 2 nodes; \d+ decisions by this node's share since .+\n$`)
		servertest.Eventually(t, "/readyz tells what is decided without the store", func() bool {
			status, body := n.Readyz()
			return status == 200 && away.MatchString(body)
		})
		if got := n.Admitted(15, "key=few"); got != 10 {
			t.Errorf("a node admitted %d of its share of 10", got)
		}
		for name, want := range map[string]string{
			`weir_store_breaker_state{state="away"}`: "1", `weir_store_breaker_state{state="there"}`: "0", "weir_store_share_nodes": "2",
			"weir_store_breaker_trips_total": "1", `weir_store_fallback_decisions_total{outcome="local_denied"}`: "5",
		} {
			if got := n.Metric(name); got != want {
				t.Errorf("%s is %s, want %s", name, got, want)
			}
		}
		if status, _, body := servertest.Get(t, n.Admin+"/api/v1/keys?limit=few"); status != 503 ||
			!strings.Contains(body, "cannot be reached") {
			t.Errorf("keys: %d %s", status, body)
		}
		if status, _, body := servertest.Get(t, n.Admin+"/api/v1/keys/default/few/key=few"); status != 503 {
			t.Errorf("a key: %d %s", status, body)
		}
		if status := n.Delete("default/few/key=few"); status != 503 {
			t.Errorf("reset: %d", status)
		}
		// Only so many questions are asked in a second.
		servertest.Eventually(t, "the answers of other nodes are missed", func() bool {
			if status, _, body := servertest.Get(t, n.Admin+"/api/v1/nodes"); status != 200 {
				t.Fatalf("%d %s", status, body)
			}
			return n.Metric(`weir_nodes_missing_answers_total{cause="redis"}`) != "0"
		})
	}

	redis.Restart()
	for _, n := range nodes {
		n.AwaitBack()
	}
	servertest.Eventually(t, "Redis knows what was admitted without it", func() bool {
		_, _, body := servertest.Get(t, nodes[0].Admin+"/api/v1/keys/default/few/key=few")
		return strings.Contains(body, `"used": 20,`)
	})
	for i, n := range nodes {
		if got := n.Admitted(2, "key=few"); got != 0 {
			t.Errorf("%d more were admitted", got)
		}
		// Redis may have it before the node counts it.
		servertest.Eventually(t, "what was settled is counted",
			func() bool { return n.Metric(`weir_store_fallback_units_total{outcome="settled"}`) != "0" })
		// Each transition is one line, which may come later than it is counted.
		for state, line := range map[string]string{"away": "the store is away", "returning": "the store answers again",
			"there": "the store is back"} {
			n.Log.Await(t, line)
			servertest.Eventually(t, "each transition to "+state+" is one line of the log", func() bool {
				return strings.Count(n.Log.String(), line) == n.Number(`weir_store_breaker_transitions_total{state="`+
					state+`"}`)
			})
		}
		processes[i].Signal(syscall.SIGTERM)
		if status := processes[i].Wait(); status != 0 {
			t.Errorf("exit status %d\n%s", status, n.Log)
		}
	}
}

// TestResetOnNodes: an operator's reset of a key holds at once on the node that does it, and soon
// on those that remember a refusal; and the live counters are the sums of all nodes.
func TestResetOnNodes(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	servertest.WriteRules(t, rules, sharedRules)
	var programs []*servertest.Running
	var nodes []*servertest.Node
	for range 2 {
		p := servertest.StartOn(t, redis.URL(), "--rules="+rules)
		programs = append(programs, p)
		nodes = append(nodes, servertest.NodeOf(t, p.Stderr, p.Addr))
	}
	servertest.Eventually(t, "both nodes listen", func() bool {
		reply, _ := redis.Do("PUBSUB", "CHANNELS").([]any) // of refusals, of bans and grants, of questions
		for _, channel := range reply {
			if count, _ := redis.Do("PUBSUB", "NUMSUB", channel.(string)).([]any); len(count) != 2 ||
				count[1] != int64(2) {
				return false
			}
		}
		return len(reply) == 3
	})
	for i, n := range nodes {
		if got := n.Admitted(15, "key=few"); got != 15-10*i {
			t.Errorf("node %d admitted %d", i, got)
		}
	}
	if got := nodes[0].Admitted(3, "key=few"); got != 0 {
		t.Errorf("%d more were admitted", got)
	}
	for _, n := range nodes {
		// On a machine that is slow enough a refusal is forgotten before it is used.
		servertest.Eventually(t, "a refusal is answered from memory", func() bool {
			if got := n.Admitted(2, "key=few"); got != 0 {
				t.Fatalf("%d more were admitted", got)
			}
			return n.Metric("weir_redis_remembered_refusals_total") != "0"
		})
	}
	status, _, body := servertest.Get(t, nodes[1].Admin+"/api/v1/keys?limit=few")
	if status != 200 || !strings.Contains(body, `"used": 20,`) || !strings.Contains(body, `"refused": true`) {
		t.Errorf("keys: %d %s", status, body)
	}
	exit, out, errs := servertest.RunBuilt(t, "explain", "--rules="+rules, "--server="+nodes[1].Admin, "key=few")
	if exit != 0 || !strings.Contains(out, "used 20 of 20, 0 remaining") {
		t.Errorf("explain ends with %d and wrote\n%s%s", exit, out, errs)
	}

	if status := nodes[0].Delete("default/few/key=few"); status != 204 {
		t.Fatalf("reset: %d", status)
	}
	if status := nodes[0].Delete("default/few/key=few"); status != 404 {
		t.Errorf("reset again: %d", status)
	}
	if status := nodes[0].Ask("key=few"); status != 200 {
		t.Errorf("after the reset: %d", status)
	}
	servertest.Eventually(t, "the other node admits again", func() bool { return nodes[1].Ask("key=few") == 200 })
	for _, p := range programs {
		p.End()
	}

	// Without Redis explain tells why it shows nothing.
	redis.Kill()
	late := servertest.StartOn(t, redis.URL(), "--rules="+rules)
	exit, out, errs = servertest.RunBuilt(t, "explain", "--rules="+rules, "--server=http://"+late.Addr("admin"),
		"key=few")
	if exit != 2 || !strings.Contains(errs, "the counters cannot be reached") {
		t.Errorf("explain ends with %d and wrote\n%s%s", exit, out, errs)
	}
	late.End()
}

// TestStartWithoutRedis: a server whose Redis is away starts all the same, limits by its share of
// the nodes that are configured, says why, and finds Redis when it comes.
func TestStartWithoutRedis(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	redis.Stop()
	p := servertest.StartOn(t, redis.URL(), "--nodes=5")
	n := servertest.NodeOf(t, p.Stderr, p.Addr)
	if status, body := n.Readyz(); status != 200 || !strings.Contains(body, "ok, without the store since ") ||
		!strings.Contains(body,
			"connection refused): limits are shared among 5 nodes; bans and grants have not been read yet\n") {
		t.Errorf("readyz: %d %s", status, body)
	}
	for _, want := range []string{"(?m)^.*level=WARN .*connection refused; trying again",
		"(?m)^.*level=WARN .*the store is away.* cause=.*connection refused"} {
		if got := regexp.MustCompile(want).FindAllString(p.Stderr.String(), -1); len(got) != 1 {
			t.Errorf("%s is %d times in the log\n%s", want, len(got), p.Stderr)
		}
	}
	if got := n.Admitted(5, "key=ada"); got != 2 { // of 10 a minute
		t.Errorf("%d were admitted, the share is 2", got)
	}
	redis.Restart()
	n.AwaitBack()
	if got := n.Admitted(1, "key=bob"); got != 1 || n.Metric("weir_redis_decisions_total") == "0" {
		t.Errorf("%d admitted, by Redis: %s", got, n.Metric("weir_redis_decisions_total"))
	}
	p.End()
}

// TestRedisHangs: a Redis that takes questions and does not answer holds nobody up for longer than
// the deadline.
func TestRedisHangs(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	p := servertest.Start(t, "serve", "--store="+redis.URL(), "--store-deadline=250ms")
	n := servertest.NodeOf(t, p.Stderr, p.Addr)
	n.AwaitBack() // should a slow start have tripped it
	redis.Pause()
	n.AwaitAway()
	if _, body := n.Readyz(); !strings.Contains(body, "in time") && !strings.Contains(body, "deadline") {
		t.Errorf("readyz: %s", body)
	}
	if n.Metric("weir_store_deadline_misses_total") == "0" {
		t.Error("no deadline was missed")
	}
	if got := n.Admitted(15, "key=ada"); got != 10 {
		t.Errorf("%d were admitted", got)
	}
	redis.Resume()
	n.AwaitBack()
	p.End()
}

// TestOnStoreError: what the rules want while Redis is away is what every door does.
func TestOnStoreError(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	dir := t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "a.yaml"), `
domain: shop
limits:
  - { name: local, when: { path: ["/local/**", "/mixed/**"] }, per: [path], allow: 3/day, algorithm: sliding_log }
  - { name: open, when: { path: ["/open/**", "/mixed/**", "/shut/open/**"] }, per: [path], allow: 1/day, on_store_error: allow }
  - { name: shut, when: { path: "/shut/**" }, per: [path], allow: 100/day, on_store_error: deny }
  - { name: trial, when: { path: "/trial/**" }, per: [path], allow: 1/day, on_store_error: deny, on_limit: shadow }
`)
	var reached atomic.Int64
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { reached.Add(1) }))
	defer upstream.Close()
	p := servertest.Start(t,
		append([]string{"proxy", "--rules", dir, "--upstream", upstream.URL, "--listen-proxy=127.0.0.1:0",
			"--listen-http=127.0.0.1:0", "--listen-grpc=127.0.0.1:0",
			"--max-connections=100", // with more there may be a warning of too few files
			"--store=" + redis.URL()}, servertest.Patient...)...)
	n := servertest.NodeOf(t, p.Stderr, p.Addr)
	through := "http://" + p.Addr("proxy")
	conn, err := grpc.NewClient(p.Addr("grpc"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	rls := rlspb.NewRateLimitServiceClient(conn)
	doors := map[string]func(path string) (string, http.Header){
		"http": func(path string) (string, http.Header) {
			status, header, body := servertest.Get(t, n.Http+"/api/v1/limit?path="+path)
			return fmt.Sprint(status, problemType(body)), header
		},
		"proxy": func(path string) (string, http.Header) {
			status, header, body := servertest.Get(t, through+path)
			return fmt.Sprint(status, problemType(body)), header
		},
		"grpc": func(path string) (string, http.Header) {
			answer, err := rls.ShouldRateLimit(t.Context(),
				&rlspb.RateLimitRequest{Domain: "shop", Descriptors: []*ratelimitv3.RateLimitDescriptor{{
					Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "path", Value: path}}}}})
			if err != nil {
				return err.Error(), nil
			}
			return answer.OverallCode.String(), nil
		},
	}
	redis.Kill()
	servertest.Eventually(t, "the store counts as away", func() bool {
		n.AskAtOnce("path=/local/away")
		_, body := n.Readyz()
		return strings.Contains(body, "without the store")
	})
	const reduced = "503 temporary-reduced-capacity"
	type expected struct{ http, proxy, grpc string }
	ok, unavailable := expected{"200", "200", "OK"}, expected{reduced, reduced, "OVER_LIMIT"}
	refused := expected{"429", "429 quota-exceeded", "OVER_LIMIT"}
	for _, c := range []struct {
		path string
		want []expected // of one request after the other
	}{
		{"/local/", []expected{ok, ok, ok, refused, refused}},
		{"/open/", []expected{ok, ok, ok}},
		{"/mixed/", []expected{ok, ok, ok, refused}},
		{"/shut/", []expected{unavailable, unavailable}},
		{"/shut/open/", []expected{unavailable}},
		{"/trial/", []expected{ok, ok}},
		{"/none/", []expected{ok}},
	} {
		for i, want := range c.want {
			for name, want := range map[string]string{"http": want.http, "proxy": want.proxy, "grpc": want.grpc} {
				got, header := doors[name](c.path + name)
				if got != want {
					t.Errorf("%s of %s, request %d: got %s, want %s", name, c.path, i+1, got, want)
				}
				if strings.HasPrefix(want, "503") && header.Get("Retry-After") == "" {
					t.Errorf("%s of %s: %v", name, c.path, header)
				}
			}
		}
	}
	if got := reached.Load(); got != 3+3+3+2+1 {
		t.Errorf("the upstream was reached %d times", got)
	}
	health, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil || health.Status != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health: %v %v", health, err)
	}
	if got := n.Metric(`weir_store_fallback_decisions_total{outcome="refused"}`); got != "9" {
		t.Errorf("%s refusals for want of a store are counted", got)
	}
	warnings := strings.Count(p.Stderr.String(), "level=WARN") - strings.Count(p.Stderr.String(), "this node decided by its share") // once a minute
	if got := warnings; got != 1 {
		// nothing is logged for each request
		t.Errorf("%d warnings:\n%s", got, p.Stderr)
	}
	p.End()
}

// problemType is the end of the type of problem details, after a space; "" if there is none.
func problemType(body string) string {
	found := regexp.MustCompile(
		`"type":"https://iana\.org/assignments/http-problem-types#([a-z-]+)"`).FindStringSubmatch(body)
	if found == nil {
		return ""
	}
	return " " + found[1]
}

// TestRedisCredentials: TLS by a CA of one's own, with a user and a password that nobody gets to
// read.
func TestRedisCredentials(t *testing.T) {
	t.Parallel()
	effort.Long(t, "starts a Redis with TLS for each way")
	const password = "s3cr3t&p@ss"
	const escaped = "s3cr3t%26p%40ss"
	redis, files := redistest.StartTLS(t, "user default off", "user weir on >"+password+" ~weir:* &weir:* +@all")
	// What is said, and shown.
	silent := func(t *testing.T, p *servertest.Running) {
		t.Helper()
		text := p.Stdout.String() + p.Stderr.String()
		for _, path := range []string{"/", "/readyz", "/metrics", "/api/v1/rules", "/debug/pprof/cmdline"} {
			_, _, body := servertest.Get(t, "http://"+p.Addr("admin")+path)
			text += body
		}
		for _, secret := range []string{password, escaped, "s3cr3t", "wr0ng"} {
			if strings.Contains(text, secret) {
				t.Errorf("it tells the password: %s", text)
			}
		}
	}
	url := func(password, query string) string { return "rediss://weir:" + password + "@" + redis.Addr() + query }
	p := servertest.StartOn(t, url(escaped, "?ca="+files.CA), "--log-level=debug")
	n := servertest.NodeOf(t, p.Stderr, p.Addr)
	if got := n.Admitted(12, "key=ada"); got != 10 || n.Metric("weir_redis_decisions_total") == "0" {
		t.Errorf("%d were admitted, by Redis: %s", got, n.Metric("weir_redis_decisions_total"))
	}
	p.Stderr.Await(t, `store=rediss://`+redis.Addr()+`\s`)
	silent(t, p)
	p.End()
	for name, c := range map[string]struct{ url, cause string }{
		"wrong password": {url("wr0ng", "?ca="+files.CA), "correct the user and the password"},
		"no CA":          {url(escaped, ""), "certificate"},
		"plain text":     {"redis://weir:" + escaped + "@" + redis.Addr(), "redis store"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := servertest.Start(t, "serve", "--store="+c.url)
			n := servertest.NodeOf(t, p.Stderr, p.Addr)
			servertest.Eventually(t, "what is wrong is said", func() bool {
				n.AskAtOnce("key=away")
				_, body := n.Readyz()
				return strings.Contains(body, c.cause)
			})
			silent(t, p)
			p.End()
		})
	}
}

// TestRedisPlaces: a database and a prefix keep counters apart.
func TestRedisPlaces(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t, "maxmemory 100mb", "maxmemory-policy allkeys-lru")
	for _, args := range [][]string{{redis.URL() + "/3"}, {redis.URL() + "/0"}, {redis.URL(), "--redis-prefix=shop:"}} {
		p := servertest.StartOn(t, args[0], args[1:]...)
		n := servertest.NodeOf(t, p.Stderr, p.Addr)
		if got := n.Admitted(11, "key=ada"); got != 10 {
			t.Errorf("%q admitted %d", args, got)
		}
		p.Stderr.Await(t, `level=WARN .*maxmemory-policy is allkeys-lru`)
		p.End()
	}
	if reply, _ := redis.Do("INFO", "keyspace").(string); !strings.Contains(reply, "db3:") ||
		!strings.Contains(reply, "db0:") {
		t.Errorf("the keys are in\n%s", reply)
	}
	for _, prefix := range []string{"weir:", "shop:"} {
		if keys, _ := redis.Do("KEYS", prefix+"*ada*").([]any); len(keys) == 0 {
			t.Errorf("%s: %q", prefix, keys)
		}
	}
}

// TestRedisTopologies: behind Sentinels and in a Cluster the same holds as on one server.
func TestRedisTopologies(t *testing.T) {
	t.Parallel()
	effort.Long(t, "starts Sentinels and a Cluster")
	for name, url := range map[string]func(t *testing.T) string{
		"sentinel": func(t *testing.T) string { return redistest.StartSentinel(t).URL() },
		"cluster":  func(t *testing.T) string { return redistest.StartCluster(t, 3, 0).URL() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rules := filepath.Join(t.TempDir(), "rules.yaml")
			servertest.WriteRules(t, rules, sharedRules)
			url := url(t)
			var nodes []*servertest.Node
			for range 2 {
				p := servertest.StartOn(t, url, "--rules="+rules)
				defer p.End()
				nodes = append(nodes, servertest.NodeOf(t, p.Stderr, p.Addr))
				p.Stderr.Await(t, "store="+regexp.QuoteMeta(url)+`\s`)
			}
			if got := nodes[0].Admitted(12, "key=few") + nodes[1].Admitted(12, "key=few"); got != 20 {
				t.Errorf("%d were admitted", got)
			}
			nodes[0].Admitted(5, "key=more")
			status, _, body := servertest.Get(t, nodes[1].Admin+"/api/v1/keys?limit=few")
			if status != 200 || !strings.Contains(body, `"used": 20,`) || !strings.Contains(body, `"used": 5,`) {
				t.Errorf("keys: %d %s", status, body)
			}
			if status := nodes[1].Delete("default/few/key=few"); status != 204 {
				t.Errorf("reset: %d", status)
			}
			if got := nodes[1].Admitted(1, "key=few"); got != 1 {
				t.Error("after the reset nothing is admitted")
			}
			for _, n := range nodes {
				n.AwaitNodes(2)
			}
		})
	}
}

// TestStoreErrors: errors in the store's settings are reported before anything begins, without
// credentials; and checking them needs no Redis.
func TestStoreErrors(t *testing.T) {
	t.Chdir(t.TempDir())
	const away = "redis://ada:s3cret@127.0.0.1:1"
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"serve", "--store=redis://ada:s3cret@127.0.0.1:port"}, 78, `--store: redis URL: "127.0.0.1:port" is no HOST:PORT`},
		{[]string{"serve", "--store=ada:s3cret@127.0.0.1"}, 78, "write memory, or the URL of a store, such as redis://HOST:PORT: there is no scheme"},
		{[]string{"serve", "--store=redis://ada:s3/cret@127.0.0.1"}, 78, "percent-encode"},
		{[]string{"serve", "-store=redis://ada:s3cret@127.0.0.1"}, 78, "unknown shorthand flag"},
		{[]string{"serve", "--store=" + away, "--snapshot-path=x"}, 78, "snapshot.path: is for the embedded store"},
		{[]string{"proxy", "--store=" + away, "--upstream=http://a", "--redis-partitions=0"}, 78, `--redis-partitions: "0" must be a whole number from 1 to 16384`},
		{[]string{"serve", "--config=broken.yaml"}, 78, "broken.yaml: [2:"},
		{[]string{"serve", "--check", "--store=" + away}, 0, ""},
		{[]string{"serve", "--check", "--store=" + away, "--snapshot-path=x"}, 78, "snapshot.path"},
	} {
		if err := os.WriteFile("broken.yaml", []byte("store: "+away+"\nrules: [a\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		p := servertest.Start(t, c.args...)
		p.Exits(c.status)
		text := p.Stdout.String() + p.Stderr.String()
		if !strings.Contains(text, c.want) {
			t.Errorf("%q wrote\n%s\nwant %q in it", c.args, text, c.want)
		}
		if strings.Contains(text, "s3") {
			t.Errorf("%q wrote\n%s", c.args, text)
		}
	}
}
