//go:build unix

package main

import (
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// TestExamples: the requests that the program prints do what it says when they are pasted.
func TestExamples(t *testing.T) {
	t.Parallel()
	servertest.Needs(t, "bash", "curl")
	dir := t.TempDir()
	p := servertest.Launch(t, servertest.BuiltProgram(t), dir, "serve")
	p.Stdout.Await(t, "api/v1/keys")
	var pasted strings.Builder
	for line := range strings.Lines(p.Stdout.String()) {
		if strings.HasPrefix(line, "curl ") || strings.HasPrefix(line, "for ") {
			pasted.WriteString(line)
		}
	}
	out, err := exec.Command("bash", "-e", "-c", pasted.String()).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, pasted.String(), out)
	}
	text := string(out)
	if strings.Count(text, "HTTP/1.1 200 OK") != 2 || !strings.Contains(text, "200 429") ||
		!strings.Contains(text, "weir_requests_total") || !strings.Contains(text, "key=ada") {
		t.Errorf("pasting\n%s\ngave\n%s", pasted.String(), out)
	}
	first, _, _ := strings.Cut(pasted.String(), "\n")
	out, err = exec.Command("bash", "-c", first).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "HTTP/1.1 429 Too Many Requests") ||
		!strings.Contains(string(out), "\nRetry-After: ") {
		t.Errorf("after ten requests %s gave %v\n%s", first, err, out)
	}
	p.Signal(syscall.SIGTERM)
	if status := p.Wait(); status != 0 {
		t.Errorf("exit status %d", status)
	}
}

// What the server prints can be pasted, whatever the folder holds: several domains, globs, or only
// descriptors.
func TestServePrintsRequests(t *testing.T) {
	servertest.Needs(t, "bash", "curl")
	shop := "domain: shop\nlimits: [{ name: api, when: { path: /api/** }, per: [user], allow: 2/hour, algorithm: sliding_log }]\n"
	lyft := "domain: mail\ndescriptors: [{ key: to, rate_limit: { unit: hour, requests_per_unit: 2, algorithm: sliding_log } }]\n"
	for name, files := range map[string][]string{"globs": {shop}, "two domains": {shop, lyft}, "descriptors": {lyft}} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for i, text := range files {
				servertest.WriteRules(t, filepath.Join(dir, fmt.Sprintf("%d.yaml", i)), text)
			}
			p := start(t, "serve", "--rules", dir)
			printed := p.Stdout.Await(t, `(?s)Try it:\n.*# The counters.*\n`)[0]
			if several := strings.Contains(printed, "2 domains (shop, mail)"); several != (len(files) > 1) {
				t.Errorf("it printed\n%s", printed)
			}
			page := regexp.MustCompile(`# In a browser, .*: (http://\S+/)\n\n# The counters`).FindStringSubmatch(
				printed)
			if page == nil || page[1] != "http://"+p.Addr("admin")+"/" {
				t.Fatalf("the operator's page, %v, is not the first thing to look at:\n%s", page, printed)
			}
			if status, _, body := servertest.Get(t, page[1]); status != http.StatusOK ||
				!strings.Contains(body, "<html") {
				t.Errorf("%s answers %d\n%s", page[1], status, body)
			}
			loop := regexp.MustCompile(`(?m)^for i in .*$`).FindString(printed)
			out, err := exec.Command("bash", "-c", loop).CombinedOutput()
			if got := strings.TrimSpace(string(out)); err != nil || got != "200 200 429" {
				t.Errorf("%s\ngave %s %v", loop, got, err)
			}
			p.End()
		})
	}
	dir := t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "a.yaml"),
		"limits: [{ name: a, when: { path: '~^/[0-9]+$' }, allow: 5/min }]\n")
	p := start(t, "serve", "--rules", dir)
	p.Stdout.Await(t, `No request to try: .*\nweir explain --rules `)
	p.End()
}

// The server warns of the system's bound on open files where it has an effect, and only there.
func TestServeTellsOfFiles(t *testing.T) {
	t.Parallel()
	program := servertest.BuiltProgram(t)
	for _, c := range []struct {
		files int
		args  string
		want  bool
	}{{8000, "", false}, {8000, "--max-connections=9000", true}, {8000, "--max-connections=1500", false},
		{1024, "", true}} {
		t.Run(fmt.Sprintf("%d %s", c.files, c.args), func(t *testing.T) {
			var most syscall.Rlimit
			if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &most); err == nil &&
				uint64(most.Max) < uint64(c.files) {
				t.Skipf("this system lets a process open %d files", most.Max)
			}
			cmd := exec.Command("sh", "-c", fmt.Sprintf("ulimit -n %d && exec %s serve --listen-http=127.0.0.1:0 "+
				"--listen-grpc=127.0.0.1:0 --listen-resp=127.0.0.1:0 --listen-admin=127.0.0.1:0 %s", c.files, program, c.args))
			cmd.Dir = t.TempDir()
			p := servertest.Begin(t, cmd)
			p.Stdout.Await(t, "Try it:")
			if status, _, _ := servertest.Get(t, "http://"+p.Addr("http")+"/healthcheck"); status != http.StatusOK {
				t.Errorf("health: %d", status)
			}
			p.Signal(syscall.SIGTERM)
			if status := p.Wait(); status != 0 {
				t.Errorf("exit status %d", status)
			}
			if told := strings.Contains(p.Stderr.String(), "too few files"); told != c.want {
				t.Errorf("told: %v, want %v\n%s", told, c.want, p.Stderr)
			}
		})
	}
}
