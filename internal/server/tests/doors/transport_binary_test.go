//go:build unix

package doors

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/certtest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
	"github.com/weir-rl/weir/internal/testkit/testproc"
)

// TestTransportBinary: the program as it is installed, on a unix socket and with TLS, comes back
// after it was killed, takes new certificates, and does not take the socket of one that runs.
func TestTransportBinary(t *testing.T) {
	t.Parallel()
	program, dir := servertest.BuiltProgram(t), testproc.SocketDir(t)
	servertest.WriteRules(t, filepath.Join(dir, "rules.yaml"), servertest.DailyRules)
	ca := certtest.New(t, "ca")
	names := []string{filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")}
	cert, key := ca.Issue("first", 0, "127.0.0.1")
	certtest.Write(t, names, cert, key)
	args := []string{"serve", "--rules=rules.yaml", "--listen-http=unix:http.sock", "--listen-grpc=off",
		"--listen-resp=off", "--tls-cert=cert.pem", "--tls-key=key.pem", "--tls-doors=admin"}
	socket := filepath.Join(dir, "http.sock")
	healthy := func() int {
		client := servertest.ClientOf(t, false, nil, func() (net.Conn, error) { return net.Dial("unix", socket) })
		status, _ := servertest.Ask(t, client, "GET", "http://weir/healthcheck", "")
		return status
	}
	p := servertest.Launch(t, program, dir, args...)
	p.Addr("admin")
	if status := healthy(); status != 200 {
		t.Errorf("on a unix socket: %d", status)
	}
	p.Signal(syscall.SIGKILL)
	p.Wait()
	if _, err := os.Lstat(socket); err != nil {
		t.Fatalf("there is nothing stale to replace: %v", err)
	}
	p = servertest.Launch(t, program, dir, args...)
	admin := p.Addr("admin")
	if status := healthy(); status != 200 {
		t.Errorf("after it was killed: %d", status)
	}
	other := servertest.Launch(t, program, dir, args...)
	if status := other.Wait(); status != 1 || !strings.Contains(other.Stderr.String(), "is in use") {
		t.Errorf("a second one ended with %d\n%s", status, other.Stderr)
	}
	if status := healthy(); status != 200 {
		t.Errorf("beside a second one: %d", status)
	}
	shown := func() string {
		client := servertest.ClientOf(t, true, ca.Client(""), nil)
		r, err := client.Get("https://" + admin + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		if r.StatusCode != http.StatusOK || r.ProtoMajor != 2 {
			t.Errorf("%s %s", r.Proto, r.Status)
		}
		return r.TLS.PeerCertificates[0].Subject.CommonName
	}
	if got := shown(); got != "first" {
		t.Errorf("the %s certificate", got)
	}
	cert, key = ca.Issue("second", 0, "127.0.0.1")
	certtest.Write(t, names, cert, key)
	p.Stderr.Await(t, "certificates loaded") // without a signal
	if got := shown(); got != "second" {
		t.Errorf("the %s certificate", got)
	}
	p.Signal(syscall.SIGTERM)
	if status := p.Wait(); status != 0 {
		t.Errorf("exit status %d\n%s", status, p.Stderr)
	}
	if _, err := os.Lstat(socket); err == nil {
		t.Error("the socket is left")
	}
}
