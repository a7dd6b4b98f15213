// Package client asks the admin port of a running server. Begin with Open.
package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/weir-rl/weir/internal/door/auth"
	"github.com/weir-rl/weir/internal/util/human"
)

// Options say which server to ask, and how. All but Address may be empty.
type Options struct {
	Address   string // the URL of an admin port, its host and port, or unix: and the path of its socket
	TokenFile string // its first line is the bearer token
	CAFile    string // authorities of the server's certificate, in PEM
	CertFile  string // a certificate to show, and its private key
	KeyFile   string
}

// Client asks one server. Safe for concurrent use.
type Client struct {
	address string // as given
	base    *url.URL
	token   string
	http    http.Client
}

// Default is the default address of a server's admin port.
const Default = "http://127.0.0.1:6070"

// Open checks the options, and reads the files that they name. It does not connect yet.
func Open(o Options) (*Client, error) {
	address := o.Address
	host, port, err := net.SplitHostPort(address)
	if err == nil && port != "" && host != "unix" && !strings.ContainsAny(address, "/@") {
		if host == "" {
			host = "127.0.0.1" // an address to listen on, as in listen.admin
		}
		address = "http://" + net.JoinHostPort(host, port)
	}
	u, err := url.Parse(address)
	path, socket := strings.CutPrefix(o.Address, "unix:")
	if !socket {
		path = ""
	}
	if socket && path != "" {
		u, err = &url.URL{Scheme: "http", Host: "localhost"}, nil
		if o.CAFile != "" || o.CertFile != "" {
			u.Scheme = "https"
		}
	}
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf(
			"--server %q: expected the URL of an admin port, such as %s, its host:port, or unix: and the path of its socket",
			o.Address, Default)
	}
	config, err := o.tls()
	if err != nil {
		return nil, err
	}
	if socket && config != nil {
		config = atSocket(config)
	}
	c := At(o.Address, u, path, config)
	if o.TokenFile != "" {
		tokens, err := auth.ReadTokens(o.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("--token-file: %w", err)
		}
		c.token = tokens[0].Text
	}
	return c, nil
}

// At returns a client that asks at u, through a unix socket if that is not empty, and calls the
// server address.
func At(address string, u *url.URL, socket string, config *tls.Config) *Client {
	c := &Client{address: address, base: u}
	c.Patience(10 * time.Second)
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = config
	if socket != "" {
		transport.Proxy = nil
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}
	}
	c.http.Transport = transport
	return c
}

// Patience bounds how long an answer may take; 0 is no bound but the context's. Streams have none.
func (c *Client) Patience(d time.Duration) { c.http.Timeout = d }

// Direct makes c ask the server itself, until the context ends. Through a proxy of the environment,
// a health check would show the health of that proxy.
func (c *Client) Direct() {
	c.Patience(0)
	c.http.Transport.(*http.Transport).Proxy = nil
}

// atSocket adapts a TLS configuration to a unix socket. The path identifies the server, so its
// certificate must come from a trusted authority but may be for any name.
func atSocket(config *tls.Config) *tls.Config {
	config = config.Clone()
	config.InsecureSkipVerify = true // VerifyConnection asks for all but the name
	config.VerifyConnection = func(s tls.ConnectionState) error {
		o := x509.VerifyOptions{Roots: config.RootCAs, Intermediates: x509.NewCertPool()}
		for _, c := range s.PeerCertificates[1:] {
			o.Intermediates.AddCert(c)
		}
		_, err := s.PeerCertificates[0].Verify(o)
		return err
	}
	return config
}

// tls returns the configuration with the trusted authorities and the client certificate; nil if the
// defaults will do.
func (o *Options) tls() (*tls.Config, error) {
	if o.CAFile == "" && o.CertFile == "" && o.KeyFile == "" {
		return nil, nil
	}
	config := new(tls.Config)
	if o.CAFile != "" {
		data, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("--ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(data) {
			return nil, fmt.Errorf("--ca: %s holds no certificate", o.CAFile)
		}
	}
	if (o.CertFile == "") != (o.KeyFile == "") {
		return nil, errors.New("--cert and --cert-key: give both, or none")
	}
	if o.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("--cert and --cert-key: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// Name is the server as the user named it, without a password.
func (c *Client) Name() string {
	if strings.HasPrefix(c.address, "unix:") {
		return c.address
	}
	return c.base.Redacted()
}

// Send asks, and returns the answer with up to most bytes of its body, which is closed.
func (c *Client) Send(ctx context.Context, method, path string, in any, most int64) (*http.Response, []byte, error) {
	var body io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return nil, nil, err
		}
		body = bytes.NewReader(raw)
	}
	r, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(c.base.String(), "/")+path, body)
	if err != nil {
		return nil, nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	answer, err := c.http.Do(r)
	if err != nil {
		return nil, nil, err
	}
	defer answer.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(answer.Body, most))
	return answer, raw, err
}

// Stranger is the error for an answer that does not come from an admin API. It quotes the answer.
func (c *Client) Stranger(answer *http.Response, body []byte) error {
	// net/http writes the status into the body, too
	said := strings.TrimPrefix(firstLine(body), answer.Status+": ")
	switch {
	case c.base.Scheme == "http" && (strings.Contains(said, "speaks TLS") || strings.Contains(said, "HTTPS server")):
		return fmt.Errorf("%s speaks TLS: write https:// in place of http://, and name the authorities of its "+
			"certificate with --ca if the system does not know them", c.Name())
	case said != "" && said != http.StatusText(answer.StatusCode):
		said = ": " + said
	default:
		said = ""
	}
	return fmt.Errorf("%s answered %s%s; is it the admin port of a weir server?", c.Name(),
		human.Printable(answer.Status), said)
}

// firstLine is the beginning of a text that a server has sent, harmless for a terminal; "" if it is
// no plain text.
func firstLine(body []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(body[:min(len(body), 200)])), "\n")
	if !utf8.ValidString(line) || strings.HasPrefix(line, "<") {
		return ""
	}
	return human.Printable(strings.TrimSpace(line))
}

// Do asks, and decodes the answer into out unless that is nil. A refusal is an error in the
// server's own words.
func (c *Client) Do(ctx context.Context, method, path string, in, out any) error {
	answer, raw, err := c.Send(ctx, method, path, in, 64<<20)
	switch {
	case answer == nil && err != nil:
		return fmt.Errorf("%s cannot be reached: %w", c.Name(), err)
	case err != nil:
		return fmt.Errorf("%s: %w", c.Name(), err)
	}
	if answer.StatusCode >= 300 {
		var problem struct{ Title, Detail string }
		if json.Unmarshal(raw, &problem) == nil && problem.Detail != "" {
			return errors.New(human.PrintableLines(problem.Detail))
		}
		return c.Stranger(answer, raw)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("%s answered with something else than JSON: is it the admin port of a weir server?", c.Name())
	}
	return nil
}
