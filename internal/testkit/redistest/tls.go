package redistest

import (
	"crypto/tls"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/certtest"
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
	ca := certtest.New(t, "Weir test CA")
	files := TLS{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "client.pem"),
		Key: filepath.Join(dir, "client.key")}
	cert, key := filepath.Join(dir, "server.pem"), filepath.Join(dir, "server.key")
	ca.Write(files.CA)
	ca.IssueTo(cert, key)
	ca.IssueTo(files.Cert, files.Key)
	client, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		t.Fatal(err)
	}
	roots := ca.Pool()
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
