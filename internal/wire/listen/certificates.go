package listen

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// CertificateFiles name the PEM files for TLS.
type CertificateFiles struct {
	// pairs: the certificate with its intermediates, and its private key. The first is for clients
	// that name no server
	Cert, Key []string
	// certificate authorities of clients; "" means that clients show no certificates
	ClientCA   string
	MinVersion uint16 // 0 means tls.VersionTLS12
	Logger     *slog.Logger
}

// Certificates are the certificates of this server, which follow their files. Safe for concurrent
// use.
type Certificates struct {
	files   CertificateFiles
	current atomic.Pointer[generation]

	mu       sync.Mutex
	seen     [][]byte // the files' contents at the last look
	told     bool     // a fault in these contents has been logged
	failure  error    // why that is not in force; nil if it is
	failures uint64
	loads    uint64
}

// generation is one state of the files. Immutable.
type generation struct {
	pairs    []tls.Certificate
	clientCA *x509.CertPool
	contents [][]byte
}

// maxPEM bounds a file.
const maxPEM = 4 << 20

// LoadCertificates reads the files.
func LoadCertificates(files CertificateFiles) (*Certificates, error) {
	if files.Logger == nil {
		files.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Certificates{files: files}
	contents, err := c.read()
	if err != nil {
		return nil, err
	}
	g, err := c.parse(contents)
	if err != nil {
		return nil, err
	}
	c.install(g)
	return c, nil
}

// names lists the files in the order of their contents.
func (c *Certificates) names() []string {
	var names []string
	for i := range c.files.Cert {
		names = append(names, c.files.Cert[i], c.files.Key[i])
	}
	if c.files.ClientCA != "" {
		names = append(names, c.files.ClientCA)
	}
	return names
}

func (c *Certificates) read() ([][]byte, error) {
	if len(c.files.Cert) == 0 || len(c.files.Cert) != len(c.files.Key) {
		return nil, fmt.Errorf(
			"tls.key: has %d files, and tls.cert %d; each certificate needs its key, in the same order", len(
				c.files.Key), len(c.files.Cert))
	}
	var contents [][]byte
	for _, name := range c.names() {
		f, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("tls: %w", err)
		}
		b, err := io.ReadAll(io.LimitReader(f, maxPEM))
		_ = f.Close()
		if err != nil {
			return nil, fmt.Errorf("tls: %w", err)
		}
		contents = append(contents, b)
	}
	return contents, nil
}

func (c *Certificates) parse(contents [][]byte) (*generation, error) {
	g := &generation{contents: contents}
	for i := range c.files.Cert {
		pair, err := tls.X509KeyPair(contents[2*i], contents[2*i+1])
		if err != nil {
			return nil, fmt.Errorf("tls: %s and %s are no pair of a certificate and its private key: %w",
				c.files.Cert[i], c.files.Key[i], err)
		}
		g.pairs = append(g.pairs, pair)
	}
	if c.files.ClientCA != "" {
		g.clientCA = x509.NewCertPool()
		if !g.clientCA.AppendCertsFromPEM(contents[len(contents)-1]) {
			return nil, fmt.Errorf("tls.client_ca: %s holds no certificate", c.files.ClientCA)
		}
	}
	return g, nil
}

// install puts g in force. It needs mu, once c is shared.
func (c *Certificates) install(g *generation) {
	c.current.Store(g)
	c.seen, c.failure, c.told = g.contents, nil, false
	c.loads++
	for i, pair := range g.pairs {
		if left := time.Until(pair.Leaf.NotAfter); left < 0 {
			c.files.Logger.Warn("a certificate has expired: clients will refuse it", "file", c.files.Cert[i],
				"expired", pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
		} else if left < 72*time.Hour {
			c.files.Logger.Warn("a certificate expires soon", "file", c.files.Cert[i],
				"expires", pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
		}
	}
}

// Reload reads the files again. Errors in them are returned and logged; the previous certificates
// then stay in force.
func (c *Certificates) Reload() error { return c.look(true) }

// followEvery is how often the contents of the files are compared. Neither file times nor events
// show every kind of replacement, such as the changed link of a folder mounted by Kubernetes.
const followEvery = 2 * time.Second

// Run follows the files until ctx ends.
func (c *Certificates) Run(ctx context.Context) {
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			_ = c.look(false) // logged
		}
	}
}

// look loads the contents of the files. An error counts only after two looks, since a certificate
// and its key may be replaced one after the other; if somebody asked for the reload it counts at
// once.
func (c *Certificates) look(asked bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	contents, err := c.read()
	if err == nil && equal(contents, c.current.Load().contents) {
		c.seen, c.failure, c.told = contents, nil, false
		return nil
	}
	var g *generation
	if err == nil {
		g, err = c.parse(contents)
	}
	if err == nil {
		c.install(g)
		c.files.Logger.Info("certificates loaded", "files", c.files.Cert)
		return nil
	}
	again := equal(contents, c.seen)
	if c.seen = contents; !again && !asked {
		c.told = false
		return err
	}
	c.failure = err
	if !c.told || asked {
		c.told = true
		c.failures++
		c.files.Logger.Error("certificates not loaded, those from before stay in force", "error", err)
	}
	return err
}

func equal(a, b [][]byte) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}

// CertificateStatus is a reading of Certificates.
type CertificateStatus struct {
	Expires         time.Time // the first certificate that does
	Loads, Failures uint64
	Err             error // why the contents of the files are not in force; nil if they are
}

// Status reads how things stand.
func (c *Certificates) Status() CertificateStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := CertificateStatus{Loads: c.loads, Failures: c.failures, Err: c.failure}
	for _, pair := range c.current.Load().pairs {
		if s.Expires.IsZero() || pair.Leaf.NotAfter.Before(s.Expires) {
			s.Expires = pair.Leaf.NotAfter
		}
	}
	return s
}

// Server returns a function for Options.TLS. protocols are offered by ALPN; without any there is no
// ALPN. clients makes it refuse clients without a certificate of CertificateFiles.ClientCA.
//
// Each state of the files has its own configuration, so that no session that began under other
// certificates or authorities can be resumed: a client's certificate is verified only in a full
// handshake.
func (c *Certificates) Server(protocols []string, clients bool) func() *tls.Config {
	type made struct {
		of     *generation
		config *tls.Config
	}
	var last atomic.Pointer[made]
	var mu sync.Mutex
	return func() *tls.Config {
		g := c.current.Load()
		if m := last.Load(); m != nil && m.of == g {
			return m.config
		}
		mu.Lock()
		defer mu.Unlock()
		g = c.current.Load()
		if m := last.Load(); m != nil && m.of == g {
			return m.config
		}
		config := &tls.Config{
			Certificates: g.pairs,
			NextProtos:   protocols,
			MinVersion:   cmp.Or(c.files.MinVersion, tls.VersionTLS12),
		}
		if clients {
			config.ClientCAs, config.ClientAuth = g.clientCA, tls.RequireAndVerifyClientCert
			if g.clientCA == nil {
				// an empty pool admits nobody; nil would mean the authorities of the system
				config.ClientCAs = x509.NewCertPool()
			}
		}
		last.Store(&made{g, config})
		return config
	}
}
