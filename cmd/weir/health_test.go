//go:build unix

package main

import (
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/certtest"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/servertest"
	"github.com/weir-rl/weir/internal/testkit/testproc"
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
	t.Chdir(t.TempDir())
	authority := certtest.New(t, "authority")
	cert, key := authority.Issue("weir", time.Hour, "weir.test", "127.0.0.1")
	certtest.Write(t, []string{"cert.pem", "key.pem", "ca.pem"}, cert, key, authority.PEM)
	port, socket := servertest.FreePort(t), filepath.Join(testproc.SocketDir(t), "admin.sock")
	for _, c := range []struct {
		name string
		env  []string
	}{
		{"admin", []string{"WEIR_LISTEN_ADMIN=127.0.0.1:" + port}},
		{"all addresses", []string{"WEIR_LISTEN_ADMIN=:" + port}},
		{"the HTTP door", []string{"WEIR_LISTEN_ADMIN=off", "WEIR_LISTEN_HTTP=127.0.0.1:" + port}},
		{"a unix socket", []string{"WEIR_LISTEN_ADMIN=unix:" + socket}},
		{"TLS", []string{"WEIR_LISTEN_ADMIN=0.0.0.0:" + port, "WEIR_TLS_CERT=cert.pem", "WEIR_TLS_KEY=key.pem"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if status, _, errs := runIn(t, c.env, "health"); status != exitFailure ||
				!strings.Contains(errs, "not healthy") {
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
				p.Addr("http")
			} else {
				p.Addr("admin")
			}
			const patient = "--timeout=1h" // a busy machine may be slow to answer
			if status, out, errs := runIn(t, c.env, "health", patient); status != exitOK || out == "" {
				t.Errorf("exit status %d, %q %s", status, out, errs)
			}
			// Told where, as every command that asks a server is.
			var flags []string
			switch c.name {
			case "admin":
				flags = []string{"--server=http://127.0.0.1:" + port}
			case "a unix socket":
				flags = []string{"--server=unix:" + socket}
			case "TLS":
				flags = []string{"--server=https://127.0.0.1:" + port, "--ca=ca.pem"}
			}
			if flags != nil {
				if status, out, errs := runIn(t, nil, append([]string{"health", patient}, flags...)...); status != exitOK ||
					!strings.HasPrefix(out, "ok") {
					t.Errorf("%v: exit status %d, %q %s", flags, status, out, errs)
				}
			}
			p.End()
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
		{nil, []string{"--server=" + leaving.URL, "--timeout=1h"}, exitFailure, "503 Service Unavailable: the server is going away"},
		{nil, []string{"--server=" + secret.URL, "--timeout=1h"}, exitFailure, "certificate"},
		{[]string{"WEIR_LISTEN_ADMIN=" + secret.Listener.Addr().String(), "WEIR_TLS_CERT=cert.pem", "WEIR_TLS_KEY=key.pem"}, []string{"--timeout=1h"}, exitFailure, "another certificate than the one in tls.cert"},
		{nil, []string{"--server=http://" + silent.Addr().String(), "--timeout=10ms"}, exitFailure, "not healthy"},
		{nil, []string{"--server=ftp://x"}, exitUsage, "expected the URL"},
		{nil, []string{"--timeout=0s"}, exitUsage, "--timeout"},
		{nil, []string{"--ca=ca.pem"}, exitUsage, "--server names"},
		{nil, []string{"--server=https://127.0.0.1:1", "--cert=cert.pem"}, exitUsage, "give both, or none"},
		{nil, []string{"--server=http://127.0.0.1:1", "--token-file=absent"}, exitUsage, "absent"},
		{nil, []string{"--server=unix:/absent.sock"}, exitFailure, "not healthy"},
		{nil, []string{"extra"}, exitUsage, ""},
		{[]string{"WEIR_LISTEN_ADMIN=127.0.0.1:0"}, nil, exitUsage, "--server"},
		{[]string{"WEIR_LISTEN_ADMIN=off", "WEIR_LISTEN_HTTP=off"}, nil, exitUsage, "--server"},
		{[]string{"WEIR_LISTEN_ADMIN=frog"}, nil, exitUsage, "WEIR_LISTEN_ADMIN"},
		{[]string{"WEIR_TLS_CERT=none.pem", "WEIR_TLS_KEY=none.pem"}, nil, exitUsage, "none.pem"},
		{[]string{"WEIR_TLS_CERT=cert.pem", "WEIR_TLS_KEY=key.pem", "WEIR_TLS_CLIENT_CA=ca.pem"}, nil, exitUsage, "tls.client_doors"},
		{[]string{"WEIR_PROXY_PROTOCOL_DOORS=admin", "WEIR_PROXY_PROTOCOL_PEERS=10.0.0.0/8"}, nil, exitUsage, "proxy_protocol.doors"},
	} {
		if status, _, errs := runIn(t, c.env, append([]string{"health"}, c.args...)...); status != c.status ||
			!strings.Contains(errs, c.say) {
			t.Errorf("%v %v: exit status %d, want %d: %s", c.env, c.args, status, c.status, errs)
		}
	}
}

// TestHealthAsksTheServer: it asks no proxy of the environment, and what it prints does nothing to
// a terminal.
func TestHealthAsksTheServer(t *testing.T) {
	proxied := make(chan string, 9)
	proxy := httptest.NewServer(http.HandlerFunc(
		func(_ http.ResponseWriter, r *http.Request) { proxied <- r.URL.String() }))
	defer proxy.Close()
	var status atomic.Int64
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(int(status.Load()))
		io.WriteString(w, "ok \x1b[2J\nsays \"fine\"\n")
	})}
	go s.Serve(l)
	defer s.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	for _, code := range []int64{http.StatusOK, http.StatusServiceUnavailable} {
		status.Store(code)
		// This address is the machine itself, and is none that needs no proxy.
		cmd := exec.Command(servertest.BuiltProgram(t), "health", "--timeout=1h", "--server=http://0.0.0.0:"+port)
		cmd.Env = append(servertest.PlainEnvironment(), "HTTP_PROXY="+proxy.URL)
		out, _ := cmd.CombinedOutput()
		if strings.Contains(string(out), "\x1b") ||
			!strings.Contains(string(out), `"ok \x1b[2J"`+"\nsays \"fine\"\n") ||
			(cmd.ProcessState.ExitCode() == exitOK) != (code == http.StatusOK) {
			t.Errorf("it answered %d: %v, %q", code, cmd.ProcessState, out)
		}
	}
	if len(proxied) > 0 {
		t.Errorf("the proxy was asked for %s", <-proxied)
	}
}

// TestRefusalIsHarmless: the words of a server reach the terminal without what a terminal obeys.
func TestRefusalIsHarmless(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		io.WriteString(w, `{"detail": "no \u001b[2J in the domain \"shop\"\nnor \"there\""}`)
	}))
	defer s.Close()
	status, _, errs := runIn(t, nil, "keys", "list", "login", "--server="+s.URL)
	if want := `"no \x1b[2J in the domain \"shop\""` + "\n" + `nor "there"`; status != exitFailure ||
		!strings.Contains(errs, want) {
		t.Errorf("exit status %d, %q; want %q", status, errs, want)
	}
}

// TestNotify: a service manager hears when the doors are open, of a reload, and of the end.
func TestNotify(t *testing.T) {
	t.Parallel()
	path := filepath.Join(testproc.SocketDir(t), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	hear := func() string {
		t.Helper()
		if err := c.SetReadDeadline(patience.End(t)); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 1<<12)
		n, err := c.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
	admin := "127.0.0.1:" + servertest.FreePort(t)
	p := servertest.LaunchIn(t, []string{"NOTIFY_SOCKET=" + path}, servertest.BuiltProgram(t), t.TempDir(), "serve",
		"--listen-admin="+admin)
	if got := hear(); got != "READY=1" {
		t.Fatalf("it said %q", got)
	}
	if status, _, body := servertest.Get(t, "http://"+admin+"/readyz"); status != http.StatusOK {
		// at once: its doors are open
		t.Errorf("/readyz: %d %s", status, body)
	}
	p.Signal(syscall.SIGHUP)
	if got := hear(); !strings.HasPrefix(got, "RELOADING=1\nMONOTONIC_USEC=") || strings.HasSuffix(got, "=0") {
		t.Errorf("at SIGHUP it said %q", got)
	}
	if got := hear(); got != "READY=1" {
		t.Errorf("after the reload it said %q", got)
	}
	p.Signal(syscall.SIGTERM)
	if got := hear(); got != "STOPPING=1" {
		t.Errorf("at SIGTERM it said %q", got)
	}
	if status := p.Wait(); status != 0 {
		t.Errorf("exit status %d\n%s", status, p.Stderr)
	}

	// A manager that is gone is no reason not to serve.
	p = servertest.LaunchIn(t, []string{"NOTIFY_SOCKET=" + path + "-gone"}, p.Cmd.Path, t.TempDir(), "serve")
	p.Stderr.Await(t, "the service manager was not told")
	if status, _, _ := servertest.Get(t, "http://"+p.Addr("http")+"/healthcheck"); status != http.StatusOK {
		t.Errorf("/healthcheck: %d", status)
	}
}
