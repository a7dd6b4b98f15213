//go:build unix

package server_test

import (
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/weir-rl/weir/internal/server"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// stateAt asks a server on a connection of its own, as a balancer does. status is 0 if nobody
// listens.
func stateAt(t *testing.T, url string) (status int, body string) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, strings.TrimSpace(string(text))
}

// TestAdminPortAtStart: while a server waits for its store, its admin port says that it starts, and
// no other door is open.
func TestAdminPortAtStart(t *testing.T) {
	before := server.SetBoardPatience(patience.Left(t))
	t.Cleanup(func() { server.SetBoardPatience(before) })
	redis := redistest.Start(t)
	between := redistest.Proxy(t, redis.Addr())
	between.Refuse()
	rules := servertest.RulesFile(t, servertest.Hourly)
	admin, door := "127.0.0.1:"+servertest.FreePort(t), "127.0.0.1:"+servertest.FreePort(t)
	p := servertest.Start(t, "serve", "--store=redis://"+between.Addr(), "--rules="+rules, "--listen-admin="+admin,
		"--listen-http="+door)
	servertest.Eventually(t, "the admin port is open", func() bool {
		status, _ := stateAt(t, "http://"+admin+"/healthz")
		return status == http.StatusOK
	})
	for path, want := range map[string]string{"/readyz": "starting", "/metrics": "the server is starting",
		"/api/v1/rules": "the server is starting", "/": "the server is starting"} {
		if status, body := stateAt(t, "http://"+admin+path); status != http.StatusServiceUnavailable ||
			!strings.Contains(body, want) {
			t.Errorf("%s: %d %s, want 503 and %q", path, status, body, want)
		}
	}
	if c, err := net.Dial("tcp", door); err == nil {
		c.Close()
		t.Error("a door is open before bans have been read")
	}
	between.Pass()
	servertest.Eventually(t, "it is ready", func() bool {
		status, _ := stateAt(t, "http://"+admin+"/readyz")
		return status == http.StatusOK
	})
	if status, body := stateAt(t, "http://"+door+"/healthcheck"); status != http.StatusOK {
		t.Errorf("it is ready, and its door: %d %s", status, body)
	}
	if status, _ := stateAt(t, "http://"+admin+"/metrics"); status != http.StatusOK {
		t.Errorf("metrics of a server that runs: %d", status)
	}
	p.End()

	// One that is stopped while it starts ends well, and its port with it.
	between.Refuse()
	p = servertest.Start(t, "serve", "--store=redis://"+between.Addr(), "--rules="+rules, "--listen-admin="+admin)
	servertest.Eventually(t, "the admin port is open again", func() bool {
		status, _ := stateAt(t, "http://"+admin+"/healthz")
		return status == http.StatusOK
	})
	p.End()
	if c, err := net.Dial("tcp", admin); err == nil {
		c.Close()
		t.Error("the port is open after the end")
	}
}

// TestAnnounce: a server that is going away says so while its doors still take requests.
func TestAnnounce(t *testing.T) {
	program := servertest.BuiltProgram(t)
	launch := func(drain string) (p *servertest.Process, admin, door string) {
		p = servertest.Launch(t, program, t.TempDir(), "serve", "--drain="+drain)
		return p, p.Addr("admin"), p.Addr("http")
	}
	p, admin, door := launch("1h,10s")
	if status, body := stateAt(t, "http://"+admin+"/readyz"); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	p.Signal(syscall.SIGTERM)
	servertest.Eventually(t, "it says that it is going away", func() bool {
		status, body := stateAt(t, "http://"+admin+"/readyz")
		return status == http.StatusServiceUnavailable && body == "the server is going away"
	})
	if status, body := stateAt(t, "http://"+door+"/healthcheck"); status == http.StatusOK || status == 0 {
		t.Errorf("the health check of the door: %d %s", status, body)
	}
	for i, want := range []int{200, 200, 200} {
		if status, body := stateAt(t, "http://"+door+"/api/v1/limit?key=ada"); status != want {
			t.Errorf("request %d: %d %s", i+1, status, body)
		}
	}
	// A second signal ends it at once, as soon as it has let go of the first.
	servertest.Eventually(t, "it ends by a signal", func() bool {
		_ = p.Cmd.Process.Signal(syscall.SIGTERM) // an error says that it has ended
		select {
		case <-p.Gone:
			return true
		default:
			return false
		}
	})
	if status := p.Wait(); status != -1 {
		t.Errorf("exit status %d", status)
	}

	// It ends when that time is over, and without such a time at once.
	for _, drain := range []string{"20ms,10s", "10s"} {
		p, _, _ = launch(drain)
		p.Signal(syscall.SIGTERM)
		if status := p.Wait(); status != 0 {
			t.Errorf("%s: exit status %d\n%s", drain, status, p.Stderr)
		}
	}
}
