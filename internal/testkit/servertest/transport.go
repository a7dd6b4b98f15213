package servertest

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/testproc"
)

const Hourly = "domain: shop\nlimits: [{ name: api, per: [user|ip|key], allow: 2/hour, algorithm: sliding_log }]\n"

// RulesFile writes rules to a file of their own.
func RulesFile(t *testing.T, rules string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "rules.yaml")
	WriteRules(t, path, rules)
	return path
}

// InFolder changes to a folder of its own that holds rules.
func InFolder(t *testing.T, rules string) string {
	t.Helper()
	dir := testproc.SocketDir(t)
	t.Chdir(dir)
	WriteRules(t, "rules.yaml", rules)
	return dir
}

// ClientOf speaks HTTP/1.1, or HTTP/2, over connections of its own.
func ClientOf(t *testing.T, h2 bool, config *tls.Config, dial func() (net.Conn, error)) *http.Client {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!h2)
	protocols.SetHTTP2(h2)
	tr := &http.Transport{TLSClientConfig: config, Protocols: protocols}
	if dial != nil {
		tr.DialContext = func(context.Context, string, string) (net.Conn, error) { return dial() }
	}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: patience.Left(t)}
}

// Ask returns status and body; 0 and the error's text if there is no answer.
func Ask(t *testing.T, client *http.Client, method, url, body string, headers ...string) (int, string) {
	t.Helper()
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		}
		r.Header.Set(headers[i], headers[i+1])
	}
	answer, err := client.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(b)
}
