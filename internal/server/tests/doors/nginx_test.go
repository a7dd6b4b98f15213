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

// startNginx starts it with the example's file.
func (e *edge) startNginx() {
	e.t.Helper()
	args := []string{"-p", ".", "-c", "nginx.conf"}
	if os.Geteuid() == 0 {
		args = append(args, "-g", "user root;") // the folder of a test is nobody else's to read
	}
	e.startProxy(nginxPath(e.t), args...)
}

func nginxPath(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("nginx")
	if err != nil {
		t.Skip("nginx is not installed; on Debian: apt-get install nginx-light")
	}
	return path
}

// TestNginx runs examples/nginx as it stands.
func TestNginx(t *testing.T) {
	t.Parallel()
	nginxPath(t)
	program := servertest.BuiltProgram(t)
	t.Run("limits", func(t *testing.T) {
		t.Parallel()
		e := newEdge(t, program, "nginx")
		e.startWeir()
		e.startNginx()
		e.limits()
		e.failsOpen()
	})
	t.Run("fails closed", func(t *testing.T) {
		t.Parallel()
		effort.Long(t, "starts a proxy for each way to set it up")
		e := newEdge(t, program, "nginx")
		e.change("nginx.conf",
			"            error_page 502 504 = @unchecked;    # Weir is away: fail open. Without this line: fail closed, with a 500.\n", "")
		e.startWeir()
		e.startNginx()
		e.limits()
		e.failsClosed(500)
	})
	t.Run("hostile", func(t *testing.T) {
		t.Parallel()
		e := newEdge(t, program, "nginx")
		e.rules(loginRules)
		e.startWeir()
		e.startNginx()
		e.limited("shop.example")
		// What the app itself forbids is no limit.
		if a := e.do("GET", "/forbidden"); a.status != 403 || !strings.Contains(a.body, "own") {
			t.Errorf("%v", a)
		}
		// A limit that nobody met is shown by no header.
		if a := e.do("GET", "/other"); a.status != 200 || a.header["Ratelimit"] != nil ||
			a.header["Ratelimit-Policy"] != nil {
			t.Errorf("%v", a)
		}
	})
	t.Run("attributes", func(t *testing.T) {
		t.Parallel()
		effort.Long(t, "starts a proxy for each way to set it up")
		testEdgeAttributes(t, program, "nginx", (*edge).startNginx)
	})
	t.Run("connections", testNginxConnections(program))
	t.Run("redirects", testNginxRedirects(program))
	t.Run("README", func(t *testing.T) {
		t.Parallel()
		effort.Long(t, "starts a proxy for each way to set it up")
		runReadme(t, "nginx")
	})
}

// Checks keep their connections, however they end.
func testNginxConnections(program string) func(*testing.T) {
	return func(t *testing.T) {
		t.Parallel()
		effort.Long(t, "starts a proxy for each way to set it up")
		e := newEdge(t, program, "nginx")
		between := newRelay(t, e.ports[weirPort])
		e.change("nginx.conf", "server 127.0.0.1:"+e.ports[weirPort]+";", "server 127.0.0.1:"+between.port+";")
		e.startWeir()
		e.startNginx()
		passed, refused := 0, 0
		for range 200 {
			switch a := e.do("GET", "/things"); a.status {
			case 200:
				passed++
			case 429:
				refused++
			}
		}
		if n := between.opened.Load(); passed != 10 || refused != 190 || n != 1 {
			t.Errorf("%d passed, %d were refused, over %d connections; want 10, 190, 1", passed, refused, n)
		}
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 50 {
					e.do("GET", "/things")
				}
			})
		}
		all.Wait()
		if n := between.opened.Load(); n > 16 {
			t.Errorf("400 checks of 8 clients took %d connections", n)
		}
	}
}

// An internal redirect asks again for one request of a client; de-duplication makes it count once.
func testNginxRedirects(program string) func(*testing.T) {
	return func(t *testing.T) {
		t.Parallel()
		effort.Long(t, "starts a proxy for each way to set it up")
		for _, dedupe := range []bool{true, false} {
			e := newEdge(t, program, "nginx")
			e.change("nginx.conf", "        location @limited {", `        location /pages/ {
            auth_request /_weir;
            auth_request_set $weir_limit $upstream_http_ratelimit;
            add_header RateLimit $weir_limit always;
            error_page 403 = @limited;
            root html;
            index index.html;
        }
        location /found/ {
            auth_request /_weir;
            error_page 403 = @limited;
            root html;
            try_files $uri /pages/index.html;
        }

        location @limited {`)
			if err := os.MkdirAll(filepath.Join(e.dir, "html", "pages"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(e.dir, "html", "pages", "index.html"), []byte("a page"), 0o644); err != nil {
				t.Fatal(err)
			}
			e.startWeir(fmt.Sprintf("--forward-auth-dedupe=%v", dedupe))
			e.startNginx()
			passed := 0
			for i := range 14 {
				path := []string{"/pages/", "/found/x"}[i%2]
				switch a := e.do("GET", path); a.status {
				case 200:
					passed++
					if a.body != "a page" {
						t.Errorf("%s: %v", path, a)
					}
				case 429:
				default:
					t.Errorf("%s: %v", path, a)
				}
			}
			if want := map[bool]int{true: 10, false: 5}[dedupe]; passed != want {
				t.Errorf("with dedupe %v %d requests passed, want %d", dedupe, passed, want)
			}
		}
	}
}
