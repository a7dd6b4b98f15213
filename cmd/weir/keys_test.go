//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/admin"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

const operatorRules = `
domain: shop
limits:
  - { name: api, when: { path: /api/** }, per: [user], allow: 3/hour, algorithm: sliding_log, override: { acme: 5/hour } }
  - { name: soft, when: { path: /soft }, per: [user], allow: 4/hour, algorithm: sliding_log, throttle: { elastic: { signal: load, curve: { 50%: 100%, 90%: 50% } } } }
  - { name: two, when: { path: /two }, per: [user, ip], allow: [10/min, 500/hour], algorithm: sliding_log }
  - { name: login, when: { path: /login }, per: [ip], allow: 3/hour, algorithm: sliding_log, ban: { after: 20, within: 10m, for: 15m, scope: domain } }
`

// TestKeys: with the built program, on each store, the state of a key that operators see agrees
// with the answer to its next request: under a grant, an override, an elastic share and a ban; at
// the node that decided, and at one that has heard of it.
func TestKeys(t *testing.T) {
	t.Parallel()
	program := servertest.BuiltProgram(t)
	for _, store := range []string{"memory", "redis"} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			servertest.WriteRules(t, filepath.Join(dir, "rules.yaml"), operatorRules)
			args := []string{"serve", "--rules=rules.yaml"}
			if store == "redis" {
				args = append(append(args, "--store="+redistest.Start(t).URL()), servertest.Patient...)
			}
			nodes := []*servertest.Node{}
			for range 2 {
				p := servertest.Launch(t, program, dir, args...)
				nodes = append(nodes, servertest.NodeOf(t, p.Stderr, p.Addr))
				if store == "memory" {
					nodes = append(nodes, nodes[0])
					break
				}
			}
			n, other := nodes[0], nodes[1]
			weir := func(at *servertest.Node, args ...string) (status int, out string) {
				t.Helper()
				args = append(args, "--server="+at.Admin)
				if store != "memory" || !effort.All() { // to start it some 150 times takes long
					status, stdout, stderr := runWeir(args...)
					return status, stdout + stderr
				}
				cmd := exec.Command(program, args...)
				cmd.Env = servertest.PlainEnvironment()
				text, _ := cmd.CombinedOutput()
				return cmd.ProcessState.ExitCode(), string(text)
			}
			ok := func(at *servertest.Node, says string, args ...string) string {
				t.Helper()
				status, out := weir(at, args...)
				if status != 0 || !regexp.MustCompile(says).MatchString(out) {
					t.Errorf("weir %s: exit status %d\n%s\nwant %s", strings.Join(args, " "), status, out, says)
				}
				return out
			}
			bad := func(want int, says string, args ...string) {
				t.Helper()
				if status, out := weir(n, args...); status != want || !strings.Contains(out, says) {
					t.Errorf("weir %s: exit status %d\n%s\nwant %d, %s", strings.Join(args, " "), status, out, want,
						says)
				}
			}
			explained := func(at *servertest.Node, says string, attributes ...string) {
				t.Helper()
				ok(at, says, append([]string{"explain", "--rules=" + filepath.Join(dir, "rules.yaml")},
					attributes...)...)
			}

			// An override, and a grant that no request has met yet.
			n.Admitted(4, "user=ada&path=/api/x")
			n.Admitted(4, "user=acme&path=/api/x")
			ok(n, `shop/api +user=ada +3 of 3 +0 +\d+ \S+( \d+ \S+)? +refused for (1 h|\d+ min)`, "keys", "show", "api",
				"ada")
			ok(n, `shop/api +user=acme +4 of 5 +1 +\d+ \S+( \d+ \S+)? +passes`, "keys", "show", "shop/api", "user=acme")
			ok(n, `granted`, "grant", "set", "api", "ada", "--allow=9/hour", "--for=1h")
			for _, at := range nodes {
				servertest.Eventually(t, "the grant is known", func() bool {
					_, out := weir(at, "keys", "show", "api", "ada")
					return strings.Contains(out, "9/hour")
				})
				ok(at, `3 of 9 +6 +\d+ \S+( \d+ \S+)? +passes, granted 9/hour until 20`, "keys", "show", "api", "ada")
				explained(at, `now: used 3 of 9, 6 remaining, as fresh in [^;]+; passes, granted 9/hour`, "user=ada",
					"path=/api/x")
				explained(at, `now: used 4 of 5, 1 remaining, as fresh in [^;]+\n`, "user=acme", "path=/api/x")
			}
			if status := other.Ask("user=ada&path=/api/x"); status != 200 {
				t.Errorf("a request that was said to pass: %d", status)
			}

			// An elastic share.
			n.Admitted(2, "user=ada&path=/soft")
			for _, at := range nodes {
				request(t, http.MethodPut, at.Admin+"/api/v1/signals/load", `{"value": 95, "ttl": 3600}`, 204)
				ok(at, `2 of 2 +0 +\d+ \S+( \d+ \S+)? +refused for`, "keys", "show", "soft", "ada")
				if status := at.Ask("user=ada&path=/soft&hits=1"); status != 429 {
					t.Errorf("a request that was said to be refused: %d", status)
				}
			}

			// Two windows are shown together and reset at once, by each form of the key.
			for _, key := range [][]string{{"ada", "192.0.2.9"}, {"user=ada", "ip=192.0.2.9"},
				{"user=ada,ip=192.0.2.9"}} {
				n.Admitted(3, "user=ada&ip=192.0.2.9&path=/two")
				out := ok(n,
					`shop/two:60s +user=ada ip=192.0.2.9 +3 of 10 .*\nshop/two:3600s +user=ada ip=192.0.2.9 +3 of 500`, append([]string{"keys", "show", "two"}, key...)...)
				if strings.Count(out, "\n") != 3 {
					t.Errorf("shown:\n%s", out)
				}
				ok(other, "reset: two ", append([]string{"keys", "reset", "two"}, key...)...)
				bad(1, "nothing is counted for it", append([]string{"keys", "show", "two"}, key...)...)
				bad(1, "nothing is counted for it", append([]string{"keys", "reset", "two"}, key...)...)
			}
			bad(1, `no rule in force has a limit of this name in the domain "shop"; did you mean "two"?`, "keys",
				"show", "tow", "ada")
			bad(1, "keys of 2 parts, not 1", "keys", "show", "two", "ada")
			bad(2, "expected the name of one limit", "keys", "list")
			bad(2, "expected a limit", "keys", "show", "two")

			// A ban, of the rule itself and where its scope is the domain.
			ok(n, "banned", "ban", "set", "login", "192.0.2.1", "--for=1h", "--reason=guesses")
			for _, at := range nodes {
				servertest.Eventually(t, "the ban is known", func() bool { // a request before that would be counted
					_, out := weir(at, "keys", "show", "login", "192.0.2.1")
					return strings.Contains(out, "banned until")
				})
				if status := at.Ask("ip=192.0.2.1&path=/login"); status != 429 {
					t.Errorf("a request that was said to be refused: %d", status)
				}
				const banned = `banned until 20\S+Z by login \(guesses\)`
				ok(at, `shop/login +ip=192.0.2.1 +0 of 3 +3 +- +`+banned, "keys", "show", "login", "192.0.2.1")
				ok(at, `(?s)Nothing is counted of login.*1 key is banned; weir ban list --limit shop/login lists them`,
					"keys", "list", "login")
				for _, name := range []string{"shop/login", "login"} {
					ok(at, `1 key is banned; weir ban list --limit shop/login lists them`, "keys", "list", name)
					ok(at, `shop/login +ip=`, "ban", "list", "--limit", name)
				}
				// The ban goes first, and what is counted behind it.
				const first = `^domain shop\n\nnow: ip=192.0.2.1 is ` + banned +
					` since 20\S+Z: it is refused everywhere in the domain\n\nmeets:\n(?s).*`
				explained(at, first+`now: used 0 of 3, 3 remaining; `+banned, "ip=192.0.2.1", "path=/login")
				explained(at, first+`now: nothing counted`, "ip=192.0.2.1", "user=eve", "path=/api/x")
			}
			if status := n.Ask("ip=192.0.2.1&user=eve&path=/api/x"); status != 429 {
				t.Errorf("a request that was said to be refused: %d", status)
			}

			// The list, and its JSON.
			for i := range 30 {
				n.Ask(fmt.Sprintf("user=many%d&path=/api/x", i))
			}
			out := ok(other, `(?s)LIMIT +KEY +USED +LEFT +RESET IN +STATE\nshop/api +user=acme +4 of 5`, "keys", "list",
				"api", "-n", "5")
			if strings.Count(out, "\n") != 6 {
				t.Errorf("listed:\n%s", out)
			}
			var list admin.KeyList
			if _, out := weir(n, "keys", "list", "api", "--json", "--look=all"); json.Unmarshal([]byte(out),
				&list) != nil || len(list.Keys) != 20 || !list.Complete || list.Looked == 0 || list.Of < 30 {
				t.Errorf("%+v of\n%s", list, out)
			}
			ok(n, "(?s)weir keys list login.*weir keys reset", "keys", "--help")
		})
	}
}

// request asks for something with a JSON body, and wants a status.
func request(t *testing.T, method, target, body string, want int) {
	t.Helper()
	r, err := http.NewRequest(method, target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != want {
		t.Fatalf("%s %s: %s, want %d", method, target, answer.Status, want)
	}
}
