package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/spf13/pflag"

	"github.com/weir-rl/weir/internal/server"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// TestTrustedPrivate: who trusts a whole private network, and reads a list by its addresses, is
// told so at the start, and by --check.
func TestTrustedPrivate(t *testing.T) {
	rules := servertest.RulesFile(t, servertest.Hourly)
	const remark = "client_ip.trusted_proxies: all of 10.0.0.0/8 is trusted"
	check := func(args ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		args = append([]string{"serve", "--check", "--rules=" + rules}, args...)
		if code := Run(t.Context(), args, nil, strings.NewReader(""), &out, &errs); code != 0 {
			t.Fatalf("%q: exit status %d\n%s%s", args, code, out.String(), errs.String())
		}
		return errs.String()
	}
	if text := check("--client-ip-trusted-proxies=private"); strings.Count(text, remark) != 1 {
		t.Errorf("private: %s", text)
	}
	for _, args := range [][]string{nil, {"--client-ip-trusted-proxies=private", "--client-ip-hops=1"},
		{"--client-ip-trusted-proxies=10.1.0.0/16"}} {
		if text := check(args...); strings.Contains(text, "is trusted") {
			t.Errorf("%q: %s", args, text)
		}
	}
	p := start(t, "serve", "--rules="+rules, "--client-ip-trusted-proxies=private")
	p.Addr("http")
	p.End()
	if text := p.Stderr.String(); strings.Count(text, remark) != 1 {
		t.Errorf("at the start: %s", text)
	}
}

// start runs weir with args in a folder of its own, or in the present one if a test has changed to
// one. Doors take free ports.
func start(t *testing.T, args ...string) *servertest.Running {
	t.Helper()
	return servertest.StartWith(t, func(ctx context.Context, args, env []string, stdout, stderr io.Writer) int {
		return Run(ctx, args, env, strings.NewReader(""), stdout, stderr)
	}, args...)
}

func TestUsageErrors(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	dir := t.TempDir()
	t.Chdir(dir)
	for name, text := range map[string]string{
		"good/a.yaml":    "limits: [{ name: a, allow: 1/min }]\n",
		"bad/a.yaml":     "limits:\n  - name: a\n    alow: 1/min\n",
		"empty/a.yaml":   "",
		"norule/a.yaml":  "domain: shop\n",
		"domains/a.yaml": "domain: a\nlimits: [{ name: a, allow: 1/min }]\n",
		"domains/b.yaml": "domain: b\nlimits: [{ name: a, allow: 1/min }]\n",
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		servertest.WriteRules(t, name, text)
	}
	if err := os.Mkdir("nothing", 0o700); err != nil {
		t.Fatal(err)
	}
	servertest.WriteRules(t, "damaged", "this is no snapshot")
	for _, c := range []struct {
		name string
		args []string
		want []string
	}{
		{"port in use", []string{"serve", "--rules=good", "--listen-http=" + taken.Addr().String()}, []string{"listen.http: " + taken.Addr().String() + " is in use", "--listen-http"}},
		{"two doors at one port", []string{"serve", "--check", "--rules=good", "--listen-http=:8080", "--listen-grpc=127.0.0.1:8080"}, []string{"listen.grpc: 127.0.0.1:8080 is taken by listen.http (:8080)"}},
		{"two doors at one port, not checked", []string{"serve", "--rules=good", "--listen-admin=:8080", "--listen-proxy=:8080", "--proxy-upstream=http://127.0.0.1:1"}, []string{"listen.admin: :8080 is taken by listen.proxy"}},
		{"broken rules", []string{"serve", "--rules=bad"}, []string{"a.yaml:3:5", "alow", "allow"}},
		{"empty file", []string{"serve", "--rules=empty"}, []string{"the file is empty"}},
		{"no rule", []string{"serve", "--rules=norule"}, []string{"no rule is left"}},
		{"no file", []string{"serve", "--rules=nothing"}, []string{"holds no rule file"}},
		{"no folder", []string{"serve", "--rules=absent"}, []string{"absent"}},
		{"no folder, checked", []string{"serve", "--check", "--rules=absent"}, []string{"absent"}},
		{"unknown flag", []string{"serve", "--lisen=:1"}, []string{"--lisen", "weir serve --help"}},
		{"unknown command", []string{"serv"}, []string{`unknown command "serv"`, `did you mean "serve"?`}},
		{"argument", []string{"serve", "now"}, []string{"now"}},
		{"no door", []string{"serve", "--rules=good", "--listen-http=off", "--listen-grpc=off", "--listen-resp=off", "--listen-admin=off"}, []string{"no door"}},
		{"proxy to nowhere", []string{"proxy", "--rules=good"}, []string{"proxy.upstream"}},
		{"proxy to no URL", []string{"proxy", "--rules=good", "--upstream=ftp://x"}, []string{"proxy.upstream"}},
		{"proxy with two upstreams", []string{"proxy", "--rules=good", "--upstream=http://x", "--proxy-upstream=http://y"}, []string{"give one"}},
		{"proxy without rules", []string{"proxy", "--upstream=http://127.0.0.1:1"}, []string{"rules"}},
		{"proxy with two domains", []string{"proxy", "--rules=domains", "--upstream=http://127.0.0.1:1"}, []string{"default_domain", "a, b"}},
		{"identity without keys", []string{"proxy", "--rules=good", "--upstream=http://127.0.0.1:1", "--identity=user=jwt:sub"}, []string{"identity"}},
		{"no tokens", []string{"serve", "--rules=good", "--auth-tokens-file=absent"}, []string{"auth.tokens_file", "absent"}},
		{"doors with tokens, no tokens", []string{"serve", "--rules=good", "--auth-doors=http"}, []string{"auth.doors: needs auth.tokens_file"}},
		{"certificate without a key", []string{"serve", "--check", "--rules=good", "--tls-cert=good/a.yaml"}, []string{"tls.key: has 0 files, and tls.cert 1"}},
		{"no certificate", []string{"serve", "--check", "--rules=good", "--tls-cert=good/a.yaml", "--tls-key=good/a.yaml"}, []string{"good/a.yaml and good/a.yaml are no pair"}},
		{"clients without a certificate", []string{"serve", "--check", "--rules=good", "--tls-client-ca=good/a.yaml"}, []string{"tls.cert: is missing"}},
		{"clients' certificates, no authority", []string{"serve", "--check", "--rules=good", "--tls-client-doors=grpc"}, []string{"tls.client_doors: needs tls.client_ca"}},
		{"clients' certificates, no TLS", []string{"serve", "--check", "--rules=good", "--tls-client-ca=x", "--tls-client-doors=grpc,http", "--tls-doors=http", "--tls-cert=x", "--tls-key=x"}, []string{"tls.client_doors: grpc is not in tls.doors"}},
		{"doors with TLS, no certificate", []string{"serve", "--check", "--rules=good", "--tls-doors=http"}, []string{"tls.doors: needs tls.cert and tls.key"}},
		{"headers from anybody", []string{"serve", "--rules=good", "--proxy-protocol-doors=http"}, []string{"proxy_protocol.peers: is missing"}},
		{"a socket in no folder", []string{"serve", "--rules=good", "--listen-http=unix:absent/weir.sock"}, []string{"listen.http: the folder of the socket"}},
		{"a socket that is a file", []string{"serve", "--rules=good", "--listen-http=unix:good/a.yaml"}, []string{"listen.http: good/a.yaml is there, and is no socket"}},
		{"three times of an end", []string{"serve", "--drain=1s,2s,3s"}, []string{"--drain: must be one time, or two, as in 5s,10s"}},
		{"no time of an end", []string{"serve", "--drain=5s,soon"}, []string{"--drain: \"soon\" is no duration"}},
		{"bad configuration", []string{"serve", "--log-level=loud"}, []string{"--log-level"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := start(t, c.args...)
			want, ok := map[string]int{"port in use": exitFailure, "unknown command": exitUsage}[c.name]
			if !ok {
				want = exitConfig
			}
			p.Exits(want)
			for _, want := range c.want {
				if !strings.Contains(p.Stderr.String(), want) {
					t.Errorf("it wrote\n%s\nwant %q in it", p.Stderr, want)
				}
			}
		})
	}
	p := start(t, "serve", "--check", "--rules=good", "--listen-http="+taken.Addr().String(), "--snapshot-path=damaged")
	p.Exits(0)
	if !strings.Contains(p.Stdout.String(), "good") {
		t.Errorf("--check wrote %q", p.Stdout)
	}
	if b, err := os.ReadFile("damaged"); err != nil || string(b) != "this is no snapshot" {
		t.Errorf("--check touched the snapshot: %q %v", b, err)
	}
}

func TestOtherCommands(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"version"}, "weir "},
		{[]string{"--help"}, "weir replay"},
		{nil, "weir serve"},
		{[]string{"serve", "--help"}, "--listen-http"},
		{[]string{"completion", "bash"}, "complete"},
		{[]string{"completion", "zsh"}, "compdef"},
	} {
		p := start(t, c.args...)
		p.Exits(0)
		if !strings.Contains(p.Stdout.String(), c.want) {
			t.Errorf("weir %v wrote %.300s, want %q in it", c.args, p.Stdout, c.want)
		}
	}
	// Every setting is in the help.
	p := start(t, "serve", "--help")
	p.Exits(0)
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	server.AddFlags(flags)
	flags.VisitAll(func(f *pflag.Flag) {
		if !strings.Contains(p.Stdout.String(), "--"+f.Name) {
			t.Errorf("--help does not show --%s", f.Name)
		}
	})
	for _, name := range server.Variables() {
		if !strings.Contains(p.Stdout.String(), name) {
			t.Errorf("--help does not show %s", name)
		}
	}
}

func TestProxyCommand(t *testing.T) {
	t.Parallel()
	var reached atomic.Int64
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reached.Add(1)
		fmt.Fprintf(w, "%s for %s", r.URL.Path, r.Header.Get("X-User-Id"))
	}))
	defer upstream.Close()
	dir := t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "a.yaml"),
		"domain: shop\nlimits: [{ name: api, per: [user], allow: 2/hour, algorithm: sliding_log }]\n")
	p := start(t, "proxy", "--upstream", upstream.URL, "--rules", dir, "--listen-proxy=127.0.0.1:0",
		"--identity=user=header:X-User-Id")
	addr := p.Addr("proxy")
	ask := func(user string) (int, string) {
		r, err := http.NewRequest("GET", "http://"+addr+"//x/../login", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-User-Id", user)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		b, _ := io.ReadAll(answer.Body)
		return answer.StatusCode, string(b)
	}
	for i, want := range []int{200, 200, 429} {
		status, body := ask("ada")
		if status != want || want == 200 && body != "/login for ada" {
			t.Errorf("request %d: %d %s, want %d", i, status, body, want)
		}
	}
	if status, body := ask("bob"); status != 200 {
		t.Errorf("somebody else: %d %s", status, body)
	}
	if n := reached.Load(); n != 3 {
		t.Errorf("the upstream was reached %d times", n)
	}
	if strings.Contains(p.Stderr.String(), "door=http") || strings.Contains(p.Stderr.String(), "door=grpc") {
		t.Errorf("other doors are open:\n%s", p.Stderr)
	}
	p.Addr("admin")
	p.End()
}
