//go:build unix

package stores

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/weir-rl/weir/internal/admin/audit"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
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
	program, dir := servertest.BuiltProgram(t), t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "rules.yaml"), servertest.DailyRules)
	args := []string{"serve", "--rules=rules.yaml", "--audit-path=audit.jsonl", "--snapshot-path=weir.snapshot",
		"--snapshot-every=1h"}
	first := servertest.Launch(t, program, dir, args...)
	first.Addr("admin") // it runs
	second := servertest.Launch(t, program, dir, args...)
	if status := second.Wait(); status != 1 ||
		!strings.Contains(second.Stderr.String(),
			"audit.path: audit.jsonl: another program writes its audit log there") {
		t.Errorf("exit status %d\n%s", status, second.Stderr)
	}
	if _, err := os.Stat(filepath.Join(dir, "weir.snapshot")); !os.IsNotExist(err) {
		t.Errorf("the second program wrote the snapshot: %v", err)
	}
	first.Signal(syscall.SIGTERM)
	if status := first.Wait(); status != 0 {
		t.Errorf("exit status %d\n%s", status, first.Stderr)
	}
}

// TestAuditNode: records name their node as the list of nodes does, also of several on one machine.
func TestAuditNode(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	program, dir := servertest.BuiltProgram(t), t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "rules.yaml"), sharedRules)
	seen := map[string]bool{}
	for _, log := range []string{"a.jsonl", "b.jsonl"} {
		p := servertest.Launch(t, program, dir,
			append([]string{"serve", "--rules=rules.yaml", "--audit-path=" + log, "--store=" + redis.URL()},
				servertest.Patient...)...)
		server := "http://" + p.Addr("admin")
		if status, out, errs := servertest.RunBuilt(t, "ban", "set", "exact", "x", "--for=1h", "--server", server); status != 0 {
			t.Fatalf("%d: %s%s", status, out, errs)
		}
		list := records(t, filepath.Join(dir, log))
		self := servertest.SelfOf(t, server)
		if len(list) != 1 || list[0].Node != self || seen[self] {
			t.Errorf("node %q: %+v", self, list)
		}
		seen[self] = true
	}
}
