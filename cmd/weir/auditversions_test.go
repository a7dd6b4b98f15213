//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/pgtest"
)

// A change from the page is in the audit log of the server, by the name of the token, before it is
// made; and in the history of the rules under the same name.
func TestAuditVersions(t *testing.T) {
	b := newRuleBed(t, pgtest.Start(t).URL())
	b.does(0, "import", b.folder(10))
	dir := t.TempDir()
	writeRules(t, filepath.Join(dir, "tokens"), tokenOf("editor")+" name=eve role=editor\n"+tokenOf("operator")+" name=otto role=operator\n")
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
	change := func(base, limit int, test string) string {
		raw, err := json.Marshal(map[string]any{"base": base, "note": "more", "files": map[string]string{"shop.yaml": limitRules(limit), "shop_test.yaml": test}})
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	ask("operator", "/api/v1/rules/versions", change(1, 20, limitTest(20)), 403, "needs the role editor")
	ask("editor", "/api/v1/rules/versions", change(1, 20, limitTest(21)), 422, "1 test of these rules failed")
	ask("editor", "/api/v1/rules/versions", change(3, 20, limitTest(20)), 409, "version 1 came meanwhile")
	ask("editor", "/api/v1/rules/versions", `{"base": 1, "files": {"../x.yaml": "a"}}`, 422, "is no name of a rule file")
	ask("editor", "/api/v1/rules/versions", change(1, 20, limitTest(20)), 200, `"version": 2`)
	n.follows(20)
	ask("editor", "/api/v1/rules/rollback", `{"to": 2}`, 422, "has the files that are in force")
	ask("editor", "/api/v1/rules/rollback", `{"to": 1, "note": "no"}`, 200, `"version": 3`)
	n.follows(10)
	b.does(0, "history").with("page", "eve", "rollback: version 1 again")
	var got []string
	for _, e := range records(t, log) {
		if e.Who == "eve" && !strings.HasSuffix(e.What, ": failed") {
			got = append(got, fmt.Sprintf("%s %v %v %s", e.What, e.Before, e.After, e.Note))
		}
	}
	want := []string{
		"rules pushed map[version:1] <nil> more", "rules pushed map[version:3] <nil> more", "rules pushed map[version:1] <nil> ", "rules pushed map[version:1] <nil> more",
		"rules rolled back <nil> map[files of version:2] ", "rules rolled back <nil> map[files of version:1] no",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the audit log has %q, want %q", got, want)
	}
}
