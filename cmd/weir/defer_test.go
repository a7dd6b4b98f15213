//go:build unix

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// TestDeferCommand lists, retries and drops dead letters of a running server, and clients ask for
// their tickets.
func TestDeferCommand(t *testing.T) {
	var down atomic.Bool
	down.Store(true)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Weir-Ticket") != "" && down.Load() {
			w.WriteHeader(http.StatusBadGateway)
		}
	}))
	defer upstream.Close()
	dir := t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "rules.yaml"),
		"limits: [{ name: once, per: [ip], when: { method: POST }, allow: { rate: 20/s, burst: 1 }, on_limit: { defer: later } }, { name: day, per: [ip], allow: 1000/day }]\n")
	p := servertest.Start(t, "proxy", "--upstream="+upstream.URL, "--rules="+filepath.Join(dir, "rules.yaml"),
		"--listen-proxy=127.0.0.1:0", "--listen-admin=127.0.0.1:0",
		"--defer-path="+filepath.Join(dir, "deferred.db"), "--defer-attempts=1", "--defer-max-body=10B")
	base, admin := "http://"+p.Addr("proxy"), "http://"+p.Addr("admin")
	// post sends a body until it comes while the limit is used up. That is for 50 ms after one that
	// passes, which a busy machine may take for the way to the next.
	post := func(body string, want int) (ticket string) {
		t.Helper()
		servertest.Eventually(t, fmt.Sprintf("%q comes behind another one", body), func() bool {
			r, err := http.Post(base+"/", "text/plain", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			defer r.Body.Close()
			if r.StatusCode != want && r.StatusCode != 200 {
				t.Fatalf("%q is answered %d, want %d", body, r.StatusCode, want)
			}
			ticket = r.Header.Get("Location")
			return r.StatusCode == want
		})
		return ticket
	}
	post("first", 200)
	post("this body is too large to be put off", 429)
	ticket := post("second", 202)
	if !strings.HasPrefix(ticket, "/.weir/tickets/") {
		t.Fatal(ticket)
	}
	state := func(want string) {
		t.Helper()
		servertest.Eventually(t, "the ticket says "+want, func() bool {
			status, _, body := servertest.Get(t, base+ticket)
			return status == 200 && strings.Contains(body, `"state":"`+want+`"`)
		})
	}
	state("failed")
	id := strings.TrimPrefix(ticket, "/.weir/tickets/")
	cli := func(want int, args ...string) string {
		t.Helper()
		var out, errs strings.Builder
		if got := Run(t.Context(), append([]string{"defer", "--server", admin}, args...), nil, strings.NewReader(""), &out, &errs); got != want {
			t.Fatalf("weir defer %v ends with %d, want %d\n%s%s", args, got, want, out.String(), errs.String())
		}
		return out.String() + errs.String()
	}
	if out := cli(0, "ls"); !strings.Contains(out, id) || !strings.Contains(out, "502") ||
		!strings.Contains(out, "1 dead letter\n") {
		t.Fatal(out)
	}
	down.Store(false)
	cli(0, "retry", id)
	state("done")
	if out := cli(1, "retry", id); !strings.Contains(out, "no such job") {
		t.Error(out)
	}
	if out := cli(2, "drop", "nonsense"); !strings.Contains(out, "no ID of a job") {
		t.Error(out)
	}
	if status, _, body := servertest.Get(t, base+"/.weir/tickets/00000000000000000000000000000000"); status != 404 {
		t.Error(status, body)
	}
	p.End()
}

// TestDeferNeedsPlace: a rule that defers without a place for its requests stops the program with
// the way out.
func TestDeferNeedsPlace(t *testing.T) {
	dir := t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "rules.yaml"),
		"limits: [{ name: once, per: [ip], allow: 1/min, on_limit: { defer: later } }]\n")
	var out, errs strings.Builder
	status := Run(t.Context(), []string{"proxy", "--upstream=http://127.0.0.1:1", "--rules=" + dir,
		"--listen-proxy=127.0.0.1:0", "--listen-admin=off"}, nil, strings.NewReader(""), &out, &errs)
	if status != exitConfig || !strings.Contains(errs.String(), "defer.path: is missing") {
		t.Fatal(status, errs.String())
	}
}
