package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/admin/audit"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// audit --verify finds what was altered in a log that a server has written, and says so in its exit
// status.
func TestAuditVerify(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "audit.jsonl")
	l, err := audit.Open(audit.Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	for _, note := range []string{"password guessing", "load test", "sorry"} {
		if err := l.Record(t.Context(), audit.Entry{Who: "ada", What: "ban set", Domain: "shop", Limit: "login", Key: "ip=192.0.2.1", Note: note}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	status, out, errs := runWeir("audit", "--verify", path)
	if status != 0 || !strings.Contains(out, "3 records, 1 to 3, ") ||
		!strings.Contains(out, "each follows the one before it") || strings.Contains(out, "altered") {
		t.Errorf("status %d: %s%s", status, out, errs)
	}
	lines := strings.SplitAfter(string(data), "\n")
	first, second, altered := filepath.Join(dir, "1"), filepath.Join(dir, "2"), filepath.Join(dir, "altered")
	servertest.WriteRules(t, first, strings.Join(lines[:1], ""))
	servertest.WriteRules(t, second, strings.Join(lines[1:], ""))
	servertest.WriteRules(t, altered, strings.Replace(string(data), "load test", "load tesT", 1))
	hash := func(i int) string { return lines[i][len(lines[i])-len("\"}\n")-64:][:64] }
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"--verify", first, "--verify", second, "--noted", hash(1)}, 0, "\nup to 2 none was altered, left out, put in or moved since"},
		{[]string{"--verify", first, "--noted", hash(1)}, 1, "BROKEN: no record has the hash " + hash(1)},
		{[]string{"--verify", path, "--noted", hash(2), "--json"}, 0, `"as_noted_to":3`},
		{[]string{"--verify", first, "--verify", second}, 0, "1: 1 record, 1 to 1, "},
		{[]string{"--verify", first, "--verify", second}, 0, "2: 2 records, 2 to 3, "},
		{[]string{"--verify", second, "--verify", first}, 1, "BROKEN: line 1"},
		{[]string{"--verify", first, "--follows", strings.Repeat("a", 64)}, 1, "BROKEN: line 1"},
		{[]string{"--verify", altered}, 1, "BROKEN: line 2 was altered"},
		{[]string{"--verify", altered}, 1, "\nbefore it 1 record is as written\n"},
		{[]string{"--verify", altered, "--json"}, 1, `"broken":"line 2 was altered`},
		{[]string{"--verify", filepath.Join(dir, "none")}, 2, "no such file"},
		{[]string{"--follows", "abc"}, 2, "--follows is for --verify"},
	} {
		status, out, errs := runWeir(append([]string{"audit"}, c.args...)...)
		if status != c.status || !strings.Contains(out+errs, c.says) {
			t.Errorf("%q: status %d, want %d: %s%s", c.args, status, c.status, out, errs)
		}
	}
}

// audit tells how many records could not be written.
func TestAuditLost(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("this system has no /dev/full")
	}
	dir := t.TempDir()
	token, tokens := filepath.Join(dir, "token"), filepath.Join(dir, "tokens")
	servertest.WriteRules(t, tokens, "admin-admin-admin-admin\n")
	servertest.WriteRules(t, token, "admin-admin-admin-admin\n")
	p := start(t, "serve", "--rules="+servertest.InFolder(t, servertest.DailyRules), "--audit-path=/dev/full",
		"--auth-tokens-file", tokens)
	defer p.End()
	admin := "http://" + p.Addr("admin")
	for _, want := range []string{"1 record", "2 records"} {
		r, err := http.Post(admin+"/login", "application/json",
			strings.NewReader(`{"token": "admin-admin-admin-admin"}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		var errs string
		servertest.Eventually(t, "it tells of "+want, func() bool {
			_, _, errs = runWeir("audit", "--server", admin, "--token-file", token)
			return errs == "weir: warning: "+want+" could not be written\n"
		})
	}
}
