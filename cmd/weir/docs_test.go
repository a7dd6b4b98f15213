package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-rl/weir/rule"
)

// block is a fenced block of a Markdown page.
type block struct {
	language   string
	text       string
	line       int
	directives []string // the comments directly above it: "expect: …", "background: …", "skip: …", "stop"
}

// blocks reads the fenced blocks of a page. A "stop" directive without a block is a block of its own.
func blocks(t *testing.T, path string) []block {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []block
	var current *block
	var directives []string
	for i, line := range strings.Split(string(data), "\n") {
		switch {
		case current != nil && strings.TrimSpace(line) == "```":
			out = append(out, *current)
			current = nil
		case current != nil:
			current.text += line + "\n"
		case strings.HasPrefix(line, "```"):
			current = &block{language: strings.TrimPrefix(line, "```"), line: i + 1, directives: directives}
			directives = nil
		case line == "<!-- stop -->":
			out = append(out, block{directives: []string{"stop"}, line: i + 1})
		case strings.HasPrefix(line, "<!-- ") && strings.HasSuffix(line, " -->"):
			directives = append(directives, strings.TrimSuffix(strings.TrimPrefix(line, "<!-- "), " -->"))
		}
	}
	if current != nil {
		t.Fatalf("%s:%d: block without an end", path, current.line)
	}
	return out
}

func (b block) directive(name string) (values []string) {
	for _, d := range b.directives {
		if v, ok := strings.CutPrefix(d, name+": "); ok {
			values = append(values, v)
		} else if d == name {
			values = append(values, "")
		}
	}
	return values
}

func repositoryRoot(t *testing.T) string {
	t.Helper()
	return originalRoot
}

// originalRoot is found before any test changes the working folder.
var originalRoot = func() string {
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		panic(err)
	}
	return root
}()

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// The rules in the docs load, as they stand. A block of YAML is taken for rules if it has limits or descriptors at its root.
func TestRulesInDocsLoad(t *testing.T) {
	root := repositoryRoot(t)
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	isRules := regexp.MustCompile(`(?m)^(limits|descriptors):`)
	seen := 0
	for _, page := range append(pages, filepath.Join(root, "README.md")) {
		for _, b := range blocks(t, page) {
			if b.language != "yaml" || !isRules.MatchString(b.text) {
				continue
			}
			seen++
			if _, _, err := rule.Load([]rule.Source{{Name: "docs.yaml", Data: []byte(b.text)}}, rule.Options{}); err != nil {
				t.Errorf("%s:%d: %v", filepath.Base(page), b.line, err)
			}
		}
	}
	if seen < 5 {
		t.Fatalf("only %d blocks of rules found: does the search still fit the docs?", seen)
	}
}

// The configuration in the docs is one that serve takes.
func TestConfigurationInDocsLoads(t *testing.T) {
	dir := t.TempDir()
	for name, data := range map[string]string{
		"rules/shop.yaml": "domain: shop\nlimits: [{name: a, allow: 1/s}]\n",
		"tokens":          "0123456789abcdef0123456789abcdef\n",
		// The public key of RFC 7517, appendix A.1.
		"jwks.json": `{"keys": [{"kty": "EC", "crv": "P-256", "alg": "ES256", "kid": "1",
			"x": "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4", "y": "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"}]}`,
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	seen := 0
	for _, b := range blocks(t, filepath.Join(repositoryRoot(t), "docs", "interfaces.md")) {
		if b.language != "yaml" {
			continue
		}
		seen++
		if err := os.WriteFile("weir.yaml", []byte(b.text), 0o600); err != nil {
			t.Fatal(err)
		}
		var out, errs bytes.Buffer
		if code := Run(t.Context(), []string{"serve", "--check"}, nil, strings.NewReader(""), &out, &errs); code != 0 {
			t.Errorf("interfaces.md:%d: exit status %d\n%s%s", b.line, code, out.String(), errs.String())
		}
	}
	if seen == 0 {
		t.Fatal("no configuration found in docs/interfaces.md")
	}
}

// The commands of the README do what it says, pasted one after the other into one folder. Ports are replaced by free ones.
func TestReadmeRuns(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program")
	}
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("redis-server is not installed; on Debian: apt-get install redis-server")
	}
	root := repositoryRoot(t)
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	if out, err := exec.Command("go", "build", "-o", filepath.Join(bin, "weir"), root+"/cmd/weir").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	work := filepath.Join(dir, "work")
	if err := os.Mkdir(work, 0o755); err != nil {
		t.Fatal(err)
	}
	ports := map[string]string{}
	replace := []string{"go run ./cmd/weir", "weir"}
	for _, port := range []string{"8080", "8081", "9090", "8000", "3000", "6379", "8082", "8083", "9092"} {
		ports[port] = freePort(t)
		replace = append(replace, "127.0.0.1:"+port, "127.0.0.1:"+ports[port], "http.server "+port, "http.server "+ports[port], "--port "+port, "--port "+ports[port])
	}
	replacer := strings.NewReplacer(replace...)
	env := append(os.Environ(),
		"PATH="+bin+":"+os.Getenv("PATH"),
		"LC_ALL=C",                // redis-server ends if the locale of this machine is one that it does not find
		"WEIR_REDIS_DEADLINE=30s", // a slow machine is not to be taken for a Redis that is away
		"WEIR_LISTEN_HTTP=127.0.0.1:"+ports["8080"], "WEIR_LISTEN_GRPC=127.0.0.1:"+ports["8081"],
		"WEIR_LISTEN_ADMIN=127.0.0.1:"+ports["9090"])
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	command := func(text string, more ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, "bash", "-c", "set -e\n"+replacer.Replace(text))
		cmd.Dir, cmd.Env = work, append(env, more...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		return cmd
	}
	var running []*exec.Cmd
	stop := func() {
		for _, cmd := range running {
			if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM); err != nil {
				t.Error(err)
			}
			cmd.Wait() // the error is that of the signal
		}
		running = nil
	}
	defer stop()
	ready := map[string]string{
		"http":     "http://127.0.0.1:" + ports["8080"] + "/healthcheck",
		"upstream": "http://127.0.0.1:" + ports["3000"] + "/",
		"proxy":    "http://127.0.0.1:" + ports["8000"] + "/ready",
		"redis":    "tcp://127.0.0.1:" + ports["6379"],
		"second":   "http://127.0.0.1:" + ports["8082"] + "/healthcheck",
	}
	ran := 0
	for _, b := range blocks(t, filepath.Join(root, "README.md")) {
		if b.directive("stop") != nil {
			stop()
			continue
		}
		if b.language != "sh" || b.directive("skip") != nil {
			continue
		}
		ran++
		if what := b.directive("background"); what != nil {
			var more []string
			if what[0] == "proxy" {
				more = []string{"WEIR_LISTEN_PROXY=127.0.0.1:" + ports["8000"], "WEIR_LISTEN_HTTP=off", "WEIR_LISTEN_GRPC=off"}
			}
			cmd := command(b.text, more...)
			var output bytes.Buffer
			cmd.Stdout, cmd.Stderr = &output, &output
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			running = append(running, cmd)
			waitFor(t, ctx, ready[what[0]])
			continue
		}
		out, err := command(b.text).CombinedOutput()
		if err != nil {
			t.Fatalf("README.md:%d: %v\n%s%s", b.line, err, b.text, out)
		}
		squeezed := strings.Join(strings.Fields(string(out)), " ")
		for _, want := range b.directive("expect") {
			if !strings.Contains(squeezed, want) {
				t.Errorf("README.md:%d: no %q in\n%s", b.line, want, out)
			}
		}
	}
	if ran < 8 {
		t.Fatalf("only %d blocks ran: does the search still fit the README?", ran)
	}
}

// waitFor asks url until somebody answers, whatever the answer; with tcp:// until somebody takes a connection.
func waitFor(t *testing.T, ctx context.Context, url string) {
	t.Helper()
	for {
		if address, ok := strings.CutPrefix(url, "tcp://"); ok {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
			if err == nil {
				conn.Close()
				return
			}
		} else {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := http.DefaultClient.Do(req)
			if err == nil {
				resp.Body.Close()
				return
			}
		}
		select {
		case <-ctx.Done():
			t.Fatal(fmt.Errorf("nobody answers at %s: %w", url, ctx.Err()))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// The Go program of the README compiles against this module.
func TestReadmeProgramCompiles(t *testing.T) {
	root := repositoryRoot(t)
	for _, b := range blocks(t, filepath.Join(root, "README.md")) {
		if b.language != "go" {
			continue
		}
		dir, err := os.MkdirTemp(filepath.Join(root, "cmd"), "readme")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(b.text), 0o644); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("go", "vet", dir).CombinedOutput(); err != nil {
			t.Errorf("README.md:%d: %v\n%s", b.line, err, out)
		}
		return
	}
	t.Fatal("the README has no Go program")
}
