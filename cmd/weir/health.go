package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func newHealthCommand(env []string) *cobra.Command {
	var server string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Ask a running server whether it wants requests",
		Long: `Asks a running server whether it wants requests, prints its answer, and exits with 0 if it does and with 1 if not:
for health checks of containers, which need no shell and no curl then.

Without --server it asks the server that the configuration here describes (weir.yaml, WEIR_… variables), at its
admin port, or if that is closed at its HTTP port.`,
		Example: "  weir health\n  weir health --server http://127.0.0.1:9090",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if timeout <= 0 {
				return usageError(errors.New("--timeout: must be above 0"))
			}
			var t *healthTarget
			var err error
			if server != "" {
				t, err = healthOf(server)
			} else {
				var c *config
				if c, err = loadConfig(cmd.Flags(), env); err == nil {
					t, err = healthOfConfig(c)
				}
			}
			if err != nil {
				return usageError(err)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			answer, err := t.ask(ctx)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(answer)
			return err
		},
	}
	addConfigFlag(cmd.Flags())
	cmd.Flags().StringVar(&server, "server", "", "URL of the admin port of a running server, such as "+defaultAdmin)
	cmd.Flags().DurationVar(&timeout, "timeout", 3*time.Second, "how long to wait for the answer")
	return cmd
}

// addConfigFlag adds the flag that names the configuration file.
func addConfigFlag(flags *pflag.FlagSet) {
	flags.String("config", "", "configuration file; ./weir.yaml if it is there (WEIR_CONFIG)")
}

// healthTarget is whom to ask.
type healthTarget struct {
	url    string
	socket string // a unix socket to ask at, if not empty
	tls    *tls.Config
}

// healthOf asks at a URL that somebody gave.
func healthOf(server string) (*healthTarget, error) {
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("--server %q: expected the URL of an admin port, such as %s", server, defaultAdmin)
	}
	return &healthTarget{url: strings.TrimSuffix(u.String(), "/") + "/readyz"}, nil
}

// healthOfConfig asks the server that c describes, on this machine.
func healthOfConfig(c *config) (*healthTarget, error) {
	door, address, path := "admin", c.listen.admin, "/readyz"
	if address == "" {
		door, address, path = "http", c.listen.http, "/healthcheck"
	}
	if address == "" {
		return nil, errors.New("neither listen.admin nor listen.http is open, so that nobody can be asked; name a server with --server URL")
	}
	if slices.Contains(c.proxyProtocol.doors, door) {
		return nil, fmt.Errorf("listen.%s takes only connections that begin with a PROXY protocol header; leave it out of proxy_protocol.doors, or do without this check", door)
	}
	t := &healthTarget{}
	scheme, host := "http", ""
	if socket, ok := strings.CutPrefix(address, "unix:"); ok {
		t.socket, host = socket, "localhost"
	} else {
		name, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, fmt.Errorf("listen.%s: %w", door, err)
		}
		if port == "0" {
			return nil, fmt.Errorf("listen.%s takes a free port, which nobody here can know; name the server with --server URL", door)
		}
		switch name { // there may be no file or server to ask what localhost is
		case "", "0.0.0.0":
			name = "127.0.0.1"
		case "::":
			name = "::1"
		}
		host = net.JoinHostPort(name, port)
	}
	if len(c.tls.cert) > 0 && slices.Contains(c.tls.doors, door) {
		var err error
		if t.tls, err = pinned(c.tls.cert); err != nil {
			return nil, fmt.Errorf("tls.cert: %w", err)
		}
		scheme = "https"
		if c.tls.clientCA != "" && slices.Contains(c.tls.clientDoors, door) {
			return nil, fmt.Errorf("listen.%s demands certificates of its clients; leave it out of tls.client_doors, or do without this check", door)
		}
	}
	t.url = scheme + "://" + host + path
	return t, nil
}

// pinned believes a server that shows the first certificate of one of files, whatever names that is for: it is our own.
func pinned(files []string) (*tls.Config, error) {
	var own [][]byte
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		block, _ := pem.Decode(data)
		if block == nil || block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("%s does not begin with a certificate in PEM", file)
		}
		own = append(own, block.Bytes)
	}
	return &tls.Config{
		InsecureSkipVerify: true, // VerifyConnection asks for more: that very certificate
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 || !slices.ContainsFunc(own, func(c []byte) bool { return bytes.Equal(c, s.PeerCertificates[0].Raw) }) {
				return errors.New("the server shows another certificate than that of tls.cert")
			}
			return nil
		},
	}, nil
}

// ask returns what a server that wants requests says; an error of one that wants none, or cannot be reached.
func (t *healthTarget) ask(ctx context.Context) ([]byte, error) {
	transport := &http.Transport{TLSClientConfig: t.tls, DisableKeepAlives: true}
	if t.socket != "" {
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", t.socket)
		}
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, t.url, nil)
	if err != nil {
		return nil, err
	}
	answer, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		return nil, fmt.Errorf("not healthy: %w", err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, 4<<10))
	if err != nil {
		return nil, fmt.Errorf("not healthy: %w", err)
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("not healthy: %s: %s", answer.Status, bytes.TrimSpace(body))
	}
	return body, nil
}
