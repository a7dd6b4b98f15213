//go:build unix

package servertest

import (
	"net"
	"os/exec"
	"strings"
	"testing"
)

// RedisCLI runs redis-cli against a door, and returns what it prints, in one line.
func RedisCLI(t *testing.T, addr string, args ...string) string {
	t.Helper()
	cli, err := exec.LookPath("redis-cli")
	if err != nil {
		t.Skip("redis-cli is not installed; on Debian: apt-get install redis-tools")
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), cli,
		append([]string{"-h", host, "-p", port, "--raw"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("redis-cli %q: %v\n%s", args, err, out)
	}
	return strings.Join(strings.Fields(string(out)), " ")
}
