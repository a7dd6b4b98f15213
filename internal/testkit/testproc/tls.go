package testproc

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"testing"
	"time"
)

// Authority is a certificate authority.
type Authority struct {
	Cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes one.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{key: newKey(t), Cert: template("Weir test CA")}
	a.Cert.IsCA, a.Cert.BasicConstraintsValid, a.Cert.KeyUsage = true, true, x509.KeyUsageCertSign
	a.Cert = a.sign(t, a.Cert, a.key)
	return a
}

// Write writes its certificate to a file.
func (a *Authority) Write(t testing.TB, file string) {
	t.Helper()
	writePEM(t, file, "CERTIFICATE", a.Cert.Raw)
}

// IssueServer writes a certificate for a server at 127.0.0.1 or localhost, and its key, to files.
func (a *Authority) IssueServer(t testing.TB, certFile, keyFile string) {
	t.Helper()
	a.issue(t, certFile, keyFile, x509.ExtKeyUsageServerAuth)
}

// IssueClient writes a certificate for a client, and its key, to files.
func (a *Authority) IssueClient(t testing.TB, certFile, keyFile string) {
	t.Helper()
	a.issue(t, certFile, keyFile, x509.ExtKeyUsageClientAuth)
}

func (a *Authority) issue(t testing.TB, certFile, keyFile string, usage x509.ExtKeyUsage) {
	t.Helper()
	key := newKey(t)
	c := template("Weir test")
	c.KeyUsage, c.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{usage}
	c.DNSNames, c.IPAddresses = []string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, keyFile, "PRIVATE KEY", der)
	writePEM(t, certFile, "CERTIFICATE", a.sign(t, c, key).Raw)
}

func (a *Authority) sign(t testing.TB, c *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, c, a.Cert, key.Public(), a.key)
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
