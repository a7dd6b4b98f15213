//go:build unix

package stores

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/pgtest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// A change from the page is in the audit log of the server, by the name of the token, before it is
// made; and in the history of the rules under the same name.
func TestAuditVersions(t *testing.T) {
	t.Parallel()
	effort.Long(t, "starts PostgreSQL for the rules, and servers")
	server := pgtest.Start(t)
	b := newRuleBed(t, server.URL())
	b.does(0, "import", b.folder(10))
	looser := t.TempDir() // of which the tests let a limit be raised
	servertest.WriteRules(t, filepath.Join(looser, "shop.yaml"), servertest.LimitRules(10))
	servertest.WriteRules(t, filepath.Join(looser, "shop_test.yaml"),
		strings.Split(servertest.LimitTest(10), "      - { send: { key: a }, expect: { denied")[0])
	b.does(0, "push", "--base", "1", looser)
	dir := t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "tokens"),
		tokenOf("editor")+" name=eve role=editor\n"+tokenOf("operator")+" name=otto role=operator\n")
	log := filepath.Join(dir, "audit.jsonl")
	n := b.node(dir, "--audit-path", log, "--auth-tokens-file", "tokens")
	ask := func(role, path, body string, want int, part string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+n.admin+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer "+tokenOf(role))
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode != want || !strings.Contains(string(text), part) {
			t.Errorf("%s %s as %s: %d %s, %v", path, body, role, answer.StatusCode, text, err)
		}
	}
	change := func(base, limit int) string {
		raw, err := json.Marshal(map[string]any{"base": base, "note": "more",
			"files": map[string]string{"shop.yaml": servertest.LimitRules(limit)}})
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	ask("operator", "/api/v1/rules/versions", change(2, 20), 403, "needs the role editor")
	ask("editor", "/api/v1/rules/versions", change(2, 9), 422, "1 test of these rules failed")
	ask("editor", "/api/v1/rules/versions", change(3, 20), 409, "version 2 came meanwhile")
	ask("editor", "/api/v1/rules/versions", `{"base": 2, "files": {"../x.yaml": "a"}}`, 422,
		"is no name of a rule file")
	for _, name := range []string{"shop_test.yaml", "other_test.yaml", "sub/shop_test.yml"} {
		ask("editor", "/api/v1/rules/versions", `{"base": 2, "files": {"shop.yaml": "domain: shop", "`+name+
			`": "domain: shop"}}`, 422, name+": holds tests")
	}
	ask("editor", "/api/v1/rules/versions", `{"base": 2, "files": {"shop.yaml": "domain: shop"}, "note": "a\u0000b"}`,
		400, "note: must hold no zero byte")
	ask("editor", "/api/v1/rules/versions", change(2, 20), 200, `"version": 3`)
	n.follows(20)
	ask("editor", "/api/v1/rules/rollback", `{"to": 1, "note": "a\u0000b"}`, 400, "note: must hold no zero byte")
	ask("editor", "/api/v1/rules/rollback", `{"to": 3}`, 422, "has the files that are in force")
	ask("editor", "/api/v1/rules/rollback", `{"to": 4}`, 422, "has no version 4")
	ask("editor", "/api/v1/rules/rollback", `{"to": 2, "note": "no"}`, 200, `"version": 4`)
	n.follows(10)
	b.does(0, "history").With("page", "eve", "rollback: version 2 again")
	ask("operator", "/api/v1/rules/rollout", `{"domain": "shop", "limit": "daily", "percent": 50}`, 403,
		"needs the role editor")
	ask("editor", "/api/v1/rules/rollout", `{"domain": "shop", "limit": "none", "percent": 50}`, 404, "no rule none")
	ask("editor", "/api/v1/rules/rollout", `{"domain": "shop", "limit": "daily", "percent": 0}`, 400, "from 1 to 100")
	ask("editor", "/api/v1/rules/rollout", `{"domain": "shop", "limit": "daily", "percent": 100}`, 422,
		"is enforced so already")
	server.Kill()
	ask("editor", "/api/v1/rules/rollout", `{"domain": "shop", "limit": "daily", "percent": 50}`, 503,
		"the database of rules")
	ask("editor", "/api/v1/rules/versions", change(4, 20), 503, "the database of rules")
	ask("editor", "/api/v1/rules/rollback", `{"to": 1}`, 503, "the database of rules")
	var got []string
	for _, e := range records(t, log) {
		if e.Who == "eve" && !strings.HasSuffix(e.What, ": failed") {
			got = append(got, fmt.Sprintf("%s %v %v %s", e.What, e.Before, e.After, e.Note))
		}
	}
	want := []string{
		"rules pushed map[version:2] <nil> more", "rules pushed map[version:3] <nil> more",
		"rules pushed map[version:2] <nil> ", "rules pushed map[version:2] <nil> ", "rules pushed map[version:2] <nil> ", "rules pushed map[version:2] <nil> ",
		"rules pushed map[version:2] <nil> more",
		"rules rolled back <nil> map[files of version:3] ", "rules rolled back <nil> map[files of version:4] ", "rules rolled back <nil> map[files of version:2] no",
		"rules pushed map[version:4] map[enforce:50%] ", "rules pushed map[version:4] <nil> more", "rules rolled back <nil> map[files of version:1] ",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the audit log has %q, want %q", got, want)
	}
}
