//go:build unix

package main

import (
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/listen/certtest"
)

// runIn runs the program's command line in this process, with variables.
func runIn(t *testing.T, env []string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs strings.Builder
	status = Run(t.Context(), args, env, strings.NewReader(""), &out, &errs)
	return status, out.String(), errs.String()
}

// TestHealth: it finds the server by the same configuration, over TLS and unix sockets too.
func TestHealth(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	authority := certtest.New(t, "authority")
	cert, key := authority.Issue("weir", time.Hour, "weir.test")
	certtest.Write(t, []string{"cert.pem", "key.pem", "ca.pem"}, cert, key, authority.PEM)
	port := freePort(t)
	for _, c := range []struct {
		name string
		env  []string
	}{
		{"admin", []string{"WEIR_LISTEN_ADMIN=127.0.0.1:" + port}},
		{"all addresses", []string{"WEIR_LISTEN_ADMIN=:" + port}},
		{"the HTTP door", []string{"WEIR_LISTEN_ADMIN=off", "WEIR_LISTEN_HTTP=127.0.0.1:" + port}},
		{"a unix socket", []string{"WEIR_LISTEN_ADMIN=unix:" + filepath.Join(dir, "admin.sock")}},
		{"TLS", []string{"WEIR_LISTEN_ADMIN=0.0.0.0:" + port, "WEIR_TLS_CERT=cert.pem", "WEIR_TLS_KEY=key.pem"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if status, _, errs := runIn(t, c.env, "health"); status != exitFailure || !strings.Contains(errs, "not healthy") {
				t.Errorf("before it runs: exit status %d, %s", status, errs)
			}
			args := []string{"serve", "--listen-grpc=off", "--listen-resp=off"}
			if c.env[0] != "WEIR_LISTEN_ADMIN=off" {
				args = append(args, "--listen-http=off")
			}
			for _, v := range c.env {
				name, value, _ := strings.Cut(strings.TrimPrefix(v, "WEIR_"), "=")
				args = append(args, "--"+strings.ToLower(strings.ReplaceAll(name, "_", "-"))+"="+value)
			}
			p := start(t, args...)
			if c.env[0] == "WEIR_LISTEN_ADMIN=off" {
				p.addr("http")
			} else {
				p.addr("admin")
			}
			if status, out, errs := runIn(t, c.env, "health"); status != exitOK || out == "" {
				t.Errorf("exit status %d, %q %s", status, out, errs)
			}
			p.end()
		})
	}
}

func TestHealthRefuses(t *testing.T) {
	t.Chdir(t.TempDir())
	authority := certtest.New(t, "authority")
	cert, key := authority.Issue("weir", time.Hour, "weir.test")
	certtest.Write(t, []string{"cert.pem", "key.pem", "ca.pem"}, cert, key, authority.PEM)
	leaving := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "the server is going away", http.StatusServiceUnavailable)
	}))
	defer leaving.Close()
	secret := httptest.NewUnstartedServer(http.NotFoundHandler())
	secret.Config.ErrorLog = log.New(io.Discard, "", 0) // its clients do not believe it
	secret.StartTLS()
	defer secret.Close()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for _, c := range []struct {
		env    []string
		args   []string
		status int
		say    string
	}{
		{nil, []string{"--server=" + leaving.URL}, exitFailure, "503 Service Unavailable: the server is going away"},
		{nil, []string{"--server=" + secret.URL}, exitFailure, "certificate"},
		{[]string{"WEIR_LISTEN_ADMIN=" + secret.Listener.Addr().String(), "WEIR_TLS_CERT=cert.pem", "WEIR_TLS_KEY=key.pem"}, nil, exitFailure, "another certificate than that of tls.cert"},
		{nil, []string{"--server=http://" + silent.Addr().String(), "--timeout=10ms"}, exitFailure, "not healthy"},
		{nil, []string{"--server=ftp://x"}, exitUsage, "expected the URL"},
		{nil, []string{"--timeout=0s"}, exitUsage, "--timeout"},
		{nil, []string{"extra"}, exitUsage, ""},
		{[]string{"WEIR_LISTEN_ADMIN=127.0.0.1:0"}, nil, exitUsage, "--server"},
		{[]string{"WEIR_LISTEN_ADMIN=off", "WEIR_LISTEN_HTTP=off"}, nil, exitUsage, "--server"},
		{[]string{"WEIR_LISTEN_ADMIN=frog"}, nil, exitUsage, "WEIR_LISTEN_ADMIN"},
		{[]string{"WEIR_TLS_CERT=none.pem", "WEIR_TLS_KEY=none.pem"}, nil, exitUsage, "none.pem"},
		{[]string{"WEIR_TLS_CERT=cert.pem", "WEIR_TLS_KEY=key.pem", "WEIR_TLS_CLIENT_CA=ca.pem"}, nil, exitUsage, "tls.client_doors"},
		{[]string{"WEIR_PROXY_PROTOCOL_DOORS=admin", "WEIR_PROXY_PROTOCOL_PEERS=10.0.0.0/8"}, nil, exitUsage, "proxy_protocol.doors"},
	} {
		if status, _, errs := runIn(t, c.env, append([]string{"health"}, c.args...)...); status != c.status || !strings.Contains(errs, c.say) {
			t.Errorf("%v %v: exit status %d, want %d: %s", c.env, c.args, status, c.status, errs)
		}
	}
}

// TestNotify: a service manager hears when the doors are open, of a reload, and of the end.
func TestNotify(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	hear := func() string {
		t.Helper()
		if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 1<<12)
		n, err := c.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WEIR_LISTEN_RESP", "off")
	admin := "127.0.0.1:" + freePort(t)
	p := launch(t, buildProgram(t), t.TempDir(), "serve", "--listen-admin="+admin)
	if got := hear(); got != "READY=1" {
		t.Fatalf("it said %q", got)
	}
	if status, _, body := get(t, "http://"+admin+"/readyz"); status != http.StatusOK { // at once: its doors are open
		t.Errorf("/readyz: %d %s", status, body)
	}
	p.signal(syscall.SIGHUP)
	if got := hear(); !strings.HasPrefix(got, "RELOADING=1\nMONOTONIC_USEC=") || strings.HasSuffix(got, "=0") {
		t.Errorf("at SIGHUP it said %q", got)
	}
	if got := hear(); got != "READY=1" {
		t.Errorf("after the reload it said %q", got)
	}
	p.signal(syscall.SIGTERM)
	if got := hear(); got != "STOPPING=1" {
		t.Errorf("at SIGTERM it said %q", got)
	}
	if status := p.wait(); status != 0 {
		t.Errorf("exit status %d\n%s", status, p.stderr)
	}

	// A manager that is gone is no reason not to serve.
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "gone"))
	p = launch(t, p.cmd.Path, t.TempDir(), "serve")
	p.stderr.await(t, "the service manager was not told")
	if status, _, _ := get(t, "http://"+p.addr("http")+"/healthcheck"); status != http.StatusOK {
		t.Errorf("/healthcheck: %d", status)
	}
}
