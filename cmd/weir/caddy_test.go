//go:build unix

package main

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
)

// startCaddy starts it with the example's file.
func (e *edge) startCaddy() {
	e.t.Helper()
	e.startProxy(caddyPath(e.t), "run")
}

func caddyPath(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("caddy")
	if err != nil {
		t.Skip("caddy is not installed; on Debian: apt-get install caddy")
	}
	return path
}

// TestCaddy runs examples/caddy as it stands.
func TestCaddy(t *testing.T) {
	caddyPath(t)
	program := buildProgram(t)
	t.Run("limits", func(t *testing.T) {
		e := newEdge(t, program, "caddy")
		e.startWeir()
		e.startCaddy()
		e.limits()
		// Caddy passes a refusal on as it is: a browser gets a page, and all of the headers.
		a := e.do("GET", "/things", "Accept", "text/html")
		if a.status != 429 || !strings.Contains(a.body, "<h1>Too Many Requests</h1>") || a.header.Get("X-RateLimit-Limit") != "10" || a.header.Get("X-RateLimit-Decision") == "" {
			t.Errorf("%v", a)
		}
		e.failsOpen()
	})
	t.Run("fails closed", func(t *testing.T) {
		e := newEdge(t, program, "caddy")
		e.change("Caddyfile", fmt.Sprintf("\t\treverse_proxy @unchecked 127.0.0.1:%s\n", e.ports[appPort]), "")
		e.startWeir()
		e.startCaddy()
		e.limits()
		e.failsClosed(502)
	})
	t.Run("hostile", func(t *testing.T) {
		e := newEdge(t, program, "caddy")
		e.rules(loginRules)
		e.startWeir()
		e.startCaddy()
		e.limited("shop.example")
		if a := e.do("GET", "/forbidden"); a.status != 403 || !strings.Contains(a.body, "own") {
			t.Errorf("%v", a)
		}
		// A request that met no limit has no placeholder in place of a header.
		if a := e.do("GET", "/other"); a.status != 200 || a.header.Get("RateLimit") != "" || a.header.Get("RateLimit-Policy") != "" {
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
	t.Run("attributes", func(t *testing.T) { testEdgeAttributes(t, program, "caddy", (*edge).startCaddy) })
	t.Run("connections", func(t *testing.T) {
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
	t.Run("README", func(t *testing.T) { runReadme(t, "caddy") })
}
