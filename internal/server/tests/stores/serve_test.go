package stores

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
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

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// The starter rules give way to a folder ./rules that appears while the server runs.
func TestServeFindsRules(t *testing.T) {
	t.Chdir(t.TempDir())
	p := servertest.Start(t, "serve")
	url := "http://" + p.Addr("http") + "/api/v1/limit?"
	p.Stderr.Await(t, `the built-in starter rules are in force until it is there`)
	if status, _, body := servertest.Get(t, url+"key=ada"); status != 200 || !strings.Contains(body, `"limit":10`) {
		t.Fatalf("starter rules: %d %s", status, body)
	}
	if err := os.Mkdir("rules", 0o700); err != nil {
		t.Fatal(err)
	}
	servertest.WriteRules(t, "rules/shop.yaml",
		"domain: shop\nlimits: [{ name: one, per: [key], allow: 1/hour, algorithm: sliding_log }]\n")
	p.Stderr.Await(t, `rules loaded" path=./rules files=1`)
	for i, want := range []int{200, 429} {
		if status, _, body := servertest.Get(t, url+"key=ada"); status != want ||
			!strings.Contains(body, `"limit":1,`) {
			t.Errorf("request %d: %d %s, want %d by rule one", i, status, body, want)
		}
	}
	if _, _, body := servertest.Get(t, "http://"+p.Addr("admin")+"/api/v1/rules"); !strings.Contains(body, "./rules") {
		t.Errorf("the admin API tells %s", body)
	}
	if strings.Contains(p.Stderr.String(), "level=ERROR") {
		t.Errorf("an error was logged:\n%s", p.Stderr)
	}
	p.End()
}

// With nothing configured the starter rules are in force at all doors, on the same counters.
func TestServeStarter(t *testing.T) {
	t.Parallel()
	p := servertest.Start(t, "serve")
	base := "http://" + p.Addr("http") + "/api/v1/limit?key=ada"
	for i := range 9 {
		if status, _, body := servertest.Get(t, base); status != 200 {
			t.Fatalf("request %d: %d %s", i+1, status, body)
		}
	}
	// The tenth comes by gRPC: one engine behind every door.
	conn, err := grpc.NewClient(p.Addr("grpc"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	rls := rlspb.NewRateLimitServiceClient(conn)
	question := &rlspb.RateLimitRequest{Domain: "default", Descriptors: []*ratelimitv3.RateLimitDescriptor{{
		Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "key", Value: "ada"}}}}}
	for i, want := range []rlspb.RateLimitResponse_Code{rlspb.RateLimitResponse_OK,
		rlspb.RateLimitResponse_OVER_LIMIT} {
		answer, err := rls.ShouldRateLimit(t.Context(), question)
		if err != nil || answer.OverallCode != want {
			t.Errorf("gRPC %d: %v %v, want %v", i, answer, err, want)
		}
	}
	status, header, body := servertest.Get(t, base)
	if status != 429 || header.Get("Retry-After") == "" || !strings.Contains(body, `"limited_by":["starter"]`) {
		t.Errorf("the eleventh: %d %v %s", status, header, body)
	}
	for _, want := range []string{base, "curl -i -X POST http://" + p.Addr("http") + "/api/v1/limit",
		"grpcurl -plaintext", p.Addr("grpc"), "http://" + p.Addr("admin") + "/metrics"} {
		p.Stdout.Await(t, regexp.QuoteMeta(want))
	}
	admin := "http://" + p.Addr("admin")
	if status, _, body := servertest.Get(t, admin+"/api/v1/keys?limit=starter"); status != 200 ||
		!strings.Contains(body, `"key": "key=ada"`) || !strings.Contains(body, `"refused": true`) {
		t.Errorf("keys: %d %s", status, body)
	}
	if status, _, body := servertest.Get(t, admin+"/metrics"); status != 200 ||
		!strings.Contains(body, `weir_requests_total{domain="default",door="http",outcome="denied"} 1`) ||
		!strings.Contains(body, `weir_requests_total{domain="default",door="rls",outcome="denied"} 1`) {
		t.Errorf("metrics: %d %s", status, body)
	}
	if status, _, _ := servertest.Get(t, admin+"/readyz"); status != 200 {
		t.Errorf("readyz: %d", status)
	}
	if status, _, body := servertest.Get(t, admin+"/api/v1/rules"); status != 200 ||
		!strings.Contains(body, "built-in starter rules") {
		t.Errorf("rules: %d %s", status, body)
	}
	p.End()
	if !strings.Contains(p.Stderr.String(), "stopped") {
		t.Errorf("it wrote\n%s", p.Stderr)
	}
}

// SIGHUP reads rules and tokens anew.
func TestHangup(t *testing.T) {
	dir := t.TempDir()
	rules, tokens := filepath.Join(dir, "rules"), filepath.Join(dir, "tokens")
	if err := os.Mkdir(rules, 0o700); err != nil {
		t.Fatal(err)
	}
	rule := func(n int) {
		servertest.WriteRules(t, filepath.Join(rules, "a.yaml"),
			fmt.Sprintf("limits: [{ name: all, allow: %d/hour }]\n", n))
	}
	rule(5)
	servertest.WriteRules(t, tokens, "old\n")
	p := servertest.Start(t, "serve", "--rules", rules, "--auth-tokens-file", tokens)
	admin := "http://" + p.Addr("admin")
	authorized := func(token string) int {
		r, err := http.NewRequest("GET", admin+"/api/v1/rules", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		return answer.StatusCode
	}
	if got := fmt.Sprint(authorized("old"), authorized("new")); got != "200 401" {
		t.Errorf("before: %s", got)
	}
	servertest.WriteRules(t, tokens, "new\n")
	rule(7)
	if err := servertest.HangUp(); err != nil {
		t.Fatal(err)
	}
	p.Stderr.Await(t, `msg=reloading`) // the folder's watcher may have loaded the rules before
	servertest.Eventually(t, "the new tokens hold",
		func() bool { return authorized("old") == 401 && authorized("new") == 200 })
	base := "http://" + p.Addr("http") + "/api/v1/limit?hits=0"
	servertest.Eventually(t, "the new rules are in force", func() bool {
		_, _, body := servertest.Get(t, base)
		return strings.Contains(body, `"limit":7`)
	})
	servertest.WriteRules(t, tokens, "")
	if err := servertest.HangUp(); err != nil {
		t.Fatal(err)
	}
	p.Stderr.Await(t, "auth.tokens_file not loaded")
	if status := authorized("new"); status != 200 {
		t.Errorf("after a broken tokens file: %d", status)
	}
	p.End()
}

// Requests under way when the program is asked to end are finished.
func TestDrain(t *testing.T) {
	t.Parallel()
	arrived, leave := make(chan struct{}), make(chan struct{})
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-leave
		_, _ = io.WriteString(w, "finished")
	}))
	defer upstream.Close()
	dir := t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "a.yaml"), "limits: [{ name: a, allow: 100/min }]\n")
	p := servertest.Start(t, "proxy", "--upstream", upstream.URL, "--rules", dir, "--listen-proxy=127.0.0.1:0",
		"--drain=1m")
	addr, admin := p.Addr("proxy"), p.Addr("admin")
	answers := make(chan string, 1)
	go func() {
		r, err := http.Get("http://" + addr)
		if err != nil {
			answers <- err.Error()
			return
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		answers <- fmt.Sprint(string(b), err)
	}()
	<-arrived
	p.Stop()
	servertest.Eventually(t, "the server is not ready", func() bool {
		status, _, _ := servertest.Get(t, "http://"+admin+"/readyz")
		return status == 503
	})
	servertest.Eventually(t, "the door is closed", func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			conn.Close()
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	})
	close(leave)
	if got := <-answers; got != "finished<nil>" {
		t.Errorf("the request under way got %q", got)
	}
	p.Exits(0)
}

// TestReloadUnderLoad: rules are rewritten again and again while eight clients ask without pause.
// No request fails, none is decided by half-loaded rules, and the counters are kept.
func TestReloadUnderLoad(t *testing.T) {
	t.Parallel()
	const clients = 8
	versions := effort.Of(8, 40)
	dir := t.TempDir()
	// A version has its number in both of its limits, which must always be seen together. The
	// counter that is kept is the counter of "kept".
	version := func(n int) string {
		return fmt.Sprintf("domain: shop\nlimits:\n"+
			"  - { name: first-%[1]d, when: { kind: load }, allow: %[2]d/hour }\n"+
			"  - { name: kept, when: { kind: kept }, allow: 1000000/year, algorithm: fixed_window }\n"+
			"  - { name: second-%[1]d, when: { kind: load }, allow: %[2]d/hour }\n", n, 1_000_000+n)
	}
	file := filepath.Join(dir, "a.yaml")
	// In place, as many editors write: a server may see the file half written.
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(version(0))
	p := servertest.Start(t, "serve", "--rules", dir, "--log-level=error")
	p.Stdout.Await(t, "api/v1/limit") // at level error no door is logged; the examples are
	addr := regexp.MustCompile(`http://([^/]+)/api/v1/limit`).FindStringSubmatch(p.Stdout.String())[1]
	admin := regexp.MustCompile(`http://([^/]+)/metrics`).FindStringSubmatch(p.Stdout.String())[1]

	var asked, seen atomic.Int64
	stop := make(chan struct{})
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			for {
				select {
				case <-stop:
					return
				default:
				}
				if n, err := checkLoaded(client, addr); err != nil {
					t.Error(err)
					return
				} else {
					for old := seen.Load(); n > old && !seen.CompareAndSwap(old, n); old = seen.Load() {
					}
				}
				asked.Add(1)
				if status, err := servertest.StatusOf(client, "http://"+addr+"/api/v1/limit?kind=kept"); err != nil ||
					status != 200 {
					t.Errorf("kept: %d %v", status, err)
					return
				}
			}
		})
	}
	for n := 1; n <= versions; n++ {
		write(version(n))
		servertest.Eventually(t, fmt.Sprintf("version %d is in force", n),
			func() bool { return seen.Load() == int64(n) || t.Failed() })
		if t.Failed() {
			break
		}
		if n%(versions/4) != 0 {
			continue
		}
		// What is broken in between changes nothing, and is reported.
		whole := version(n + 1000)
		for i, broken := range []string{"", whole[:len(whole)-20], "limits: [\n"} {
			before := failures(t, admin)
			write(broken)
			servertest.Eventually(t, fmt.Sprintf("broken file %d is reported", i),
				func() bool { return failures(t, admin) > before })
			if s := seen.Load(); s != int64(n) {
				t.Errorf("broken file %d: version %d is in force", i, s)
			}
			if _, _, body := servertest.Get(t, "http://"+admin+"/api/v1/rules"); !strings.Contains(body, "a.yaml") ||
				strings.Contains(body, `"errors": []`) {
				t.Errorf("broken file %d is not shown: %.500s", i, body)
			}
		}
	}
	close(stop)
	all.Wait()
	kept := asked.Load()
	_, _, body := servertest.Get(t, "http://"+addr+"/api/v1/limit?kind=kept&hits=0")
	if want := fmt.Sprintf(`"remaining":%d,`, 1_000_000-kept); !strings.Contains(body, want) && !t.Failed() {
		t.Errorf("after %d requests: %s, want %s", kept, body, want)
	}
	if kept < int64(versions) {
		t.Errorf("only %d requests were made", kept)
	}
	p.End()
}

// checkLoaded asks once and returns the version of the rules that decided; an error if it was not
// one whole version.
func checkLoaded(client *http.Client, addr string) (int64, error) {
	r, err := client.Get("http://" + addr + "/api/v1/limit?kind=load")
	if err != nil {
		return 0, err
	}
	defer r.Body.Close()
	var got struct {
		Limits []struct {
			Name  string
			Limit int64
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&got); err != nil || r.StatusCode != 200 {
		return 0, fmt.Errorf("%s: %v", r.Status, err)
	}
	if len(got.Limits) != 2 {
		return 0, fmt.Errorf("half-loaded rules: %+v", got)
	}
	n := got.Limits[0].Limit - 1_000_000
	if got.Limits[0].Name != fmt.Sprint("first-", n) || got.Limits[1].Name != fmt.Sprint("second-", n) ||
		got.Limits[1].Limit != got.Limits[0].Limit {
		return 0, fmt.Errorf("rules of two versions: %+v", got)
	}
	return n, nil
}

// failures reads how many loads of rules have failed.
func failures(t *testing.T, admin string) (n int) {
	t.Helper()
	_, _, body := servertest.Get(t, "http://"+admin+"/metrics")
	found := regexp.MustCompile(`(?m)^weir_rules_load_errors_total (\d+)$`).FindStringSubmatch(body)
	if found == nil {
		t.Fatal("the metric of load errors is not there")
	}
	if _, err := fmt.Sscan(found[1], &n); err != nil {
		t.Fatal(err)
	}
	return n
}
