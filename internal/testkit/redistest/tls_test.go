package redistest

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/patience"
)

func TestTLS(t *testing.T) {
	t.Parallel()
	handshake := func(s *Server, files TLS, certs ...tls.Certificate) error {
		t.Helper()
		pem, err := os.ReadFile(files.CA)
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			t.Fatalf("no certificate in %s", pem)
		}
		c, err := tls.Dial("tcp", s.Addr(), &tls.Config{RootCAs: roots, Certificates: certs})
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(patience.End(t))
		if _, err := c.Write([]byte("PING\r\n")); err != nil {
			return err
		}
		_, err = c.Read(make([]byte, 100)) // where a missing client certificate shows in TLS 1.3
		return err
	}
	s, files := StartTLS(t)
	if !strings.HasPrefix(s.URL(), "rediss://127.0.0.1:") {
		t.Error(s.URL())
	}
	if err := handshake(s, files); err != nil {
		t.Error(err)
	}
	if got := s.Do("PING"); got != "PONG" {
		t.Error(got)
	}

	s, files = StartTLS(t, "tls-auth-clients yes")
	if err := handshake(s, files); err == nil {
		t.Error("a client without a certificate is let in")
	}
	cert, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		t.Fatal(err)
	}
	if err := handshake(s, files, cert); err != nil {
		t.Error(err)
	}
	s.Restart()
}
