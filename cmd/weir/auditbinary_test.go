//go:build unix

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/weir-rl/weir/internal/admin/audit"
	"github.com/weir-rl/weir/internal/testkit/redistest"
)

// records reads an audit log.
func records(t *testing.T, path string) (list []audit.Entry) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		var e audit.Entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		list = append(list, e)
	}
	return list
}

// TestAuditLock: a second program with the same audit log ends before it has touched the store of
// the first one.
func TestAuditLock(t *testing.T) {
	t.Parallel()
	program, dir := builtProgram(t), t.TempDir()
	writeRules(t, filepath.Join(dir, "rules.yaml"), dailyRules)
	args := []string{"serve", "--rules=rules.yaml", "--audit-path=audit.jsonl", "--snapshot-path=weir.snapshot", "--snapshot-every=1h"}
	first := launch(t, program, dir, args...)
	first.addr("admin") // it runs
	second := launch(t, program, dir, args...)
	if status := second.wait(); status != 2 || !strings.Contains(second.stderr.String(), "audit.path: audit.jsonl: another program writes its audit log there") {
		t.Errorf("exit status %d\n%s", status, second.stderr)
	}
	if _, err := os.Stat(filepath.Join(dir, "weir.snapshot")); !os.IsNotExist(err) {
		t.Errorf("the second program wrote the snapshot: %v", err)
	}
	first.signal(syscall.SIGTERM)
	if status := first.wait(); status != 0 {
		t.Errorf("exit status %d\n%s", status, first.stderr)
	}
}

// TestAuditNode: records name their node as the list of nodes does, also of several on one machine.
func TestAuditNode(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	program, dir := builtProgram(t), t.TempDir()
	writeRules(t, filepath.Join(dir, "rules.yaml"), sharedRules)
	seen := map[string]bool{}
	for _, log := range []string{"a.jsonl", "b.jsonl"} {
		p := launch(t, program, dir, append([]string{"serve", "--rules=rules.yaml", "--audit-path=" + log, "--store=" + redis.URL()}, patient...)...)
		server := "http://" + p.addr("admin")
		if status, out, errs := runBuilt(t, "ban", "set", "exact", "x", "--for=1h", "--server", server); status != 0 {
			t.Fatalf("%d: %s%s", status, out, errs)
		}
		list := records(t, filepath.Join(dir, log))
		self := selfOf(t, server)
		if len(list) != 1 || list[0].Node != self || seen[self] {
			t.Errorf("node %q: %+v", self, list)
		}
		seen[self] = true
	}
}

// selfOf is the name of a node in the list of nodes.
func selfOf(t *testing.T, admin string) string {
	t.Helper()
	status, _, body := get(t, admin+"/api/v1/nodes")
	var answer struct {
		List []struct {
			Node string
			Self bool
		}
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil || status != 200 {
		t.Fatalf("%d %v: %s", status, err, body)
	}
	for _, n := range answer.List {
		if n.Self {
			return n.Node
		}
	}
	t.Fatalf("none is this node: %s", body)
	return ""
}
