//go:build unix

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// TestServerStatuses: how a server ends says whether it may start well the next time, and the unit
// of systemd starts it again exactly then.
func TestServerStatuses(t *testing.T) {
	t.Parallel()
	program, dir := servertest.BuiltProgram(t), t.TempDir()
	for name, text := range map[string]string{
		"good.yaml": "limits: [{ name: a, allow: 1/min, per: [key] }]\n", "bad.yaml": "limits: [{ name: a }]\n",
		"file.yaml": "log: { level: loud }\n",
	} {
		servertest.WriteRules(t, filepath.Join(dir, name), text)
	}
	// What the first server holds is what others want in vain.
	first := servertest.Launch(t, program, dir, "serve", "--rules=good.yaml", "--audit-path=audit.jsonl",
		"--listen-proxy=127.0.0.1:0", "--proxy-upstream=http://127.0.0.1:1", "--defer-path=jobs.db",
		"--listen-spoe=unix:weir.sock")
	taken := first.Addr("http")
	const away = "postgres://ada:secret@127.0.0.1:1/weir?sslmode=disable" // nobody listens there

	prevented := preventedStatus(t)
	for _, c := range []struct {
		name, args string
		status     int
		says       string
	}{
		{"a port in use", "serve --rules=good.yaml --listen-http=" + taken, exitFailure, "listen.http: " + taken + " is in use"},
		{"the port of operators in use", "serve --rules=good.yaml --listen-admin=" + taken, exitFailure, "listen.admin: " + taken + " is in use"},
		{"a socket in use", "serve --rules=good.yaml --listen-spoe=unix:weir.sock", exitFailure, "is in use"},
		{"an address that is not there yet", "serve --rules=good.yaml --listen-http=192.0.2.1:8080", exitFailure, "listen.http: "},
		{"rules in a database that is away", "serve --rules=" + away + " --rules-db-cache=none", exitFailure, "the database of rules cannot be reached"},
		{"the audit log of another", "serve --rules=good.yaml --audit-path=audit.jsonl", exitFailure, "another program writes its audit log there"},
		{"the queue of another", "serve --rules=good.yaml --listen-proxy=127.0.0.1:0 --proxy-upstream=http://127.0.0.1:1 --defer-path=jobs.db", exitFailure, "another process has it open"},
		{"a port in use, of the proxy", "proxy --rules=good.yaml --upstream=http://127.0.0.1:1 --listen-proxy=" + taken, exitFailure, "listen.proxy: " + taken + " is in use"},

		{"a wrong flag", "serve --rules=good.yaml --lisen-http=:1", exitConfig, "unknown flag"},
		{"an argument", "serve now", exitConfig, "now"},
		{"a wrong value", "serve --log-level=loud", exitConfig, "--log-level"},
		{"a wrong file", "serve --config=file.yaml", exitConfig, "log.level"},
		{"no file", "serve --config=none.yaml", exitConfig, "none.yaml"},
		{"wrong rules", "serve --rules=bad.yaml", exitConfig, "bad.yaml:1"},
		{"wrong rules, checked", "serve --check --rules=bad.yaml", exitConfig, "bad.yaml:1"},
		{"no rules", "serve --rules=none", exitConfig, "none"},
		{"no tokens", "serve --rules=good.yaml --auth-tokens-file=none", exitConfig, "auth.tokens_file"},
		{"no folder of the audit log", "serve --rules=good.yaml --audit-path=none/audit.jsonl", exitConfig, "audit.path"},
		{"no folder of a socket", "serve --rules=good.yaml --listen-http=unix:none/weir.sock", exitConfig, "the folder of the socket"},
		{"no folder of the snapshot", "serve --rules=good.yaml --snapshot-path=none/weir.snapshot", exitConfig, "snapshot"},
		{"no folder of the decision log", "serve --rules=good.yaml --decisions-log=none/decisions.jsonl", exitConfig, "decisions.log"},
		{"two doors at one port", "serve --rules=good.yaml --listen-http=:1 --listen-grpc=:1", exitConfig, "each door needs its own port"},
		{"a proxy to nowhere", "proxy --rules=good.yaml", exitConfig, "proxy.upstream"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := servertest.Launch(t, program, dir, strings.Fields(c.args)...)
			status := p.Wait()
			<-p.Gone
			if text := p.Stderr.String(); status != c.status || !strings.Contains(text, c.says) ||
				strings.Contains(text, "secret") {
				t.Errorf("exit status %d, want %d and %q\n%s", status, c.status, c.says, text)
			}
			if restarts := status != prevented; restarts != (c.status == exitFailure) {
				t.Errorf("systemd starts it again: %t", restarts)
			}
		})
	}

	// Go ends a program that panics with the same status as one that is asked for its goroutines.
	first.Signal(syscall.SIGQUIT)
	if status := first.Wait(); status != 2 || status == prevented {
		t.Errorf("a crash: exit status %d, and systemd does not start anew after %d", status, prevented)
	}
	again := servertest.Launch(t, program, dir, "serve", "--rules=good.yaml")
	again.Addr("http")
	again.Signal(syscall.SIGTERM)
	if status := again.Wait(); status != exitOK {
		t.Errorf("SIGTERM: exit status %d\n%s", status, again.Stderr)
	}
}

// preventedStatus is the exit status after which systemd leaves the service down.
func preventedStatus(t *testing.T) int {
	t.Helper()
	unit, err := os.ReadFile(filepath.Join(servertest.RepositoryRoot(t), "packaging", "systemd", "weir.service"))
	if err != nil {
		t.Fatal(err)
	}
	setting := func(name string) string {
		t.Helper()
		found := regexp.MustCompile(`(?m)^`+name+`=(.*)$`).FindAllStringSubmatch(string(unit), -1)
		if len(found) != 1 {
			t.Fatalf("the unit sets %s %d times", name, len(found))
		}
		return found[0][1]
	}
	// Five starts within ten seconds are the most by default, and then it stays down.
	if setting("Restart") != "on-failure" || setting("StartLimitIntervalSec") != "0" {
		t.Error("the unit does not start the server for as long as it fails")
	}
	status, err := strconv.Atoi(setting("RestartPreventExitStatus"))
	if err != nil {
		t.Fatal(err)
	}
	return status
}
