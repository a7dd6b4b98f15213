package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
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
	ca := newAuthority(t)
	files := TLS{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "client.pem"), Key: filepath.Join(dir, "client.key")}
	cert, key := filepath.Join(dir, "server.pem"), filepath.Join(dir, "server.key")
	writePEM(t, files.CA, "CERTIFICATE", ca.cert.Raw)
	ca.issue(t, cert, key, x509.ExtKeyUsageServerAuth)
	ca.issue(t, files.Cert, files.Key, x509.ExtKeyUsageClientAuth)
	client, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	return start(t, kind{
		config: func(port int) []string {
			return []string{
				"port 0", fmt.Sprint("tls-port ", port), "tls-auth-clients no",
				fmt.Sprintf("tls-ca-cert-file %q", files.CA), fmt.Sprintf("tls-cert-file %q", cert), fmt.Sprintf("tls-key-file %q", key),
			}
		},
		tls: &tls.Config{ServerName: "localhost", RootCAs: roots, Certificates: []tls.Certificate{client}},
	}, options), files
}

// authority is a certificate authority.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{key: newKey(t), cert: template("redistest CA")}
	a.cert.IsCA, a.cert.BasicConstraintsValid, a.cert.KeyUsage = true, true, x509.KeyUsageCertSign
	a.cert = a.sign(t, a.cert, a.key)
	return a
}

// issue writes a certificate and its key to files.
func (a *authority) issue(t testing.TB, certFile, keyFile string, usage x509.ExtKeyUsage) {
	t.Helper()
	key := newKey(t)
	c := template("redistest")
	c.KeyUsage, c.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{usage}
	c.DNSNames, c.IPAddresses = []string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, keyFile, "PRIVATE KEY", der)
	writePEM(t, certFile, "CERTIFICATE", a.sign(t, c, key).Raw)
}

func (a *authority) sign(t testing.TB, c *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

func template(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
	}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func writePEM(t testing.TB, file, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}
