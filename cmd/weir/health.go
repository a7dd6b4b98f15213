package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-rl/weir/internal/admin/client"
	"github.com/weir-rl/weir/internal/server"
	"github.com/weir-rl/weir/internal/server/settings"
	"github.com/weir-rl/weir/internal/util/human"
)

// healthInfo is the output of weir health as JSON.
type healthInfo struct {
	Server  string `json:"server"`
	Healthy bool   `json:"healthy"`
	Message string `json:"message"` // the server's words, or why it is not healthy
}

func newHealthCommand(env []string) *cobra.Command {
	var port adminClient
	var timeout time.Duration
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Ask a running server whether it wants requests",
		Long: `Asks a running server whether it wants requests, prints its answer, and exits with 0 if it does and with 1 if not:
for health checks of containers, which need no shell and no curl then.

Without --server it asks the server that the configuration here describes (weir.yaml, WEIR_… variables), at its
admin port, or if that is closed at its HTTP port.`,
		Example: "  weir health\n  weir health --server http://127.0.0.1:6070\n  weir health --server unix:/run/weir/admin.sock",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if timeout <= 0 {
				return usageError(errors.New("--timeout: must be above 0"))
			}
			path := "/readyz"
			if port.Address != "" {
				if err := port.open(); err != nil {
					return err
				}
			} else {
				if port.TokenFile+port.CAFile+port.CertFile+port.KeyFile != "" {
					return usageError(
						errors.New("--token-file, --ca, --cert and --cert-key are for a server that --server names"))
				}
				c, err := server.Load(cmd.Flags(), env)
				if err == nil {
					path, err = port.openOwn(c)
				}
				if err != nil {
					return usageError(err)
				}
			}
			port.Direct()
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			answer, err := port.health(ctx, path)
			if asJSON {
				h := healthInfo{Server: port.Name(), Healthy: err == nil, Message: strings.TrimSpace(answer)}
				if err != nil {
					h.Message = err.Error()
				}
				return cmp.Or(printJSON(cmd.OutOrStdout(), h), err)
			}
			if err != nil {
				return err
			}
			_, err = io.WriteString(cmd.OutOrStdout(), answer)
			return err
		},
	}
	settings.AddConfigFlag(cmd.Flags())
	port.flags(cmd, "")
	jsonFlag(cmd, &asJSON)
	cmd.Flags().DurationVar(&timeout, "timeout", 3*time.Second, "how long to wait for the answer")
	return cmd
}

// openOwn makes c ask the server that a configuration describes, on this machine, and returns the
// path to ask for.
func (c *adminClient) openOwn(of *server.Config) (path string, err error) {
	o, err := of.OwnPort()
	if err != nil {
		return "", err
	}
	u := url.URL{Scheme: "http", Host: o.Host}
	var own *tls.Config
	if len(o.Certificates) > 0 {
		u.Scheme = "https"
		if own, err = pinned(o.Certificates); err != nil {
			return "", fmt.Errorf("tls.cert: %w", err)
		}
	}
	c.Client = client.At(o.Address, &u, o.Socket, own)
	return o.Path, nil
}

// pinned believes a server that shows the first certificate of one of files, whatever names that is
// for: it is our own.
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
			if len(s.PeerCertificates) == 0 || !slices.ContainsFunc(own,
				func(c []byte) bool { return bytes.Equal(c, s.PeerCertificates[0].Raw) }) {
				return errors.New("the server shows another certificate than the one in tls.cert")
			}
			return nil
		},
	}, nil
}

// health returns the message of a server that wants requests, harmless for a terminal. It fails if
// the server wants none, or that cannot be reached.
func (c *adminClient) health(ctx context.Context, path string) (string, error) {
	answer, body, err := c.Send(ctx, http.MethodGet, path, nil, 4<<10)
	if err != nil {
		return "", fmt.Errorf("not healthy: %w", err)
	}
	if answer.StatusCode != http.StatusOK {
		return "", fmt.Errorf("not healthy: %s: %s", human.Printable(answer.Status),
			human.PrintableLines(string(bytes.TrimSpace(body))))
	}
	return human.PrintableLines(string(body)), nil
}
