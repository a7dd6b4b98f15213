package main

import (
	"context"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
)

// explain --server shows what a running server has counted for the same request.
func TestExplainServer(t *testing.T) {
	dir := t.TempDir()
	writeRules(t, filepath.Join(dir, "shop.yaml"), `
domain: shop
limits:
  - { name: odd-key, per: [user, path], allow: [5/min, 20/hour], algorithm: sliding_log }
  - { name: everybody, allow: 100/min }
`)
	p := start(t, "serve", "--rules", dir)
	defer p.end()
	admin := p.addr("admin")
	for range 2 {
		if status, _, body := get(t, "http://"+p.addr("http")+"/api/v1/limit?"+url.Values{"user": {"a,b/c d"}, "path": {"/x"}}.Encode()); status != 200 {
			t.Fatalf("status %d: %s", status, body)
		}
	}
	ask := func(user string, want ...string) {
		t.Helper()
		out, errs := newOutput(), newOutput()
		if status := Run(context.Background(), []string{"explain", "--rules", dir, "--server", "http://" + admin, "user=" + user, "path=/x"}, nil, strings.NewReader(""), out, errs); status != 0 {
			t.Fatalf("status %d: %s", status, errs)
		}
		for _, w := range want {
			if !strings.Contains(out.String(), w) {
				t.Errorf("no %q in\n%s", w, out)
			}
		}
	}
	ask("a,b/c d", "for user=a,b/c d, path=/x", "now: used 2 of 5, 3 remaining, as fresh in", "now: used 2 of 20, 18 remaining", "now: used 2 of 100, 98 remaining")
	ask("new", "now: nothing counted", "now: used 2 of 100")

	// A port that is no admin port is named.
	out, errs := newOutput(), newOutput()
	if status := Run(context.Background(), []string{"explain", "--rules", dir, "--server", "http://" + p.addr("http"), "user=a", "path=/x"}, nil, strings.NewReader(""), out, errs); status == 0 {
		t.Errorf("the decision port passes for an admin port:\n%s", out)
	}
}

// explain --token-file takes the very file that the server has as auth.tokens_file.
func TestExplainTokenFile(t *testing.T) {
	dir := t.TempDir()
	rules, tokens := filepath.Join(dir, "shop.yaml"), filepath.Join(dir, "tokens")
	writeRules(t, rules, "domain: shop\nlimits: [{ name: a, per: [user], allow: 5/min }]\n")
	writeRules(t, tokens, "# operators\nsesame\nopen\n")
	p := start(t, "serve", "--rules", rules, "--auth-tokens-file", tokens)
	defer p.end()
	for file, want := range map[string]int{tokens: 0, rules: 2, "": 2} {
		out, errs := newOutput(), newOutput()
		args := []string{"explain", "--rules", rules, "--server", "http://" + p.addr("admin"), "--token-file", file, "user=ada"}
		if status := Run(context.Background(), args, nil, strings.NewReader(""), out, errs); status != want {
			t.Errorf("token file %q: status %d, want %d: %s%s", file, status, want, out, errs)
		}
	}
}
