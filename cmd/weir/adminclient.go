package main

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

	"github.com/spf13/cobra"

	"github.com/weir-rl/weir/internal/door/auth"
	"github.com/weir-rl/weir/internal/util/human"
)

// adminClient asks the admin port of a running server.
type adminClient struct {
	address, tokenFile string // as given
	caFile, cert, key  string
	base               *url.URL
	token              string
	client             http.Client
}

// defaultAdmin is the default address of a server's admin port.
const defaultAdmin = "http://127.0.0.1:6070"

// flags adds --server and --token-file.
func (c *adminClient) flags(cmd *cobra.Command, address string) {
	cmd.PersistentFlags().StringVar(&c.address, "server", address, "URL of the admin port of a running server, such as "+defaultAdmin+" or unix:/path")
	cmd.PersistentFlags().StringVar(&c.tokenFile, "token-file", "", "file whose first line is the bearer token for --server, such as that of auth.tokens_file")
	cmd.PersistentFlags().StringVar(&c.caFile, "ca", "", "file of the authorities that --server's certificate is of, in PEM, if the system does not know them")
	cmd.PersistentFlags().StringVar(&c.cert, "cert", "", "file of the certificate to show to --server, in PEM; needs --cert-key")
	cmd.PersistentFlags().StringVar(&c.key, "cert-key", "", "file of the private key of --cert, in PEM")
	// Its earlier name, which weir tail has for something else.
	cmd.PersistentFlags().StringVar(&c.key, "key", "", "the same as --cert-key")
	_ = cmd.PersistentFlags().MarkHidden("key")
}

// completeFlag lets a shell complete the value of a flag.
func completeFlag(cmd *cobra.Command, name string, values []string) {
	complete := cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)
	if err := cmd.RegisterFlagCompletionFunc(name, complete); err != nil {
		panic(err) // there is no such flag
	}
}

// open checks the flags. It must come before do.
func (c *adminClient) open() error {
	u, err := url.Parse(c.address)
	path, socket := strings.CutPrefix(c.address, "unix:")
	if !socket {
		path = ""
	}
	if socket && path != "" {
		u, err = &url.URL{Scheme: "http", Host: "localhost"}, nil
		if c.caFile != "" || c.cert != "" {
			u.Scheme = "https"
		}
	}
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return usageError(fmt.Errorf("--server %q: expected the URL of an admin port, such as %s, or unix: and the path of its socket", c.address, defaultAdmin))
	}
	config, err := c.tls()
	if err != nil {
		return usageError(err)
	}
	if socket && config != nil {
		config = atSocket(config)
	}
	c.dial(u, path, config)
	if c.tokenFile != "" {
		tokens, err := auth.ReadTokens(c.tokenFile)
		if err != nil {
			return usageError(fmt.Errorf("--token-file: %w", err))
		}
		c.token = tokens[0].Text
	}
	return nil
}

// dial makes c ask at u, through a socket if that is not empty.
func (c *adminClient) dial(u *url.URL, socket string, config *tls.Config) {
	c.base = u
	c.client.Timeout = 10 * time.Second
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = config
	if socket != "" {
		transport.Proxy = nil
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}
	}
	c.client.Transport = transport
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
func (c *adminClient) tls() (*tls.Config, error) {
	if c.caFile == "" && c.cert == "" && c.key == "" {
		return nil, nil
	}
	config := new(tls.Config)
	if c.caFile != "" {
		data, err := os.ReadFile(c.caFile)
		if err != nil {
			return nil, fmt.Errorf("--ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(data) {
			return nil, fmt.Errorf("--ca: %s holds no certificate", c.caFile)
		}
	}
	if (c.cert == "") != (c.key == "") {
		return nil, errors.New("--cert and --cert-key: give both, or none")
	}
	if c.cert != "" {
		pair, err := tls.LoadX509KeyPair(c.cert, c.key)
		if err != nil {
			return nil, fmt.Errorf("--cert and --cert-key: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// name is the server as the user named it, without a password.
func (c *adminClient) name() string {
	if strings.HasPrefix(c.address, "unix:") {
		return c.address
	}
	return c.base.Redacted()
}

// send asks, and returns the answer with up to most bytes of its body, which is closed.
func (c *adminClient) send(ctx context.Context, method, path string, in any, most int64) (*http.Response, []byte, error) {
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
	answer, err := c.client.Do(r)
	if err != nil {
		return nil, nil, err
	}
	defer answer.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(answer.Body, most))
	return answer, raw, err
}

// stranger is the error for an answer that does not come from an admin API. It quotes the answer.
func (c *adminClient) stranger(answer *http.Response, body []byte) error {
	// net/http writes the status into the body, too
	said := strings.TrimPrefix(firstLine(body), answer.Status+": ")
	switch {
	case c.base.Scheme == "http" && (strings.Contains(said, "speaks TLS") || strings.Contains(said, "HTTPS server")):
		return fmt.Errorf("%s speaks TLS: write https:// in place of http://, and name the authorities of its "+
			"certificate with --ca if the system does not know them", c.name())
	case said != "" && said != http.StatusText(answer.StatusCode):
		said = ": " + said
	default:
		said = ""
	}
	return fmt.Errorf("%s answered %s%s; is it the admin port of a weir server?", c.name(), human.Printable(answer.Status), said)
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

// do asks, and decodes the answer into out unless that is nil. A refusal is an error in the
// server's own words.
func (c *adminClient) do(ctx context.Context, method, path string, in, out any) error {
	answer, raw, err := c.send(ctx, method, path, in, 64<<20)
	switch {
	case answer == nil && err != nil:
		return fmt.Errorf("%s cannot be reached: %w", c.name(), err)
	case err != nil:
		return fmt.Errorf("%s: %w", c.name(), err)
	}
	if answer.StatusCode >= 300 {
		var problem struct{ Title, Detail string }
		if json.Unmarshal(raw, &problem) == nil && problem.Detail != "" {
			return errors.New(human.PrintableLines(problem.Detail))
		}
		return c.stranger(answer, raw)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("%s answered with something else than JSON: is it the admin port of a weir server?", c.name())
	}
	return nil
}
