package servertest

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
)

// Standing is a clock that the test moves.
type Standing struct{ atomic.Int64 }

func (c *Standing) Now() int64 { return c.Load() }

func HaproxyPath(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("haproxy")
	if err != nil {
		t.Skip("haproxy is not installed; on Debian: apt-get install haproxy")
	}
	return path
}

// StartHAProxy starts one that asks the agent about the path and the X-Door of each request, and
// returns its address. The test is skipped where none can be started.
func StartHAProxy(t *testing.T, agent, upstream string) string {
	program := HaproxyPath(t)
	front, dir := "127.0.0.1:"+FreePort(t), t.TempDir()
	for name, text := range map[string]string{
		"haproxy.cfg": `
defaults
    mode http
    timeout connect 10s
    timeout client 1m
    timeout server 1m
frontend www
    bind ` + front + `
    filter spoe engine rl config ` + dir + `/spoe.conf
    http-request return status 500 unless { var(txn.rl.deny) -m found }
    http-request return status 429 if { var(txn.rl.deny) -m bool }
    http-after-response set-header Retry-After "%[var(txn.rl.retry_after)]" if { var(txn.rl.retry_after) -m found }
    http-after-response set-header X-RateLimit-Remaining "%[var(txn.rl.remaining)]" if { var(txn.rl.remaining) -m found }
    http-after-response set-header X-RateLimit-Soft exceeded if { var(txn.rl.soft) -m bool }
    default_backend app
backend app
    server app ` + upstream + `
backend weir
    mode tcp
    server weir ` + agent + `
`,
		"spoe.conf": `
[rl]
spoe-agent weir
    messages check
    option var-prefix rl
    timeout hello 10s
    timeout idle 1m
    timeout processing 10s
    use-backend weir
spoe-message check
    args path=path door=req.hdr(x-door)
    event on-frontend-http-request
`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out := NewOutput()
	cmd := exec.Command(program, "-db", "-f", filepath.Join(dir, "haproxy.cfg"))
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	Eventually(t, "haproxy takes connections", func() bool {
		select {
		case <-ended:
			t.Skipf("%s does not start:\n%s", program, out)
		default:
		}
		conn, err := net.Dial("tcp", front)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return front
}
