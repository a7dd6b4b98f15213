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

	"github.com/weir-rl/weir/rule/file"
)

// For every kind of rule there are values to paste that meet it.
func TestExampleRequest(t *testing.T) {
	for name, c := range map[string]struct{ rules, want string }{
		"exact":   {"limits: [{ name: a, when: { path: /login }, per: [ip], allow: 5/min }]", "a path=/login ip=192.0.2.1"},
		"glob":    {"limits: [{ name: a, when: { path: /api/** }, per: [user], allow: 5/min }]", "a path=/api/x user=ada"},
		"host":    {`limits: [{ name: a, when: { host: "*.shop.example" }, allow: 5/min }]`, "a host=x.shop.example"},
		"block":   {"limits: [{ name: a, when: { ip: 10.1.0.0/16 }, per: [ip], allow: 5/min }]", "a ip=10.1.0.0"},
		"negated": {`limits: [{ name: a, when: { plan: "!free" }, allow: 5/min }]`, "a plan=ada"},
		"not the first": {`limits:
  - { name: a, when: { path: "~^/[0-9]+$" }, allow: 5/min }
  - { name: b, if: method == 'NEVER', allow: 5/min }
  - { name: c, on_limit: shadow, allow: 5/min }
  - { name: d, allow: unlimited }
  - { name: e, per: [key], allow: 5/min }`, "e key=ada"},
		"two domains": {"domain: blog\nlimits: [{ name: a, allow: 5/min }]", "a"},
		"Lyft": {`domain: messaging
descriptors:
  - key: message_type
    value: marketing
    descriptors: [{ key: to_number, rate_limit: { unit: day, requests_per_unit: 5 } }]`,
			"message_type_marketing.to_number message_type=marketing to_number=ada"},
		"exempt": {"exempt: { ip: 192.0.2.0/24 }\nlimits: [{ name: a, per: [ip], allow: 5/min }]", ""},
	} {
		t.Run(name, func(t *testing.T) {
			set, _, err := file.Load([]file.Source{{Name: "a.yaml", Data: []byte(c.rules)}}, file.Options{})
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if e := exampleRequest(set); e != nil {
				got = e.rule.Name
				for _, a := range e.attributes {
					got += fmt.Sprintf(" %s=%s", a.Name, a.Value)
				}
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// What the server prints can be pasted, whatever the folder holds: several domains, globs, or only
// descriptors.
func TestServePrintsRequests(t *testing.T) {
	needs(t, "bash", "curl")
	shop := "domain: shop\nlimits: [{ name: api, when: { path: /api/** }, per: [user], allow: 2/hour, algorithm: sliding_log }]\n"
	lyft := "domain: mail\ndescriptors: [{ key: to, rate_limit: { unit: hour, requests_per_unit: 2, algorithm: sliding_log } }]\n"
	for name, files := range map[string][]string{"globs": {shop}, "two domains": {shop, lyft}, "descriptors": {lyft}} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for i, text := range files {
				writeRules(t, filepath.Join(dir, fmt.Sprintf("%d.yaml", i)), text)
			}
			p := start(t, "serve", "--rules", dir)
			printed := p.stdout.await(t, `(?s)Try it:\n.*# The counters.*\n`)[0]
			if several := strings.Contains(printed, "2 domains (shop, mail)"); several != (len(files) > 1) {
				t.Errorf("it printed\n%s", printed)
			}
			page := regexp.MustCompile(`# In a browser, .*: (http://\S+/)\n\n# The counters`).FindStringSubmatch(printed)
			if page == nil || page[1] != "http://"+p.addr("admin")+"/" {
				t.Fatalf("the operator's page, %v, is not the first thing to look at:\n%s", page, printed)
			}
			if status, _, body := get(t, page[1]); status != http.StatusOK || !strings.Contains(body, "<html") {
				t.Errorf("%s answers %d\n%s", page[1], status, body)
			}
			loop := regexp.MustCompile(`(?m)^for i in .*$`).FindString(printed)
			out, err := exec.Command("bash", "-c", loop).CombinedOutput()
			if got := strings.TrimSpace(string(out)); err != nil || got != "200 200 429" {
				t.Errorf("%s\ngave %s %v", loop, got, err)
			}
			p.end()
		})
	}
	dir := t.TempDir()
	writeRules(t, filepath.Join(dir, "a.yaml"), "limits: [{ name: a, when: { path: '~^/[0-9]+$' }, allow: 5/min }]\n")
	p := start(t, "serve", "--rules", dir)
	p.stdout.await(t, `No request to try: .*\nweir explain --rules `)
	p.end()
}

// The server warns of the system's bound on open files where it has an effect, and only there.
func TestServeTellsOfFiles(t *testing.T) {
	t.Parallel()
	program := builtProgram(t)
	for _, c := range []struct {
		files int
		args  string
		want  bool
	}{{8000, "", false}, {8000, "--max-connections=9000", true}, {8000, "--max-connections=1500", false}, {1024, "", true}} {
		t.Run(fmt.Sprintf("%d %s", c.files, c.args), func(t *testing.T) {
			var most syscall.Rlimit
			if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &most); err == nil && uint64(most.Max) < uint64(c.files) {
				t.Skipf("this system lets a process open %d files", most.Max)
			}
			cmd := exec.Command("sh", "-c", fmt.Sprintf("ulimit -n %d && exec %s serve --listen-http=127.0.0.1:0 "+
				"--listen-grpc=127.0.0.1:0 --listen-resp=127.0.0.1:0 --listen-admin=127.0.0.1:0 %s", c.files, program, c.args))
			cmd.Dir = t.TempDir()
			p := begin(t, cmd)
			p.stdout.await(t, "Try it:")
			if status, _, _ := get(t, "http://"+p.addr("http")+"/healthcheck"); status != http.StatusOK {
				t.Errorf("health: %d", status)
			}
			p.signal(syscall.SIGTERM)
			if status := p.wait(); status != 0 {
				t.Errorf("exit status %d", status)
			}
			if told := strings.Contains(p.stderr.String(), "too few files"); told != c.want {
				t.Errorf("told: %v, want %v\n%s", told, c.want, p.stderr)
			}
		})
	}
}
