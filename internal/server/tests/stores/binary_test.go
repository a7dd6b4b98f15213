package stores

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// used asks how much of 1,000 a day a key has used.
func used(t *testing.T, addr, key string) (n int) {
	t.Helper()
	_, _, body := servertest.Get(t, "http://"+addr+"/api/v1/limit?hits=0&key="+key)
	found := regexp.MustCompile(`"remaining":(\d+)`).FindStringSubmatch(body)
	if found == nil {
		t.Fatal(body)
	}
	if _, err := fmt.Sscan(found[1], &n); err != nil {
		t.Fatal(err)
	}
	return 1000 - n
}

// TestSnapshot: counters survive SIGTERM whole, and SIGKILL without the last interval.
func TestSnapshot(t *testing.T) {
	t.Parallel()
	program, dir := servertest.BuiltProgram(t), t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "rules.yaml"), servertest.DailyRules)
	snapshot := filepath.Join(dir, "weir.snapshot")
	run := func(every string) (*servertest.Process, string) {
		p := servertest.Launch(t, program, dir, "serve", "--rules=rules.yaml", "--snapshot-path="+snapshot,
			"--snapshot-every="+every)
		return p, p.Addr("http")
	}
	ask := func(addr string, n int) {
		t.Helper()
		for range n {
			if status, _, body := servertest.Get(t, "http://"+addr+"/api/v1/limit?key=ada"); status != 200 {
				t.Fatalf("%d %s", status, body)
			}
		}
	}
	p, addr := run("1h")
	ask(addr, 7)
	p.Signal(syscall.SIGTERM)
	if status := p.Wait(); status != 0 {
		t.Fatalf("SIGTERM: exit status %d\n%s", status, p.Stderr)
	}
	p, addr = run("100ms")
	if n := used(t, addr, "ada"); n != 7 {
		t.Fatalf("after SIGTERM and a restart %d are used, want 7", n)
	}
	ask(addr, 5)
	// One snapshot may have been under way; the second that ends from here on holds all 12.
	modified := func() time.Time {
		info, err := os.Stat(snapshot)
		if err != nil {
			return time.Time{}
		}
		return info.ModTime()
	}
	for range 2 {
		before := modified()
		// The writer may leave out a snapshot that would be like the last; a key that changes makes
		// it write.
		servertest.Eventually(t, "a snapshot is written", func() bool {
			servertest.Get(t, "http://"+addr+"/api/v1/limit?key=other")
			return !modified().Equal(before)
		})
	}
	ask(addr, 3)
	p.Signal(syscall.SIGKILL)
	p.Wait()
	p, addr = run("1h")
	if n := used(t, addr, "ada"); n < 12 || n > 15 {
		t.Errorf("after SIGKILL and a restart %d are used, want 12 to 15", n)
	}
	p.Signal(syscall.SIGINT)
	if status := p.Wait(); status != 0 {
		t.Fatalf("SIGINT: exit status %d\n%s", status, p.Stderr)
	}

	// A damaged snapshot is set aside, and reported.
	if err := os.WriteFile(snapshot, []byte(strings.Repeat("damaged", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	p, addr = run("1h")
	if n := used(t, addr, "ada"); n != 0 {
		t.Errorf("from a damaged snapshot: %d", n)
	}
	if !strings.Contains(p.Stderr.String(), "snapshot") || !strings.Contains(p.Stderr.String(), "WARN") {
		t.Errorf("a damaged snapshot was not reported:\n%s", p.Stderr)
	}
	p.Signal(syscall.SIGTERM)
	if status := p.Wait(); status != 0 {
		t.Errorf("exit status %d", status)
	}
}

// TestBrokenPipe: a server whose output nobody reads any more goes on.
func TestBrokenPipe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "rules.yaml"), servertest.DailyRules)
	cmd := exec.Command(servertest.BuiltProgram(t), "serve", "--rules=rules.yaml", "--listen-http=127.0.0.1:0",
		"--listen-grpc=off", "--listen-resp=off", "--listen-admin=off")
	cmd.Dir, cmd.Env = dir, servertest.PlainEnvironment()
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	seen := servertest.NewOutput()
	buf := make([]byte, 1<<12)
	for !strings.Contains(seen.String(), "door=http addr=") {
		n, err := stderr.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = seen.Write(buf[:n])
	}
	addr := seen.Await(t, `door=http addr=(\S+)`)[1]
	_ = stderr.Close()
	_ = stdout.Close()
	servertest.WriteRules(t, filepath.Join(dir, "rules.yaml"),
		strings.Replace(servertest.DailyRules, "1000/day", "500/day", 1))
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	// It has logged the reload, into nothing, before the new rules are seen or soon after.
	servertest.Eventually(t, "the new rules are in force", func() bool {
		_, _, body := servertest.Get(t, "http://"+addr+"/api/v1/limit?hits=0&key=ada")
		return strings.Contains(body, `"limit":500`)
	})
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}
