package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/rulesource/ruledb"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/pgtest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
	"github.com/weir-rl/weir/rule/file"
)

// TestToolsOnDatabase: what takes a folder of rules takes the URL of a database too, and reads the
// version in force there; what needs a folder says so. No message has the password.
func TestToolsOnDatabase(t *testing.T) {
	t.Parallel()
	effort.Long(t, "starts a PostgreSQL of its own")
	server := pgtest.Start(t)
	url := strings.Replace(server.URL(), "weir@", "weir:s3cret@", 1)
	if !strings.Contains(url, "s3cret") {
		t.Fatal(url)
	}
	ctx := patience.Context(t)
	address, err := ruledb.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ruledb.Init(ctx, address); err != nil {
		t.Fatal(err)
	}
	weir := func(status int, args ...string) *servertest.RuleWords {
		t.Helper()
		var out, errs strings.Builder
		got := Run(ctx, args, nil, strings.NewReader(""), &out, &errs)
		text := out.String() + errs.String()
		if got != status || strings.Contains(text, "s3cret") {
			t.Errorf("weir %q: exit status %d, want %d\n%s", args, got, status, text)
		}
		return &servertest.RuleWords{T: t, Args: args, Text: text}
	}
	weir(2, "lint", url).With("the space holds no rules")
	d, err := ruledb.Open(ctx, address)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	push := func(base int64, files ...file.Source) {
		t.Helper()
		if _, err := d.Push(ctx, ruledb.Change{Base: base, Files: files, Author: "ada", Origin: ruledb.Push}); err != nil {
			t.Fatal(err)
		}
	}
	push(0, file.Source{Name: "shop.yaml", Data: []byte(servertest.LimitRules(3))})
	weir(2, "test", url).With("version 1 of postgres://", "holds no rule tests")
	push(1, file.Source{Name: "shop.yaml", Data: []byte(servertest.LimitRules(2))},
		file.Source{Name: "shop_test.yaml", Data: []byte(servertest.LimitTest(2))},
		file.Source{Name: "sub/api.yaml",
			Data: []byte("domain: api\nlimits: [{ name: a, per: [key], allow: 1/day }]\n")},
		file.Source{Name: "sub/api_test.yaml",
			Data: []byte("tests: [{ name: one, steps: [{ send: { key: a }, expect: allowed }] }]\n")})

	weir(0, "lint", url).With("2 rules in 2 files: 0 errors")
	weir(0, "test", url).With("ok    shop_test.yaml  1 test", "ok    sub/api_test.yaml  1 test",
		"2 tests passed, 0 failed")
	weir(0, "explain", "--rules", url, "--domain", "shop", "key=a").With("daily", "2 per day")
	weir(2, "explain", "--rules", url, "key=a").With("version 2 of postgres://", "hold several domains")
	log := filepath.Join(t.TempDir(), "log.jsonl")
	lines := strings.Repeat(`{"time": "2026-01-01T00:00:00Z", "key": "a"}`+"\n", 5)
	if err := os.WriteFile(log, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	drafts := t.TempDir()
	servertest.WriteRules(t, filepath.Join(drafts, "shop.yaml"), servertest.LimitRules(4))
	weir(0, "replay", "--rules", url, "--compare", drafts, "--domain", "shop", "--fields", "time=time,key=key",
		log).With("version 2 of postgres://", "daily")
	got, err := filesOf(ctx, url) // what preview sends
	if err != nil || len(got) != 4 || got["shop.yaml"] != servertest.LimitRules(2) ||
		got["shop_test.yaml"] != servertest.LimitTest(2) {
		t.Errorf("for a preview: %q, %v", got, err)
	}
	for _, args := range [][]string{{"rules", "push", url}, {"rules", "import", url}, {"rules", "diff", url},
		{"rules", "pull", url}} {
		weir(2, append(args, "--rules", url)...).With("weir rules pull writes what it holds into a folder")
	}
	differs := strictly[rulesDiff](t, weir(1, "rules", "diff", "1", "2", "--rules", url, "--json").Text)
	if differs.From != "version 1" || differs.To != "version 2" || !differs.Differs ||
		!strings.Contains(differs.Diff, "sub/api.yaml") {
		t.Errorf("rules diff: %+v", differs)
	}
	if same := strictly[rulesDiff](t, weir(0, "rules", "diff", "2", "2", "--rules", url, "--json").Text); same.Differs || same.Diff != "" {
		t.Errorf("rules diff: %+v", same)
	}
	printed := func(status int, args ...string) rulesPush {
		t.Helper()
		var out, errs strings.Builder
		if got := Run(ctx, append(args, "--rules", url, "--json"), nil, strings.NewReader(""), &out, &errs); got != status {
			t.Errorf("weir %q: exit status %d, want %d\n%s", args, got, status, errs.String())
		}
		return strictly[rulesPush](t, out.String())
	}
	if got := printed(1, "rules", "push", "--base", "1", drafts); got.Version != 0 || got.Changed ||
		!strings.Contains(got.Error, "nothing was pushed") {
		t.Errorf("a conflict: %+v", got)
	}
	if got := printed(0, "rules", "push", "--base", "2", drafts); got.Version != 3 || got.Replaces != 2 ||
		!got.Changed || got.Error != "" {
		t.Errorf("a push: %+v", got)
	}
	if got := printed(0, "rules", "push", drafts); got.Version != 3 || got.Changed {
		t.Errorf("the same again: %+v", got)
	}
	push(3, file.Source{Name: "shop.yaml", Data: []byte("domain: shop\nlimits: [{ alow: 1/day }]\n")})
	weir(1, "lint", url).With("shop.yaml:2:12", `unknown key "alow"`)
	weir(2, "explain", "--rules", url, "key=a").With("the rules of version 4 of postgres://", `unknown key "alow"`)
	server.Kill()
	weir(2, "lint", url).With("the database of rules cannot be reached")
	weir(2, "test", url, drafts).With("the database of rules cannot be reached")
	weir(2, "lint", "postgres://weir:s3cret@db/weir?space=a%20b").With("space=a b must be")
}
