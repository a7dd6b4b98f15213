package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-rl/weir/internal/server"
)

// adminClient asks the admin port of a running server.
type adminClient struct {
	address, tokenFile string // as given
	base               *url.URL
	token              string
	client             http.Client
}

// defaultAdmin is where a server's admin port is if nobody says otherwise.
const defaultAdmin = "http://127.0.0.1:9090"

// flags adds --server and --token-file.
func (c *adminClient) flags(cmd *cobra.Command, address string) {
	cmd.PersistentFlags().StringVar(&c.address, "server", address, "URL of the admin port of a running server, such as "+defaultAdmin)
	cmd.PersistentFlags().StringVar(&c.tokenFile, "token-file", "", "file whose first line is the bearer token for --server, such as that of auth.tokens_file")
}

// open checks the flags. It must come before do.
func (c *adminClient) open() error {
	u, err := url.Parse(c.address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return usageError(fmt.Errorf("--server %q: expected the URL of an admin port, such as %s", c.address, defaultAdmin))
	}
	c.base = u
	c.client.Timeout = 10 * time.Second
	if c.tokenFile != "" {
		tokens, err := server.ReadTokens(c.tokenFile)
		if err != nil {
			return usageError(fmt.Errorf("--token-file: %w", err))
		}
		c.token = tokens[0]
	}
	return nil
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

// do asks, and decodes the answer into out unless that is nil. A refusal is an error in the server's own words.
func (c *adminClient) do(ctx context.Context, method, path string, in, out any) error {
	answer, raw, err := c.send(ctx, method, path, in, 64<<20)
	switch {
	case answer == nil && err != nil:
		return fmt.Errorf("%s cannot be reached: %w", c.base.Redacted(), err)
	case err != nil:
		return fmt.Errorf("%s: %w", c.base.Redacted(), err)
	}
	if answer.StatusCode >= 300 {
		var problem struct{ Title, Detail string }
		if json.Unmarshal(raw, &problem) == nil && problem.Detail != "" {
			return errors.New(problem.Detail)
		}
		return fmt.Errorf("%s answered %s: is it the admin port of a weir server?", c.base.Redacted(), answer.Status)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("%s answered with something else than JSON: is it the admin port of a weir server?", c.base.Redacted())
	}
	return nil
}
