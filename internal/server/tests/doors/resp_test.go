//go:build unix

package doors

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// TestRESP: the built program, as people meet it: the commands that it prints, redis-benchmark,
// tokens, metrics, and its end.
func TestRESP(t *testing.T) {
	t.Parallel()
	benchmark, err := exec.LookPath("redis-benchmark")
	if err != nil {
		t.Skip("redis-benchmark is not installed; on Debian: apt-get install redis-tools")
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tokens"), []byte("0123456789abcdef0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	snapshot := filepath.Join(dir, "weir.snapshot")
	program := servertest.BuiltProgram(t)
	p := servertest.Launch(t, program, dir, "serve", "--auth-tokens-file=tokens", "--trusted-peers=192.0.2.1",
		"--snapshot-path="+snapshot)
	addr := p.Addr("resp")
	p.Stdout.Await(t, "CL.THROTTLE")
	var pasted []string
	for line := range strings.Lines(p.Stdout.String()) {
		if strings.HasPrefix(line, "redis-cli ") {
			out, err := exec.CommandContext(t.Context(), "sh", "-c", line).CombinedOutput()
			pasted = append(pasted, strings.Join(strings.Fields(string(out)), " "))
			if err != nil {
				t.Errorf("%s: %v", line, err)
			}
		}
	}
	if got := strings.Join(pasted, "; "); got != "1 10 9 0 60000; 0 16 15 -1 2" {
		t.Errorf("pasting the examples gives %s", got)
	}

	_, port, _ := net.SplitHostPort(addr)
	for _, pipeline := range []string{"1", "16"} {
		out, err := exec.CommandContext(t.Context(), benchmark, "-p", port, "-n", "3000", "-c", "10", "-P", pipeline,
			"-r", "50", "-q", "CL.THROTTLE", "__rand_int__", "15", "30", "60").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "requests per second") {
			t.Errorf("redis-benchmark: %v\n%s", err, out)
		}
	}

	// The rules are the other doors' rules, and so are their counters.
	for range 9 {
		servertest.RedisCLI(t, addr, "WEIR.LIMIT", "default", "1", "key", "bob")
	}
	if status, _, body := servertest.Get(t, "http://"+p.Addr("http")+"/api/v1/limit?key=bob"); status != 200 ||
		!strings.Contains(body, `"remaining":0`) {
		t.Errorf("the tenth, over HTTP: %d %s", status, body)
	}
	if got := servertest.RedisCLI(t, addr, "WEIR.LIMIT", "", "1", "key", "bob"); !regexp.MustCompile(
		`^0 10 0 \d{5} 60000 starter$`).MatchString(got) &&
		!regexp.MustCompile(`^0 10 0 \d{5} \d{5} starter$`).MatchString(got) {
		t.Errorf("the eleventh: %s", got)
	}

	// Who has no token may not refund.
	if got := servertest.RedisCLI(t, addr, "CL.THROTTLE", "c", "4", "1", "3600", "5"); got != "0 5 0 -1 18000" {
		t.Error(got)
	}
	if got := servertest.RedisCLI(t, addr, "CL.THROTTLE", "c", "4", "1", "3600", "-2"); !strings.HasPrefix(got,
		"NOPERM ") {
		t.Errorf("a refund without a token: %s", got)
	}
	if got := servertest.RedisCLI(t, addr, "-a", "0123456789abcdef0123456789abcdef", "--no-auth-warning", "CL.THROTTLE", "c", "4", "1", "3600", "-2"); !strings.HasPrefix(got, "0 5 2 -1 10") {
		t.Errorf("a refund with a token: %s", got)
	}
	var metrics []byte
	servertest.Eventually(t, "the server has seen that all connections are closed", func() bool {
		admin := exec.CommandContext(t.Context(), "curl", "-s", "-H",
			"Authorization: Bearer 0123456789abcdef0123456789abcdef", "http://"+p.Addr("admin")+"/metrics")
		if metrics, err = admin.Output(); err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(metrics), "weir_resp_connection_bytes 0\n")
	})
	for _, want := range []string{
		`weir_resp_decisions_total{command="weir.limit",outcome="allowed"} 10`, `weir_resp_decisions_total{command="weir.limit",outcome="denied"} 1`,
		`weir_resp_decisions_total{command="cl.throttle",outcome="refund"} 1`, `weir_resp_decisions_total{command="cl.throttle",outcome="error"} 1`,
		`weir_resp_dropped_connections_total{reason="http"} 0`, `weir_connections_accepted_total{door="resp"}`,
		`weir_requests_total{domain="default",door="resp",outcome="denied"} 1`,
	} {
		if !strings.Contains(string(metrics), want) {
			t.Errorf("the metrics do not hold %s", want)
		}
	}
	p.Signal(syscall.SIGTERM)
	if status := p.Wait(); status != 0 {
		t.Errorf("exit status %d\n%s", status, p.Stderr)
	}

	// The states outlast the program, as the states of rules do; and a door may want a token of
	// everybody.
	p = servertest.Launch(t, program, dir, "serve", "--auth-tokens-file=tokens", "--auth-doors=resp",
		"--snapshot-path="+snapshot)
	addr = p.Addr("resp")
	if got := servertest.RedisCLI(t, addr, "CL.THROTTLE", "c", "4", "1", "3600", "0"); !strings.HasPrefix(got,
		"NOAUTH ") {
		t.Errorf("without a token: %s", got)
	}
	if got := servertest.RedisCLI(t, addr, "-a", "0123456789abcdef0123456789abcdef", "--no-auth-warning", "CL.THROTTLE", "c", "4", "1", "3600", "0"); !strings.HasPrefix(got, "0 5 2 -1 10") {
		t.Errorf("after a restart: %s", got)
	}
	p.Signal(syscall.SIGTERM)
	if status := p.Wait(); status != 0 {
		t.Errorf("exit status %d\n%s", status, p.Stderr)
	}
}

// TestRESPCommands: commands that bring their limit, of the built program, show with their counts
// and keys wherever rules do, and in no list as a rule that needs something. The client is a
// socket.
func TestRESPCommands(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tokens"), []byte("0123456789abcdef-viewer name=vi role=viewer\n0123456789abcdef-operator name=op role=operator\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte("0123456789abcdef-operator\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	program := servertest.BuildProgram(t)
	p := servertest.Launch(t, program, dir, "serve", "--auth-tokens-file=tokens")
	c, err := net.Dial("tcp", p.Addr("resp"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// 3 at once, in an hour; 1 peek and 1 refund, which are no requests, and 1 mistake.
	commands := strings.Repeat("CL.THROTTLE user:ada 2 3 3600\r\n", 8) +
		"CL.THROTTLE user:ada 2 3 3600 0\r\nCL.THROTTLE user:bob 2 3 3600\r\n" +
		"CL.THROTTLE user:bob 2 3 3600 -1\r\nCL.THROTTLE user:bob 2 0 3600\r\nTHROTTLE user:bob 2 3 3600\r\nPING\r\n"
	if _, err := c.Write([]byte(commands)); err != nil {
		t.Fatal(err)
	}
	for answers, buffer := "", make([]byte, 4096); !strings.HasSuffix(answers, "+PONG\r\n"); {
		n, err := c.Read(buffer)
		if answers += string(buffer[:n]); err != nil {
			t.Fatalf("%v: %s", err, answers)
		}
	}
	server := "http://" + p.Addr("admin")
	as := func(role, path string, into any) {
		t.Helper()
		r, err := http.NewRequest(http.MethodGet, server+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer 0123456789abcdef-"+role)
		a, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Body.Close()
		if err := json.NewDecoder(a.Body).Decode(into); err != nil || a.StatusCode != 200 {
			t.Fatalf("%s: %d, %v", path, a.StatusCode, err)
		}
	}
	var o insight.Overview
	for _, domain := range []string{"", "?domain=_command"} {
		as("operator", "/api/v1/insight"+domain, &o)
		sum := uint64(0)
		for i := range o.Series.T {
			sum += uint64(o.Series.Admitted[i] + o.Series.Refused[i])
		}
		if o.Requests != 10 || o.Refused != 5 || sum != 10 ||
			!strings.Contains(strings.Join(o.Sentences, " "), "by commands that bring their limit (_command)") {
			t.Errorf("overview%s: %d requests, %d refused, %d over time: %q", domain, o.Requests, o.Refused, sum,
				o.Sentences)
		}
	}
	if as("operator", "/api/v1/insight?domain=default", &o); o.Requests != 0 {
		t.Errorf("they count as %d requests of a domain", o.Requests)
	}
	for _, q := range []struct{ role, by, want string }{
		{"operator", "refused", "CL.THROTTLE key=user:ada 5"},
		{"operator", "asked", "CL.THROTTLE key=user:ada 8, THROTTLE key=user:bob 2"},
		{"viewer", "refused", "CL.THROTTLE key=u… 5"},
	} {
		var list struct{ Keys []insight.KeyCount }
		as(q.role, "/api/v1/insight/keys?by="+q.by, &list)
		var got []string
		for _, k := range list.Keys {
			got = append(got, fmt.Sprint(k.Limit, " ", k.Key, " ", k.Count))
		}
		if text := strings.Join(got, ", "); text != q.want {
			t.Errorf("%s, by %s: %s, want %s", q.role, q.by, text, q.want)
		}
	}
	options := []string{"--server", server, "--token-file", filepath.Join(dir, "token")}
	status, out, errs := servertest.RunBuilt(t, append([]string{"top", "--batch"}, options...)...)
	if status != 0 || !regexp.MustCompile(`(?m)^_command/_command +by command +- +10 +5 `).MatchString(out) ||
		!regexp.MustCompile(`(?m)^key=user:ada +_command/CL\.THROTTLE +5 `).MatchString(out) {
		t.Errorf("weir top: %d %s\n%s", status, errs, out)
	}
	status, out, errs = servertest.RunBuilt(t,
		append([]string{"verdicts", "--all", "--fail-on", strings.Join(insight.Verdicts[:3], ",")}, options...)...)
	if status != 0 || strings.Contains(out, "_command") || !strings.Contains(out, "default/") {
		t.Errorf("weir verdicts: %d %s\n%s", status, errs, out)
	}
	p.Signal(syscall.SIGTERM)
	p.Wait()

	// Without insight nobody is told, and all is as it was.
	p = servertest.Launch(t, program, dir, "serve", "--insight-memory=0")
	if got := servertest.RedisCLI(t, p.Addr("resp"), "CL.THROTTLE", "user:ada", "2", "3", "3600"); got != "0 3 2 -1 1200" {
		t.Errorf("without insight: %s", got)
	}
	p.Signal(syscall.SIGTERM)
	p.Wait()
}
