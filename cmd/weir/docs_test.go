package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/testproc"
	"github.com/weir-rl/weir/internal/wire/listen/certtest"
	"github.com/weir-rl/weir/rule/file"
)

// block is a fenced block of a Markdown page.
type block struct {
	language string
	text     string
	line     int
	// the comments directly above it: "expect: …", "background: …", "skip: …", "stop"
	directives []string
}

// blocks reads the fenced blocks of a page. A "stop" directive without a block is a block of its
// own.
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

// originalRoot is the folder above with go.mod, found before any test changes the working folder. It is
// empty where a test runs this binary as weir, in a folder of its own.
var originalRoot = func() string {
	root, err := os.Getwd()
	if err != nil {
		panic(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			return root
		}
		above := filepath.Dir(root)
		if above == root {
			return ""
		}
		root = above
	}
}()

// freePort returns a free port that no other test gets until this one has ended, nor one of another
// package, and that the kernel gives to no outgoing connection.
func freePort(t *testing.T) string {
	t.Helper()
	port, held, err := testproc.Reserve(false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { testproc.Release(held) })
	return strconv.Itoa(port)
}

// The rules on every page, and in the folders of the examples, are without an error and a warning,
// as they stand: what is meant to draw a warning says so by a comment of its own. A block of YAML
// is taken for rules if it has a list of limits, or descriptors, at its root; so is a file that a
// block of shell writes.
func TestRulesInDocs(t *testing.T) {
	root := repositoryRoot(t)
	pages := []string{filepath.Join(root, "README.md")}
	for _, pattern := range []string{"docs/*.md", "examples/*.md", "examples/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	// limits: {…} is of the configuration
	isRules := regexp.MustCompile(`(?m)^(limits:[ \t]*([[#].*)?$|descriptors:)`)
	written := regexp.MustCompile(`(?ms)^cat > \S+\.ya?ml <<'EOF'\n(.*?)^EOF$`)
	file := filepath.Join(t.TempDir(), "docs.yaml")
	seen := 0
	for _, page := range pages {
		for _, b := range blocks(t, page) {
			texts := []string{b.text}
			if b.language == "sh" {
				texts = nil
				for _, found := range written.FindAllStringSubmatch(b.text, -1) {
					texts = append(texts, found[1])
				}
			} else if b.language != "yaml" {
				continue
			}
			for _, text := range texts {
				if !isRules.MatchString(text) {
					continue
				}
				seen++
				writeRules(t, file, text)
				if status, out := weirOutput(t, "lint", "--strict", file); status != 0 {
					t.Errorf("%s:%d: %s", filepath.Base(page), b.line, out)
				}
			}
		}
	}
	if seen < 20 {
		t.Fatalf("only %d blocks of rules found: does the search still fit the docs?", seen)
	}
	folders, err := filepath.Glob(filepath.Join(root, "examples", "*", "rules"))
	if err != nil || len(folders) < 5 {
		t.Fatalf("folders of rules: %v, %v", folders, err)
	}
	golden, _ := filepath.Glob(filepath.Join(root, "examples", "golden", "*"))
	for _, folder := range append(folders, golden...) {
		if status, out := weirOutput(t, "lint", "--strict", folder); status != 0 {
			t.Errorf("%s: %s", folder, out)
		}
	}
}

// The docs name each warning of lint.
func TestWarningsInDocs(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(repositoryRoot(t), "docs", "rules.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range file.Warnings() {
		if !strings.Contains(string(data), "| `"+w.Name+"` | "+w.About+" |") {
			t.Errorf("docs/rules.md lacks the warning %s, or says something else of it", w.Name)
		}
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
	ca := certtest.New(t, "ca")
	cert, key := ca.Issue("weir", 0, "localhost")
	certtest.Write(t, []string{"cert.pem", "key.pem", "ca.pem"}, cert, key, ca.PEM)
	seen := 0
	docs := filepath.Join(repositoryRoot(t), "docs")
	for _, b := range slices.Concat(blocks(t, filepath.Join(docs, "interfaces.md")), blocks(t, filepath.Join(docs, "security.md")), blocks(t, filepath.Join(docs, "haproxy.md"))) {
		if b.language != "yaml" {
			continue
		}
		seen++
		if err := os.WriteFile("weir.yaml", []byte(b.text), 0o600); err != nil {
			t.Fatal(err)
		}
		var out, errs bytes.Buffer
		if code := Run(t.Context(), []string{"serve", "--check"}, nil, strings.NewReader(""), &out, &errs); code != 0 {
			t.Errorf("line %d: exit status %d\n%s%s%s", b.line, code, b.text, out.String(), errs.String())
		}
	}
	if seen == 0 {
		t.Fatal("no configuration found in docs/interfaces.md")
	}
}

// The commands of the README do what it says, pasted one after the other into one folder. Ports are
// replaced by free ones.
func TestReadmeRuns(t *testing.T) {
	t.Parallel()
	p := newPage(t, t.TempDir(), "8080", "8081", "6070", "8000", "3000", "6390", "6380", "8082", "8083", "8084")
	p.env = append(p.env,
		// redis-server ends if the locale of this machine is one that it does not find
		"LC_ALL=C",
		"WEIR_STORE_DEADLINE=30s", // a slow machine is not to be taken for a Redis that is away
		"WEIR_LISTEN_HTTP="+p.address("8080"), "WEIR_LISTEN_GRPC="+p.address("8081"),
		"WEIR_LISTEN_ADMIN="+p.address("6070"), "WEIR_LISTEN_RESP="+p.address("6380"))
	p.ready = map[string]string{
		"http":     "http://127.0.0.1:8080/healthcheck",
		"upstream": "http://127.0.0.1:3000/",
		"proxy":    "http://127.0.0.1:8000/ready",
		"redis":    "tcp://127.0.0.1:6390",
		"second":   "http://127.0.0.1:8082/healthcheck",
	}
	p.more = map[string][]string{"proxy": {"WEIR_LISTEN_PROXY=" + p.address("8000"), "WEIR_LISTEN_HTTP=off", "WEIR_LISTEN_GRPC=off", "WEIR_LISTEN_RESP=off"}}
	if ran := p.run(t, filepath.Join(repositoryRoot(t), "README.md")); ran < 8 && !p.lacks {
		t.Fatalf("only %d blocks ran: does the search still fit the README?", ran)
	}
}

// The commands of docs/insight.md do what it says, from beginning to end.
func TestInsightPageRuns(t *testing.T) {
	t.Parallel()
	p := newPage(t, t.TempDir(), "8080", "6070")
	p.env = append(p.env, "WEIR_LISTEN_HTTP="+p.address("8080"), "WEIR_LISTEN_ADMIN="+p.address("6070"), "WEIR_LISTEN_GRPC=off", "WEIR_LISTEN_RESP=off")
	p.ready = map[string]string{"http": "http://127.0.0.1:8080/healthcheck"}
	if ran := p.run(t, filepath.Join(repositoryRoot(t), "docs", "insight.md")); ran < 7 && !p.lacks {
		t.Fatalf("only %d blocks ran: does the search still fit the page?", ran)
	}
}

// starved is why a test is skipped whose preview found no processor idle for a minute.
const starved = "busy: other processes left nothing of the processor to a preview for a minute"

// skipIfStarved skips a test whose preview found no processor idle for a minute.
func skipIfStarved(t *testing.T, output string) {
	t.Helper()
	if strings.Contains(output, "it only gets what nothing else wants of the processor") {
		t.Skip(starved)
	}
}

// docsPage is a folder in which the commands of a page are run, with free ports in place of those
// that it names.
type docsPage struct {
	dir   string
	env   []string
	ports *strings.Replacer
	// what to wait for after a command in the background, by the name that the page gives it
	ready map[string]string
	more  map[string][]string // environment of such a command
	lacks bool                // what some blocks need is not installed, so that they did not run

	ctx     context.Context
	running []background
}

// background is a command that runs beside the others.
type background struct {
	cmd   *exec.Cmd
	ended chan struct{}
}

// newPage makes one whose commands find the built program as weir.
func newPage(t *testing.T, dir string, ports ...string) *docsPage {
	t.Helper()
	needs(t, "bash")
	program := builtProgram(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience.Left(t))
	t.Cleanup(cancel)
	replace := []string{"go run ./cmd/weir", "weir"}
	for _, port := range ports {
		free := freePort(t)
		for _, before := range []string{"127.0.0.1:", "http.server ", "--port ", "-p "} {
			replace = append(replace, before+port, before+free)
		}
	}
	p := &docsPage{dir: dir, ctx: ctx, ports: strings.NewReplacer(replace...), env: append(plainEnvironment(), "PATH="+filepath.Dir(program)+":"+os.Getenv("PATH"))}
	t.Cleanup(func() { p.stop(t) })
	return p
}

// address is the address of a port of the page.
func (p *docsPage) address(port string) string { return p.ports.Replace("127.0.0.1:" + port) }

func (p *docsPage) stop(t *testing.T) {
	for _, b := range p.running {
		if err := terminateGroup(b.cmd); err != nil {
			t.Error(err)
		}
		<-b.ended
	}
	p.running = nil
}

func (p *docsPage) command(text string, more ...string) *exec.Cmd {
	cmd := exec.CommandContext(p.ctx, "bash", "-c", "set -e\n"+p.ports.Replace(text))
	cmd.Dir, cmd.Env = p.dir, append(p.env, more...)
	ownGroup(cmd)
	return cmd
}

// packageOf has the tools that pages and tests need beside the program, and their Debian packages.
var packageOf = map[string]string{"bash": "bash", "caddy": "caddy", "curl": "curl", "haproxy": "haproxy", "nginx": "nginx-light", "python3": "python3", "redis-cli": "redis-tools", "redis-server": "redis-server"}

// needs skips a test where a tool is not installed.
func needs(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("%s is not installed; on Debian: apt-get install %s", name, cmp.Or(packageOf[name], packageOfUpstream[name]))
		}
	}
}

// without returns why a block cannot run here, and what it lacks for that; "" if it can.
func (b block) without() (what, why string) {
	for _, tool := range strings.Fields(b.text) {
		if packageOf[tool] == "" {
			continue
		}
		if _, err := exec.LookPath(tool); err != nil {
			return tool, tool + " is not installed; on Debian: apt-get install " + packageOf[tool]
		}
	}
	if strings.Contains(b.text, "go run github.com/") && !effort.All() {
		return "go run", "long: it compiles another program; scripts/test --all runs it, and so does WEIR_TEST=all go test"
	}
	return "", ""
}

// run runs the blocks of shell commands of a page, and returns how many there were. It leaves out
// those that need what is not installed, and says so.
func (p *docsPage) run(t *testing.T, path string) (ran int) {
	t.Helper()
	name := filepath.Base(path)
	alone := false // something that was to run in the background does not
	for _, b := range blocks(t, path) {
		if b.directive("stop") != nil {
			p.stop(t)
			alone = false
			continue
		}
		if b.language != "sh" || b.directive("skip") != nil {
			continue
		}
		if what, why := b.without(); why != "" || alone {
			p.lacks, alone = true, alone || b.directive("background") != nil
			if why != "" {
				t.Run("without "+what, func(t *testing.T) { t.Skipf("%s:%d does not run: %s", name, b.line, why) })
			}
			continue
		}
		ran++
		if what := b.directive("background"); what != nil {
			cmd := p.command(b.text, p.more[what[0]]...)
			var output bytes.Buffer
			cmd.Stdout, cmd.Stderr = &output, &output
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{})
			ctx, cancel := context.WithCancel(p.ctx)
			go func() {
				_ = cmd.Wait() // the error comes from the signal
				cancel()
				close(ended)
			}()
			ready := what[0]
			if url, ok := p.ready[ready]; ok {
				ready = url
			}
			if !answers(ctx, p.ports.Replace(ready)) {
				<-ended
				if first := strings.Fields(b.text)[0]; packageOf[first] != "" {
					p.lacks, alone = true, true
					t.Run("without "+first, func(t *testing.T) { t.Skipf("%s:%d: this %s does not start: %s", name, b.line, first, &output) })
					continue
				}
				t.Fatalf("%s:%d: nobody answers at %s\n%s", name, b.line, ready, &output)
			}
			p.running = append(p.running, background{cmd, ended})
			continue
		}
		out, err := p.command(b.text).CombinedOutput()
		skipIfStarved(t, string(out))
		if err != nil {
			t.Fatalf("%s:%d: %v\n%s%s", name, b.line, err, b.text, out)
		}
		squeezed := strings.Join(strings.Fields(string(out)), " ")
		for _, want := range b.directive("expect") {
			if !strings.Contains(squeezed, p.ports.Replace(want)) {
				t.Errorf("%s:%d: no %q in\n%s", name, b.line, want, out)
			}
		}
	}
	return ran
}

// The examples that need no more than the program are complete folders, and their pages do what
// they say.
func TestExamplesRun(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"http", "proxy", "resp"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), name)
			p := newPage(t, dir, "8080", "8081", "6070", "8000", "3000", "6380")
			if err := os.CopyFS(dir, os.DirFS(filepath.Join(repositoryRoot(t), "examples", name))); err != nil {
				t.Fatal(err)
			}
			if err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
				if err != nil || d.IsDir() {
					return err
				}
				data, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				return os.WriteFile(path, []byte(p.ports.Replace(string(data))), 0o600)
			}); err != nil {
				t.Fatal(err)
			}
			if ran := p.run(t, filepath.Join(repositoryRoot(t), "examples", name, "README.md")); ran < 3 && !p.lacks {
				t.Fatalf("only %d blocks ran", ran)
			}
		})
	}
}

// answers asks url until somebody answers, whatever the answer, or ctx ends; with tcp:// until
// somebody takes a connection.
func answers(ctx context.Context, url string) bool {
	for {
		if address, ok := strings.CutPrefix(url, "tcp://"); ok {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
			if err == nil {
				conn.Close()
				return true
			}
		} else if req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil); err != nil {
			return false
		} else if resp, err := http.DefaultClient.Do(req); err == nil {
			resp.Body.Close()
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// The Go program of the README compiles against this module.
func TestReadmeProgramCompiles(t *testing.T) {
	t.Parallel()
	root := repositoryRoot(t)
	for _, b := range blocks(t, filepath.Join(root, "README.md")) {
		if b.language != "go" {
			continue
		}
		// The program is compiled as a part of the module without standing in its tree, where
		// tests that walk it at this moment would meet it.
		dir := t.TempDir()
		program, overlay := filepath.Join(dir, "main.go"), filepath.Join(dir, "overlay.json")
		if err := os.WriteFile(program, []byte(b.text), 0o644); err != nil {
			t.Fatal(err)
		}
		replace, err := json.Marshal(map[string]map[string]string{
			"Replace": {filepath.Join(root, "cmd", "readme", "main.go"): program},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(overlay, replace, 0o644); err != nil {
			t.Fatal(err)
		}
		// A quick run compiles it, and does not link it.
		build := exec.Command("go", "list", "-export", "-buildvcs=false", "-overlay", overlay, "./cmd/readme")
		if effort.All() {
			build = exec.Command("go", "build", "-o", filepath.Join(dir, "readme"), "-overlay", overlay, "./cmd/readme")
		}
		build.Dir = root
		if out, err := build.CombinedOutput(); err != nil {
			t.Errorf("README.md:%d: %v\n%s", b.line, err, out)
		}
		return
	}
	t.Fatal("the README has no Go program")
}
