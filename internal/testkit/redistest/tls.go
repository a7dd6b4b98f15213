package redistest

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/testproc"
)

// TLS holds the PEM files for a client of a server with TLS.
type TLS struct {
	CA        string // the signer of the server's certificate, which is for 127.0.0.1 and localhost
	Cert, Key string // a certificate that the server takes from clients
}

// StartTLS starts a server that speaks only TLS, with new certificates. It does not ask clients for
// a certificate, unless an option is "tls-auth-clients yes".
func StartTLS(t testing.TB, options ...string) (*Server, TLS) {
	t.Helper()
	dir := t.TempDir()
	ca := testproc.NewAuthority(t)
	files := TLS{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "client.pem"),
		Key: filepath.Join(dir, "client.key")}
	cert, key := filepath.Join(dir, "server.pem"), filepath.Join(dir, "server.key")
	ca.Write(t, files.CA)
	ca.IssueServer(t, cert, key)
	ca.IssueClient(t, files.Cert, files.Key)
	client, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.Cert)
	return start(t, kind{
		config: func(port int) []string {
			return []string{
				"port 0", fmt.Sprint("tls-port ", port), "tls-auth-clients no",
				fmt.Sprintf("tls-ca-cert-file %q", files.CA), fmt.Sprintf("tls-cert-file %q", cert),
				fmt.Sprintf("tls-key-file %q", key),
			}
		},
		needs: "TLS",
		tls:   &tls.Config{ServerName: "localhost", RootCAs: roots, Certificates: []tls.Certificate{client}},
	}, options), files
}
