//go:build unix

package doors

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// startCaddy starts it with the example's file.
func (e *edge) startCaddy() {
	e.t.Helper()
	needsCaddy(e.t)
	e.startProxy("caddy", "run")
}

// needsCaddy skips a test where there is no caddy, or one that does not take the example.
func needsCaddy(t *testing.T) {
	t.Helper()
	servertest.Needs(t, "caddy")
	if err := caddyTakes(); err != nil {
		t.Skipf("this caddy does not take the example: %v", err)
	}
}

// caddyTakes returns why the caddy of this machine does not take the example.
var caddyTakes = sync.OnceValue(func() error {
	home, err := os.MkdirTemp("", "weir-caddy-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(home)
	cmd := exec.Command("caddy", "validate", "--adapter=caddyfile", "--config",
		filepath.Join(servertest.OriginalRoot, "examples", "caddy", "Caddyfile"))
	cmd.Env = append(servertest.PlainEnvironment(), "HOME="+home, "XDG_CONFIG_HOME="+home, "XDG_DATA_HOME="+home)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
})

// TestCaddy runs examples/caddy as it stands.
func TestCaddy(t *testing.T) {
	t.Parallel()
	needsCaddy(t)
	program := servertest.BuiltProgram(t)
	t.Run("limits", func(t *testing.T) {
		t.Parallel()
		e := newEdge(t, program, "caddy")
		e.startWeir()
		e.startCaddy()
		e.limits()
		// Caddy passes a refusal on as it is: a browser gets a page, and all of the headers.
		a := e.do("GET", "/things", "Accept", "text/html")
		if a.status != 429 || !strings.Contains(a.body, "<h1>Too Many Requests</h1>") ||
			a.header.Get("X-RateLimit-Limit") != "10" || a.header.Get("X-RateLimit-Decision") == "" {
			t.Errorf("%v", a)
		}
		e.failsOpen()
	})
	long := func(name string, test func(t *testing.T)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			effort.Long(t, "starts one more Caddy and Weir")
			test(t)
		})
	}
	long("fails closed", func(t *testing.T) {
		e := newEdge(t, program, "caddy")
		e.change("Caddyfile", fmt.Sprintf("\t\treverse_proxy @unchecked 127.0.0.1:%s\n", e.ports[appPort]), "")
		e.startWeir()
		e.startCaddy()
		e.limits()
		e.failsClosed(502)
	})
	long("hostile", func(t *testing.T) {
		e := newEdge(t, program, "caddy")
		e.rules(loginRules)
		e.startWeir()
		e.startCaddy()
		e.limited("shop.example")
		if a := e.do("GET", "/forbidden"); a.status != 403 || !strings.Contains(a.body, "own") {
			t.Errorf("%v", a)
		}
		// A request that met no limit has no placeholder in place of a header.
		if a := e.do("GET", "/other"); a.status != 200 || a.header.Get("RateLimit") != "" ||
			a.header.Get("RateLimit-Policy") != "" {
			t.Errorf("%v", a)
		}
		// An application that breaks off is not asked a second time by the way round a check that
		// failed.
		before := e.app.count()
		if a := e.send("POST", "/broken", "order"); a.status != 502 {
			t.Errorf("%v", a)
		}
		if n := e.app.count() - before; n != 1 {
			t.Errorf("the application was asked %d times", n)
		}
	})
	long("attributes", func(t *testing.T) {
		testEdgeAttributes(t, program, "caddy", (*edge).startCaddy)
	})
	long("connections", func(t *testing.T) {
		e := newEdge(t, program, "caddy")
		between := newRelay(t, e.ports[weirPort])
		e.change("Caddyfile", "forward_auth 127.0.0.1:"+e.ports[weirPort], "forward_auth 127.0.0.1:"+between.port)
		e.startWeir()
		e.startCaddy()
		for range 200 {
			e.do("GET", "/things")
		}
		if n := between.opened.Load(); n > 3 {
			t.Errorf("200 checks one after the other took %d connections", n)
		}
	})
	long("README", func(t *testing.T) {
		runReadme(t, "caddy")
	})
}
