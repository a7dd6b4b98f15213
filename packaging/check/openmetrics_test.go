package check

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
)

// TestOpenMetrics: Prometheus' parser reads what a running server answers where OpenMetrics is
// asked for, and finds the exemplars of refusals.
func TestOpenMetrics(t *testing.T) {
	dir := t.TempDir()
	program, err := buildWeir()
	if err != nil {
		t.Fatal(err)
	}
	rules := filepath.Join(dir, "rules.yaml")
	if err := os.WriteFile(rules, []byte("domain: shop\nlimits:\n  - { name: login, per: [ip], allow: [2/min, 5/hour], algorithm: sliding_log, ban: { after: 20, within: 1m, for: 1h } }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	server := exec.Command(program, "serve", "--rules", rules, "--listen-http=127.0.0.1:0",
		"--listen-admin=127.0.0.1:0", "--listen-grpc=", "--listen-resp=")
	server.Dir, server.Env = dir, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir}
	stderr, err := server.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
	addr, opened := map[string]string{}, regexp.MustCompile(`msg="door open" door=(\w+) addr=(\S+)`)
	lines := bufio.NewScanner(stderr)
	for len(addr) < 2 && lines.Scan() {
		if m := opened.FindStringSubmatch(lines.Text()); m != nil {
			addr[m[1]] = m[2]
		}
	}
	go func() { _, _ = io.Copy(io.Discard, stderr) }()
	get := func(url, accept string) (*http.Response, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept", accept)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer, string(body)
	}
	decision := ""
	for range 3 {
		answer, body := get("http://"+addr["http"]+"/api/v1/limit?ip=192.0.2.1", "application/json")
		if answer.StatusCode == http.StatusTooManyRequests {
			decision = regexp.MustCompile(`"decision":"(\w+)"`).FindStringSubmatch(body)[1]
		}
	}
	if decision == "" {
		t.Fatal("nothing was refused")
	}
	// What Prometheus itself sends.
	answer, body := get("http://"+addr["admin"]+"/metrics",
		"application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4,*/*;q=0.1")
	kind := answer.Header.Get("Content-Type")
	if !strings.HasPrefix(kind, "application/openmetrics-text; version=1.0.0") {
		t.Fatalf("%s %s", answer.Status, kind)
	}
	parser, err := textparse.New([]byte(body), kind, labels.NewSymbolTable(), textparse.ParserOptions{})
	if err != nil {
		t.Fatal(err)
	}
	series, named := 0, map[string]string{}
	for {
		entry, err := parser.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, body)
		}
		if entry != textparse.EntrySeries {
			continue
		}
		series++
		var l labels.Labels
		parser.Labels(&l)
		var e exemplar.Exemplar
		for parser.Exemplar(&e) {
			named[fmt.Sprint(l.Get("__name__"), " ", l.Get("rule"), " ", l.Get("limit"), " ", l.Get("outcome"))] = e.Labels.Get("decision")
		}
	}
	if series < 100 {
		t.Errorf("only %d series", series)
	}
	for _, want := range []string{"weir_requests_total   denied", "weir_decisions_total login login:60s denied"} {
		if named[want] != decision {
			t.Errorf("%s: exemplar %q, want %q of %q", want, named[want], decision, named)
		}
	}
}
