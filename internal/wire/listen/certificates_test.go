package listen

import (
	"bytes"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/internal/testkit/certtest"
	"github.com/weir-rl/weir/internal/testkit/patience"
)

// serial returns which certificate a server shows to a client that asks for name, or why the
// handshake failed. A session is resumed if client has a cache.
func serial(t *testing.T,
	config func() *tls.Config, client *tls.Config, name string) (cn string, resumed bool, err error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	failed := make(chan error, 1)
	go func() {
		b, err := l.Accept()
		if err != nil {
			failed <- err
			return
		}
		defer b.Close()
		_ = b.SetDeadline(patience.End(t))
		s := tls.Server(b, config())
		if err = s.Handshake(); err == nil {
			_, err = s.Write([]byte("x")) // after the session's ticket
		}
		failed <- err
	}()
	a := dial(t, l.Addr().String())
	defer a.Close()
	client = client.Clone()
	client.ServerName = name
	c := tls.Client(a, client)
	_, err = c.Read(make([]byte, 1))
	if err != nil {
		_ = a.Close()
	}
	if e := <-failed; e != nil {
		return "", false, e
	}
	if err != nil {
		return "", false, err
	}
	state := c.ConnectionState()
	return state.PeerCertificates[0].Subject.CommonName, state.DidResume, nil
}

// TestServerNames: of several pairs the one is shown that the client asks for, and else the first.
func TestServerNames(t *testing.T) {
	ca, dir := certtest.New(t, "ca"), t.TempDir()
	var files CertificateFiles
	for _, name := range []string{"one.example", "two.example"} {
		files.Cert = append(files.Cert, filepath.Join(dir, name+".pem"))
		files.Key = append(files.Key, filepath.Join(dir, name+".key"))
		cert, key := ca.Issue(name, 0, name, "both.example")
		certtest.Write(t, []string{filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key")}, cert, key)
	}
	c, err := LoadCertificates(files)
	if err != nil {
		t.Fatal(err)
	}
	client := ca.Client("")
	client.InsecureSkipVerify = true
	for name, want := range map[string]string{"one.example": "one.example", "two.example": "two.example",
		"both.example": "one.example", "other.example": "one.example", "": "one.example"} {
		if got, _, err := serial(t, c.Server(nil, false), client, name); err != nil || got != want {
			t.Errorf("%q: %q %v, want %q", name, got, err, want)
		}
	}
	client.MaxVersion = tls.VersionTLS11
	client.MinVersion = tls.VersionTLS10
	if _, _, err := serial(t, c.Server(nil, false), client, "one.example"); err == nil {
		t.Error("TLS 1.1 is spoken")
	}
	client.MinVersion, client.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if _, _, err := serial(t, c.Server(nil, false), client, "one.example"); err != nil {
		t.Errorf("TLS 1.2: %v", err)
	}
	files.MinVersion = tls.VersionTLS13
	if c, err = LoadCertificates(files); err != nil {
		t.Fatal(err)
	}
	if _, _, err := serial(t, c.Server(nil, false), client, "one.example"); err == nil {
		t.Error("TLS 1.2 is spoken, against min_version")
	}
}

// TestReload: files are followed however they are replaced. A fault in the new files leaves the old
// certificates in force, and is logged once, but not while a replacement is under way.
func TestReload(t *testing.T) {
	ca, dir := certtest.New(t, "ca"), t.TempDir()
	// As Kubernetes mounts a secret: a link to a folder with a link to another folder.
	version := func(n string, cert, key []byte) {
		t.Helper()
		if err := os.Mkdir(filepath.Join(dir, n), 0o700); err != nil {
			t.Fatal(err)
		}
		certtest.Write(t, []string{filepath.Join(dir, n, "cert"), filepath.Join(dir, n, "key")}, cert, key)
		if err := os.Symlink(n, filepath.Join(dir, "new")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "data")); err != nil {
			t.Fatal(err)
		}
	}
	issue := func(name string) (cert, key []byte) { return ca.Issue(name, 0, "weir") }
	version1, key1 := issue("1")
	version("v1", version1, key1)
	cert, key := filepath.Join(dir, "data", "cert"), filepath.Join(dir, "data", "key")
	var log bytes.Buffer
	c, err := LoadCertificates(CertificateFiles{Cert: []string{cert}, Key: []string{key},
		Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	config := c.Server(nil, false)
	shown := func() string {
		t.Helper()
		got, _, err := serial(t, config, ca.Client(""), "weir")
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	look := func(want string) {
		t.Helper()
		_ = c.look(false)
		if got := shown(); got != want {
			t.Errorf("certificate %q is in force, want %q\n%s", got, want, &log)
		}
	}
	look("1")
	two, key2 := issue("2")
	version("v2", two, key2)
	look("2")
	// In place, one file after the other.
	three, key3 := issue("3")
	certtest.Write(t, []string{cert}, three)
	look("2")
	if c.Status().Err != nil || strings.Contains(log.String(), "not loaded") {
		t.Errorf("told of a replacement that is under way: %v\n%s", c.Status().Err, &log)
	}
	certtest.Write(t, []string{key}, key3)
	look("3")
	// By renaming a file over it; then it is gone, then it is rubbish.
	four, key4 := issue("4")
	certtest.Write(t, []string{cert + "~", key + "~"}, four, key4)
	for _, name := range []string{cert, key} {
		if err := os.Rename(name+"~", name); err != nil {
			t.Fatal(err)
		}
	}
	look("4")
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		look("4")
	}
	if n := strings.Count(log.String(), "not loaded"); n != 1 || !errors.Is(c.Status().Err, os.ErrNotExist) ||
		c.Status().Failures != 1 {
		t.Errorf("told %d times, %+v\n%s", n, c.Status(), &log)
	}
	certtest.Write(t, []string{key}, []byte("rubbish"))
	for range 4 {
		look("4")
	}
	if n := strings.Count(log.String(), "not loaded"); n != 2 ||
		!strings.Contains(c.Status().Err.Error(), "are no pair") {
		t.Errorf("told %d times, %+v\n%s", n, c.Status(), &log)
	}
	if err := c.Reload(); err == nil || strings.Count(log.String(), "not loaded") != 3 {
		t.Errorf("asked for: %v\n%s", err, &log)
	}
	if strings.Contains(log.String(), "rubbish") {
		t.Errorf("a key is in the log:\n%s", &log)
	}
	// What was there before is good again without being loaded, and what is new is loaded.
	certtest.Write(t, []string{key}, key4)
	look("4")
	if c.Status().Err != nil {
		t.Errorf("%+v", c.Status())
	}
	five, key5 := issue("5")
	certtest.Write(t, []string{cert, key}, five, key5)
	if err := c.Reload(); err != nil || shown() != "5" {
		t.Errorf("asked for: %v, certificate %q", err, shown())
	}
}

// TestFollow: Run looks every few seconds.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := certtest.New(t, "ca")
		names := []string{filepath.Join(t.TempDir(), "cert"), filepath.Join(t.TempDir(), "key")}
		cert, key := ca.Issue("1", 48*time.Hour)
		certtest.Write(t, names, cert, key)
		c, err := LoadCertificates(CertificateFiles{Cert: names[:1], Key: names[1:]})
		if err != nil {
			t.Fatal(err)
		}
		go c.Run(t.Context())
		cert, key = ca.Issue("2", 24*time.Hour)
		certtest.Write(t, names, cert, key)
		before := c.Status()
		time.Sleep(3 * followEvery)
		synctest.Wait()
		if s := c.Status(); s.Loads != 2 || !s.Expires.Before(before.Expires) {
			t.Errorf("%+v, before %+v", s, before)
		}
	})
}

// TestClientAuthority: clients need a certificate of the authority that is in force, and no session
// survives its end.
func TestClientAuthority(t *testing.T) {
	ca, old, next := certtest.New(t, "ca"), certtest.New(t, "old"), certtest.New(t, "next")
	dir := t.TempDir()
	names := []string{filepath.Join(dir, "cert"), filepath.Join(dir, "key"), filepath.Join(dir, "clients")}
	cert, key := ca.Issue("server", 0, "weir")
	certtest.Write(t, names, cert, key, old.PEM)
	c, err := LoadCertificates(CertificateFiles{Cert: names[:1], Key: names[1:2], ClientCA: names[2]})
	if err != nil {
		t.Fatal(err)
	}
	config := c.Server(nil, true)
	client := func(of *certtest.Authority) *tls.Config {
		config := ca.Client("")
		if of != nil {
			config.GetClientCertificate = of.Client("ada").GetClientCertificate
		}
		config.ClientSessionCache = tls.NewLRUClientSessionCache(1)
		return config
	}
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		certtest.Write(t, names[2:], old.PEM)
		if err := c.Reload(); err != nil {
			t.Fatal(err)
		}
		ofOld, ofNext, ofNobody := client(old), client(next), client(nil)
		for _, config := range []*tls.Config{ofOld, ofNext, ofNobody} {
			config.MaxVersion = version
		}
		if _, _, err := serial(t, config, ofOld, "weir"); err != nil {
			t.Fatal(err)
		}
		if _, resumed, err := serial(t, config, ofOld, "weir"); err != nil || !resumed {
			t.Errorf("a session is not resumed: %v", err)
		}
		for _, other := range []*tls.Config{ofNext, ofNobody, ca.Client("")} {
			if _, _, err := serial(t, config, other, "weir"); err == nil {
				t.Error("somebody came in without a certificate of the authority")
			}
		}
		certtest.Write(t, names[2:], next.PEM)
		if err := c.Reload(); err != nil {
			t.Fatal(err)
		}
		if _, resumed, err := serial(t, config, ofOld, "weir"); err == nil {
			t.Errorf("a certificate of the authority from before is good still (session resumed: %v)", resumed)
		}
		if _, _, err := serial(t, config, ofNext, "weir"); err != nil {
			t.Errorf("the new authority: %v", err)
		}
	}
	// Without an authority nobody comes in, whatever the system believes.
	c, err = LoadCertificates(CertificateFiles{Cert: names[:1], Key: names[1:2]})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := serial(t, c.Server(nil, true), client(old), "weir"); err == nil {
		t.Error("without an authority somebody came in")
	}
}

// TestConcurrentReload: handshakes under way while files change get the one or the other.
func TestConcurrentReload(t *testing.T) {
	ca := certtest.New(t, "ca")
	names := []string{filepath.Join(t.TempDir(), "cert"), filepath.Join(t.TempDir(), "key")}
	cert, key := ca.Issue("0", 0, "weir")
	certtest.Write(t, names, cert, key)
	c, err := LoadCertificates(CertificateFiles{Cert: names[:1], Key: names[1:]})
	if err != nil {
		t.Fatal(err)
	}
	config, client := c.Server(nil, false), ca.Client("")
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 20 {
				if _, _, err := serial(t, config, client, "weir"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 10 {
		cert, key := ca.Issue("n", 0, "weir")
		certtest.Write(t, names, cert, key)
		if err := c.Reload(); err != nil {
			t.Error(err)
		}
	}
	all.Wait()
}

func TestCertificateErrors(t *testing.T) {
	ca, dir := certtest.New(t, "ca"), t.TempDir()
	cert, key := ca.Issue("a", 0)
	_, other := ca.Issue("b", 0)
	expired, expiredKey := ca.Issue("c", -2*time.Hour)
	name := func(s string) string { return filepath.Join(dir, s) }
	certtest.Write(t, []string{name("cert"), name("key"), name("other"), name("empty"), name("expired"),
		name("expiredkey")}, cert, key, other, nil, expired, expiredKey)
	for _, c := range []struct {
		cert, key, ca string
		want          string
	}{
		{"cert", "other", "", "are no pair"},
		{"cert", "absent", "", "absent"},
		{"key", "cert", "", "are no pair"},
		{"empty", "key", "", "are no pair"},
		{"cert", "key", "empty", "tls.client_ca: "},
		{"cert", "key", "absent", "absent"},
	} {
		files := CertificateFiles{Cert: []string{name(c.cert)}, Key: []string{name(c.key)}}
		if c.ca != "" {
			files.ClientCA = name(c.ca)
		}
		if _, err := LoadCertificates(files); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if _, err := LoadCertificates(CertificateFiles{Cert: []string{name("cert"), name("cert")}, Key: []string{name("key")}}); err == nil || !strings.Contains(err.Error(), "each certificate needs its key") {
		t.Errorf("a key too few: %v", err)
	}
	var log bytes.Buffer
	if _, err := LoadCertificates(CertificateFiles{Cert: []string{name("expired")}, Key: []string{name("expiredkey")}, Logger: slog.New(slog.NewTextHandler(&log, nil))}); err != nil || !strings.Contains(log.String(), "has expired") {
		t.Errorf("an expired certificate: %v %s", err, &log)
	}
}
